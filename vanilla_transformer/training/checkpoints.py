"""Checkpoints of a run: which there are, which are the best, which are deleted as old."""

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerState

from vanilla_transformer.training.fields import read_values
from vanilla_transformer.training.yaml_text import coerce_scalars
from vanilla_transformer.utils.atomic import delete_dir

__all__ = [
    "LOWER_IS_BETTER",
    "STATE",
    "best_checkpoints",
    "best_checkpoints_of_run",
    "checkpoints_to_keep",
    "delete_old_checkpoints",
    "find_checkpoints",
    "update_of",
]

STATE = "trainer_state.json"
"""The last file that `Trainer` writes into a checkpoint; a finished run has one, too."""

LOWER_IS_BETTER = ("loss", "perplexity")
"""Of the scores of evaluations."""


def update_of(checkpoint: Path) -> int:
    """The number of updates after which a checkpoint was saved."""
    return int(checkpoint.name.removeprefix("checkpoint-"))


def find_checkpoints(run: str | Path) -> list[Path]:
    """The `checkpoint-N` folders of a run that were written to their end, in order of N."""
    found = [folder for folder in Path(run).glob("checkpoint-*") if folder.name.removeprefix("checkpoint-").isdigit()]
    return sorted(filter(_is_whole, found), key=update_of)


def _is_whole(checkpoint: Path) -> bool:
    try:
        json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return True


def best_checkpoints(
    checkpoints: Sequence[Path],
    count: int,
    log_history: Sequence[dict[str, Any]],
    metric: str,
    greater_is_better: bool | None = None,
) -> list[Path]:
    """Those that scored best when they were saved, in order of their updates; of equal ones the earlier.

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
    """The checkpoints in a run's folder that scored best, in order of their updates.

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
    history = [] if not checkpoints else json.loads((checkpoints[-1] / STATE).read_text())["log_history"]
    best = best_checkpoints(checkpoints, count, history, metric, greater)
    if not best:
        scores = sorted(
            {name.removeprefix("eval_") for entry in history for name in entry if name.startswith("eval_")}
        )
        known = [name for name in scores if name not in ("runtime", "samples_per_second", "steps_per_second")]
        remedy = (
            f"its scores are {', '.join(known)}" if known else "it was not evaluated; average the last ones instead"
        )
        raise ValueError(f"no checkpoint of {run} has the score {metric.removeprefix('eval_')!r}: {remedy}.")
    return best


def checkpoints_to_keep(
    run: str | Path, state: TrainerState, count: int, metric: str | None, greater_is_better: bool | None
) -> list[Path]:
    """The checkpoints of a run that are not deleted as old: the best one by its state, and the `count` best."""
    best = [Path(run) / f"checkpoint-{state.best_global_step}"] if state.best_global_step else []
    if count < 1 or metric is None:
        return best
    return best + best_checkpoints(find_checkpoints(run), count, state.log_history, metric, greater_is_better)


def delete_old_checkpoints(run: Path, limit: int | None, keep: Iterable[Path]) -> None:
    """Delete the oldest checkpoints until `limit` are left, but neither the last one nor those in `keep`.

    By the numbers of their updates: file times lie after a copy. None or 0 for no limit.
    """
    checkpoints = find_checkpoints(run)
    if not limit or not checkpoints:
        return
    names = {Path(folder).name for folder in keep} | {checkpoints[-1].name}
    old = [checkpoint for checkpoint in checkpoints if checkpoint.name not in names]
    for checkpoint in old[: max(len(checkpoints) - limit, 0)]:
        delete_dir(checkpoint)
