"""The folder of a run: what its files are called, what is refused before any is written, and what is cleared away."""

import itertools
import os
import re
import shlex
import shutil
import signal
import zipfile
from collections.abc import Iterable
from pathlib import Path

from transformers import TrainingArguments

from vanilla_transformer.errors import DivergedError, RecipeError, RunInterrupted
from vanilla_transformer.recipes.recipe import Recipe
from vanilla_transformer.trainer.checkpoints import (
    checkpoints_to_keep,
    delete_old_checkpoints,
    find_checkpoints,
    processes_of,
    read_state,
)
from vanilla_transformer.trainer.trainer import TRAINED_WEIGHTS
from vanilla_transformer.utils.atomic import atomic_files, is_temporary, remove_temporaries, translate_io_errors
from vanilla_transformer.utils.json_files import write_json
from vanilla_transformer.utils.locks import LOCK

METRICS, RECIPE, CURVES, OUTPUTS = "metrics.json", "recipe.yaml", "curves.png", "outputs"
DIVERGED = "diverged.json"

LONGEST_NAME = 80
"""Characters of the name of a file that is named after a data set."""


# Before anything is written ------------------------------------------------------------------------------------------


def check_folder(folder: Path, *, resume: bool, overwrite: bool, what: str = "a run", marker: str = RECIPE) -> None:
    """Refuse a folder that holds something, unless it is to be resumed or overwritten.

    Args:
        what: the folder is for, with its article.
        marker: name of the file that a folder of this kind has.

    Raises:
        RecipeError: naming the remedy.
    """
    if folder.exists() and not folder.is_dir():
        raise RecipeError(f"output_dir {folder} is a file; name a folder.")
    if resume and overwrite:
        raise RecipeError(f"--resume resumes {what} and --overwrite deletes it; give one of them.")
    # one that was killed while it wrote its very first files has left no more than these
    if not folder.is_dir() or all(is_temporary(path) or path.name == LOCK for path in folder.iterdir()):
        return
    noun = what.partition(" ")[2]
    if not (folder / marker).is_file():
        raise RecipeError(f"output_dir {folder} is not empty and holds no {noun}; name another folder.")
    if not resume and not overwrite:
        raise RecipeError(
            f"output_dir {folder} is not empty; give --resume to resume the {noun} in it, --overwrite to start it again, "
            "or output_dir=... for another folder."
        )


def check_same_run(
    recipe: Recipe, folder: Path, of: str = "", remedy: str = "start another run in another output_dir"
) -> None:
    """Refuse to resume a run by another recipe than the one it was started with.

    Args:
        of: what the recipe is of, for the sentence.
        remedy: beside setting back what changed.

    Raises:
        RecipeError: naming what changed.
    """
    if not (folder / RECIPE).is_file():
        return
    if changed := recipe.changes_since(Recipe.load(folder / RECIPE)):
        raise RecipeError(
            f"--resume resumes the run as it was started, but {', '.join(changed)}{of} "
            f"differ{'s' if len(changed) == 1 else ''} from its {RECIPE}; set back what changed, or {remedy}."
        )


def checkpoint_to_resume(recipe: Recipe, folder: Path, processes: int) -> Path | None:
    """Return the checkpoint from which a run is resumed; None where it was interrupted before the first.

    Args:
        processes: their number now.

    Raises:
        RecipeError: where the run would not be the one that was started, or cannot be resumed.
    """
    check_same_run(recipe, folder)
    checkpoints = find_checkpoints(folder)
    if not checkpoints:
        return None
    checkpoint = checkpoints[-1]
    _check_complete(checkpoint, recipe)
    before = processes_of(checkpoint)
    # each has a batch of its own in every update
    if before != processes:
        words = f"{before} process{'es' if before > 1 else ''}"
        start = (
            f"torchrun --nproc-per-node {before}" if before > 1 else "vanilla-transformer train, without a launcher"
        )
        raise RecipeError(
            f"--resume resumes the run as it was started, by {words}, but {'these are' if processes > 1 else 'this is'} "
            f"{processes}: {checkpoint} would be trained with other batches; start {words} ({start}), or another run with "
            f"start_from={checkpoint}."
        )
    return checkpoint


def _check_complete(checkpoint: Path, recipe: Recipe) -> None:
    """Refuse a checkpoint that is damaged, or with which transformers would start optimizer and schedule again."""
    needed = ["optimizer*", "scheduler.pt", "rng_state*.pth"]
    if recipe.averaging.ema is not None:
        needed.append(TRAINED_WEIGHTS)
    missing = [name.replace("*", "") for name in needed if not any(checkpoint.glob(name))]
    if missing:
        raise RecipeError(
            f"{checkpoint} lacks {', '.join(missing)}, so the run cannot be resumed from it; with start_from={checkpoint} "
            "another run starts with its weights (training.save_only_model saves nothing else)."
        )
    for file in sorted(checkpoint.glob("*.pt*")):
        # what torch.save writes ends in a directory of its parts; torch.load has an error of another kind for each place at
        # which a file may end too soon
        if not zipfile.is_zipfile(file):
            raise RecipeError(
                f"{checkpoint} is damaged ({file.name} is cut short); delete it and resume from the one before it."
            )


# What goes and what comes --------------------------------------------------------------------------------------------


def clear_folder(folder: Path) -> None:
    """Delete what a folder holds, but for the lock, which this process has."""
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


def prepare_folder(folder: Path, recipe: Recipe, arguments: TrainingArguments, *, keep: bool) -> None:
    """Make the folder empty, or take out of the run in it what was not completely written or deleted."""
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


def write_outputs(folder: Path, outputs: dict[str, list[str]]) -> None:
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


# Runs that end early -------------------------------------------------------------------------------------------------


def write_diverged(error: DivergedError, folder: Path, ids: list[int]) -> None:
    """Write which examples a run diverged by; `ids` are those of the data."""
    facts = {
        "update": error.update,
        "reason": error.reason,
        "examples": ids,
        "checkpoint": None if error.checkpoint is None else error.checkpoint.name,
    }
    with translate_io_errors(folder / DIVERGED, str(error).removesuffix(".")), atomic_files(folder) as temporary:
        write_json(temporary / DIVERGED, facts)


def interrupted(error: KeyboardInterrupt, folder: Path, when: str) -> RunInterrupted:
    """Return what a signal has left of a run, and what to type to resume it."""
    number = getattr(error, "number", signal.SIGINT)
    saved = find_checkpoints(folder)
    kept = f"{saved[-1].name} is kept" if saved else "no checkpoint was saved yet"
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        remedy = "resume with the command that started it and --resume"
    else:
        remedy = how_to_resume("train", folder / RECIPE)
    return RunInterrupted(f"interrupted {when} by {signal.Signals(number).name}; {kept}", remedy, number)


def how_to_resume(command: str, file: Path) -> str:
    """Return what to type to resume what a file in its folder describes."""
    if not file.is_file():
        return "start it again"
    return f"resume with: vanilla-transformer {command} {shlex.quote(str(file))} --resume"
