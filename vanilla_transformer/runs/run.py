"""A run from recipe to finished folder: data, tokenizer, training, averaging, scores, curves, card."""

import dataclasses
import pickle
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.trainer_pt_utils import safe_globals

from vanilla_transformer.errors import DivergedError
from vanilla_transformer.hub import PushError, ensure_repository, push_folder
from vanilla_transformer.recipes.recipe import Recipe
from vanilla_transformer.runs.arguments import accelerator_type, training_arguments
from vanilla_transformer.runs.averaging import average_weights
from vanilla_transformer.runs.facts import emissions, hardware, training_facts
from vanilla_transformer.runs.folder import (
    CURVES,
    METRICS,
    OUTPUTS,
    RECIPE,
    check_folder,
    checkpoint_to_resume,
    interrupted,
    prepare_folder,
    write_diverged,
    write_outputs,
)
from vanilla_transformer.runs.model_card import write_model_card
from vanilla_transformer.runs.plots import plot_curves
from vanilla_transformer.runs.run_log import Progress, RunLog
from vanilla_transformer.tasks import Example, TokenizedSplit
from vanilla_transformer.trainer.adapter import (
    ADAPTER_FILES,
    ADAPTER_WEIGHTS,
    STANDALONE,
    is_adapted,
    merge_adapter,
    save_model,
    set_weights,
)
from vanilla_transformer.trainer.callbacks import EarlyStop, StopOnSignal, TimeLimit, WarmupCheck
from vanilla_transformer.trainer.checkpoints import STATE, best_checkpoints, regular_checkpoints
from vanilla_transformer.trainer.costs import reset_peak_memory
from vanilla_transformer.trainer.divergence import DivergenceRule
from vanilla_transformer.trainer.interruption import Interruption, catch_signals
from vanilla_transformer.trainer.malloc import tune_malloc
from vanilla_transformer.trainer.processes import agree_on_errors
from vanilla_transformer.trainer.sharding import check_plugin, gather_model, is_sharded
from vanilla_transformer.utils.atomic import atomic_files, translate_io_errors
from vanilla_transformer.utils.errors import best_effort, first_line, is_lost_connection
from vanilla_transformer.utils.extras import missing
from vanilla_transformer.utils.json_files import write_json
from vanilla_transformer.utils.locks import lock_folder
from vanilla_transformer.utils.log import Log, renamed_log
from vanilla_transformer.utils.quiet import library_bars, quiet

IN_LOG, IN_CARD = 3, 5
"""Examples of what the model writes: at each evaluation in the log, and in the model card."""


@dataclass(frozen=True)
class RunResult:
    """A finished run: its folder, and what `metrics.json` holds."""

    folder: Path
    metrics: dict[str, Any]


def run_recipe(
    recipe: Recipe, *, resume: bool = False, overwrite: bool = False, log: Log = print, say: Log | None = None
) -> RunResult:
    """Train, score and save what a recipe describes.

    SIGINT (Ctrl-C) and SIGTERM end training with a checkpoint after the update in hand, a second one at once.

    Args:
        recipe: the run.
        resume: continue from the last checkpoint in the output folder.
        overwrite: delete what stands in the output folder.
        log: receives lines of progress for people.
        say: the name of `log` until the next version.

    Raises:
        RecipeError: for a recipe that cannot be run as it stands, and for an output folder that holds something, unless
            `resume` or `overwrite` says what to do with it.
        FileNotFoundError, ValueError: for data that cannot be read; see `load_parallel`.
        OSError: where a file cannot be written, as on a full disk; what was complete before stays so.
        DivergedError: where training diverges; `diverged.json` in the folder names the examples.
        PushError: with `training.push_to_hub`, where the Hub does not give a repository; before training.
        FolderInUse: where another process trains in the output folder.
        RunInterrupted: on SIGINT and SIGTERM.
    """
    log = renamed_log(log, say)
    if accelerator_type() is None:
        tune_malloc()
    arguments = training_arguments(recipe)
    run_log = RunLog(log if arguments.process_index == 0 else None)
    with ExitStack() as lock, run_log, library_bars(), catch_signals(run_log) as interruption:
        run = Run(recipe, arguments, run_log, interruption, lock)
        try:
            run.prepare(resume, overwrite)
            run.train()
            run.choose_weights()
            run.score()
            run.finish()
        except KeyboardInterrupt as error:
            raise interrupted(error, run.folder, interruption.when) from None
    return RunResult(run.folder, run.metrics)


class Run:
    """A run on its way, phase by phase: `prepare`, `train`, `choose_weights`, `score`, `finish`.

    Args:
        recipe: of the run.
        arguments: of its trainer.
        log: receives lines of progress, and keeps them.
        interruption: what signals ask for.
        lock: holds the lock of the folder until it is closed.

    Attributes:
        metrics: what `metrics.json` is to hold; filled by the phases in the order of its keys.
        outputs: what the chosen weights write, by the names of data sets.
    """

    def __init__(
        self, recipe: Recipe, arguments: TrainingArguments, log: RunLog, interruption: Interruption, lock: ExitStack
    ):
        self.recipe, self.arguments, self.log = recipe, arguments, log
        self.interruption, self.lock = interruption, lock
        self.folder = Path(recipe.output_dir)
        self.is_first = arguments.process_index == 0
        self.task = recipe.new_task()
        self.checkpoint: Path | None = None
        self.repository: str | None = None
        self.trainer: Any = None
        self.metrics: dict[str, Any] = {"task": recipe.task}
        self.outputs: dict[str, list[str]] = {}

    # Prepare

    def prepare(self, resume: bool, overwrite: bool) -> None:
        """Check folder and Hub, read data, make the model, then make the folder ready."""
        recipe, folder, log = self.recipe, self.folder, self.log
        # what may be refused, before anything is written
        with agree_on_errors():
            if self.is_first:
                check_folder(folder, resume=resume, overwrite=overwrite)
                self.lock.enter_context(lock_folder(folder))
                check_folder(folder, resume=resume, overwrite=overwrite)  # another run may have just ended
            if resume:
                self.checkpoint = checkpoint_to_resume(recipe, folder, self.arguments.world_size)
            if self.checkpoint:
                self.arguments.eval_on_start = False  # the unbroken run has no evaluation here
            if self.arguments.push_to_hub and self.is_first:
                self.repository = ensure_repository(
                    self._repository_name,
                    private=self.arguments.hub_private_repo,
                    what="a model that is not yet trained",
                    again="start the run again",
                )
            self._read_data()
            self.model = self.task.model(recipe.config(**self.task.config_fields()), log)
            log(f"{self.model.num_parameters():,} parameters, {self.model.config.architecture}")

        # not before all else is known to be in order: this deletes a run that is overwritten
        with agree_on_errors():
            if self.is_first:
                prepare_folder(folder, recipe, self.arguments, keep=resume)
                with translate_io_errors(folder, "make room and start again"), atomic_files(folder) as temporary:
                    recipe.save(temporary / RECIPE)
                    self.task.save(temporary)
                log.open(folder)
        if resume:
            none_yet = f"{folder} has no checkpoint yet: starting from the first"
            log(f"resuming from {self.checkpoint}" if self.checkpoint else none_yet)

    def _read_data(self) -> None:
        set_seed(self.recipe.seed)
        self.splits = self.task.read(self.recipe.splits(), self.folder if self.checkpoint else None, self.log)
        self.training_split, self.validation = self.splits["data.train"], self.splits["data.validation"]
        self.sampler = self.task.batch_sampler(self.training_split)
        batches = self.recipe.batches
        self.log(
            f"{len(self.sampler)} batches an epoch of at most {batches.max_tokens} tokens"
            f"{' a side' if batches.count == 'longer' else ''}, {100 * self.sampler.padding_share():.1f} % padding"
        )

    # Train

    def train(self) -> None:
        """Train to the end, and take down how it went."""
        reset_peak_memory(self.arguments.device.type)
        with agree_on_errors():
            self.trainer = trainer = self._new_trainer()
        progress = self._new_progress()
        trainer.add_callback(StopOnSignal(trainer))
        try:
            self._run_trainer()
        except DivergedError as error:
            if self.is_first:
                write_diverged(error, self.folder, self.task.ids(self.training_split, error.rows))
            raise
        except KeyboardInterrupt:
            self.interruption.when = f"at update {trainer.state.global_step}"
            raise
        finally:
            progress.close()
        self.interruption.when = "after training, while the model was scored and saved,"
        if is_sharded(trainer.model):
            trainer.model = trainer.model_wrapped = gather_model(trainer.accelerator, trainer.model)
        training = training_facts(self.recipe, self.task, trainer, self.training_split, self.sampler)
        self.log(f"training {training['stopped']}")
        self.metrics |= {
            "training": training,
            "data": {short_name(name): split.report.to_dict() for name, split in self.splits.items()},
            "hardware": hardware(),
            "energy": emissions(self.recipe, trainer),
        }
        self.arguments.distributed_state.wait_for_everyone()  # the first may still be deleting old checkpoints
        # scores are of the model as it is saved and loaded again, not under the autocast of training
        trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
        self.arguments.bf16_full_eval = self.arguments.fp16_full_eval = False  # nor rounded, as Trainer would leave it

    def _new_trainer(self) -> Any:
        """Return the task's trainer, with all that the recipe wants of it."""
        recipe, task, model = self.recipe, self.task, self.model
        trainer = task.trainer_class(
            model=model,
            args=self.arguments,
            train_dataset=task.train_data(self.training_split.tokenized),
            eval_dataset=task.evaluation_data(self.validation.tokenized, recipe.evaluation.sentences),
            data_collator=task.collator(model),
            train_collator=task.train_collator(model),
            batch_sampler=self.sampler,
            processing_class=task.tokenizer,
            divergence=DivergenceRule(**dataclasses.asdict(recipe.stop_on)),
            name_rows=partial(task.name_rows, self.training_split),
            ema_decay=recipe.averaging.ema,
            keep_best=recipe.averaging.best,
            max_minutes=recipe.max_minutes,
            interruption=self.interruption,
            **task.trainer_options(self.validation),
        )
        if trainer.is_fsdp_enabled:
            check_plugin(trainer.accelerator.state.fsdp_plugin)
        if recipe.max_minutes is not None:
            trainer.add_callback(TimeLimit(trainer))
        if recipe.early_stopping.patience is not None:
            trainer.add_callback(EarlyStop(recipe.early_stopping.patience, recipe.early_stopping.threshold))
        return trainer

    def _new_progress(self) -> Progress:
        """Return what tells of the training, in the place of what transformers prints."""
        progress = Progress(
            self.log,
            self.trainer,
            (name for name, *_ in self.task.curves),
            patience=self.recipe.early_stopping.patience,
            samples=self._sample_lines,
            bar=False if self.arguments.disable_tqdm else None,
        )
        for callback in (ProgressCallback, PrinterCallback):
            self.trainer.remove_callback(callback)
        self.trainer.add_callback(progress)
        self.trainer.add_callback(WarmupCheck(self.trainer, self.log))
        return progress

    def _run_trainer(self) -> None:
        """Call the trainer; where it cannot read the checkpoint, say so in one clear line."""
        checkpoint = self.checkpoint
        remedy = "delete it and resume from the one before it"
        try:
            self.trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        except SafetensorError as error:
            raise ValueError(f"{checkpoint} is damaged ({error}); {remedy}.") from error
        except pickle.UnpicklingError as error:
            raise ValueError(
                f"{_unsafe_file(checkpoint)} holds objects beside tensors and plain values, and reading such can run any "
                f"code, so it is not read; delete {checkpoint}, or start another run with its weights, "
                f"start_from={checkpoint}."
            ) from error
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError) as error:
            if checkpoint is None or self.trainer.has_made_a_step or is_lost_connection(error):
                raise
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise ValueError(f"{checkpoint} is damaged, or not of this run ({reason}); {remedy}.") from error

    # Choose weights

    def choose_weights(self) -> None:
        """Compare the best checkpoint with averages on the validation data; the model keeps the best of these."""
        trainer, model = self.trainer, self.trainer.model
        metric = str(self.arguments.metric_for_best_model).removeprefix("eval_")
        sign = 1 if self.arguments.greater_is_better else -1
        best = trainer.state.best_model_checkpoint if self.arguments.load_best_model_at_end else None

        # the weights that training has left in the model
        kept = "best" if best else "last"
        words = {kept: f"{kept} checkpoint"}
        scores, outputs = {}, {}
        scores[kept], outputs[kept] = self._score_split(self.validation, f"validation, {words[kept]}")
        if metric not in scores[kept]:
            metric, sign = self.task.scores[0], 1  # the loss is not among the scores of generated text

        # and the others, by the last, which it becomes where they are equal
        facts: dict[str, Any] = {"best_checkpoint": Path(best).name} if best else {}
        candidates: dict[str, Callable[[], dict[str, torch.Tensor]]] = {}
        for name, which, folders in self._checkpoints_to_average():
            words[name] = f"mean of the {which} {len(folders)} checkpoints"
            facts[f"averaged_{'best_' if which == 'best' else ''}checkpoints"] = [folder.name for folder in folders]
            candidates[name] = partial(average_weights, folders)
        average = trainer.moving_average
        is_best = best and Path(best).name == f"checkpoint-{trainer.state.global_step}"
        if average is not None and average.weights and not is_best:
            words["ema"] = "moving average at the end"
            candidates["ema"] = lambda: average.weights
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()} if candidates else {}
        for name, weights in candidates.items():
            set_weights(model, weights())
            scores[name], outputs[name] = self._score_split(self.validation, f"validation, {words[name]}")
            if sign * scores[name][metric] >= sign * scores[kept][metric]:
                kept = name
        if candidates:
            set_weights(model, candidates[kept]() if kept in candidates else before)
        self.metrics["model"] = {**facts, "weights": kept, "weights_are": words[kept], "validation": scores}
        self.outputs["validation"] = outputs[kept]

    def _checkpoints_to_average(self) -> list[tuple[str, str, list[Path]]]:
        """Return the name of each average that is wanted, which checkpoints it is of in a word, and their folders."""
        checkpoints = regular_checkpoints(self.folder)
        count = self.recipe.averaging.last or 0
        last = checkpoints[-count:] if count > 1 else []
        best = best_checkpoints(
            checkpoints,
            self.recipe.averaging.best,
            self.trainer.state.log_history,
            str(self.arguments.metric_for_best_model),
            self.arguments.greater_is_better,
        )
        wanted = [("average", "last", last), ("average_best", "best", best if best != last else [])]
        return [average for average in wanted if len(average[2]) > 1]

    # Score

    def score(self) -> None:
        """Score the chosen weights on the tests."""
        if is_adapted(self.trainer.model) and self.recipe.adapter.merge:
            self.trainer.model = self.trainer.model_wrapped = merge_adapter(self.trainer.model)
        self.metrics["test"] = {}
        for name in self.recipe.data.test:
            scores, self.outputs[name] = self._score_split(self.splits[f"data.test.{name}"], name)
            self.metrics["test"][name] = scores

    def _score_split(self, split: TokenizedSplit, name: str) -> tuple[dict[str, Any], list[str]]:
        self.log(f"scoring {name} ({len(split.dataset):,} {self.task.noun}) ...")
        scores, outputs = self.task.score(self.trainer, split)
        self.log(f"{name}: {self.task.score_line(scores)}")
        return scores, outputs

    def _examples(self, split: TokenizedSplit, count: int) -> list[Example]:
        """Return what the model makes of a few texts spread over a split; none where its weights are spread over processes."""
        if self.trainer.is_deepspeed_enabled or is_sharded(self.trainer.model):
            return []
        total = len(split.dataset)
        rows = sorted({int((number + 0.5) * total / count) for number in range(count)})
        model = self.trainer.accelerator.unwrap_model(self.trainer.model).eval()
        with quiet():
            return self.task.examples(model, split, rows)

    def _sample_lines(self) -> list[str]:
        try:
            examples = self._examples(self.validation, IN_LOG)
        except Exception as error:  # whatever it is, the training is worth more than a look at it
            return [f"no samples ({type(error).__name__}: {error})"]
        lines = (line for example in examples for line in asdict(example).items())
        return [f"{name + ':':<11}{shorten(text, 300, placeholder=' ...')}" for name, text in lines]

    # Finish

    def finish(self) -> None:
        """Write what makes the folder a model that anyone can load, beside the checkpoints, and push it where asked to."""
        with agree_on_errors():
            if self.is_first:
                shown = next((self.splits[f"data.test.{name}"] for name in self.recipe.data.test), self.validation)
                self.metrics["examples"] = [asdict(example) for example in self._examples(shown, IN_CARD)]
                self._write_model()
                if self.arguments.push_to_hub:
                    self._push()
        self.arguments.distributed_state.wait_for_everyone()  # a folder that is returned is finished, in whichever process

    def _write_model(self) -> None:
        folder, trainer = self.folder, self.trainer
        with (
            translate_io_errors(f"the model in {folder}", "make room and resume with --resume"),
            atomic_files(folder) as temporary,
        ):
            save_model(trainer.model, temporary)
            trainer.state.save_to_json(str(temporary / STATE))
            write_json(temporary / METRICS, self.metrics)
            write_outputs(temporary / OUTPUTS, self.outputs)
            self.task.save(temporary)  # so that the lines of the card can be run there
            with best_effort(f"{CURVES} was not drawn", "trainer_state.json holds its numbers", self.log):
                history, smoothing = trainer.state.log_history, trainer.model.config.label_smoothing
                if not plot_curves(history, temporary / CURVES, folder.name, self.task.curves, smoothing):
                    self.log(f"{CURVES} was not drawn: {missing('a picture', 'matplotlib')}")
            with best_effort("README.md was not written", f"{METRICS} holds what it would say", self.log):
                write_model_card(temporary, self.recipe, self.task, self.metrics, self.repository)
            replaced = STANDALONE if (temporary / ADAPTER_WEIGHTS).is_file() else ADAPTER_FILES
        # a run that is resumed may merge what it had not, and both together would be the adapter twice; not before the new
        # files are in their place, as a run that is killed in between is to hold a model
        for name in replaced:
            (folder / name).unlink(missing_ok=True)
        self.log(f"finished: {folder}")

    @property
    def _repository_name(self) -> str:
        return self.arguments.hub_model_id or self.folder.absolute().name

    def _push(self) -> None:
        """Push the finished run; where that fails the run is finished all the same, and what to do is said."""
        where = {"private": self.arguments.hub_private_repo, "revision": self.arguments.hub_revision}
        try:
            self.log(f"pushed: {push_folder(self.folder, self._repository_name, **where).commit_url}")
        except PushError as error:
            self.log(str(error))


def short_name(name: str) -> str:
    """Return the name of a split as metrics and cards have it."""
    return name.removeprefix("data.").removeprefix("test.")


def _unsafe_file(checkpoint: Path | None) -> Path:
    """Return the file of a checkpoint that cannot be read as data alone."""
    assert checkpoint is not None
    for file in sorted(checkpoint.glob("*.pt*")):
        try:
            with safe_globals():
                torch.load(file, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError:
            return file
    return checkpoint
