"""Ablations: what each choice of a recipe is worth, as a table of runs on the same data, for as long.

    ablation:
      seeds: [1, 2, 3]                            # optional; else the recipe's own
      cells:                                      # each is the recipe with a few fields changed
        pre-norm: {model.norm_position: pre}
        SwiGLU: {model.hidden_act: silu, model.gated_feed_forward: true, model.intermediate_size: 170}
      grid:                                       # optional: every choice of each axis with every one of the others
        model.norm_position: [post, pre]
        norm: {LayerNorm: {}, RMSNorm: {model.norm_type: rmsnorm}}

The rest of the file is a recipe like any other and the first row of the table, the baseline that all others are compared
with. Every run is one of `run_recipe`, in a folder of its own.
"""

import copy
import gc
import itertools
import json
import math
import os
import re
import shlex
import signal
import statistics
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from vanilla_transformer.errors import DivergedError, RecipeError, RunInterrupted
from vanilla_transformer.recipes.recipe import Recipe, field_type
from vanilla_transformer.runs.ablation_table import COMPARED, format_changes, markdown_table, print_table
from vanilla_transformer.runs.plots import plot_ablation
from vanilla_transformer.runs.run import (
    DIVERGED,
    METRICS,
    RECIPE,
    clear_folder,
    run_recipe,
    short_name,
    spare,
    training_arguments,
)
from vanilla_transformer.tasks import Task
from vanilla_transformer.trainer.checkpoints import LOWER_IS_BETTER, STATE, find_checkpoints
from vanilla_transformer.trainer.interruption import Interruption, catch_signals
from vanilla_transformer.utils.atomic import atomic_dir, atomic_files, is_temporary, translate_io_errors
from vanilla_transformer.utils.extras import missing
from vanilla_transformer.utils.locks import LOCK, lock_folder
from vanilla_transformer.utils.quiet import library_bars
from vanilla_transformer.utils.schema import build_section, coerce_fields, override_fields, read_values, set_by_path
from vanilla_transformer.utils.yaml_text import dump_yaml

__all__ = ["Ablation", "AblationSection", "Cell", "markdown_table", "print_table", "run_ablation"]

BASELINE, TOKENIZER = "baseline", "tokenizer"
LONGEST_NAME = 200
"""In bytes, of a folder; file systems allow 255, and libraries lengthen names while they write."""

VALUES, TABLE, TEXT, PICTURE = "ablation.yaml", "ablation.json", "ablation.md", "ablation.png"

# or cells could not be compared
_SAME_FOR_ALL = (
    "task",
    "seed",
    "max_minutes",
    "data.train",
    "data.validation",
    "data.test",
    "evaluation",
    "training.max_steps",
    "training.num_train_epochs",
)
_TRAINING = ("updates", "minutes", "tokens_per_second", "flops_per_token", "peak_memory_mb")
_QUANTITIES = (*_TRAINING, "validation_loss", "score")


@dataclass
class AblationSection:
    """What an ablation trains beside the recipe itself.

    Attributes:
        cells: by name, the fields that are changed, such as `model.norm_position: pre`.
        grid: axes, of which every choice is combined with every one of the others. An axis is a field and a list of its
            values, or any name and its choices as in `cells`. A combination that changes nothing is the baseline.
        seeds: of the runs of each cell; None for the recipe's own. With several, the table has means and standard
            deviations.
    """

    cells: dict[str, Any] = field(default_factory=dict)
    grid: dict[str, Any] = field(default_factory=dict)
    seeds: list[Any] | None = None


@dataclass(frozen=True)
class Cell:
    """A row of the table: what it changes in the recipe, and its recipe for each seed."""

    name: str
    changes: dict[str, Any]
    recipes: dict[int, Recipe]

    @property
    def has_own_tokens(self) -> bool:
        """Whether it turns text into other tokens than the baseline does."""
        return any(name.startswith("tokenizer.") or name == "start_from" for name in self.changes)


@dataclass(frozen=True)
class Ablation:
    """A table of runs.

    Attributes:
        recipe: without the ablation section.
        cells: the baseline, then the others in their order.
        seeds: of the runs of each cell.
        values: plain, of the whole file.
    """

    recipe: Recipe
    cells: list[Cell]
    seeds: list[int]
    values: dict[str, Any]

    @property
    def folder(self) -> Path:
        return Path(self.recipe.output_dir)

    @classmethod
    def load(cls, path: str | Path, overrides: Iterable[str] = ()) -> "Ablation":
        """Read a recipe with an ablation section and apply `name=value` overrides.

        Raises:
            RecipeError: for what [`Recipe.load`] refuses, in the recipe or in a cell, which is named; for a cell that is
                the baseline or another cell over again; for a cell that changes what all must have in common.
        """
        values = override_fields(read_values(path), overrides)
        if "ablation" not in values:
            raise RecipeError(
                f"{path} has no ablation section; add one with the cells of the table, or train the recipe with "
                f"vanilla-transformer train {path}"
            )
        return cls.from_dict(values)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Ablation":
        """Build and check an ablation.

        Raises:
            RecipeError: as for [`Ablation.load`].
        """
        values = coerce_fields(values, _field_type)
        plain = {name: value for name, value in values.items() if name != "ablation"}
        section: AblationSection = build_section(AblationSection, values.get("ablation") or {}, "ablation.")
        recipe = Recipe.from_dict(plain)
        if recipe.training.get("push_to_hub"):
            raise RecipeError("training.push_to_hub would push every cell of an ablation to one place; leave it out.")
        seeds = [recipe.seed] if section.seeds is None else section.seeds
        if not seeds or any(type(seed) is not int for seed in seeds) or len(set(seeds)) < len(seeds):
            raise RecipeError(
                f"ablation.seeds={seeds!r} must be a list of different whole numbers, such as [1, 2, 3]."
            )
        given = {BASELINE: {}, **{_name(name): _changes(name, c) for name, c in section.cells.items()}}
        cells = [Cell(name, c, {seed: _recipe(plain, name, c, seed) for seed in seeds}) for name, c in given.items()]
        known = [(cell.name, _identity(cell.recipes[seeds[0]])) for cell in cells]
        for name, changes in _combinations(section.grid):
            recipes = {seed: _recipe(plain, name, changes, seed) for seed in seeds}
            if _identity(recipes[seeds[0]]) != known[0][1]:
                cells.append(Cell(name, changes, recipes))
                known.append((name, _identity(recipes[seeds[0]])))
        for number, (name, identity) in enumerate(known):
            other = next((earlier for earlier, same in known[:number] if same == identity), None)
            if other == BASELINE:
                raise RecipeError(
                    f"ablation cell {name!r} is the baseline over again: {format_changes(cells[number].changes)} is what the "
                    "recipe has; leave it out."
                )
            if other is not None:
                raise RecipeError(f"ablation cells {other!r} and {name!r} are the same model and run; leave one out.")
        if len(cells) == 1:
            raise RecipeError("the ablation has no cell beside the baseline; name one in ablation.cells.")
        folders = [_folder(r).name.casefold() for cell in cells for r in cell.recipes.values()]
        if long := next((name for name in folders if len(name.encode()) > LONGEST_NAME), None):
            raise RecipeError(
                f"ablation cell {long[:40]!r}...: the name of its folder has {len(long.encode())} bytes and {LONGEST_NAME} are "
                "possible; name it, or the choices of the grid, shorter."
            )
        if len(set(folders)) < len(folders):
            twice = next(folder for folder in folders if folders.count(folder) > 1)
            raise RecipeError(f"two runs of the ablation would have one folder, {twice!r}; name the cells otherwise.")
        return cls(recipe, cells, seeds, copy.deepcopy(dict(values)))

    def runs(self) -> Iterator[tuple[Cell, int]]:
        """Every run: the whole table with the first seed, then with the next."""
        return ((cell, seed) for seed in self.seeds for cell in self.cells)


def _field_type(path: tuple[str, ...]) -> Any:
    """Return the type of a field of a recipe with an ablation section; see `field_type`."""
    if path[0] != "ablation":
        return field_type(path)
    if path[1:] == ("seeds",):
        return list[int]
    if path[1:2] == ("grid",) and len(path) == 3:
        hint = field_type(tuple(path[2].split(".")))
        return None if hint is None else types.GenericAlias(list, (hint,))
    inner = path[3:] if path[1:2] == ("cells",) else path[4:]
    return field_type((*inner[0].split("."), *inner[1:])) if inner else None


def _folder(recipe: Recipe) -> Path:
    return Path(recipe.output_dir)


def _name(name: Any) -> str:
    """The name of a cell, which is that of its folder, too."""
    taken = {BASELINE, TOKENIZER, VALUES, TABLE, TEXT, PICTURE}
    if not isinstance(name, str):
        raise RecipeError(f"ablation cell {name!r}: a name must be text; put it in quotation marks.")
    if name.casefold() in taken or not re.fullmatch(r"\w[\w .,+=()-]*", name):
        raise RecipeError(
            f"ablation cell {name!r}: the name is that of a folder, made of letters, digits and any of ' .,+=()-', and "
            f"none of {', '.join(sorted(taken))}; choose another."
        )
    return name


def _changes(name: str, given: Any) -> dict[str, Any]:
    """The changed fields of a cell by their names with dots; those of a whole section may stand in a mapping."""
    if not isinstance(given, Mapping):
        raise RecipeError(
            f"ablation cell {name!r} must be a mapping of fields to values, such as {{model.norm_position: pre}}, not "
            f"{given!r}."
        )
    sections = {f.name for f in fields(Recipe)}
    changes: dict[str, Any] = {}
    for key, value in given.items():
        inner = isinstance(value, Mapping) and key in sections
        changes |= {f"{key}.{k}": v for k, v in value.items()} if inner else {str(key): value}
    for key in changes:
        if key.partition(".")[0] in ("output_dir", "card"):
            raise RecipeError(f"ablation cell {name!r}: {key} is set by the ablation; leave it out.")
        if any(f"{key}.".startswith(f"{same}.") for same in _SAME_FOR_ALL):
            remedy = "give ablation.seeds" if key == "seed" else "set it in the recipe"
            raise RecipeError(
                f"ablation cell {name!r}: {key} must be the same in all cells, or they could not be compared; {remedy}."
            )
    return changes


def _combinations(grid: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and changes of the cells of a grid."""
    axes = []
    for axis, choices in grid.items():
        if isinstance(choices, list):
            short = str(axis).rpartition(".")[2]
            # what cannot stand in the name of a folder, as in `noam * 2.0`, is left out of it
            named: dict[str, Any] = {}
            for choice in choices:
                name = re.sub(r"[^\w.,+=()-]+", "-", f"{short}={choice}")
                if named.setdefault(name, {axis: choice})[axis] != choice:
                    raise RecipeError(
                        f"ablation.grid.{axis}: {named[name][axis]!r} and {choice!r} would both be named {name!r}; give the "
                        "axis a mapping of names to changes."
                    )
            choices = named
        if not isinstance(choices, Mapping) or not choices:
            raise RecipeError(
                f"ablation.grid.{axis} must be a list of the values of a field, or a mapping of names to changes, not "
                f"{choices!r}."
            )
        axes.append([(_name(name), _changes(name, changes)) for name, changes in choices.items()])
    for chosen in itertools.product(*axes):
        changes: dict[str, Any] = {}
        for _, more in chosen:
            if clash := changes.keys() & more.keys():
                raise RecipeError(f"ablation.grid: {clash.pop()} is changed by two axes; change it in one.")
            changes |= more
        if changes:
            yield " + ".join(name for name, _ in chosen), changes


def _recipe(plain: dict[str, Any], name: str, changes: dict[str, Any], seed: int) -> Recipe:
    """The recipe of one run; its tokenizer is the one that all share, unless the recipe or the cell says otherwise."""
    values = copy.deepcopy(plain)
    first = values.get("seed", Recipe.seed)
    try:
        for key, value in changes.items():
            set_by_path(values, key, copy.deepcopy(value))
        folder = Path(values["output_dir"])
        # without a number for the recipe's own seed, so that others can be added to a table that is there
        values["output_dir"] = str(folder / (name if seed == first else f"{name}-seed-{seed}"))
        values["seed"] = seed
        set_by_path(values, "card.title", f"{values.get('card', {}).get('title') or folder.name}: {name}")
        own = any(key.startswith("tokenizer") for key in changes) or values.get("start_from") is not None
        if not own and (values.get("tokenizer") or {}).get("path") is None:
            set_by_path(values, "tokenizer.path", str(folder / TOKENIZER))
        return Recipe.from_dict(values)
    except RecipeError as error:
        raise RecipeError(f"ablation cell {name!r}: {error}") from error


def _identity(recipe: Recipe) -> dict[str, Any]:
    """What makes a run, in whatever way it is written down."""
    config = recipe.config()
    model = config.to_dict() | {"attn_implementation": config._attn_implementation}
    values = recipe.to_dict() | {"model": model, "output_dir": None, "card": None}
    if values["tokenizer"]["path"] == str(_folder(recipe).parent / TOKENIZER):  # the one that all share
        values["tokenizer"]["path"] = None
    return values


# The runs ------------------------------------------------------------------------------------------------------------


def run_ablation(
    ablation: Ablation, *, resume: bool = False, overwrite: bool = False, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Train every cell, one after the other, and write `ablation.json`, `ablation.md` and `ablation.png`.

    They are written again after every run. A run that diverges or fails does not keep the others from theirs.

    Args:
        ablation: the table.
        resume: keep the runs that are finished or have diverged, go on with the one that was interrupted, and train those
            that failed or are not there yet.
        overwrite: delete the ablation in the output folder.
        say: receives lines of progress for people.

    Returns:
        What `ablation.json` holds.

    Raises:
        RecipeError, FileNotFoundError, ValueError: before any training, for what `run_recipe` refuses in the recipe or in
            a cell, for data that cannot be read, and for an output folder that holds something, unless `resume` or
            `overwrite` says what to do with it.
        FolderInUse: where another process trains in the output folder.
        RunInterrupted: on SIGINT and SIGTERM.
    """
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise RecipeError("an ablation runs in one process; start it without accelerate launch or torchrun.")
    folder = ablation.folder
    _check_folder(folder, resume=resume, overwrite=overwrite)
    with lock_folder(folder), library_bars(), catch_signals() as interruption:
        _check_folder(folder, resume=resume, overwrite=overwrite)  # another process may have just ended
        try:
            return _run_all(ablation, resume, overwrite, say, interruption)
        except RunInterrupted as error:
            raise RunInterrupted(error.what, _how_to_resume(folder), error.number) from None
        except KeyboardInterrupt as error:
            number = getattr(error, "number", signal.SIGINT)
            what = f"interrupted {interruption.when} by {signal.Signals(number).name}; the runs that are finished are kept"
            raise RunInterrupted(what, _how_to_resume(folder), number) from None


def _how_to_resume(folder: Path) -> str:
    if not (folder / VALUES).is_file():
        return "start it again"
    return f"resume with: vanilla-transformer ablate {shlex.quote(str(folder / VALUES))} --resume"


def _run_all(
    ablation: Ablation, resume: bool, overwrite: bool, say: Callable[[str], None], interruption: Interruption
) -> dict[str, Any]:
    """See `run_ablation`."""
    folder = ablation.folder
    for cell, seed in ablation.runs():
        recipe = cell.recipes[seed]
        try:
            training_arguments(recipe)
        except RecipeError as error:
            raise RecipeError(f"ablation cell {cell.name!r}: {error}") from error
        begun = _folder(recipe) / RECIPE
        changed = recipe.changes_since(Recipe.load(begun)) if resume and begun.is_file() else []
        if changed:
            raise RecipeError(
                f"--resume goes on with the runs as they were begun, but {', '.join(changed)} of cell {cell.name!r} "
                f"differ{'s' if len(changed) == 1 else ''} from {begun}; set back what changed, or delete that folder."
            )
    task = ablation.recipe.new_task()
    ready = folder / TOKENIZER if resume and (folder / TOKENIZER).is_dir() else None
    parts = task.read(ablation.recipe.splits(), ready, say)
    if resume:
        _check_data(ablation, {short_name(name): part.report.sha256 for name, part in parts.items()})
    parameters = {cell.name: _count_parameters(cell, task) for cell in ablation.cells}
    earlier = _earlier_table(folder) if resume else {}
    if overwrite:
        clear_folder(folder)
    remedy = "make room and start again"
    with translate_io_errors(folder / VALUES, remedy), atomic_files(folder) as temporary:
        text = dump_yaml(ablation.values)
        (temporary / VALUES).write_text(text, encoding="utf-8")
    if ready is None:
        place = folder / TOKENIZER
        with translate_io_errors(place, "make room and go on with --resume"), atomic_dir(place) as temporary:
            task.save(temporary)

    results: dict[tuple[str, int], dict[str, Any]] = {}
    number = len(ablation.cells) * len(ablation.seeds)
    for position, (cell, seed) in enumerate(ablation.runs(), start=1):
        interruption.check()
        what = format_changes(cell.changes) or "the recipe as it is"
        say(f"run {position} of {number}: {cell.name}, seed {seed} ({what})")
        results[cell.name, seed] = _run(cell.recipes[seed], resume, say)
        table = _table(ablation, task, results, parameters, earlier)
        _write(folder, table, say if position == number else lambda line: None)
    return table


def _check_folder(folder: Path, *, resume: bool, overwrite: bool) -> None:
    if resume and overwrite:
        raise RecipeError("--resume goes on with an ablation and --overwrite deletes it; give one of them.")
    if folder.exists() and not folder.is_dir():
        raise RecipeError(f"output_dir {folder} is a file; name a folder.")
    if not folder.is_dir() or all(is_temporary(path) or path.name == LOCK for path in folder.iterdir()):
        return
    if not (folder / VALUES).is_file():
        raise RecipeError(f"output_dir {folder} holds files but no ablation; name another folder.")
    if not resume and not overwrite:
        raise RecipeError(
            f"output_dir {folder} is not empty; give --resume to go on with the ablation in it, --overwrite to start it "
            "again, or output_dir=... for another folder."
        )


def _check_data(ablation: Ablation, hashes: dict[str, str]) -> None:
    """Refuse to go on with runs on other data; `hashes` of what stands in the files now, by the parts' names."""
    for cell, seed in ablation.runs():
        finished = _folder(cell.recipes[seed]) / METRICS
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
    """Of a cell's model, also where its run fails; None where its vocabulary is not yet known."""
    if cell.has_own_tokens:
        return None
    recipe = next(iter(cell.recipes.values()))
    with torch.device("meta"):
        return type(task).head(recipe.config(**task.config_fields())).num_parameters()


def _run(recipe: Recipe, resume: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Train one run, unless it has been; what became of it, for the table."""
    folder = _folder(recipe)
    status, reason = "finished", None
    try:
        if resume and (folder / DIVERGED).is_file():
            diverged = _read(folder / DIVERGED, "update", "reason")
            status, reason = "diverged", f"diverged at update {diverged['update']}: {diverged['reason']}"
            say(f"{folder} has {reason}; delete it to train it again")
            return {"status": status, "reason": reason, **_facts(folder, status)}
        if resume and (folder / STATE).is_file() and Recipe.load(folder / RECIPE) == recipe:
            say(f"{folder} is finished")
        else:
            run_recipe(recipe, resume=resume, say=say)
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
                say(traceback.format_exc())
        say(reason)
        facts = _facts(folder, status)
    gc.collect()  # a trainer and its model refer to each other
    return {"status": status, "reason": reason, **facts}


def _facts(folder: Path, status: str) -> dict[str, Any]:
    """What a run has left in its folder: all that there is of one that did not finish."""
    facts: dict[str, Any] = {"metrics": None}
    states = [folder / STATE, *(checkpoint / STATE for checkpoint in reversed(find_checkpoints(folder)))]
    state = next((path for path in states if path.is_file()), None)
    try:
        history = [] if state is None else _read(state, "log_history")["log_history"]
    except RecipeError:
        if status == "finished":
            raise
        history = []
    facts["curve"] = [
        [entry["step"], entry["eval_loss"]] for entry in history if math.isfinite(entry.get("eval_loss", math.nan))
    ]
    if status == "finished":
        facts["metrics"] = _read(folder / METRICS, "model", "training")
    return facts


def _read(path: Path, *names: str) -> dict[str, Any]:
    """What a file of a run holds.

    Raises:
        RecipeError: for a file that is not whole, or lacks one of these names.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        whole = isinstance(values, dict) and all(name in values for name in names)
    except (OSError, ValueError):
        whole = False
    if not whole:
        raise RecipeError(f"{path} is damaged; delete {path.parent} to train that run again.")
    return dict(values)


# The table -----------------------------------------------------------------------------------------------------------


def _earlier_table(folder: Path) -> dict[str, Any]:
    """Return the table of an ablation that is resumed, which may have had other cells and seeds; empty where there is none."""
    if not (folder / TABLE).is_file():
        return {}
    table = _read(folder / TABLE, "score", "cells")
    try:
        for row in table["cells"]:
            row["name"], dict(row["changes"]), row["parameters"], row["own_tokens"]
            for run in row["runs"]:
                run["status"], run["seed"], run["curve"], Path(run["folder"])
                [run[name] for name in _QUANTITIES]
    except (TypeError, KeyError, ValueError) as error:
        raise RecipeError(f"{folder / TABLE} is damaged ({error}); delete it, and the table is made again.") from error
    return table


def _earlier_runs(earlier: dict[str, Any], name: str, score: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return what an earlier table has of a cell that was run; without scores where they are no longer the same ones."""
    rows = [row for row in earlier.get("cells", []) if row["name"] == name]
    runs = [run for row in rows for run in row["runs"] if run["status"] != "waiting" and Path(run["folder"]).is_dir()]
    return runs if earlier.get("score") == score else [{**run, "score": None} for run in runs]


def _table(
    ablation: Ablation,
    task: Task,
    results: dict[tuple[str, int], dict[str, Any]],
    parameters: dict[str, int | None],
    earlier: dict[str, Any],
) -> dict[str, Any]:
    """What `ablation.json` holds: means over the seeds, differences to the baseline, and every run.

    Cells and seeds of an earlier table that are not among those of now stay in it.
    """
    test = next(iter(ablation.recipe.data.test), None)
    finished = [result["metrics"] for result in results.values() if result["metrics"]]
    score = _score_facts(task, finished[0], test) if finished else None
    rows: list[dict[str, Any]] = []
    for cell in ablation.cells:
        runs, counted = [], parameters[cell.name]
        for seed, recipe in cell.recipes.items():
            result = results.get(
                (cell.name, seed), {"status": "waiting", "reason": None, "metrics": None, "curve": []}
            )
            metrics, curve = result["metrics"], result["curve"]
            training = metrics["training"] if metrics else {}
            run = {"seed": seed, "folder": recipe.output_dir, "status": result["status"], "reason": result["reason"]}
            run |= {name: training.get(name) for name in _TRAINING}
            run["validation_loss"] = min((loss for _, loss in curve), default=None) if metrics else None
            run["score"] = _scored(metrics, test)[score["key"]] if metrics and score else None
            runs.append({**run, "curve": curve})
            counted = training.get("parameters", counted)
        runs += [run for run in _earlier_runs(earlier, cell.name, score) if run["seed"] not in cell.recipes]
        row = {"name": cell.name, "changes": cell.changes, "parameters": counted, "own_tokens": cell.has_own_tokens}
        rows.append(_summed_up(row, runs, rows))
    names = {cell.name for cell in ablation.cells}
    for before in earlier.get("cells", []):
        if before["name"] not in names and (runs := _earlier_runs(earlier, before["name"], score)):
            row = {name: before[name] for name in ("name", "changes", "parameters", "own_tokens")}
            rows.append(_summed_up(row, runs, rows))
    return {
        "title": ablation.recipe.card.title or ablation.folder.name,
        "task": ablation.recipe.task,
        "seeds": list(dict.fromkeys([*ablation.seeds, *(run["seed"] for row in rows for run in row["runs"])])),
        "score": score,
        "cells": rows,
        "hardware": finished[0]["hardware"] if finished else None,
    }


def _summed_up(row: dict[str, Any], runs: list[dict[str, Any]], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a row of the table with means over its runs, and over their differences to those of the first row with the same seed."""
    for name in _QUANTITIES:
        row |= _mean(name, [run[name] for run in runs])
    baseline = {run["seed"]: run for run in (rows[0]["runs"] if rows else [])}
    for name in COMPARED:
        pairs = [(run[name], baseline[run["seed"]][name]) for run in runs if run["seed"] in baseline]
        row |= _mean(f"{name}_delta", [a - b for a, b in pairs if a is not None and b is not None])
    return {**row, "runs": runs}


def _scored(metrics: dict[str, Any], test: str | None) -> dict[str, Any]:
    """Scores on the first test set or, where there is none, of the kept weights on the validation data."""
    model = metrics["model"]
    return model["validation"][model["weights"]] if test is None else metrics["test"][test]


def _score_facts(task: Task, metrics: dict[str, Any], test: str | None) -> dict[str, Any]:
    """The task's main score: its key, heading, name with all that makes it comparable, data and direction."""
    key, label, _ = task.results(_scored(metrics, test))[0]
    return {
        "key": key,
        "heading": label.partition(" (")[0],
        "label": label,
        "data": test or "validation",
        "percent": any(column.key == key and "%" in column.format for column in task.score_columns),
        "lower_is_better": key in LOWER_IS_BETTER,
    }


def _mean(name: str, given: list[float | None]) -> dict[str, float | None]:
    """Mean and, of several, sample standard deviation of what is known."""
    values = [value for value in given if value is not None]
    spread = statistics.stdev(values) if len(values) > 1 else None
    return {name: statistics.fmean(values) if values else None, f"{name}_spread": spread}


def _write(folder: Path, table: dict[str, Any], say: Callable[[str], None]) -> None:
    with (
        translate_io_errors(f"the table in {folder}", "make room and go on with --resume"),
        atomic_files(folder) as temporary,
    ):
        (temporary / TABLE).write_text(json.dumps(table, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        drawn = None  # neither drawn nor without what draws
        with spare(f"{PICTURE} was not drawn", f"{TABLE} holds its numbers", say):
            drawn = plot_ablation(table, temporary / PICTURE)
        (temporary / TEXT).write_text(markdown_table(table, PICTURE if drawn else None), encoding="utf-8")
    if drawn is False:
        say(f"{PICTURE} was not drawn: {missing('a picture', 'matplotlib')}")
    say(f"finished: {folder / TEXT}")
