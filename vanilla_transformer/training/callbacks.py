"""Callbacks of a run: early stopping, a time limit, stopping on a signal, the progress bar."""

import sys
from collections.abc import Iterable
from typing import Any

from transformers import EarlyStoppingCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ProgressCallback

from vanilla_transformer.training.trainer import TokenTrainer

__all__ = ["EarlyStop", "StopOnSignal", "TimeLimit", "TokenProgress"]


class EarlyStop(EarlyStoppingCallback):
    """transformers' early stopping, whose count goes on in a run that is resumed, and which ends with a checkpoint.

    `restore_callback_states_from_checkpoint` of transformers 5.24 would bring back the patience that the run had before, too.
    """

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.early_stopping_patience_counter = self.evaluations_without_improvement(state)
        control.should_training_stop |= self.early_stopping_patience_counter >= self.early_stopping_patience
        state.stateful_callbacks[type(self).__name__] = self.state()  # where a checkpoint is saved it has to be there

    @classmethod
    def evaluations_without_improvement(cls, state: TrainerState) -> int:
        """The last ones before a checkpoint, by its state."""
        stored = state.stateful_callbacks.get(cls.__name__, {})
        return stored.get("attributes", {}).get("early_stopping_patience_counter", 0)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float],
        **kwargs: Any,
    ) -> None:
        super().on_evaluate(args, state, control, metrics, **kwargs)
        state.stateful_callbacks[type(self).__name__] = self.state()
        if self.early_stopping_patience_counter >= self.early_stopping_patience:
            control.should_save |= args.save_strategy == "steps"


class TimeLimit(TrainerCallback):
    """Ends training after so many minutes, with an evaluation and a checkpoint.

    Args:
        trainer: with `max_minutes`, those before it was resumed included.
    """

    def __init__(self, trainer: TokenTrainer):
        self.trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # logged minutes are rounded to thousandths
        if state.global_step and self.trainer.minutes >= (self.trainer.max_minutes or 0) - 0.001:
            control.should_training_stop = True

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        if self.trainer.time_share >= 1:
            # where these come once an epoch, they come when it ends here
            control.should_evaluate |= args.eval_strategy == "steps"
            control.should_save |= args.save_strategy == "steps"
            control.should_training_stop = True
        return control


class StopOnSignal(TrainerCallback):
    """Ends training with a checkpoint where a signal has asked for it, and makes up for what was due then.

    The evaluation that would come first may take longer than a machine still has, so it is left to the run that resumes.
    To be the last of the callbacks: it changes what the others have decided.

    Args:
        trainer: which saves the checkpoint and then raises `Terminated`.
    """

    def __init__(self, trainer: TokenTrainer):
        self.trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.trainer.make_up_for_interruption()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # what is due at the end of an epoch is known a moment later
        if not float(state.epoch or 0).is_integer():
            self.trainer.stop_if_interrupted()

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.trainer.stop_if_interrupted()


class TokenProgress(ProgressCallback):
    """transformers' progress bar with loss and tokens per second behind it, and one line for each evaluation.

    Args:
        scores: that the line shows, where the evaluation has them.
    """

    def __init__(self, scores: Iterable[str] = ()):
        super().__init__()
        self.scores = list(scores)

    def close(self) -> None:
        """End the line of a bar that was interrupted."""
        if self.training_bar is not None:
            self.training_bar.close()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if not state.is_world_process_zero or self.training_bar is None or not logs:
            return
        if "loss" in logs:
            shown = {
                "loss": f"{float(logs['loss']):.3f}",
                "lr": f"{float(logs['learning_rate']):.1e}",
                "tok/s": f"{logs.get('tokens_per_second', 0):,}",
            }
            self.training_bar.set_postfix(shown)
        elif "eval_loss" in logs:
            names = [name for name in ("eval_loss", *(f"eval_{name}" for name in self.scores)) if name in logs]
            values = "  ".join(f"{name.removeprefix('eval_')} {logs[name]:.4g}" for name in names)
            self.training_bar.write(
                f"step {state.global_step:>6}  epoch {state.epoch:>5.1f}  {logs.get('minutes', 0):>5.1f} min  {values}",
                file=sys.stderr,
            )
