"""A run from recipe to finished folder: data, tokenizer, training, averaging, scores, curves, card."""

import contextlib
import dataclasses
import itertools
import json
import os
import pickle
import platform
import re
import shlex
import shutil
import signal
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    PreTrainedModel,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.trainer_pt_utils import safe_globals

from vanilla_transformer.data.batching import TokenBudgetBatchSampler
from vanilla_transformer.errors import DivergedError, RecipeError, RunInterrupted
from vanilla_transformer.hub import PushError, ensure_repository, push_folder
from vanilla_transformer.recipes.recipe import Recipe
from vanilla_transformer.runs.averaging import average_weights
from vanilla_transformer.runs.emissions import estimate_emissions
from vanilla_transformer.runs.model_card import write_model_card
from vanilla_transformer.runs.plots import plot_curves
from vanilla_transformer.runs.run_log import Progress, RunLog
from vanilla_transformer.tasks import TASKS, Example, Task, TokenizedSplit
from vanilla_transformer.trainer.adapter import (
    ADAPTER_FILES,
    ADAPTER_WEIGHTS,
    STANDALONE,
    is_adapted,
    merge_adapter,
    save_model,
    set_weights,
)
from vanilla_transformer.trainer.callbacks import (
    EarlyStop,
    StopOnSignal,
    TimeLimit,
    WarmupCheck,
    describe_warmup,
)
from vanilla_transformer.trainer.checkpoints import (
    STATE,
    best_checkpoints,
    checkpoints_to_keep,
    delete_old_checkpoints,
    find_checkpoints,
    processes_of,
    read_state,
    regular_checkpoints,
)
from vanilla_transformer.trainer.costs import count_flops, peak_memory, reset_peak_memory
from vanilla_transformer.trainer.divergence import DivergenceRule
from vanilla_transformer.trainer.interruption import Interruption, catch_signals
from vanilla_transformer.trainer.malloc import tune_malloc
from vanilla_transformer.trainer.processes import agree_on_errors
from vanilla_transformer.trainer.schedules import DECAY, SCHEDULE_OPTIONS, peak_learning_rate
from vanilla_transformer.trainer.sharding import check_device, check_plugin, gather_model, is_sharded
from vanilla_transformer.trainer.trainer import TRAINED_WEIGHTS
from vanilla_transformer.utils.atomic import atomic_files, is_temporary, remove_temporaries, translate_io_errors
from vanilla_transformer.utils.errors import first_line, is_lost_connection
from vanilla_transformer.utils.extras import PACKAGES, missing
from vanilla_transformer.utils.locks import LOCK, lock_folder
from vanilla_transformer.utils.quiet import library_bars, quiet
from vanilla_transformer.utils.shutdown import tear_down_at_exit

__all__ = ["RunResult", "clear_folder", "run_recipe", "short_name", "spare", "training_arguments"]

METRICS, RECIPE, CURVES, OUTPUTS = "metrics.json", "recipe.yaml", "curves.png", "outputs"
DIVERGED = "diverged.json"

IN_LOG, IN_CARD = 3, 5
"""Examples of what the model writes: at each evaluation in the log, and in the model card."""

LONGEST_NAME = 80
"""Characters of the name of a file that is named after a data set."""


@dataclass(frozen=True)
class RunResult:
    """A finished run: its folder, and what `metrics.json` holds."""

    folder: Path
    metrics: dict[str, Any]


def run_recipe(
    recipe: Recipe, *, resume: bool = False, overwrite: bool = False, say: Callable[[str], None] = print
) -> RunResult:
    """Train, score and save what a recipe describes.

    SIGINT (Ctrl-C) and SIGTERM end training with a checkpoint after the update in hand, a second one at once.

    Args:
        recipe: the run.
        resume: go on from the last checkpoint in the output folder.
        overwrite: delete what stands in the output folder.
        say: receives lines of progress for people.

    Raises:
        RecipeError: for a recipe that cannot be run as it stands, and for an output folder that holds something, unless
            `resume` or `overwrite` says what to do with it.
        FileNotFoundError, ValueError: for data that cannot be read; see `load_parallel`.
        OSError: where a file cannot be written, as on a full disk; what was whole before stays whole.
        DivergedError: where training diverges; `diverged.json` in the folder names the examples.
        PushError: with `training.push_to_hub`, where the Hub does not give a repository; before training.
        FolderInUse: where another process trains in the output folder.
        RunInterrupted: on SIGINT and SIGTERM.
    """
    if _accelerator() is None:
        tune_malloc()
    arguments = training_arguments(recipe)
    log = RunLog(say if arguments.process_index == 0 else None)
    with contextlib.ExitStack() as lock, log, library_bars(), catch_signals(log) as interruption:
        try:
            return _run(recipe, arguments, resume, overwrite, log, interruption, lock)
        except KeyboardInterrupt as error:
            raise _interrupted(error, Path(recipe.output_dir), interruption.when) from None


def _run(
    recipe: Recipe,
    arguments: TrainingArguments,
    resume: bool,
    overwrite: bool,
    log: RunLog,
    interruption: Interruption,
    lock: contextlib.ExitStack,
) -> RunResult:
    """See `run_recipe`; `lock` takes the lock of the folder, until it is closed."""
    folder = Path(recipe.output_dir)
    first_process = arguments.process_index == 0

    # what may be refused, before anything is written
    with agree_on_errors():
        if first_process:
            _check_folder(folder, resume=resume, overwrite=overwrite)
            lock.enter_context(lock_folder(folder))
            _check_folder(folder, resume=resume, overwrite=overwrite)  # another run may have just ended
        checkpoint = _find_checkpoint(recipe, folder, arguments) if resume else None
        if checkpoint:
            arguments.eval_on_start = False  # the unbroken run has no evaluation here
        repository = None
        if arguments.push_to_hub and first_process:
            repository = ensure_repository(
                _repository(arguments),
                private=arguments.hub_private_repo,
                what="a model that is not yet trained",
                again="start the run again",
            )
        set_seed(recipe.seed)
        task = recipe.new_task()
        parts = task.read(recipe.splits(), folder if checkpoint else None, log)
        train, validation = parts["data.train"], parts["data.validation"]
        sampler = task.batch_sampler(train)
        log(
            f"{len(sampler)} batches an epoch of at most {recipe.batches.max_tokens} tokens"
            f"{' a side' if recipe.batches.count == 'longer' else ''}, "
            f"{100 * sampler.padding_share():.1f} % padding"
        )
        model = task.model(recipe.config(**task.config_fields()), log)
        log(f"{model.num_parameters():,} parameters, {model.config.architecture}")

    # not before all else is known to be in order: this deletes a run that is overwritten
    with agree_on_errors():
        if first_process:
            _prepare_folder(folder, recipe, arguments, keep=resume)
            with translate_io_errors(folder, "make room and start again"), atomic_files(folder) as temporary:
                recipe.save(temporary / RECIPE)
                task.save(temporary)
            log.open(folder)
    if resume:
        log(
            f"resuming from {checkpoint}" if checkpoint else f"{folder} has no checkpoint yet: starting from the first"
        )

    # Training
    reset_peak_memory(arguments.device.type)
    with agree_on_errors():
        trainer = _new_trainer(recipe, task, model, arguments, train, validation, sampler, interruption)
    progress = _new_progress(recipe, task, trainer, validation, log)
    trainer.add_callback(StopOnSignal(trainer))
    try:
        _train(trainer, checkpoint, folder)
    except DivergedError as error:
        if first_process:
            _write_diverged(error, folder, task.ids(train, error.rows))
        raise
    finally:
        progress.close()
    interruption.when = "after training, while the model was scored and saved,"
    if is_sharded(trainer.model):
        trainer.model = trainer.model_wrapped = gather_model(trainer.accelerator, trainer.model)
    stopped = _end_of_training(recipe, trainer)
    log(f"training {stopped}")

    # Scores, and the folder of a finished run
    metrics: dict[str, Any] = {
        "task": recipe.task,
        "training": {
            **_training_facts(trainer, train),
            **_costs(recipe, task, trainer, train, sampler),
            "stopped": stopped,
            "warmup": _warmup(trainer),
        },
        "data": {short_name(name): part.report.to_dict() for name, part in parts.items()},
        "hardware": _hardware(),
    }
    metrics["energy"] = _energy(recipe, trainer)
    arguments.distributed_state.wait_for_everyone()  # the first process may still be deleting old checkpoints
    # scores are of the model as it is saved and loaded again, not under the autocast of training
    trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
    arguments.bf16_full_eval = arguments.fp16_full_eval = False  # nor rounded, as Trainer would leave it
    outputs: dict[str, list[str]] = {}
    metrics["model"], outputs["validation"] = _choose_weights(recipe, task, trainer, folder, validation, log)
    if is_adapted(trainer.model) and recipe.adapter.merge:
        trainer.model = trainer.model_wrapped = merge_adapter(trainer.model)
    metrics["test"] = {}
    for name in recipe.data.test:
        metrics["test"][name], outputs[name] = _score(task, trainer, parts[f"data.test.{name}"], log, name)

    with agree_on_errors():
        if first_process:
            shown = next((parts[f"data.test.{name}"] for name in recipe.data.test), validation)
            metrics["examples"] = [asdict(example) for example in _examples(task, trainer, shown, IN_CARD)]
            _finish(recipe, task, trainer, folder, metrics, outputs, log, repository)
            if arguments.push_to_hub:
                _push(folder, arguments, log)
    arguments.distributed_state.wait_for_everyone()  # a folder that is returned is finished, in whichever process
    return RunResult(folder, metrics)


def short_name(name: str) -> str:
    """Of a part of the data, as metrics and cards have it."""
    return name.removeprefix("data.").removeprefix("test.")


def _check_folder(folder: Path, *, resume: bool, overwrite: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise RecipeError(f"output_dir {folder} is a file; name a folder.")
    if resume and overwrite:
        raise RecipeError("--resume resumes a run and --overwrite deletes it; give one of them.")
    # a run that was killed while it wrote its very first files has left no more than these
    if not folder.is_dir() or all(is_temporary(path) or path.name == LOCK for path in folder.iterdir()):
        return
    is_run = (folder / RECIPE).is_file()
    if overwrite and not is_run:
        raise RecipeError(
            f"output_dir {folder} holds files but no run, so it is not overwritten; name another folder."
        )
    if resume and not is_run:
        raise RecipeError(f"output_dir {folder} holds no run to go on with; name its folder, or leave out --resume.")
    if not resume and not overwrite:
        raise RecipeError(
            f"output_dir {folder} is not empty; give --resume to go on with the run in it, --overwrite to start it "
            "again, or output_dir=... for another folder."
        )


def _find_checkpoint(recipe: Recipe, folder: Path, arguments: TrainingArguments) -> Path | None:
    """Return the checkpoint from which a run is resumed; None where it was interrupted before the first.

    Raises:
        RecipeError: where the run would not be the one that was started, or cannot be resumed.
    """
    if (folder / RECIPE).is_file():
        _check_same_run(recipe, Recipe.load(folder / RECIPE))
    checkpoints = find_checkpoints(folder)
    if not checkpoints:
        return None
    _check_complete(checkpoints[-1], recipe)
    _check_processes(checkpoints[-1], arguments.world_size)
    return checkpoints[-1]


def _check_same_run(recipe: Recipe, begun: Recipe) -> None:
    if changed := recipe.changes_since(begun):
        raise RecipeError(
            f"--resume goes on with the run as it was begun, but {', '.join(changed)} differ{'s' if len(changed) == 1 else ''}"
            " from its recipe.yaml; set back what changed, or start another run in another output_dir."
        )


def _check_complete(checkpoint: Path, recipe: Recipe) -> None:
    """Refuse a checkpoint that is damaged, or from which transformers would begin optimizer and schedule anew.

    Raises:
        RecipeError: naming what is missing.
    """
    needed = ["optimizer*", "scheduler.pt", "rng_state*.pth"]
    if recipe.averaging.ema is not None:
        needed.append(TRAINED_WEIGHTS)
    missing = [name.replace("*", "") for name in needed if not any(checkpoint.glob(name))]
    if missing:
        raise RecipeError(
            f"{checkpoint} lacks {', '.join(missing)}, so the run cannot go on from it as it was; with start_from={checkpoint} "
            "another run begins with its weights (training.save_only_model saves nothing else)."
        )
    for file in sorted(checkpoint.glob("*.pt*")):
        # what torch.save writes ends in a directory of its parts; torch.load has an error of another kind for each place at
        # which a file may end too soon
        if not zipfile.is_zipfile(file):
            raise RecipeError(
                f"{checkpoint} is damaged ({file.name} is cut short); delete it and resume from the one before it."
            )


def _check_processes(checkpoint: Path, count: int) -> None:
    """Refuse another number of processes: each has a batch of its own in every update, so it would be another run.

    Raises:
        RecipeError: with both numbers.
    """
    before = processes_of(checkpoint)
    if before != count:
        words = f"{before} process{'es' if before > 1 else ''}"
        start = (
            f"torchrun --nproc-per-node {before}" if before > 1 else "vanilla-transformer train, without a launcher"
        )
        raise RecipeError(
            f"--resume resumes the run as it was started, by {words}, but {'these are' if count > 1 else 'this is'} "
            f"{count}: {checkpoint} would be trained with other batches; start {words} ({start}), or another run with "
            f"start_from={checkpoint}."
        )


def clear_folder(folder: Path) -> None:
    """Delete what a folder holds, but for the lock, which this process has."""
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


def _prepare_folder(folder: Path, recipe: Recipe, arguments: TrainingArguments, *, keep: bool) -> None:
    """Make the folder empty, or take out of the run in it what was not written or not deleted to its end."""
    folder.mkdir(parents=True, exist_ok=True)
    if not keep:
        clear_folder(folder)
    checkpoints = find_checkpoints(folder)
    remove_temporaries(folder)
    for unfinished in set(folder.glob("checkpoint-*")) - set(checkpoints):
        shutil.rmtree(unfinished, ignore_errors=True)
    (folder / DIVERGED).unlink(missing_ok=True)
    if checkpoints:
        # a run may have ended before it came to this, and the average must not be of checkpoints that should be gone
        state = read_state(checkpoints[-1])
        kept = checkpoints_to_keep(
            folder, state, recipe.averaging.best, arguments.metric_for_best_model, arguments.greater_is_better
        )
        delete_old_checkpoints(folder, arguments.save_total_limit, kept)


def training_arguments(recipe: Recipe, **overrides: Any) -> TrainingArguments:
    """The recipe's training section for transformers, with what this machine and all runs of the package need.

    On several processes it also sees to it that this one ends in order ([`tear_down_at_exit`]).

    Args:
        overrides: fields in the place of the recipe's.

    Raises:
        RecipeError: for a value that transformers refuses, and for what this machine cannot do.
    """
    # use_cpu: without it transformers 5.24 lets several processes on CPUs each train a model of its own
    # logging_nan_inf_filter: it hides a loss that is no number behind the mean of those before it, and reads every loss
    # from the device for it; fp16 needs it for the updates that its gradient scaler skips
    machine = {
        "use_cpu": _accelerator() is None,
        "dataloader_pin_memory": _accelerator() == "cuda",
        "ddp_find_unused_parameters": False,  # there are none, and DDP warns where it is told to look for them
        "logging_nan_inf_filter": bool(recipe.training.get("fp16")),
    }
    task = TASKS[recipe.task]
    fields = {**machine, "label_names": list(task.label_names), **recipe.training, **overrides}
    fields.setdefault("save_total_limit", max(recipe.averaging.last or 0, recipe.averaging.best, 1) + 1)
    if fields["lr_scheduler_type"] == DECAY:  # which transformers does not know by name
        fields["lr_scheduler_type"] = "inverse_sqrt"
        fields["lr_scheduler_kwargs"] = SCHEDULE_OPTIONS[DECAY] | (fields.get("lr_scheduler_kwargs") or {})
    width, warmup = recipe.config().hidden_size, fields["warmup_steps"]
    fields["learning_rate"] = peak_learning_rate(fields["learning_rate"], width, warmup)
    for name in ("gradient_checkpointing", "gradient_checkpointing_kwargs"):  # what transformers 5.24 warns of
        if name in fields:
            fields.setdefault(name.replace("gradient", "activation"), fields.pop(name))
    if issubclass(task.arguments_class, Seq2SeqTrainingArguments):
        fields["generation_num_beams"] = recipe.evaluation.num_beams
    try:
        arguments = task.arguments_class(output_dir=recipe.output_dir, seed=recipe.seed, **fields)
    except (TypeError, ValueError, ImportError) as error:
        raise RecipeError(f"training: {' '.join(str(error).split())}") from error
    if arguments.world_size > 1:
        tear_down_at_exit()
    _check_machine(arguments)
    _check_trackers(arguments.report_to)
    return arguments


def _check_trackers(names: list[str]) -> None:
    """Refuse a name in `training.report_to` that transformers does not know, or whose package is not installed."""
    for name in names:
        if name not in INTEGRATION_TO_CALLBACK:
            raise RecipeError(
                f"training.report_to={name!r} is none of {', '.join(INTEGRATION_TO_CALLBACK)}, all, none."
            )
        try:
            INTEGRATION_TO_CALLBACK[name]()
        except (ImportError, RuntimeError) as error:
            setting = f"training.report_to={name!r}"
            if name in PACKAGES:
                said = missing(setting, name)
            else:
                said = f"{setting} cannot be used: {' '.join(str(error).split())}"
            raise RecipeError(f"{said.rstrip('.')}; or leave it out.") from error


def _check_machine(arguments: TrainingArguments) -> None:
    """Refuse what transformers would leave out in silence, or fail at in the first update.

    Raises:
        RecipeError: in one sentence.
    """
    on_cpu = arguments.device.type == "cpu"
    check_device(arguments.device)
    if on_cpu and (arguments.fp16 or arguments.fp16_full_eval):
        raise RecipeError("training.fp16 needs an accelerator, and there is none here; set training.bf16 instead.")
    # what torch's inductor looks for
    compiler = os.environ.get("CXX", {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++"))
    if on_cpu and arguments.torch_compile_backend == "inductor" and shutil.which(compiler) is None:
        raise RecipeError(
            f"training.torch_compile needs the C++ compiler {compiler}, which is not here; install it, name another in "
            "the environment variable CXX, or leave torch_compile out."
        )


def _new_trainer(
    recipe: Recipe,
    task: Task,
    model: PreTrainedModel,
    arguments: TrainingArguments,
    train: TokenizedSplit,
    validation: TokenizedSplit,
    sampler: TokenBudgetBatchSampler,
    interruption: Interruption,
) -> Any:
    """The task's trainer, with all that the recipe wants of it.

    Raises:
        RecipeError: for a way of sharding that a run cannot be made with.
    """
    trainer = task.trainer_class(
        model=model,
        args=arguments,
        train_dataset=task.train_data(train.tokenized),
        eval_dataset=task.evaluation_data(validation.tokenized, recipe.evaluation.sentences),
        data_collator=task.collator(model),
        train_collator=task.train_collator(model),
        batch_sampler=sampler,
        processing_class=task.tokenizer,
        divergence=DivergenceRule(**dataclasses.asdict(recipe.stop_on)),
        name_rows=lambda rows: task.name_rows(train, rows),
        ema_decay=recipe.averaging.ema,
        keep_best=recipe.averaging.best,
        max_minutes=recipe.max_minutes,
        interruption=interruption,
        **task.trainer_options(validation),
    )
    if trainer.is_fsdp_enabled:
        check_plugin(trainer.accelerator.state.fsdp_plugin)
    if recipe.max_minutes is not None:
        trainer.add_callback(TimeLimit(trainer))
    if recipe.early_stopping.patience is not None:
        trainer.add_callback(EarlyStop(recipe.early_stopping.patience, recipe.early_stopping.threshold))
    return trainer


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


def _new_progress(recipe: Recipe, task: Task, trainer: Any, validation: TokenizedSplit, log: RunLog) -> Progress:
    """Return what tells of the training, in the place of what transformers prints."""
    progress = Progress(
        log,
        trainer,
        (name for name, *_ in task.curves),
        patience=recipe.early_stopping.patience,
        samples=partial(_sample_lines, task, trainer, validation),
    )
    progress.bar = progress.bar and not trainer.args.disable_tqdm
    for callback in (ProgressCallback, PrinterCallback):
        trainer.remove_callback(callback)
    trainer.add_callback(progress)
    trainer.add_callback(WarmupCheck(trainer, log))
    return progress


def _train(trainer: Any, checkpoint: Path | None, folder: Path) -> None:
    try:
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    except SafetensorError as error:
        raise ValueError(f"{checkpoint} is damaged ({error}); delete it and resume from the one before it.") from error
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{_unsafe_file(checkpoint)} holds objects beside tensors and plain values, and reading such can run any code, so "
            f"it is not read; delete {checkpoint}, or begin another run with its weights, start_from={checkpoint}."
        ) from error
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError) as error:
        if checkpoint is None or trainer.has_made_a_step or is_lost_connection(error):
            raise
        raise ValueError(
            f"{checkpoint} is damaged, or not of this run ({type(error).__name__}: {first_line(error)}); delete it and resume "
            "from the one before it."
        ) from error
    except KeyboardInterrupt as error:
        raise _interrupted(error, folder, f"at update {trainer.state.global_step}") from None


def _interrupted(error: KeyboardInterrupt, folder: Path, when: str) -> RunInterrupted:
    """Return what a signal has left of a run, and what to type to resume it."""
    number = getattr(error, "number", signal.SIGINT)
    saved = find_checkpoints(folder)
    kept = f"{saved[-1].name} is kept" if saved else "no checkpoint was saved yet"
    command = f"vanilla-transformer train {shlex.quote(str(folder / RECIPE))} --resume"
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        remedy = "resume with the command that started it and --resume"
    elif not (folder / RECIPE).is_file():
        remedy = "start it again"
    else:
        remedy = f"resume with: {command}"
    return RunInterrupted(f"interrupted {when} by {signal.Signals(number).name}; {kept}", remedy, number)


def _end_of_training(recipe: Recipe, trainer: Any) -> str:
    """Return why training ended: for want of improvement, time, updates or epochs."""
    state, patience, threshold = trainer.state, recipe.early_stopping.patience, recipe.early_stopping.threshold
    if patience is not None and EarlyStop.evaluations_without_improvement(state) >= patience:
        metric = str(recipe.training["metric_for_best_model"]).removeprefix("eval_")
        margin = f" by more than {threshold}" if threshold else ""
        evaluations = f"{patience} evaluation{'s' if patience > 1 else ''}"
        return f"stopped at update {state.global_step}: {metric} has not improved{margin} for {evaluations}"
    if state.global_step < state.max_steps:
        return (
            f"stopped at update {state.global_step}: its time of {recipe.max_minutes:g} minutes was up (max_minutes)"
        )
    if trainer.args.max_steps > 0:
        return f"ended at update {state.global_step}: it made all its updates (training.max_steps)"
    epochs = f"{trainer.args.num_train_epochs:g}"
    return (
        f"ended at update {state.global_step}: it made {'its epoch' if epochs == '1' else f'all {epochs} epochs'} "
        "(training.num_train_epochs)"
    )


def _choose_weights(
    recipe: Recipe,
    task: Task,
    trainer: Trainer,
    folder: Path,
    validation: TokenizedSplit,
    say: Callable[[str], None],
) -> tuple[dict[str, Any], list[str]]:
    """Compare the best checkpoint with the means of several on the validation data; the model keeps the best of these.

    Returns:
        What metrics.json says of it, and the outputs of the kept weights.
    """
    model = trainer.model
    metric = str(trainer.args.metric_for_best_model).removeprefix("eval_")
    sign = 1 if trainer.args.greater_is_better else -1
    facts: dict[str, Any] = {}
    best = trainer.state.best_model_checkpoint if trainer.args.load_best_model_at_end else None
    kept = "best" if best else "last"
    words = {kept: f"{kept} checkpoint"}
    scores, outputs = {}, {}
    scores[kept], outputs[kept] = _score(task, trainer, validation, say, f"validation, {words[kept]}")
    if metric not in scores[kept]:
        metric, sign = task.scores[0], 1  # the loss is not among the scores of generated text
    if best:
        facts["best_checkpoint"] = Path(best).name
    candidates: dict[str, Callable[[], dict[str, torch.Tensor]]] = {}
    for name, (folders, which) in _means(recipe, trainer, folder).items():
        words[name] = f"mean of the {which} {len(folders)} checkpoints"
        facts["averaged_checkpoints" if name == "average" else "averaged_best_checkpoints"] = [f.name for f in folders]
        candidates[name] = partial(average_weights, folders)
    average = trainer.moving_average
    is_best = best and Path(best).name == f"checkpoint-{trainer.state.global_step}"
    if average is not None and average.weights and not is_best:
        words["ema"] = "moving average at the end"
        candidates["ema"] = lambda: average.weights
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()} if candidates else {}
    for name, weights in candidates.items():
        set_weights(model, weights())
        scores[name], outputs[name] = _score(task, trainer, validation, say, f"validation, {words[name]}")
        if sign * scores[name][metric] >= sign * scores[kept][metric]:
            kept = name
    if candidates:
        set_weights(model, candidates[kept]() if kept in candidates else before)
    facts["weights"] = kept
    facts["weights_are"] = words[kept]
    facts["validation"] = scores
    return facts, outputs[kept]


def _means(recipe: Recipe, trainer: Trainer, folder: Path) -> dict[str, tuple[list[Path], str]]:
    """Checkpoints whose mean is wanted, and which ones they are in a word."""
    checkpoints = regular_checkpoints(folder)
    count = recipe.averaging.last or 0
    last = checkpoints[-count:] if count > 1 else []
    best = best_checkpoints(
        checkpoints,
        recipe.averaging.best,
        trainer.state.log_history,
        str(trainer.args.metric_for_best_model),
        trainer.args.greater_is_better,
    )
    named = {"average": (last, "last"), "average_best": (best if best != last else [], "best")}
    return {name: (folders, which) for name, (folders, which) in named.items() if len(folders) > 1}


def _score(
    task: Task, trainer: Trainer, part: TokenizedSplit, say: Callable[[str], None], name: str
) -> tuple[dict[str, Any], list[str]]:
    say(f"scoring {name} ({len(part.dataset):,} {task.noun}) ...")
    scores, outputs = task.score(trainer, part)
    say(f"{name}: {task.score_line(scores)}")
    return scores, outputs


def _training_facts(trainer: Any, train: TokenizedSplit) -> dict[str, Any]:
    speeds = [entry["tokens_per_second"] for entry in trainer.state.log_history if "tokens_per_second" in entry]
    return {
        "minutes": round(trainer.minutes, 1),
        "updates": trainer.state.global_step,
        "epochs": round(float(trainer.state.epoch or 0), 2),
        "examples": len(train.tokenized),
        "tokens_per_second": sorted(speeds)[len(speeds) // 2] if speeds else None,
        "architecture": trainer.model.config.architecture,
        "parameters": trainer.model.num_parameters(),
        "processes": trainer.args.world_size,
    }


def _costs(
    recipe: Recipe, task: Task, trainer: Any, train: TokenizedSplit, sampler: TokenBudgetBatchSampler
) -> dict[str, Any]:
    """Return what training takes: the peak of memory so far, and operations a token, counted on the first batch."""
    facts = {"peak_memory_mb": peak_memory(trainer.args.device.type), "flops_per_token": None}
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        return facts
    numbers = next(iter(sampler))
    rows = task.train_data(train.tokenized)
    model = trainer.accelerator.unwrap_model(trainer.model)
    batch = task.train_collator(model)([rows[number] for number in numbers])
    tokens = int(task.lengths(train.tokenized)[numbers].sum())
    return facts | {"flops_per_token": count_flops(model, batch, tokens)}


def _warmup(trainer: Any) -> str | None:
    """Return what is to be said of the warm-up, now that the updates of the run are known."""
    updates = trainer.state.global_step if trainer.time_share >= 1 else trainer.state.max_steps
    return describe_warmup(trainer.args, updates, trainer.state.max_steps)


def _accelerator() -> str | None:
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return None if accelerator is None else accelerator.type


def _hardware() -> dict[str, Any]:
    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else _accelerator() or "cpu",
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def _energy(recipe: Recipe, trainer: Any) -> dict[str, Any]:
    accelerator = trainer.args.device.type != "cpu"
    return estimate_emissions(
        trainer.minutes,
        trainer.args.world_size * (1 if accelerator else torch.get_num_threads()),
        accelerator=accelerator,
        watts=recipe.card.watts,
        grams_co2_per_kwh=recipe.card.grams_co2_per_kwh,
    )


def _finish(
    recipe: Recipe,
    task: Task,
    trainer: Trainer,
    folder: Path,
    metrics: dict[str, Any],
    outputs: dict[str, list[str]],
    say: Callable[[str], None],
    repository: str | None,
) -> None:
    """Write what makes the folder a model that anyone can load, beside the checkpoints."""
    with (
        translate_io_errors(f"the model in {folder}", "make room and go on with --resume"),
        atomic_files(folder) as temporary,
    ):
        save_model(trainer.model, temporary)
        trainer.state.save_to_json(str(temporary / STATE))
        _write_json(temporary / METRICS, metrics)
        _write_outputs(temporary / OUTPUTS, outputs)
        task.save(temporary)  # so that the lines of the card can be run there
        smoothing = trainer.model.config.label_smoothing
        with spare(f"{CURVES} was not drawn", "trainer_state.json holds its numbers", say):
            curves = temporary / CURVES
            if not plot_curves(trainer.state.log_history, curves, folder.name, task.curves, smoothing):
                say(f"{CURVES} was not drawn: {missing('a picture', 'matplotlib')}")
        with spare("README.md was not written", f"{METRICS} holds what it would say", say):
            write_model_card(temporary, recipe, task, metrics, repository)
        # a run that is resumed may merge what it had not, and both together would be the adapter twice
        for name in STANDALONE if (temporary / ADAPTER_WEIGHTS).is_file() else ADAPTER_FILES:
            (folder / name).unlink(missing_ok=True)
    say(f"finished: {folder}")


@contextmanager
def spare(what: str, instead: str, say: Callable[[str], None]) -> Iterator[None]:
    """Let an error cost no more than what is made in the block, a picture or a card: the model is worth more."""
    try:
        yield
    except OSError:  # what is left to write cannot be written either
        raise
    except Exception as error:
        say(f"{what} ({type(error).__name__}: {first_line(error)}); {instead}.")


def _write_outputs(folder: Path, outputs: dict[str, list[str]]) -> None:
    """Write what the model wrote for each data set, a line a text, into a file of its name."""
    names = file_names(outputs)
    folder.mkdir()
    for name, lines in outputs.items():
        if lines:
            text = "".join(f"{' '.join(line.splitlines())}\n" for line in lines)
            (folder / f"{names[name]}.txt").write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")


def file_names(names: Iterable[str]) -> dict[str, str]:
    """Return for each name one that any file system takes, no two of them alike."""
    found: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"[^\w.-]+", "-", name).strip("-.")[:LONGEST_NAME] or "data"
        ends = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
        taken = {other.casefold() for other in found.values()}
        found[name] = next(plain + end for end in ends if (plain + end).casefold() not in taken)
    return found


def _examples(task: Task, trainer: Any, part: TokenizedSplit, count: int) -> list[Example]:
    """Return what the model makes of a few texts spread over a part; none where its weights are spread over processes."""
    if trainer.is_deepspeed_enabled or is_sharded(trainer.model):
        return []
    total = len(part.dataset)
    rows = sorted({int((number + 0.5) * total / count) for number in range(count)})
    model = trainer.accelerator.unwrap_model(trainer.model).eval()
    with quiet():
        return task.examples(model, part, rows)


def _sample_lines(task: Task, trainer: Any, validation: TokenizedSplit) -> list[str]:
    try:
        examples = _examples(task, trainer, validation, IN_LOG)
    except Exception as error:  # whatever it is, the training is worth more than a look at it
        return [f"no samples ({type(error).__name__}: {error})"]
    lines = (line for example in examples for line in asdict(example).items())
    return [f"{name + ':':<11}{shorten(text, 300, placeholder=' ...')}" for name, text in lines]


def _repository(arguments: TrainingArguments) -> str:
    return arguments.hub_model_id or Path(arguments.output_dir).absolute().name


def _push(folder: Path, arguments: TrainingArguments, say: Callable[[str], None]) -> None:
    """Push the finished run; where that fails the run is finished all the same, and what to do is said."""
    where = {"private": arguments.hub_private_repo, "revision": arguments.hub_revision}
    try:
        say(f"pushed: {push_folder(folder, _repository(arguments), **where).commit_url}")
    except PushError as error:
        say(str(error))


def _write_diverged(error: DivergedError, folder: Path, ids: list[int]) -> None:
    facts = {
        "update": error.update,
        "reason": error.reason,
        "examples": ids,
        "checkpoint": None if error.checkpoint is None else error.checkpoint.name,
    }
    with translate_io_errors(folder / DIVERGED, str(error).removesuffix(".")), atomic_files(folder) as temporary:
        _write_json(temporary / DIVERGED, facts)


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
