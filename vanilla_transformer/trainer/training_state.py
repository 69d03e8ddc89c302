"""The state of a training loop as data: JSON and safetensors, which can be read from anybody, as no code is run for it.

`torch.save` and accelerate's `save_state` write pickles, and a pickle can run any code while it is read.

| file | what it holds |
|---|---|
| `training_state.json` | progress, schedule, options of the optimizer's groups, number of processes |
| `optimizer.safetensors` | tensors of the optimizer, such as `3.exp_avg` of the fourth parameter |
| `random_state_N.json` | states of the random numbers of process N: Python, NumPy, torch, accelerators |
"""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from vanilla_transformer.utils.json_files import read_json_object, write_json

STATE, TENSORS, RANDOM = "training_state.json", "optimizer.safetensors", "random_state_{}.json"


def save_training_state(
    folder: Path, optimizer: Optimizer, scheduler: LRScheduler, progress: dict[str, Any], processes: int
) -> None:
    """Write what all processes have in common.

    Args:
        progress: plain values of the loop's own.
        processes: their number, without which the run would be another.
    """
    state = optimizer.state_dict()
    tensors = {f"{i}.{name}": value for i, values in state["state"].items() for name, value in values.items()}
    save_file({name: torch.as_tensor(value).contiguous() for name, value in tensors.items()}, folder / TENSORS)
    values = {
        "progress": progress,
        "schedule": scheduler.state_dict(),
        "groups": [{n: v for n, v in group.items() if n != "params"} for group in state["param_groups"]],
        "processes": processes,
    }
    write_json(folder / STATE, values)


def load_training_state(folder: Path, optimizer: Optimizer, scheduler: LRScheduler, processes: int) -> dict[str, Any]:
    """Put optimizer and schedule back into the state of a checkpoint and return its progress.

    Raises:
        ValueError: for pickles, for files that are damaged or of another model, and for another number of processes.
    """
    if not (folder / STATE).is_file():
        pickles = sorted(path.name for path in folder.iterdir() if path.suffix in (".pkl", ".bin", ".pt", ".pth"))
        what = f"holds its state as pickles ({pickles[0]}), which can run any code" if pickles else f"lacks {STATE}"
        raise ValueError(f"{folder} {what}; it is not read: delete it, or start another run with start_from={folder}.")
    values = _read(folder / STATE)
    if values.get("processes") != processes:
        raise ValueError(
            f"{folder} was saved by {values.get('processes')} processes and not by {processes}, so its updates would be "
            "made with other batches; start as many as then."
        )
    try:
        tensors: dict[int, dict[str, torch.Tensor]] = {}
        for name, tensor in load_file(folder / TENSORS).items():
            index, _, key = name.partition(".")
            tensors.setdefault(int(index), {})[key] = tensor
        own = optimizer.state_dict()["param_groups"]
        groups = [{**group, "params": mine["params"]} for group, mine in zip(values["groups"], own, strict=True)]
        _check_shapes(tensors, [parameter for group in optimizer.param_groups for parameter in group["params"]])
        optimizer.load_state_dict({"state": tensors, "param_groups": groups})
        if values["schedule"].keys() != scheduler.state_dict().keys():
            raise KeyError("schedule")
        scheduler.load_state_dict(values["schedule"])
        for name, value in values["progress"].items():
            if type(value) not in (int, float):
                raise ValueError(f"{name} is {value!r}, not a number")
        return dict(values["progress"])
    except (SafetensorError, OSError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{folder} is damaged, or of another model ({error}); delete it.") from error


def _check_shapes(tensors: dict[int, dict[str, torch.Tensor]], parameters: list[torch.Tensor]) -> None:
    for index, values in tensors.items():
        for name, tensor in values.items():
            if tensor.dim() and tensor.shape != parameters[index].shape:
                raise ValueError(f"{index}.{name} has the shape {tuple(tensor.shape)}")


def save_random_state(folder: Path, process: int) -> None:
    """Write the states of the random numbers of this process."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    states = {
        "python": random.getstate(),
        "numpy": [kind, np.asarray(keys).tolist(), *rest],
        "torch": bytes(torch.get_rng_state().tolist()).hex(),
    }
    if torch.cuda.is_available():
        states["cuda"] = [bytes(state.tolist()).hex() for state in torch.cuda.get_rng_state_all()]
    (folder / RANDOM.format(process)).write_text(json.dumps(states) + "\n", encoding="utf-8")


def load_random_state(folder: Path, process: int) -> None:
    """Put the random numbers of this process back into the state of a checkpoint.

    Raises:
        ValueError: for a file that is missing or damaged.
    """
    states = _read(folder / RANDOM.format(process))
    try:
        version, keys, following = states["python"]
        random.setstate((version, tuple(keys), following))
        kind, keys, *rest = states["numpy"]
        np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
        torch.set_rng_state(_tensor(states["torch"]))
        if torch.cuda.is_available() and "cuda" in states:
            torch.cuda.set_rng_state_all([_tensor(state) for state in states["cuda"]])
    except (KeyError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{folder / RANDOM.format(process)} is damaged ({error}); delete {folder}.") from error


def _tensor(digits: str) -> torch.Tensor:
    return torch.tensor(list(bytes.fromhex(digits)), dtype=torch.uint8)


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_json_object(path, remedy=f"delete {path.parent}")
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error}); delete {path.parent}.") from error
