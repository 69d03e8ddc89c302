"""The learning-rate schedule of section 5.3 of the paper.

The first update has step number 1, as in the paper's formula, so no update is wasted on a rate of zero.
"""

import re
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

__all__ = ["inverse_sqrt_factor", "inverse_sqrt_schedule", "noam_factor", "noam_peak", "peak_learning_rate"]


def noam_peak(hidden_size: int, warmup_steps: int, factor: float = 1.0) -> float:
    """Highest learning rate of the paper's schedule, at the end of warm-up: `factor * d^-0.5 * warmup^-0.5`.

    Raises:
        ValueError: for a width or warm-up below 1.
    """
    if hidden_size < 1 or warmup_steps < 1:
        raise ValueError(
            f"the paper's learning rate needs hidden_size and warmup_steps of at least 1, not {hidden_size} and "
            f"{warmup_steps}; set learning_rate to a number for training without warm-up."
        )
    return factor * hidden_size**-0.5 * warmup_steps**-0.5


def noam_factor(learning_rate: Any) -> float | None:
    """The factor in `noam` (1) or `noam * 2.0`; None for a learning rate that is a number, or neither."""
    found = re.fullmatch(r"noam(?:\s*\*\s*(\d+(?:\.\d*)?|\.\d+))?", str(learning_rate).strip())
    return None if found is None else float(found[1] or 1)


def peak_learning_rate(learning_rate: float | str, hidden_size: int, warmup_steps: float) -> float:
    """The learning rate of a recipe as a number: `noam` and its multiples for a model of that width."""
    factor = noam_factor(learning_rate)
    return float(learning_rate) if factor is None else noam_peak(hidden_size, int(warmup_steps), factor)


def inverse_sqrt_factor(step: int, warmup_steps: int) -> float:
    """Share of the peak rate at update `step`, counted from 1: linear up to `warmup_steps`, then `sqrt(warmup/step)`.

    Finite everywhere: without warm-up it decays from 1 at the first update.
    """
    step, warmup = max(step, 1), max(warmup_steps, 1)
    return min(step / warmup, (warmup / step) ** 0.5)


class _Factor:
    """A callable rather than a lambda, so that schedulers can be pickled."""

    def __init__(self, warmup_steps: int):
        self.warmup_steps = warmup_steps

    def __call__(self, finished_updates: int) -> float:
        return inverse_sqrt_factor(finished_updates + 1, self.warmup_steps)


def inverse_sqrt_schedule(optimizer: Optimizer, warmup_steps: int) -> LambdaLR:
    """Scheduler that takes the optimizer's learning rate as the peak; see [`inverse_sqrt_factor`]."""
    return LambdaLR(optimizer, _Factor(warmup_steps))
