"""transformers' `Trainer` and `Seq2SeqTrainer` with batches by token budget, the paper's schedule and the speed of training in its logs."""

import contextlib
import copy
import inspect
import shutil
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from transformers import (
    EarlyStoppingCallback,
    PreTrainedTokenizerBase,
    Seq2SeqTrainer,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_callback import ProgressCallback

from vanilla_transformer.data.batching import TokenBudgetBatchSampler
from vanilla_transformer.generation.translate import TARGET_TOKENIZER
from vanilla_transformer.training.averaging import (
    best_checkpoints,
    delete_old_checkpoints,
    find_checkpoints,
    is_whole,
)
from vanilla_transformer.training.moving_average import MovingAverage
from vanilla_transformer.training.schedules import inverse_sqrt_schedule

__all__ = ["EarlyStop", "Seq2SeqTokenTrainer", "TimeLimit", "TokenProgress", "TokenTrainer"]

TRAINED_WEIGHTS = "trained_weights.safetensors"
"""In a checkpoint whose model is a moving average: the weights that training goes on with."""


class TokenTrainer(Trainer):
    """Trains on batches of a `TokenBudgetBatchSampler` instead of a fixed number of rows.

    - `lr_scheduler_type="inverse_sqrt"` is the paper's schedule, whose first update has step number 1.
    - The loss of evaluations is without label smoothing, so that its exponential is a perplexity.
    - Logs have `minutes` of training over all sittings and `tokens_per_second` (source and target, no padding,
      evaluations and checkpoints left out).
    - A checkpoint that cannot be written to its end is taken away again.

    Args:
        batch_sampler: over the training data.
        target_tokenizer: saved with every checkpoint, where vocabularies are separate.
        ema_decay: evaluations and checkpoints have the exponential moving average of the weights with this decay.
        keep_best: so many checkpoints, the best ones by `metric_for_best_model`, are not deleted as old.
    """

    lr_scheduler: LRScheduler | None

    def __init__(
        self,
        *args: Any,
        batch_sampler: TokenBudgetBatchSampler | None = None,
        target_tokenizer: PreTrainedTokenizerBase | None = None,
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
        self.batch_sampler = batch_sampler
        self.target_tokenizer = target_tokenizer
        if batch_sampler is not None:
            self.add_callback(_EpochOfBatches(batch_sampler, self.train_dataset))
        self._loss_without_logits = "skip_logits" in inspect.signature(type(self.model).forward).parameters
        self._started: float | None = None
        self._minutes_before = 0.0
        self._tokens = 0
        self._seconds = 0.0
        self._last_step: float | None = None

    def get_train_dataloader(self) -> DataLoader:
        if self.batch_sampler is None:
            return super().get_train_dataloader()
        loader = DataLoader(
            self.train_dataset,
            batch_sampler=self.batch_sampler,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
            persistent_workers=self.args.dataloader_persistent_workers,
        )
        return self.accelerator.prepare(loader)

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
        loss = super().training_step(model, inputs, *args, **kwargs)
        self._tokens += int(inputs["attention_mask"].sum())
        if self.model.config.is_encoder_decoder and inputs["labels"].dim() == 2:
            self._tokens += int((inputs["labels"] != -100).sum())
        # from one step to the next: the optimizer and the loading of data are part of it
        now = time.monotonic()
        self._seconds += now - self._last_step
        self._last_step = now
        return loss

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
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

    def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
        config = self.model.config
        smoothing, config.label_smoothing = config.label_smoothing, 0.0
        try:
            return super().prediction_step(*args, **kwargs)
        finally:
            config.label_smoothing = smoothing

    def compute_loss(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if model.training and self._loss_without_logits:
            inputs = {**inputs, "skip_logits": True}
        return super().compute_loss(model, inputs, *args, **kwargs)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        with self._averaged() as trained:
            super()._save(output_dir, state_dict)
        if trained and self.args.should_save:
            save_file(trained, Path(output_dir or self.args.output_dir) / TRAINED_WEIGHTS, metadata={"format": "pt"})
        if self.target_tokenizer is not None:
            self.target_tokenizer.save_pretrained(Path(output_dir or self.args.output_dir) / TARGET_TOKENIZER)

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
        checkpoint = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        # transformers 5.24 deletes old checkpoints by their file times, and warns where these are close together; a
        # run that was copied has all of them alike. The number of the update is what tells old from new.
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            super()._save_checkpoint(*args, **kwargs)
            if self.args.should_save:
                delete_old_checkpoints(self.args.output_dir, limit, self._best_checkpoints())
        except BaseException as error:
            if not is_whole(checkpoint):
                shutil.rmtree(checkpoint, ignore_errors=True)
            # what a full disk makes of safetensors and torch.save
            if isinstance(error, (OSError, SafetensorError, RuntimeError)):
                raise OSError(
                    f"{checkpoint} could not be written: {str(error).partition(chr(10))[0] or type(error).__name__}; the checkpoints before it are "
                    "kept, go on with --resume."
                ) from error
            raise
        finally:
            self.args.save_total_limit = limit
            self._last_step = None

    def _best_checkpoints(self) -> list[Path]:
        """Those that are not deleted as old."""
        metric, best = self.args.metric_for_best_model, self.state.best_model_checkpoint
        kept = [] if best is None else [Path(best)]
        if self.keep_best > 0 and metric is not None:
            found = find_checkpoints(self.args.output_dir)
            greater = self.args.greater_is_better
            kept += best_checkpoints(found, self.keep_best, self.state.log_history, metric, greater)
        return kept

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        # A tied matrix is saved under one name; transformers 5.24 reports the others as missing when it loads the best
        # checkpoint, although tying has filled them.
        tied = set(self.model.all_tied_weights_keys)
        missing = [name for name in load_result.missing_keys if name not in tied]
        super()._issue_warnings_after_load(type(load_result)(missing, load_result.unexpected_keys))

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if self._started is not None:
            logs["minutes"] = round(self.minutes, 3)
        if "loss" in logs and self._seconds:
            logs["tokens_per_second"] = round(self._tokens * self.args.world_size / self._seconds)
            self._tokens, self._seconds = 0, 0.0
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


class _EpochOfBatches(TrainerCallback):
    """Tells the sampler, and training data that differ from epoch to epoch, the number of the epoch.

    transformers 5.24 looks for it one wrapper deep; a run that is resumed on several processes has it two deep.
    """

    def __init__(self, sampler: TokenBudgetBatchSampler, data: Any):
        self.sampler = sampler
        self.data = data

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        epoch = int(state.epoch or 0)
        self.sampler.set_epoch(epoch)
        if hasattr(self.data, "set_epoch"):
            self.data.set_epoch(epoch)


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
