"""Checkpoint averaging (section 6.1): the mean of the weights of several checkpoints of one run."""

import json
import math
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from transformers import TrainerState

__all__ = [
    "average_checkpoints",
    "average_weights",
    "best_checkpoints",
    "best_checkpoints_of_run",
    "find_checkpoints",
    "is_whole",
    "protected",
]

WEIGHTS = "model.safetensors"


LOWER_IS_BETTER = ("loss", "perplexity")


def _update_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("checkpoint-"))


def find_checkpoints(run: str | Path) -> list[Path]:
    """The `checkpoint-N` folders of a run that were written to their end, in order of N."""
    found = [folder for folder in Path(run).glob("checkpoint-*") if folder.name.removeprefix("checkpoint-").isdigit()]
    return sorted(filter(is_whole, found), key=_update_of)


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
        greater_is_better: by default so, but for `loss` and `perplexity`.
    """
    metric = metric.removeprefix("eval_")
    sign = 1 if (metric not in LOWER_IS_BETTER if greater_is_better is None else greater_is_better) else -1
    name = f"eval_{metric}"
    scores = {entry["step"]: sign * entry[name] for entry in log_history if math.isfinite(entry.get(name, math.nan))}
    scored = [checkpoint for checkpoint in checkpoints if _update_of(checkpoint) in scores]
    ranked = sorted(scored, key=lambda checkpoint: (-scores[_update_of(checkpoint)], _update_of(checkpoint)))
    return sorted(ranked[:count], key=_update_of)


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
        training = yaml.safe_load((run / "recipe.yaml").read_text(encoding="utf-8"))["training"]
        metric, greater = training["metric_for_best_model"], training["greater_is_better"]
    if metric is None:
        raise ValueError(f"{run} has no recipe.yaml that says which score is meant; give one, such as --metric bleu.")
    history = (
        [] if not checkpoints else json.loads((checkpoints[-1] / "trainer_state.json").read_text())["log_history"]
    )
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


def protected(
    run: str | Path, state: TrainerState, count: int, metric: str | None, greater_is_better: bool | None
) -> list[Path]:
    """The checkpoints of a run that are not deleted as old: the best one by its state, and the `count` best."""
    best = [Path(run) / f"checkpoint-{state.best_global_step}"] if state.best_global_step else []
    if count < 1 or metric is None:
        return best
    return best + best_checkpoints(find_checkpoints(run), count, state.log_history, metric, greater_is_better)


def is_whole(checkpoint: Path) -> bool:
    """Whether a checkpoint was written to its end: its state is the last file that `Trainer` writes."""
    try:
        json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return True


def _weight_files(folder: Path) -> list[Path]:
    index = folder / f"{WEIGHTS}.index.json"
    if index.is_file():
        return [folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
    return [folder / WEIGHTS] if (folder / WEIGHTS).is_file() else []


def _opened(file: Path) -> safe_open:
    try:
        return safe_open(str(file), framework="pt")
    except SafetensorError as error:
        raise ValueError(f"{file} is damaged ({error}); leave its folder out.") from error


def average_weights(folders: Sequence[str | Path]) -> dict[str, torch.Tensor]:
    """Mean of every weight over the checkpoints, summed in float64; weights that are no floats are the last one's.

    Raises:
        ValueError: without checkpoints, or where their weights differ in name or shape; it names both folders.
        FileNotFoundError: for a folder without safetensors weights.
    """
    if not folders:
        raise ValueError("there are no checkpoints to average.")
    total: dict[str, torch.Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    for position, folder in enumerate(map(Path, folders)):
        files = _weight_files(folder)
        if not files:
            raise FileNotFoundError(f"{folder} holds no {WEIGHTS}; give folders saved by a run or save_pretrained.")
        seen = set()
        for file in files:
            with _opened(file) as weights:
                for name in weights.keys():  # noqa: SIM118 - not a dict
                    tensor = weights.get_tensor(name)
                    seen.add(name)
                    dtypes[name] = tensor.dtype
                    if position and (name not in total or total[name].shape != tensor.shape):
                        raise ValueError(
                            f"{folder} does not fit {folders[0]}: weight {name} is not the same in both, so they are "
                            "not checkpoints of one model."
                        )
                    if not tensor.is_floating_point():
                        total[name] = tensor
                    elif position:
                        total[name] += tensor
                    else:
                        total[name] = tensor.double()
        if missing := total.keys() - seen:
            raise ValueError(f"{folder} does not fit {folders[0]}: it lacks the weight {min(missing)}.")
    count = len(folders)
    return {
        name: (tensor / count).to(dtypes[name]) if tensor.is_floating_point() else tensor
        for name, tensor in total.items()
    }


def average_checkpoints(folders: Sequence[str | Path], output: str | Path) -> Path:
    """Write a model folder with the mean weights and the last checkpoint's configuration and tokenizer files.

    The folder appears whole or not at all.

    Raises:
        ValueError, FileNotFoundError: as [`average_weights`].
        FileExistsError: where `output` already holds a model.
    """
    output = Path(output)
    if output.exists() and any(output.iterdir()):
        raise FileExistsError(f"{output} is not empty; name another folder for the averaged model.")
    weights = average_weights(folders)
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=output.name, dir=output.parent) as work:
        partial = Path(work) / "model"
        partial.mkdir()
        last = Path(folders[-1])
        for path in [last / "config.json", last / "generation_config.json", *last.glob("*token*"), *last.glob("*.py")]:
            if path.is_dir():
                shutil.copytree(path, partial / path.name)
            elif path.is_file():
                shutil.copy2(path, partial / path.name)
        save_file(weights, partial / WEIGHTS, metadata={"format": "pt"})
        partial.replace(output)
    return output
