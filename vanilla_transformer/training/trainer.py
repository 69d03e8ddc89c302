"""transformers' `Trainer` and `Seq2SeqTrainer` with batches by token budget, the paper's schedule and the speed of training in its logs."""

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
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import (
    PreTrainedTokenizerBase,
    Seq2SeqTrainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_callback import ProgressCallback
from transformers.trainer_utils import rotate_checkpoints

from vanilla_transformer.generation.translate import TARGET_TOKENIZER
from vanilla_transformer.training.averaging import is_whole
from vanilla_transformer.training.schedules import inverse_sqrt_schedule
from vanilla_transformer.training.sharding import embeddings_in_root_group, without_tied_copies
from vanilla_transformer.training.token_batches import TokenBudgetMixin

__all__ = ["Seq2SeqTokenTrainer", "TimeLimit", "TokenProgress", "TokenTrainer"]


class TokenTrainer(TokenBudgetMixin):
    """Trains on batches of a `TokenBudgetBatchSampler` or a `TokenBudgetStream` instead of a fixed number of rows.

    - `lr_scheduler_type="inverse_sqrt"` is the paper's schedule, whose first update has step number 1.
    - The loss of evaluations is without label smoothing, so that its exponential is a perplexity.
    - Logs have `minutes` of training over all sittings, `tokens_per_second` (source and target, no padding,
      evaluations and checkpoints left out) and `padding_share`, that of the positions of both sides which held padding,
      0 to 1; both of all processes together, since the log before.
    - A checkpoint that cannot be written to its end is taken away again.

    Args:
        batch_sampler: over the training data; see `TokenBudgetMixin`.
        target_tokenizer: saved with every checkpoint, where vocabularies are separate.
    """

    lr_scheduler: LRScheduler | None

    def __init__(
        self,
        *args: Any,
        target_tokenizer: PreTrainedTokenizerBase | None = None,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.target_tokenizer = target_tokenizer
        self._loss_without_logits = "skip_logits" in inspect.signature(type(self.model).forward).parameters
        self._started: float | None = None
        self._minutes_before = 0.0
        self._tokens = self._positions = 0
        self._seconds = 0.0
        self._last_step: float | None = None

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
        sides = [inputs["attention_mask"]]
        if self.model.config.is_encoder_decoder and inputs["labels"].dim() == 2:
            sides.append(inputs["labels"] != -100)
        self._tokens += sum(int(side.sum()) for side in sides)
        self._positions += sum(side.numel() for side in sides)
        # from one step to the next: the optimizer and the loading of data are part of it
        now = time.monotonic()
        self._seconds += now - self._last_step
        self._last_step = now
        return loss

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        try:
            return super().evaluate(*args, **kwargs)
        finally:
            self._last_step = None

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

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        if not self.is_fsdp_enabled:
            return super()._prepare_for_training(*args, **kwargs)
        with embeddings_in_root_group(self.model):
            return super()._prepare_for_training(*args, **kwargs)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        if state_dict is not None:
            state_dict = without_tied_copies(self.model, state_dict)
        super()._save(output_dir, state_dict)
        if self.target_tokenizer is not None:
            self.target_tokenizer.save_pretrained(Path(output_dir or self.args.output_dir) / TARGET_TOKENIZER)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        checkpoint = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        # transformers 5.24 deletes old checkpoints by their file times, and warns where these are close together; a
        # run that was copied has all of them alike. The number of the update is what tells old from new.
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            super()._save_checkpoint(*args, **kwargs)
            if self.args.should_save:
                rotate_checkpoints(self.args.output_dir, limit, self.state.best_model_checkpoint)
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
