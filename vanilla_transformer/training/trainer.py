"""transformers' `Trainer` and `Seq2SeqTrainer` with batches by token budget, the paper's schedule and the speed of training in its logs."""

import contextlib
import copy
import inspect
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list, gather_object
from huggingface_hub import CommitInfo
from safetensors.torch import load_file, save_file
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import (
    EarlyStoppingCallback,
    PreTrainedTokenizerBase,
    Seq2SeqTrainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import ProgressCallback

from vanilla_transformer.data.streaming import TokenBudgetStream
from vanilla_transformer.generation.translate import TARGET_TOKENIZER
from vanilla_transformer.hub import push_folder
from vanilla_transformer.training import DivergedError
from vanilla_transformer.training.averaging import find_checkpoints, protected
from vanilla_transformer.training.divergence import ROWS, DivergenceRule, NumberedCollator, NumberedRows, Update
from vanilla_transformer.training.moving_average import MovingAverage
from vanilla_transformer.training.saving import PARTIAL, delete_old_checkpoints, errors_of_writing, move_whole
from vanilla_transformer.training.schedules import inverse_sqrt_schedule
from vanilla_transformer.training.sharding import embeddings_in_root_group, without_tied_copies
from vanilla_transformer.training.token_batches import TokenBudgetMixin

__all__ = ["EarlyStop", "Seq2SeqTokenTrainer", "TimeLimit", "TokenProgress", "TokenTrainer"]

TRAINED_WEIGHTS = "trained_weights.safetensors"
"""In a checkpoint whose model is a moving average: the weights that training goes on with."""


class TokenTrainer(TokenBudgetMixin):
    """Trains on batches of a `TokenBudgetBatchSampler` or a `TokenBudgetStream` instead of a fixed number of rows.

    - `lr_scheduler_type="inverse_sqrt"` is the paper's schedule, whose first update has step number 1.
    - The loss of evaluations is without label smoothing and a mean over all tokens, so that its exponential is a
      perplexity.
    - Logs have `minutes` of training over all sittings, `tokens_per_second` (source and target, no padding,
      evaluations and checkpoints left out) and `padding_share`, that of the positions of both sides which held padding,
      0 to 1; both of all processes together, since the log before.
    - A checkpoint has its name only when it is written to its end, and until it is deleted from its beginning.
    - `push_to_hub()` pushes what makes the model, in one commit; with `push_to_hub=True` nothing is pushed while training
      goes on, nor does it need the Hub.
    - Training that diverges ends in a `DivergedError`. Each update is looked at before it is made; on an accelerator and
      with several processes, where that would make one wait for the other, at the next log, evaluation or checkpoint.
      Nothing is saved that is not finite.

    Args:
        batch_sampler: over the training data; see `TokenBudgetMixin`.
        target_tokenizer: saved with every checkpoint, where vocabularies are separate.
        divergence: when to end training; None for never.
        name_rows: names examples by the numbers of their rows, as in "lines 3, 17 of train.txt", for the error.
        ema_decay: evaluations and checkpoints have the exponential moving average of the weights with this decay.
        keep_best: so many checkpoints, the best ones by `metric_for_best_model`, are not deleted as old.
    """

    lr_scheduler: LRScheduler | None

    def __init__(
        self,
        *args: Any,
        target_tokenizer: PreTrainedTokenizerBase | None = None,
        divergence: DivergenceRule | None = None,
        name_rows: Callable[[Sequence[int]], str] | None = None,
        ema_decay: float | None = None,
        keep_best: int = 0,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.keep_best = keep_best
        self.moving_average: MovingAverage | None = None
        if ema_decay is not None:
            if self.is_fsdp_enabled or self.is_deepspeed_enabled:
                raise ValueError(
                    "averaging.ema needs the whole model on each device, not in parts (FSDP, DeepSpeed); use "
                    "averaging.last or averaging.best."
                )
            self.moving_average = MovingAverage(self.model, ema_decay)
            self.add_callback(_UpdateOfAverage(self.moving_average))
        self.target_tokenizer = target_tokenizer
        self.divergence = divergence
        if divergence is not None:
            divergence.scaled = self.accelerator.scaler is not None
        self._name_rows = name_rows or _numbers_of_rows
        # Trainer deletes file by file, and by file times, where these are close together with a warning; a run that was
        # copied has all of them alike
        self._checkpoints_kept, self.args.save_total_limit = self.args.save_total_limit, None
        self._saving = False
        self._update = Update(0)
        self._unread: list[Update] = []
        self._last_read = self._update
        self.add_callback(_Sitting(self))
        self._loss_without_logits = "skip_logits" in inspect.signature(type(self.model).forward).parameters
        self._started: float | None = None
        self._minutes_before = 0.0
        self._tokens = self._positions = 0
        self._seconds = 0.0
        self._last_step: float | None = None

    def training_rows(self) -> tuple[Any, Any]:
        if isinstance(self.train_dataset, TokenBudgetStream):
            return super().training_rows()
        return NumberedRows(self.train_dataset), NumberedCollator(self.train_collator)

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LRScheduler:
        if self.lr_scheduler is None and self.args.lr_scheduler_type == "inverse_sqrt":
            warmup = self.args.get_warmup_steps(num_training_steps)
            self.lr_scheduler = inverse_sqrt_schedule(optimizer or self.optimizer, warmup)
            self._created_lr_scheduler = True
        return super().create_scheduler(num_training_steps, optimizer)

    @property
    def minutes(self) -> float:
        """Minutes of training so far, evaluations and earlier sittings included."""
        if self._started is None:
            return self._logged_minutes()
        return self._minutes_before + (time.monotonic() - self._started) / 60

    def _logged_minutes(self) -> float:
        return max((entry["minutes"] for entry in self.state.log_history if "minutes" in entry), default=0.0)

    def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        if self._started is None:
            self._minutes_before = self._logged_minutes()
            self._started = time.monotonic()
        if self._last_step is None:
            self._last_step = time.monotonic()
        rows = inputs.pop(ROWS, None)
        loss = super().training_step(model, inputs, *args, **kwargs)
        self._update.losses.append(loss)
        if rows is not None:
            self._update.rows.append(rows)
        # rows that are packed have no mask: every position is a token
        sides = [inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))]
        if self.model.config.is_encoder_decoder and inputs["labels"].dim() == 2:
            sides.append(inputs["labels"] != -100)
        self._tokens += sum(int(side.sum()) for side in sides)
        self._positions += sum(side.numel() for side in sides)
        # from one step to the next: the optimizer and the loading of data are part of it
        now = time.monotonic()
        self._seconds += now - self._last_step
        self._last_step = now
        return loss

    def _get_grad_norm(self, *args: Any, **kwargs: Any) -> Any:
        # the last thing Trainer 5.24 does before each optimizer step, whether or not it clips
        grad_norm = super()._get_grad_norm(*args, **kwargs)
        if self.divergence is not None:
            self._update.number, self._update.grad_norm = self.state.global_step + 1, grad_norm
            self._unread.append(self._update)
            if self._looks_at_once or len(self._unread) >= 1000:
                self.stop_if_diverged()
        self._update = Update(0)
        return grad_norm

    @property
    def _looks_at_once(self) -> bool:
        """Whether it costs nothing to look at an update before it is made."""
        return self.args.device.type == "cpu" and self.args.world_size == 1

    def stop_if_diverged(self, weights: bool = False) -> None:
        """Look at the updates made since the last look; on all processes at once.

        Args:
            weights: look at the weights, too.

        Raises:
            DivergedError: on all processes.
        """
        if self.divergence is None:
            return
        updates, self._unread = self._unread, []
        if updates:
            self._last_read = updates[-1]
            numbers = [loss for update in updates for loss in update.losses]
            numbers += [_plain(update.grad_norm, numbers[0]) for update in updates]
            read = iter(torch.stack([number.float() for number in numbers]).tolist())
            own = [sum(next(read) for _ in update.losses) for update in updates]
            norms = list(read)
            losses = gather_object([own])  # of each process, of each update
            for position, update in enumerate(updates):
                of_processes = [of_process[position] for of_process in losses]
                found = self.divergence.trouble(update, sum(of_processes) / len(losses), norms[position])
                if found:
                    # a loss that is no number is the doing of the processes that have it
                    innocent = math.isfinite(own[position]) and not all(map(math.isfinite, of_processes))
                    self._diverged(*found, innocent)
        if weights:
            parts = [getattr(p, "to_local", lambda p=p: p)() for p in self.model.parameters()]
            finite = bool(torch.stack([part.isfinite().all() for part in parts]).all())
            if not all(gather_object([finite])) and self.divergence.non_finite:
                self._diverged(self._last_read, "the weights are not finite")

    def _diverged(self, update: Update, reason: str, innocent: bool = False) -> None:
        rows = gather_object([] if innocent else update.row_numbers())
        folder = Path(self.args.output_dir)
        before = [c for c in find_checkpoints(folder) if int(c.name.rpartition("-")[2]) < update.number]
        if before:
            kept = f"the last checkpoint before it is {before[-1]}"
            start = f"start again, or go on from its weights with start_from={before[-1]} and another output_dir"
        else:
            kept, start = "no checkpoint was saved before it", "start again"
        raise DivergedError(
            f"training diverged at update {update.number}: {reason}; its batches are {self._name_rows(rows)}; {kept}; "
            f"lower training.learning_rate, set training.max_grad_norm or mend these examples, then {start}.",
            update.number,
            reason,
            rows,
            before[-1] if before else None,
        )

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        # Trainer 5.24 makes one more update when a run is resumed that had made its last one within an epoch
        if self.control.should_training_stop or self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        if self.is_in_train:
            self.stop_if_diverged(weights=True)
        try:
            with self._averaged():
                return super().evaluate(*args, **kwargs)
        finally:
            self._last_step = None

    def _averaged(self) -> contextlib.AbstractContextManager[dict[str, torch.Tensor]]:
        """The model with the moving average as its weights, once there is one."""
        if self.moving_average is None or not self.moving_average.weights:
            return contextlib.nullcontext({})
        return self.moving_average.applied()

    def prediction_step(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        config = self.model.config
        smoothing, config.label_smoothing = config.label_smoothing, 0.0
        try:
            loss, *others = super().prediction_step(model, inputs, *args, **kwargs)
        finally:
            config.label_smoothing = smoothing
        labels = inputs.get("labels")
        if loss is not None and labels is not None and labels.dim() == 2:
            count = (labels != -100).sum()
            self._evaluated += torch.stack([loss.double() * count, count.double()]).cpu()
        return loss, *others

    def evaluation_loop(
        self, dataloader: Any, description: str, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any
    ) -> Any:
        self._evaluated = torch.zeros(2, dtype=torch.float64)
        output = super().evaluation_loop(dataloader, description, *args, metric_key_prefix=metric_key_prefix, **kwargs)
        # transformers' loss is a mean over rows of means over tokens, which depends on how rows are put together
        loss, count = self.accelerator.reduce(self._evaluated.to(self.args.device, torch.float32)).tolist()
        name = f"{metric_key_prefix}_loss"
        if self.model.config.is_encoder_decoder and count and name in (output.metrics or {}):
            output.metrics[name] = loss / count
        return output

    def compute_loss(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if model.training and self._loss_without_logits:
            inputs = {**inputs, "skip_logits": True}
        return super().compute_loss(model, inputs, *args, **kwargs)

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        if not self.is_fsdp_enabled:
            return super()._prepare_for_training(*args, **kwargs)
        with embeddings_in_root_group(self.model):
            return super()._prepare_for_training(*args, **kwargs)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        if state_dict is not None:
            state_dict = without_tied_copies(self.model, state_dict)
        with self._averaged() as trained:
            super()._save(output_dir, state_dict)
        if trained and self.args.should_save:
            save_file(trained, Path(output_dir or self.args.output_dir) / TRAINED_WEIGHTS, metadata={"format": "pt"})
        if self.target_tokenizer is not None and self.args.should_save:
            self.target_tokenizer.save_pretrained(Path(output_dir or self.args.output_dir) / TARGET_TOKENIZER)

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Name the repository; it is made when there is something to push."""
        self.hub_model_id = self.args.hub_model_id or Path(self.args.output_dir).absolute().name

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Nothing: transformers 5.24 would push all that stands in the run's folder, while it is written to."""

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> CommitInfo | None:
        """Save the model in the run's folder and push it, with its card, in one commit.

        Args:
            blocking: must be True.
            kwargs: of `create_model_card`, where there is no card yet.

        Returns:
            The commit, on the first process.

        Raises:
            PushError: where it was not pushed; the model is saved in the run's folder all the same.
        """
        if not blocking:
            raise ValueError("blocking=False is not built: the run's folder may change while it is being pushed.")
        self.init_hf_repo()
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        if not (Path(self.args.output_dir) / "README.md").is_file():
            self.create_model_card(model_name=str(self.hub_model_id).rpartition("/")[2], **kwargs)
        return push_folder(
            self.args.output_dir,
            str(self.hub_model_id),
            private=self.args.hub_private_repo if private is None else private,
            revision=revision or self.args.hub_revision,
            token=token or self.args.hub_token,
            message=commit_message or "Upload model",
        )

    def _get_output_dir(self, *args: Any, **kwargs: Any) -> str:
        folder = super()._get_output_dir(*args, **kwargs)
        return str(Path(folder) / PARTIAL) if self._saving else folder

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: torch.nn.Module | None = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        if self.moving_average is None:
            return
        self.moving_average.start()
        found = self.model.load_state_dict(load_file(Path(resume_from_checkpoint) / TRAINED_WEIGHTS), strict=False)
        lost = set(found.missing_keys) & self.moving_average.weights.keys()
        if lost or found.unexpected_keys:
            raise ValueError(f"{resume_from_checkpoint}: {TRAINED_WEIGHTS} is not of this model; copy the run again.")

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        self.stop_if_diverged(weights=True)
        run, name = Path(self.args.output_dir), f"checkpoint-{self.state.global_step}"
        partial, best = run / PARTIAL / name, None
        # else the mean loss of the next log would not be that of the unbroken run, which begins before this checkpoint
        self.state.stateful_callbacks[_Sitting.__name__] = {
            "loss": self.accelerator.reduce(self._tr_loss, reduction="mean").item(),
            "updates": self.state.global_step - self._globalstep_last_logged,
        }
        saved = find_checkpoints(run)
        remedy = f"{saved[-1].name} is whole, so make room and go on with --resume" if saved else "make room"
        self._saving = True
        try:
            with errors_of_writing(run / name, remedy):
                super()._save_checkpoint(*args, **kwargs)
                self.accelerator.wait_for_everyone()
                if self.state.best_global_step:
                    best = run / f"checkpoint-{self.state.best_global_step}"
                    if best.name == name or best.is_dir():
                        self.state.best_model_checkpoint = str(best)
                if self.args.should_save:
                    self.state.save_to_json(str(partial / TRAINER_STATE_NAME))
                    move_whole(partial, run / name)
        finally:
            self._saving = False
            self._last_step = None
            if self.args.should_save:
                shutil.rmtree(run / PARTIAL, ignore_errors=True)
        if self.args.should_save:
            metric, greater = self.args.metric_for_best_model, self.args.greater_is_better
            delete_old_checkpoints(
                run, self._checkpoints_kept, protected(run, self.state, self.keep_best, metric, greater)
            )
        self.accelerator.wait_for_everyone()

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        # A tied matrix is saved under one name; transformers 5.24 reports the others as missing when it loads the best
        # checkpoint, although tying has filled them.
        tied = set(self.model.all_tied_weights_keys)
        missing = [name for name in load_result.missing_keys if name not in tied]
        super()._issue_warnings_after_load(type(load_result)(missing, load_result.unexpected_keys))

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if self.is_in_train:
            self.stop_if_diverged()
        if self._started is not None:
            logs["minutes"] = round(self.minutes, 3)
        if "loss" in logs and self._seconds:
            counted = torch.tensor([self._tokens, self._positions], device=self.args.device)
            tokens, positions = self.accelerator.reduce(counted).tolist()
            logs["tokens_per_second"] = round(tokens / self._seconds)
            logs["padding_share"] = round(1 - tokens / positions, 4)
            self._tokens, self._positions, self._seconds = 0, 0, 0.0
        super().log(logs, *args, **kwargs)


class Seq2SeqTokenTrainer(TokenTrainer, Seq2SeqTrainer):
    """The same with `Seq2SeqTrainer`, whose evaluations generate text."""

    def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
        # Seq2SeqTrainer 5.24 writes every default, max_length=20 among them, into the model's generation_config, from
        # where they would reach each saved checkpoint.
        generation_config = copy.deepcopy(self.model.generation_config)
        try:
            return super().prediction_step(*args, **kwargs)
        finally:
            self.model.generation_config = generation_config


def _numbers_of_rows(rows: Sequence[int]) -> str:
    return f"the rows {', '.join(map(str, rows))} of the training data, counted from 0"


def _plain(grad_norm: Any, like: torch.Tensor) -> torch.Tensor:
    """A gradient norm, which may be a number or distributed over processes, as a tensor on one device."""
    whole = getattr(grad_norm, "full_tensor", lambda: grad_norm)()
    return torch.as_tensor(whole, device=like.device)


class _Sitting(TrainerCallback):
    """Makes a run that is resumed take up what the unbroken run would have in hand."""

    def __init__(self, trainer: TokenTrainer):
        self.trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        trainer = self.trainer
        if trainer.divergence is not None:
            trainer.divergence.remember(entry["loss"] for entry in state.log_history if "loss" in entry)
        unlogged = state.stateful_callbacks.get(type(self).__name__)
        if unlogged:
            trainer._tr_loss += unlogged["loss"]
            trainer._globalstep_last_logged -= unlogged["updates"]

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # while training data that differ from epoch to epoch still are those of the updates
        self.trainer.stop_if_diverged()


class _UpdateOfAverage(TrainerCallback):
    """Takes the weights after each update into the moving average."""

    def __init__(self, average: MovingAverage):
        self.average = average

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.average.update()


class EarlyStop(EarlyStoppingCallback):
    """transformers' early stopping, whose count goes on in a run that is resumed, and which ends with a checkpoint.

    `restore_callback_states_from_checkpoint` of transformers 5.24 would bring back the patience of the earlier sitting too.

    Args:
        patience: evaluations in a row without improvement.
        threshold: what is not better by more than this is no improvement.
    """

    def __init__(self, patience: int, threshold: float = 0.0):
        super().__init__(patience, threshold)

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
        trainer: whose minutes count.
        minutes: over all sittings.
    """

    def __init__(self, trainer: TokenTrainer, minutes: float):
        self.trainer = trainer
        self.minutes = minutes

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # logged minutes are rounded to thousandths
        if state.global_step and self.trainer.minutes >= self.minutes - 0.001:
            control.should_training_stop = True

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        over = [self.trainer.minutes >= self.minutes]
        if args.world_size > 1:
            # all processes go by the clock of the first, or some would wait for ever for those that stopped
            broadcast_object_list(over)
        if over[0]:
            # where these come once an epoch, they come when it ends here
            control.should_evaluate |= args.eval_strategy == "steps"
            control.should_save |= args.save_strategy == "steps"
            control.should_training_stop = True
        return control


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
