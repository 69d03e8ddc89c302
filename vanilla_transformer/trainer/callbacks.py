"""Callbacks of a run: early stopping, a time limit, stopping on a signal, a look at the warm-up."""

from collections.abc import Callable
from typing import Any

from transformers import EarlyStoppingCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from vanilla_transformer.trainer.schedules import DECAY, LONGEST_WARMUP, expected_updates, warmup_in_run
from vanilla_transformer.trainer.trainer import TokenTrainer


class EarlyStop(EarlyStoppingCallback):
    """transformers' early stopping, whose count continues in a run that is resumed, and which ends with a checkpoint.

    `restore_callback_states_from_checkpoint` of transformers 5.24 would bring back the patience that the run had before, too.
    """

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.early_stopping_patience_counter = self.evaluations_without_improvement(state)
        control.should_training_stop |= self.early_stopping_patience_counter >= self.early_stopping_patience
        state.stateful_callbacks[type(self).__name__] = self.state()  # where a checkpoint is saved it has to be there

    @classmethod
    def evaluations_without_improvement(cls, state: TrainerState) -> int:
        """Return the number of the last evaluations without improvement, by the state of a checkpoint."""
        stored = state.stateful_callbacks.get(cls.__name__, {})
        return stored.get("attributes", {}).get("early_stopping_patience_counter", 0)

    def on_evaluate(
        self, args: Any, state: TrainerState, control: TrainerControl, metrics: Any, **kwargs: Any
    ) -> None:
        super().on_evaluate(args, state, control, metrics, **kwargs)
        state.stateful_callbacks[type(self).__name__] = self.state()
        if self.early_stopping_patience_counter >= self.early_stopping_patience:
            control.should_save |= args.save_strategy == "steps"


class TimeLimit(TrainerCallback):
    """End training after so many minutes, with an evaluation and a checkpoint.

    Args:
        trainer: with `max_minutes`, those before it was resumed included.
    """

    def __init__(self, trainer: TokenTrainer):
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        # logged minutes are rounded to thousandths
        if state.global_step and self.trainer.minutes >= (self.trainer.max_minutes or 0) - 0.001:
            control.should_training_stop = True

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> TrainerControl:
        if self.trainer.time_share >= 1:
            # where these come once an epoch, they come when it ends here
            control.should_evaluate |= args.eval_strategy == "steps"
            control.should_save |= args.save_strategy == "steps"
            control.should_training_stop = True
        return control


class StopOnSignal(TrainerCallback):
    """End training with a checkpoint where a signal has asked for it, and make up for what was due then.

    The evaluation that would come first may take longer than a machine still has, so it is left to the run that resumes.
    To be the last of the callbacks: it changes what the others have decided.

    Args:
        trainer: which saves the checkpoint and then raises `Terminated`.
    """

    def __init__(self, trainer: TokenTrainer):
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.trainer.make_up_for_interruption()

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        # what is due at the end of an epoch is known a moment later
        if not float(state.epoch or 0).is_integer():
            self.trainer.stop_if_interrupted()

    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.trainer.stop_if_interrupted()


class WarmupCheck(TrainerCallback):
    """Warn once of a warm-up for which the run has too few updates: at its start, or when the first updates were timed.

    Args:
        trainer: of the run.
        warn: receives the sentence.
    """

    def __init__(self, trainer: TokenTrainer, warn: Callable[[str], None]):
        self.trainer, self.warn = trainer, warn
        self._timed = False

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._check(args, state.max_steps, state.max_steps)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        share = self.trainer.time_share
        if self._timed or share < 0.01 or (state.global_step < 10 and share < 0.1):
            return
        self._timed = True
        updates = expected_updates(state.max_steps, state.global_step, share)
        if updates < state.max_steps:
            self._check(args, updates, state.max_steps)

    def _check(self, args: TrainingArguments, updates: float, max_steps: int) -> None:
        if warning := describe_warmup(args, updates, max_steps):
            self._timed = True
            self.warn(warning)


def describe_warmup(args: TrainingArguments, updates: float, max_steps: int) -> str | None:
    """Return a sentence about a warm-up that is too long for a run of so many updates; None where it is not.

    Args:
        args: of the run.
        updates: that the run makes or is expected to make.
        max_steps: after which it ends where its time does not end it before.
    """
    warmup = args.get_warmup_steps(max_steps)
    few = f"the {'about ' if updates != max_steps else ''}{round(updates):,} updates"
    why = f"{few} that fit into max_minutes" if updates < max_steps else few
    decays = args.lr_scheduler_type == "inverse_sqrt" and args.lr_scheduler_kwargs
    if decays and warmup > LONGEST_WARMUP * updates:
        shorter = round(warmup_in_run(warmup, updates))
        return f"the warm-up of {warmup:,} updates is shortened to about {shorter:,}, {LONGEST_WARMUP:.0%} of {why}."
    if not decays and args.lr_scheduler_type != "constant" and warmup > updates / 2:
        return (
            f"the warm-up of {warmup:,} updates takes {'most' if warmup < updates else 'all'} of {why}, too long to learn "
            f"much; set training.warmup_steps to {max(round(updates / 10), 1):,} or less, or training.lr_scheduler_type to "
            f"{DECAY}, which shortens it."
        )
    return None
