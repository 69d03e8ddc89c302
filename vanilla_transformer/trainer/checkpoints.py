"""Checkpoints of a run: which there are, which are the best, which are deleted as old."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from transformers import TrainerState

from vanilla_transformer.utils.atomic import delete_dir
from vanilla_transformer.utils.json_files import read_json_object
from vanilla_transformer.utils.schema import read_values
from vanilla_transformer.utils.yaml_text import coerce_scalars

STATE = "trainer_state.json"
"""The last file that `Trainer` writes into a checkpoint; a finished run has one, too."""

INTERRUPTED = "interrupted"
"""In the state of a checkpoint after which an evaluation is still to come: whether that and a checkpoint of the run's own were
due then. A resumed run makes up for them. Where a signal asked for the checkpoint, between those of the recipe, it is not
`regular`: checkpoint averaging leaves it out, and the next takes its place."""

PROCESSES = "processes"
"""In the state of a checkpoint: the number of processes that trained it."""

LOWER_IS_BETTER = ("loss", "perplexity")
"""Of the scores of evaluations."""


def update_of(checkpoint: Path) -> int:
    """Return the number of updates after which a checkpoint was saved."""
    return int(checkpoint.name.removeprefix("checkpoint-"))


def find_checkpoints(run: str | Path) -> list[Path]:
    """Return the complete `checkpoint-N` folders of a run, in order of N."""
    found = (path for path in Path(run).glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdecimal())
    return sorted(filter(_is_complete, found), key=update_of)


def _is_complete(checkpoint: Path) -> bool:
    try:
        json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return True


def regular_checkpoints(run: str | Path) -> list[Path]:
    """Return the checkpoints of [`find_checkpoints`] that the run saved when they were due, not where it was interrupted."""
    return [checkpoint for checkpoint in find_checkpoints(run) if not is_interrupted(checkpoint)]


def is_interrupted(checkpoint: Path) -> bool:
    """Return whether a signal asked for a checkpoint, between those of the recipe."""
    try:
        due = read_state(checkpoint).stateful_callbacks.get(INTERRUPTED)
    except ValueError:  # which whoever resumes from it is told
        return False
    return isinstance(due, dict) and not due.get("regular")


def read_state(folder: Path) -> TrainerState:
    """Return the training state in a checkpoint, or in a finished run's folder.

    Raises:
        ValueError: for a file that is damaged, or was written by something else.
    """
    path, remedy = folder / STATE, f"resume the run in {folder} to write it again"
    if folder.name.startswith("checkpoint-"):
        remedy = f"delete {folder} to resume from the checkpoint before it"
    try:
        values = read_json_object(path, remedy=remedy)
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error}); {remedy}.") from error
    if reason := _fault_of_state(values):
        raise ValueError(f"{path} is damaged: {reason}; {remedy}.")
    return TrainerState(**values)


def _fault_of_state(values: dict[str, Any]) -> str | None:
    """Return what is wrong with the values of a training state; None for nothing."""
    if unknown := values.keys() - {field.name for field in fields(TrainerState)}:
        return f"it has the unknown field {min(unknown)!r}"
    for name in ("global_step", "max_steps", "best_global_step"):
        number = values.get(name)
        if number is not None and (type(number) is not int or number < 0):
            return f"{name} is {number!r}, not a whole number"
    if not isinstance(values.get("epoch", 0.0), (int, float, type(None))):
        return f"epoch is {values['epoch']!r}, not a number"
    history, callbacks = values.get("log_history"), values.get("stateful_callbacks")
    history, callbacks = [] if history is None else history, {} if callbacks is None else callbacks
    if not isinstance(history, list) or not all(isinstance(entry, dict) for entry in history):
        return "log_history is not a list of mappings"
    if wrong := next((entry for entry in history if type(entry.get("step", 0)) is not int), None):
        return f"the step of an entry of log_history is {wrong['step']!r}, not a whole number"
    for name, value in (item for entry in history for item in entry.items()):
        is_read = name in ("loss", "minutes", "tokens_per_second") or name.startswith("eval_")
        if is_read and not isinstance(value, (int, float)):
            return f"{name} in log_history is {value!r}, not a number"
    if not isinstance(callbacks, dict) or not all(isinstance(value, (dict, list)) for value in callbacks.values()):
        return "stateful_callbacks is not a mapping of mappings"
    return None


def processes_of(checkpoint: Path) -> int:
    """Return the number of processes that trained a checkpoint; each has left its random state, also where none is saved."""
    saved = read_state(checkpoint).stateful_callbacks.get(PROCESSES)
    if isinstance(saved, dict) and isinstance(saved.get("count"), int):
        return int(saved["count"])
    return max(len(list(checkpoint.glob("rng_state_*.pth"))), 1)


def best_checkpoints(
    checkpoints: Sequence[Path],
    count: int,
    log_history: Sequence[dict[str, Any]],
    metric: str,
    greater_is_better: bool | None = None,
) -> list[Path]:
    """Return those that scored best when they were saved, in order of their updates; of equal ones the earlier.

    Args:
        checkpoints: to choose from; those that were not evaluated are left out.
        count: of checkpoints, or fewer where there are not so many.
        log_history: of `TrainerState`.
        metric: of the evaluations, such as `bleu` or `loss`.
        greater_is_better: by default so, but for those in `LOWER_IS_BETTER`.
    """
    metric = metric.removeprefix("eval_")
    sign = 1 if (metric not in LOWER_IS_BETTER if greater_is_better is None else greater_is_better) else -1
    name = f"eval_{metric}"
    scores = {entry["step"]: sign * entry[name] for entry in log_history if math.isfinite(entry.get(name, math.nan))}
    scored = [checkpoint for checkpoint in checkpoints if update_of(checkpoint) in scores]
    ranked = sorted(scored, key=lambda checkpoint: (-scores[update_of(checkpoint)], update_of(checkpoint)))
    return sorted(ranked[:count], key=update_of)


def best_checkpoints_of_run(run: str | Path, count: int, metric: str | None = None) -> list[Path]:
    """Return the checkpoints in a run's folder that scored best, in order of their updates.

    Args:
        metric: of the evaluations; by default what the run chose its best checkpoint by.

    Raises:
        ValueError: where no checkpoint was evaluated, or has no such score.
    """
    run, greater = Path(run), None
    checkpoints = find_checkpoints(run)
    if metric is None and (run / "recipe.yaml").is_file():
        training = coerce_scalars(read_values(run / "recipe.yaml").get("training"))
        if isinstance(training, dict):
            metric, greater = training.get("metric_for_best_model"), training.get("greater_is_better")
    if metric is None:
        raise ValueError(f"{run} has no recipe.yaml that says which score is meant; give one, such as --metric bleu.")
    history = read_state(checkpoints[-1]).log_history if checkpoints else []
    best = best_checkpoints(checkpoints, count, history, metric, greater)
    if not best:
        scores = {name.removeprefix("eval_") for entry in history for name in entry if name.startswith("eval_")}
        known = ", ".join(sorted(scores - {"runtime", "samples_per_second", "steps_per_second"}))
        remedy = f"its scores are {known}" if known else "it was not evaluated; average the last ones instead"
        raise ValueError(f"no checkpoint of {run} has the score {metric.removeprefix('eval_')!r}: {remedy}.")
    return best


def checkpoints_to_keep(
    run: str | Path, state: TrainerState, count: int, metric: str | None, greater_is_better: bool | None
) -> list[Path]:
    """Return the checkpoints of a run that are not deleted as old: the best one by its state, and the `count` best."""
    best = [Path(run) / f"checkpoint-{state.best_global_step}"] if state.best_global_step else []
    if count < 1 or metric is None:
        return best
    return best + best_checkpoints(find_checkpoints(run), count, state.log_history, metric, greater_is_better)


def delete_old_checkpoints(run: Path, limit: int | None, keep: Iterable[Path]) -> None:
    """Delete the oldest checkpoints until `limit` are left, but neither the last one nor those in `keep`.

    By the numbers of their updates: file times lie after a copy. None or 0 for no limit. Those of interrupted runs are
    deleted once there is a later one.
    """
    checkpoints = find_checkpoints(run)
    for checkpoint in [checkpoint for checkpoint in checkpoints[:-1] if is_interrupted(checkpoint)]:
        delete_dir(checkpoint)
        checkpoints.remove(checkpoint)
    if checkpoints and is_interrupted(checkpoints[-1]):
        checkpoints.pop()  # the next one takes its place, and the run has as many as without it
    if not limit or not checkpoints:
        return
    names = {Path(folder).name for folder in keep} | {checkpoints[-1].name}
    old = [checkpoint for checkpoint in checkpoints if checkpoint.name not in names]
    for checkpoint in old[: max(len(checkpoints) - limit, 0)]:
        delete_dir(checkpoint)
