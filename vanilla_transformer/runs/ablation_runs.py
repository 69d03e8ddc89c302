"""The runs of an ablation, one after the other, and what they leave for its table."""

import gc
import math
import os
import signal
import traceback
from pathlib import Path
from typing import Any

import torch

from vanilla_transformer.errors import DivergedError, RecipeError, RunInterrupted
from vanilla_transformer.recipes.recipe import Recipe
from vanilla_transformer.runs.ablation import PICTURE, TABLE, TEXT, TOKENIZER, VALUES, Ablation, Cell
from vanilla_transformer.runs.ablation_results import ablation_table, earlier_table
from vanilla_transformer.runs.ablation_table import format_changes, markdown_table
from vanilla_transformer.runs.arguments import training_arguments
from vanilla_transformer.runs.folder import (
    DIVERGED,
    METRICS,
    RECIPE,
    check_folder,
    check_same_run,
    clear_folder,
    how_to_resume,
)
from vanilla_transformer.runs.plots import plot_ablation
from vanilla_transformer.runs.run import run_recipe, short_name
from vanilla_transformer.tasks import Task
from vanilla_transformer.trainer.checkpoints import STATE, find_checkpoints
from vanilla_transformer.trainer.interruption import Interruption, catch_signals
from vanilla_transformer.utils.atomic import atomic_dir, atomic_files, translate_io_errors
from vanilla_transformer.utils.errors import best_effort
from vanilla_transformer.utils.extras import missing
from vanilla_transformer.utils.json_files import read_json_object, write_json
from vanilla_transformer.utils.locks import lock_folder
from vanilla_transformer.utils.log import Log, no_log, renamed_log
from vanilla_transformer.utils.quiet import library_bars
from vanilla_transformer.utils.yaml_text import dump_yaml

ROOM = "make room and resume with --resume"


def run_ablation(
    ablation: Ablation, *, resume: bool = False, overwrite: bool = False, log: Log = print, say: Log | None = None
) -> dict[str, Any]:
    """Train every cell, one after the other, and write `ablation.json`, `ablation.md` and `ablation.png`.

    They are written again after every run. A run that diverges or fails does not keep the others from theirs.

    Args:
        ablation: the table.
        resume: keep the runs that are finished or have diverged, resume the one that was interrupted, and train those that
            failed or are not there yet.
        overwrite: delete the ablation in the output folder.
        log: receives lines of progress for people.
        say: the name of `log` until the next version.

    Returns:
        What `ablation.json` holds.

    Raises:
        RecipeError, FileNotFoundError, ValueError: before any training, for what `run_recipe` refuses in the recipe or in
            a cell, for data that cannot be read, and for an output folder that holds something, unless `resume` or
            `overwrite` says what to do with it.
        FolderInUse: where another process trains in the output folder.
        RunInterrupted: on SIGINT and SIGTERM.
    """
    log = renamed_log(log, say)
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise RecipeError("an ablation runs in one process; start it without accelerate launch or torchrun.")
    folder = ablation.folder

    def check() -> None:
        check_folder(folder, resume=resume, overwrite=overwrite, what="an ablation", marker=VALUES)

    check()
    with lock_folder(folder), library_bars(), catch_signals() as interruption:
        check()  # another process may have just ended
        try:
            return _run_all(ablation, resume, overwrite, log, interruption)
        except RunInterrupted as error:
            raise RunInterrupted(error.what, how_to_resume("ablate", folder / VALUES), error.number) from None
        except KeyboardInterrupt as error:
            number = getattr(error, "number", signal.SIGINT)
            what = f"interrupted {interruption.when} by {signal.Signals(number).name}; the runs that are finished are kept"
            raise RunInterrupted(what, how_to_resume("ablate", folder / VALUES), number) from None


def _run_all(
    ablation: Ablation, resume: bool, overwrite: bool, log: Log, interruption: Interruption
) -> dict[str, Any]:
    """Check and prepare all cells, then train one after the other; return the table."""
    folder = ablation.folder
    # what may be refused, before anything is written
    for cell, seed in ablation.runs():
        recipe = cell.recipes[seed]
        try:
            training_arguments(recipe)
        except RecipeError as error:
            raise RecipeError(f"ablation cell {cell.name!r}: {error}") from error
        if resume:
            place = Path(recipe.output_dir)
            check_same_run(recipe, place, of=f" of cell {cell.name!r}", remedy=f"delete {place}")
    task = ablation.recipe.new_task()
    tokenizer = folder / TOKENIZER
    ready = tokenizer if resume and tokenizer.is_dir() else None
    splits = task.read(ablation.recipe.splits(), ready, log)
    if resume:
        _check_data(ablation, {short_name(name): split.report.sha256 for name, split in splits.items()})
    parameters = {cell.name: _count_parameters(cell, task) for cell in ablation.cells}
    earlier = earlier_table(folder) if resume else {}

    # the folder
    if overwrite:
        clear_folder(folder)
    with translate_io_errors(folder / VALUES, "make room and start again"), atomic_files(folder) as temporary:
        (temporary / VALUES).write_text(dump_yaml(ablation.values), encoding="utf-8")
    if ready is None:
        with translate_io_errors(tokenizer, ROOM), atomic_dir(tokenizer) as temporary:
            task.save(temporary)

    # the runs, and the table after each
    results: dict[tuple[str, int], dict[str, Any]] = {}
    number = len(ablation.cells) * len(ablation.seeds)
    for position, (cell, seed) in enumerate(ablation.runs(), start=1):
        interruption.check()
        changes = format_changes(cell.changes) or "the recipe as it is"
        log(f"run {position} of {number}: {cell.name}, seed {seed} ({changes})")
        results[cell.name, seed] = _run_cell(cell.recipes[seed], resume, log)
        table = ablation_table(ablation, task, results, parameters, earlier)
        _write(folder, table, log if position == number else no_log)
    return table


def _check_data(ablation: Ablation, hashes: dict[str, str]) -> None:
    """Refuse to resume with other data than finished runs had; `hashes` of what stands in the files now, by the splits' names."""
    for cell, seed in ablation.runs():
        finished = Path(cell.recipes[seed].output_dir) / METRICS
        if not finished.is_file():
            continue
        try:
            seen = {name: report["sha256"] for name, report in _read(finished, "data")["data"].items()}
        except RecipeError:
            continue  # which is a row of the table
        changed = [name for name, sha256 in hashes.items() if seen.get(name, sha256) != sha256]
        if changed:
            raise RecipeError(
                f"--resume would compare runs on different data: {', '.join(changed)} changed since {finished.parent} was "
                "trained; put the data back, or start again with --overwrite."
            )


def _count_parameters(cell: Cell, task: Task) -> int | None:
    """Return those of a cell's model, also where its run fails; None where its vocabulary is not yet known."""
    if cell.has_own_tokens:
        return None
    recipe = next(iter(cell.recipes.values()))
    with torch.device("meta"):
        return type(task).head(recipe.config(**task.config_fields())).num_parameters()


def _run_cell(recipe: Recipe, resume: bool, log: Log) -> dict[str, Any]:
    """Train one run, unless it has been; return what became of it, for the table."""
    folder = Path(recipe.output_dir)
    status, reason = "finished", None
    try:
        if resume and (folder / DIVERGED).is_file():
            diverged = _read(folder / DIVERGED, "update", "reason")
            status, reason = "diverged", f"diverged at update {diverged['update']}: {diverged['reason']}"
            log(f"{folder} has {reason}; delete it to train it again")
        elif resume and (folder / STATE).is_file() and Recipe.load(folder / RECIPE) == recipe:
            log(f"{folder} is finished")
        else:
            run_recipe(recipe, resume=resume, log=log)
        facts = _facts(folder, status)
    except RunInterrupted:
        raise
    except Exception as error:  # whatever it is, the other cells are trained, and it stands in the table
        if isinstance(error, DivergedError):
            status, reason = "diverged", f"diverged at update {error.update}: {error.reason}"
        else:
            own = isinstance(error, (RecipeError, OSError, ValueError))
            status, reason = "failed", " ".join(f"{'' if own else type(error).__name__ + ': '}{error}".split())
            if not own:
                log(traceback.format_exc())
        log(reason)
        facts = _facts(folder, status)
    gc.collect()  # a trainer and its model refer to each other
    return {"status": status, "reason": reason, **facts}


def _facts(folder: Path, status: str) -> dict[str, Any]:
    """Return what a run has left in its folder: all that there is of one that did not finish."""
    states = [folder / STATE, *(checkpoint / STATE for checkpoint in reversed(find_checkpoints(folder)))]
    state = next((path for path in states if path.is_file()), None)
    try:
        history = [] if state is None else _read(state, "log_history")["log_history"]
    except RecipeError:
        if status == "finished":
            raise
        history = []
    curve = [
        [entry["step"], entry["eval_loss"]] for entry in history if math.isfinite(entry.get("eval_loss", math.nan))
    ]
    return {"metrics": _read(folder / METRICS, "model", "training") if status == "finished" else None, "curve": curve}


def _read(path: Path, *names: str) -> dict[str, Any]:
    """Return what a file of a run holds; refuse one that is not complete, or lacks one of these names."""
    remedy = f"delete {path.parent} to train that run again"
    try:
        return read_json_object(path, needs=names, remedy=remedy, error=RecipeError)
    except OSError as error:
        raise RecipeError(f"{path} cannot be read ({error.strerror}); {remedy}.") from error


def _write(folder: Path, table: dict[str, Any], log: Log) -> None:
    with translate_io_errors(f"the table in {folder}", ROOM), atomic_files(folder) as temporary:
        write_json(temporary / TABLE, table)
        drawn = None  # neither drawn nor without what draws
        with best_effort(f"{PICTURE} was not drawn", f"{TABLE} holds its numbers", log):
            drawn = plot_ablation(table, temporary / PICTURE)
        (temporary / TEXT).write_text(markdown_table(table, PICTURE if drawn else None), encoding="utf-8")
    if drawn is False:
        log(f"{PICTURE} was not drawn: {missing('a picture', 'matplotlib')}")
    log(f"finished: {folder / TEXT}")
