"""What `ablation.json` holds: the runs of each cell, means over their seeds, and differences to the baseline."""

import statistics
from pathlib import Path
from typing import Any

from vanilla_transformer.errors import RecipeError
from vanilla_transformer.runs.ablation import TABLE, Ablation
from vanilla_transformer.runs.ablation_table import COMPARED
from vanilla_transformer.tasks import Task
from vanilla_transformer.trainer.checkpoints import LOWER_IS_BETTER
from vanilla_transformer.utils.json_files import read_json_object

_TRAINING = ("updates", "minutes", "tokens_per_second", "flops_per_token", "peak_memory_mb")
_QUANTITIES = (*_TRAINING, "validation_loss", "score")
_ROW = ("name", "changes", "parameters", "own_tokens")


def earlier_table(folder: Path) -> dict[str, Any]:
    """Return the table of an ablation that is resumed, which may have had other cells and seeds; empty where there is none.

    Raises:
        RecipeError: for a file that is damaged.
    """
    if not (folder / TABLE).is_file():
        return {}
    remedy = "delete it, and the table is made again"
    table = read_json_object(folder / TABLE, needs=("score", "cells"), remedy=remedy, error=RecipeError)
    try:
        for row in table["cells"]:
            [row[name] for name in _ROW], dict(row["changes"])
            for run in row["runs"]:
                Path(run["folder"]), [run[name] for name in ("status", "seed", "curve", *_QUANTITIES)]
    except (TypeError, KeyError, ValueError) as error:
        raise RecipeError(f"{folder / TABLE} is damaged ({error}); {remedy}.") from error
    return table


def ablation_table(
    ablation: Ablation,
    task: Task,
    results: dict[tuple[str, int], dict[str, Any]],
    parameters: dict[str, int | None],
    earlier: dict[str, Any],
) -> dict[str, Any]:
    """Return what `ablation.json` holds: means over the seeds, differences to the baseline, and every run.

    Cells and seeds of an earlier table that are not among those of now stay in it.

    Args:
        task: of the recipe.
        results: what became of each run so far, by cell and seed: `status`, `reason`, `metrics` and `curve`.
        parameters: of each cell's model, where known before it is trained.
        earlier: see [`earlier_table`].
    """
    test = next(iter(ablation.recipe.data.test), None)
    finished = [result["metrics"] for result in results.values() if result["metrics"]]
    score = _score_facts(task, finished[0], test) if finished else None
    rows: list[dict[str, Any]] = []
    # cells of now
    for cell in ablation.cells:
        runs, counted = [], parameters[cell.name]
        for seed, recipe in cell.recipes.items():
            waiting: dict[str, Any] = {"status": "waiting", "reason": None, "metrics": None, "curve": []}
            result = results.get((cell.name, seed), waiting)
            metrics, curve = result["metrics"], result["curve"]
            training = metrics["training"] if metrics else {}
            run = {"seed": seed, "folder": recipe.output_dir, "status": result["status"], "reason": result["reason"]}
            run |= {name: training.get(name) for name in _TRAINING}
            run["validation_loss"] = min((loss for _, loss in curve), default=None) if metrics else None
            run["score"] = _scores_of(metrics, test)[score["key"]] if metrics and score else None
            runs.append({**run, "curve": curve})
            counted = training.get("parameters", counted)
        runs += [run for run in _earlier_runs(earlier, cell.name, score) if run["seed"] not in cell.recipes]
        row = {"name": cell.name, "changes": cell.changes, "parameters": counted, "own_tokens": cell.has_own_tokens}
        rows.append(_with_means(row, runs, rows))
    # cells of before
    names = {cell.name for cell in ablation.cells}
    for before in earlier.get("cells", []):
        if before["name"] not in names and (runs := _earlier_runs(earlier, before["name"], score)):
            rows.append(_with_means({name: before[name] for name in _ROW}, runs, rows))
    return {
        "title": ablation.recipe.card.title or ablation.folder.name,
        "task": ablation.recipe.task,
        "seeds": list(dict.fromkeys([*ablation.seeds, *(run["seed"] for row in rows for run in row["runs"])])),
        "score": score,
        "cells": rows,
        "hardware": finished[0]["hardware"] if finished else None,
    }


def _earlier_runs(earlier: dict[str, Any], name: str, score: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return what an earlier table has of a cell that was run; without scores where they are no longer the same ones."""
    rows = [row for row in earlier.get("cells", []) if row["name"] == name]
    runs = [run for row in rows for run in row["runs"] if run["status"] != "waiting" and Path(run["folder"]).is_dir()]
    return runs if earlier.get("score") == score else [{**run, "score": None} for run in runs]


def _with_means(row: dict[str, Any], runs: list[dict[str, Any]], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a row with means over its runs, and over their differences to those of the first row with the same seed."""
    for name in _QUANTITIES:
        row |= _mean(name, [run[name] for run in runs])
    baseline = {run["seed"]: run for run in (rows[0]["runs"] if rows else [])}
    for name in COMPARED:
        pairs = [(run[name], baseline[run["seed"]][name]) for run in runs if run["seed"] in baseline]
        row |= _mean(f"{name}_delta", [a - b for a, b in pairs if a is not None and b is not None])
    return {**row, "runs": runs}


def _mean(name: str, given: list[float | None]) -> dict[str, float | None]:
    """Return the mean and, of several, the sample standard deviation of what is known."""
    values = [value for value in given if value is not None]
    spread = statistics.stdev(values) if len(values) > 1 else None
    return {name: statistics.fmean(values) if values else None, f"{name}_spread": spread}


def _scores_of(metrics: dict[str, Any], test: str | None) -> dict[str, Any]:
    """Return the scores on the first test set or, where there is none, of the kept weights on the validation data."""
    model = metrics["model"]
    return model["validation"][model["weights"]] if test is None else metrics["test"][test]


def _score_facts(task: Task, metrics: dict[str, Any], test: str | None) -> dict[str, Any]:
    """Return the task's main score: its key, heading, name with all that makes it comparable, data and direction."""
    key, label, _ = task.results(_scores_of(metrics, test))[0]
    return {
        "key": key,
        "heading": label.partition(" (")[0],
        "label": label,
        "data": test or "validation",
        "percent": any(column.key == key and "%" in column.format for column in task.score_columns),
        "lower_is_better": key in LOWER_IS_BETTER,
    }
