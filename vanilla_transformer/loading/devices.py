"""Devices by their names: refused before anything is loaded for one that is not here, and chosen where none is named."""

from typing import Any

import torch

__all__ = ["check_device", "move_to_device"]


def check_device(device: str | None) -> None:
    """Refuse a device that is not here, before anything is loaded for it.

    Raises:
        ValueError: naming the devices there are.
    """
    if device is None:
        return
    here = ["cpu"]
    if torch.accelerator.is_available():
        kind = torch.accelerator.current_accelerator().type  # type: ignore[union-attr]
        here += [f"{kind}:{number}" for number in range(torch.accelerator.device_count())]
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"--device {device!r} is not a device of torch; there is {', '.join(here)}.") from error
    names = {*here, "cpu:0", *(name.partition(":")[0] for name in here)}
    if str(wanted) not in names:
        raise ValueError(f"the device {device!r} is not here; there is {', '.join(here)}.")


def move_to_device(model: Any, device: str | None) -> Any:
    """Move a model to a device, by default to the accelerator where there is one.

    Raises:
        ValueError: where it cannot be moved there.
    """
    if device is None and torch.accelerator.is_available():
        device = str(torch.accelerator.current_accelerator())
    try:
        return model if device is None else model.to(device)
    except RuntimeError as error:
        raise ValueError(f"the model cannot be moved to the device {device!r}: {error}") from error
