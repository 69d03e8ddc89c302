"""transformers' `Trainer` and `Seq2SeqTrainer` as runs need them: batches by token budget, speed in the logs, safe checkpoints."""

import contextlib
import copy
import inspect
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from huggingface_hub import CommitInfo
from safetensors.torch import load_file, save_file
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Seq2SeqTrainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
)
from transformers.optimization import GreedyLR
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from vanilla_transformer.data.streaming import TokenBudgetStream
from vanilla_transformer.hub import push_folder
from vanilla_transformer.loading import TARGET_TOKENIZER
from vanilla_transformer.losses_vanilla_transformer import IGNORED
from vanilla_transformer.trainer.adapter import base_model, is_adapted
from vanilla_transformer.trainer.checkpoints import (
    INTERRUPTED,
    PROCESSES,
    STATE,
    checkpoints_to_keep,
    delete_old_checkpoints,
    find_checkpoints,
)
from vanilla_transformer.trainer.divergence import (
    ROWS,
    DivergenceMonitor,
    DivergenceRule,
    NumberedCollator,
    NumberedRows,
)
from vanilla_transformer.trainer.ema import MovingAverage
from vanilla_transformer.trainer.interruption import Interruption
from vanilla_transformer.trainer.schedules import decay_schedule, follow_clock, inverse_sqrt_schedule
from vanilla_transformer.trainer.sharding import embeddings_in_root_group, without_tied_copies
from vanilla_transformer.trainer.token_batches import TokenBudgetMixin
from vanilla_transformer.utils.atomic import atomic_files, new_temporary_dir, replace_dir, translate_io_errors
from vanilla_transformer.utils.errors import Terminated

MINUTES = "minutes"
"""In the state of a checkpoint: the minutes of training up to it."""

UNLOGGED = "unlogged_loss"
"""In the state of a checkpoint: what the next log, and the mean loss of the whole training, will have a share of."""

TRAINED_WEIGHTS = "trained_weights.safetensors"
"""In a checkpoint whose model is a moving average: the weights that training continues with."""


class TokenTrainer(TokenBudgetMixin):
    """Train on batches of a `TokenBudgetBatchSampler` or a `TokenBudgetStream` instead of a fixed number of rows.

    - `lr_scheduler_type="inverse_sqrt"` is the paper's schedule, whose first update has step number 1; with
      `lr_scheduler_kwargs={"decay_share": 0.8}` it falls to zero over the last 80 % of the run, see `schedules`.
    - The loss of evaluations is without label smoothing, and of an encoder-decoder a mean over all tokens, so that its
      exponential is a perplexity.
    - Logs have `minutes` of training since its beginning, also where it was resumed, `tokens_per_second` (source and
      target, no padding, evaluations and checkpoints left out) and `padding_share`, that of the positions of both sides
      which held padding, 0 to 1; both of all processes together, since the log before.
    - Checkpoints are written and deleted atomically: one that has its name is complete.
    - `push_to_hub()` pushes what makes the model, in one commit; with `push_to_hub=True` nothing is pushed during
      training, nor does it need the Hub.
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
        max_minutes: of training, which schedules that have an end follow; a `TimeLimit` ends training then.
        interruption: ends training when a signal asks for it; see `StopOnSignal`.
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
        max_minutes: float | None = None,
        interruption: Interruption | None = None,
        **kwargs: Any,
    ):
        model = kwargs.get("model", args[0] if args else None)
        use_cache = model.config.use_cache if isinstance(model, PreTrainedModel) else None
        super().__init__(*args, **kwargs)
        if use_cache is not None:
            # Trainer turns it off. Forwards with labels make no cache anyway, and the setting is saved with the model
            self.model.config.use_cache = use_cache
        self.max_minutes = max_minutes
        self.time_share = 0.0
        """Share of `max_minutes` that had passed at the last update, of the first process's clock; 0 without a limit."""
        self.interruption = interruption or Interruption()
        self._stopping = 0  # number of the signal for which training ends once a checkpoint is saved
        self._making_up = False  # for an evaluation that a signal left out
        self._saved_at = -1  # update of the last checkpoint
        self._epoch_ended = False  # whether what is due at the end of an epoch is being done
        self.target_tokenizer = target_tokenizer
        self.moving_average: MovingAverage | None = None
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            needs = "needs the whole model on each device, not in parts (FSDP, DeepSpeed)"
            if is_adapted(self.model):
                raise ValueError(f"adapter {needs}; start without them.")
            if ema_decay is not None:
                raise ValueError(f"averaging.ema {needs}; use averaging.last or averaging.best.")
        if ema_decay is not None:
            self.moving_average = MovingAverage(self.model, ema_decay)
        self._monitor: DivergenceMonitor | None = None
        if divergence is not None:
            divergence.scaled = self.accelerator.scaler is not None
            self._monitor = DivergenceMonitor(divergence, Path(self.args.output_dir), name_rows)
        self._keep_best = keep_best
        # Trainer deletes file by file, and by file times, where these are close together with a warning; a run that was
        # copied has all of them alike
        self._save_total_limit, self.args.save_total_limit = self.args.save_total_limit, None
        self._temporary: Path | None = None  # the folder in which a checkpoint is being written
        self._can_skip_logits = "skip_logits" in inspect.signature(type(base_model(self.model)).forward).parameters
        self._started: float | None = None
        self._minutes_before = 0.0
        self._loss_before = 0.0  # sum of the losses of all updates that were logged before training was resumed
        # since the last log
        self._tokens: torch.Tensor | int = 0
        self._positions = 0
        self._seconds = 0.0
        self._clock: float | None = None  # the time up to which seconds are counted; None while it stands still
        self.add_callback(_Events(self))

    # Data, schedule, processes

    def training_rows(self) -> tuple[Any, Any]:
        if isinstance(self.train_dataset, TokenBudgetStream):
            return super().training_rows()
        return NumberedRows(self.train_dataset), NumberedCollator(self.train_collator)

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LRScheduler:
        if self.lr_scheduler is not None:
            return super().create_scheduler(num_training_steps, optimizer)
        if self.args.lr_scheduler_type != "inverse_sqrt":
            scheduler = super().create_scheduler(num_training_steps, optimizer)
            if self.max_minutes is not None:
                follow_clock(scheduler, num_training_steps, self._passed)
            return scheduler
        warmup, optimizer = self.args.get_warmup_steps(num_training_steps), optimizer or self.optimizer
        if options := self.args.lr_scheduler_kwargs:
            self.lr_scheduler = decay_schedule(optimizer, warmup, num_training_steps, self._passed, **options)
        else:
            self.lr_scheduler = inverse_sqrt_schedule(optimizer, warmup)
        self._created_lr_scheduler = True
        return self.lr_scheduler

    def _passed(self) -> float:
        return self.time_share

    def read_clock(self) -> None:
        """Take in how much of the time has passed; on all processes by the clock of the first."""
        if self.max_minutes is None:
            return
        passed = [self.minutes / self.max_minutes]
        if self.args.world_size > 1:
            # or some would train at another rate, or wait for ever for those that stopped
            broadcast_object_list(passed)
        self.time_share = passed[0]

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        if not self.is_fsdp_enabled:
            return super()._prepare_for_training(*args, **kwargs)
        with embeddings_in_root_group(self.model):
            return super()._prepare_for_training(*args, **kwargs)

    # Updates

    def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        if self._started is None:
            self._minutes_before = self._logged_minutes()
            self._started = time.monotonic()
        if self._clock is None:
            self._clock = time.monotonic()
        rows = inputs.pop(ROWS, None)
        loss = super().training_step(model, inputs, *args, **kwargs)
        if self._monitor is not None:
            self._monitor.add_batch(loss, rows)
        # rows that are packed have no mask: every position is a token
        sides = [inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))]
        if self.model.config.is_encoder_decoder and inputs["labels"].dim() == 2:
            sides.append(inputs["labels"] != IGNORED)
        # tensors until the next log: reading them would make every step wait for the device
        self._tokens = self._tokens + sum(side.sum() for side in sides)
        self._positions += sum(side.numel() for side in sides)
        # from one step to the next: the optimizer and the loading of data are part of it
        self._count_time()
        return loss

    def compute_loss(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if model.training and self._can_skip_logits:
            inputs = {**inputs, "skip_logits": True}
        return super().compute_loss(model, inputs, *args, **kwargs)

    def _get_grad_norm(self, *args: Any, **kwargs: Any) -> Any:
        # the last thing Trainer 5.24 does before each optimizer step, whether or not it clips
        grad_norm = super()._get_grad_norm(*args, **kwargs)
        if self._monitor is not None:
            self._monitor.end_update(self.state.global_step + 1, grad_norm)
            if self._checks_each_update:
                self._monitor.check()
        return grad_norm

    @property
    def _checks_each_update(self) -> bool:
        """Return whether it costs nothing to look at an update before it is made."""
        return self.args.device.type == "cpu" and self.args.world_size == 1

    def _stop_if_diverged(self, weights: bool = False) -> None:
        """Raise a `DivergedError` where training has diverged; on all processes at once."""
        if self._monitor is not None:
            self._monitor.check(self.model if weights else None)

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        # Trainer 5.24 makes one more update when a run is resumed that had made its last one within an epoch
        if self.control.should_training_stop or self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        self._loss_before, self._saved_at, self._epoch_ended = 0.0, -1, False
        with self.interruption.deferred():
            output = super().train(*args, **kwargs)
        # see `log`
        return output._replace(training_loss=output.metrics["train_loss"])

    @property
    def has_made_a_step(self) -> bool:
        """Return whether training has come to its first batch; before that it is set up, or put back into the state of a checkpoint."""
        return self._started is not None

    # Signals

    def stop_if_interrupted(self) -> None:
        """Have a checkpoint saved, and training ended after it, where a signal has asked for that; before what is due now."""
        self._stopping = self.interruption.requested()
        if not self._stopping:
            return
        due = {"evaluate": bool(self.control.should_evaluate), "save": bool(self.control.should_save)}
        if self._saved_at == self.state.global_step:
            raise Terminated(self._stopping)
        if self._can_delay_evaluation:
            self.control.should_evaluate = False
        else:
            due["evaluate"] = False
        if due != {"evaluate": False, "save": True}:  # else it is a checkpoint like all others
            self.state.stateful_callbacks[INTERRUPTED] = due
        self.control.should_save = True

    def make_up_for_interruption(self) -> None:
        """Make the evaluation that a signal left out; the checkpoint that it asked for becomes one of the run's own where one was due."""
        due = self.state.stateful_callbacks.pop(INTERRUPTED, None)
        if not due:
            return
        is_best = False
        if due["evaluate"]:
            self._making_up = True
            is_best = self._determine_best_metric(self._evaluate(None, None), None)
            self._making_up = False
        if due["save"] or (is_best and self.args.save_strategy == SaveStrategy.BEST):
            place = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
            self._note_best_checkpoint(place)
            if self.args.should_save:
                with atomic_files(place) as temporary:
                    self.state.save_to_json(str(temporary / STATE))

    @property
    def _can_delay_evaluation(self) -> bool:
        """Return whether the next updates do not depend on the evaluation, as the rates of some schedules do."""
        return not isinstance(self.lr_scheduler, (torch.optim.lr_scheduler.ReduceLROnPlateau, GreedyLR))

    # Evaluations

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        if self.is_in_train:
            self._stop_if_diverged(weights=True)
            self._count_time()
        try:
            # what a loader draws when it starts is given back: training does not depend on when it is evaluated
            with self._averaged(), torch.random.fork_rng([], self.is_in_train):
                return super().evaluate(*args, **kwargs)
        except _EvaluationInterrupted:
            self._stopping = self.interruption.number
            if not self._making_up:
                due = {"evaluate": True, "save": bool(self.control.should_save)}
                self.state.stateful_callbacks[INTERRUPTED] = due
                self._save_checkpoint(self.model, None)
            raise Terminated(self._stopping) from None
        finally:
            self._clock = None

    def _averaged(self) -> contextlib.AbstractContextManager[dict[str, torch.Tensor]]:
        """Give the model the moving average as its weights, once there is one."""
        if self.moving_average is None or not self.moving_average.weights:
            return contextlib.nullcontext({})
        return self.moving_average.applied()

    def prediction_step(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        alone = self.args.world_size == 1
        if self.is_in_train and alone and self.interruption.number and self._can_delay_evaluation:
            raise _EvaluationInterrupted
        labels = self._own_labels(inputs)
        if labels is not None:
            inputs = {**inputs, "labels": labels}
        config = self.model.config
        smoothing, config.label_smoothing = config.label_smoothing, 0.0
        try:
            loss, *others = super().prediction_step(model, inputs, *args, **kwargs)
        finally:
            config.label_smoothing = smoothing
        if loss is not None and labels is not None and labels.dim() == 2:
            count = (labels != IGNORED).sum()
            # the mean of no targets at all is NaN
            total = torch.where(count > 0, loss, 0).double() * count
            self._evaluated += torch.stack([total, count.double()]).cpu()
        return loss, *others

    def _own_labels(self, inputs: dict[str, Any]) -> torch.Tensor | None:
        """Return labels without those of rows that another process has, too, as the last batches are filled up with such.

        The scores leave these rows out by themselves: transformers drops what they gave.
        """
        labels = inputs.get("labels")
        if labels is None or self.args.world_size == 1 or labels.is_floating_point():
            return labels
        state, rows = self.accelerator.gradient_state, labels.shape[0]
        if not state.end_of_dataloader or state.remainder <= 0:
            return labels
        # the rows of all processes in their order, of which the first so many are not yet repeated
        own = min(max(state.remainder - self.args.process_index * rows, 0), rows)
        labels = labels.clone()
        labels[own:] = IGNORED
        return labels

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

    # Checkpoints

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        self._stop_if_diverged(weights=True)
        self._count_time()
        run, name = Path(self.args.output_dir), f"checkpoint-{self.state.global_step}"
        # else the mean loss of the next log would not be that of the unbroken run, which begins before this checkpoint
        self.state.stateful_callbacks[MINUTES] = {"minutes": self.minutes}
        tokens, positions = self._count_tokens()
        self.state.stateful_callbacks[UNLOGGED] = {
            "loss": self.accelerator.reduce(self._tr_loss, reduction="mean").item(),
            "updates": self.state.global_step - self._globalstep_last_logged,
            "tokens": tokens,
            "positions": positions,
            "seconds": self._seconds,
        }
        # what the state of the checkpoint says beside that
        at_end = float(self.state.epoch or 0).is_integer() and self.args.eval_strategy == IntervalStrategy.EPOCH
        if at_end and not self._epoch_ended and INTERRUPTED not in self.state.stateful_callbacks:
            # the evaluation at the end of the epoch comes after this checkpoint, and a run resumed from it would have none
            self.state.stateful_callbacks[INTERRUPTED] = {"evaluate": True, "save": False, "regular": True}
        self.state.stateful_callbacks[PROCESSES] = {"count": self.args.world_size}
        saved = find_checkpoints(run)
        remedy = f"{saved[-1].name} is complete, so make room and resume with --resume" if saved else "make room"
        try:
            with translate_io_errors(run / name, remedy):
                self._temporary = self._shared_temporary_dir(run)
                super()._save_checkpoint(*args, **kwargs)
                self.accelerator.wait_for_everyone()
                self._note_best_checkpoint(run / name)
                if self.args.should_save:
                    self.state.save_to_json(str(self._temporary / name / STATE))
                    replace_dir(self._temporary / name, run / name)
        finally:
            self._clock = None
            if self.args.should_save and self._temporary is not None:
                shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None
        if self.args.should_save:
            metric, greater = self.args.metric_for_best_model, self.args.greater_is_better
            keep = checkpoints_to_keep(run, self.state, self._keep_best, metric, greater)
            delete_old_checkpoints(run, self._save_total_limit, keep)
        self._saved_at = self.state.global_step
        self.state.stateful_callbacks.pop(INTERRUPTED, None)
        self.accelerator.wait_for_everyone()
        self._stopping = self._stopping or self.interruption.requested()
        if self._stopping:
            raise Terminated(self._stopping)

    def _note_best_checkpoint(self, new: Path) -> None:
        """Have the state name the best checkpoint, where that is the new one or one that is there."""
        if self.state.best_global_step:
            best = new.with_name(f"checkpoint-{self.state.best_global_step}")
            if best.name == new.name or best.is_dir():
                self.state.best_model_checkpoint = str(best)

    def _get_output_dir(self, *args: Any, **kwargs: Any) -> str:
        folder = super()._get_output_dir(*args, **kwargs)
        return folder if self._temporary is None else str(self._temporary)

    def _shared_temporary_dir(self, run: Path) -> Path:
        """Make the folder that all processes write a checkpoint into; its name is drawn by the first."""
        names = [new_temporary_dir(run, "checkpoint").name if self.is_world_process_zero() else None]
        temporary = run / str(broadcast_object_list(names)[0])
        temporary.mkdir(exist_ok=True)  # where nodes do not share their disks
        return temporary

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        if state_dict is not None:
            state_dict = without_tied_copies(self.model, state_dict)
        with self._averaged() as trained:
            super()._save(output_dir, state_dict)
        if trained and self.args.should_save:
            save_file(trained, Path(output_dir or self.args.output_dir) / TRAINED_WEIGHTS, metadata={"format": "pt"})
        if self.target_tokenizer is not None and self.args.should_save:
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

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Name the repository; it is made when there is something to push."""
        self.hub_model_id = self.args.hub_model_id or Path(self.args.output_dir).absolute().name

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Do nothing: transformers 5.24 would push all that stands in the run's folder, while it is written to."""

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

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        # A tied matrix is saved under one name; transformers 5.24 reports the others as missing when it loads the best
        # checkpoint, although tying has filled them.
        tied = set(self.model.all_tied_weights_keys)
        missing = [name for name in load_result.missing_keys if name not in tied]
        super()._issue_warnings_after_load(type(load_result)(missing, load_result.unexpected_keys))

    # Logs

    @property
    def minutes(self) -> float:
        """Return the minutes of training so far, evaluations included, and what came before it was resumed."""
        if self._started is None:
            return self._logged_minutes()
        return self._minutes_before + (time.monotonic() - self._started) / 60

    def _logged_minutes(self) -> float:
        logged = max((entry["minutes"] for entry in self.state.log_history if "minutes" in entry), default=0.0)
        return max(logged, self.state.stateful_callbacks.get(MINUTES, {}).get("minutes", 0.0))

    def _count_tokens(self) -> list[int]:
        """Return the tokens and the positions of all processes since the last log."""
        counted = torch.tensor([int(self._tokens), self._positions], device=self.args.device)
        return self.accelerator.reduce(counted).tolist()

    def _count_time(self) -> None:
        """Add the time since the last call, or since training continued, to what speed is measured by."""
        if self._clock is not None:
            now = time.monotonic()
            self._seconds += now - self._clock
            self._clock = now

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if self.is_in_train:
            self._stop_if_diverged()
        if self._started is not None:
            logs["minutes"] = round(self.minutes, 3)
        if "loss" in logs and self._seconds:
            tokens, positions = self._count_tokens()
            self._count_time()
            logs["tokens_per_second"] = round(tokens / self._seconds)
            logs["padding_share"] = round(1 - tokens / positions, 4)
            self._tokens, self._positions, self._seconds = 0, 0, 0.0
        if "train_loss" in logs:
            # transformers 5.24 divides by the updates since training was resumed, and leaves out what was before
            unlogged = self.accelerator.reduce(self._tr_loss, reduction="mean").item() - self._tr_loss.item()
            total = self._loss_before + self._total_loss_scalar + unlogged
            logs["train_loss"] = total / max(self.state.global_step, 1)
        super().log(logs, *args, **kwargs)


class Seq2SeqTokenTrainer(TokenTrainer, Seq2SeqTrainer):
    """The same with `Seq2SeqTrainer`, whose evaluations generate text."""

    def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
        # Seq2SeqTrainer 5.24 writes every default, max_length=20 among them, into the model's generation_config, from
        # where they would reach each saved checkpoint.
        model = base_model(self.model)
        generation_config = copy.deepcopy(model.generation_config)
        try:
            return super().prediction_step(*args, **kwargs)
        finally:
            model.generation_config = generation_config


class _EvaluationInterrupted(Exception):
    """A signal came while a model was evaluated."""


class _Events(TrainerCallback):
    """What `TokenTrainer` does at points of training that `Trainer` has no method for."""

    def __init__(self, trainer: TokenTrainer):
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        trainer = self.trainer
        if trainer._monitor is not None:
            trainer._monitor.rule.remember(entry["loss"] for entry in state.log_history if "loss" in entry)
        trainer.read_clock()
        updates = 0
        for entry in state.log_history:
            if "loss" in entry:
                trainer._loss_before += entry["loss"] * (entry["step"] - updates)
                updates = entry["step"]
        # see `_save_checkpoint`
        if unlogged := state.stateful_callbacks.get(UNLOGGED):
            trainer._tr_loss += unlogged["loss"]
            trainer._globalstep_last_logged -= unlogged["updates"]
            if args.process_index == 0:  # these are of all processes together
                trainer._tokens = trainer._tokens + unlogged.get("tokens", 0)
                trainer._positions += unlogged.get("positions", 0)
            trainer._seconds += unlogged.get("seconds", 0.0)

    def on_epoch_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.trainer._epoch_ended = False

    def on_optimizer_step(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.trainer.read_clock()  # the rate of the next update is set right after this

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.trainer.moving_average is not None:
            self.trainer.moving_average.update()

    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.trainer._epoch_ended = True
        # while training data that differ from epoch to epoch still are those of the updates
        self.trainer._stop_if_diverged()
