"""Learning-rate schedules: that of section 5.3 of the paper, and schedules that end when the run does.

The first update has step number 1, as in the paper's formula, so no update is wasted on a rate of zero.

A run ends after its updates, or when its time is up (`max_minutes`), whichever comes first. A schedule that falls to an
end follows both: its length is the number of updates that the run is expected to make, see [`expected_updates`].
"""

import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

DECAY = "inverse_sqrt_decay"
"""Name of the schedule in recipes: warm-up, inverse square root, then a straight line to zero at the end of the run."""

SCHEDULE_OPTIONS: dict[str, dict[str, float]] = {"inverse_sqrt": {}, DECAY: {"decay_share": 0.8}}
"""Options of this package's schedules (`training.lr_scheduler_kwargs`) with their defaults."""

LONGEST_WARMUP = 0.2
"""Share of a run that the warm-up of [`inverse_sqrt_decay_factor`] takes at most."""


Clock = Callable[[], float]
"""Gives the share of a run's time that has passed, 0 to 1."""


def noam_peak(hidden_size: int, warmup_steps: int, factor: float = 1.0) -> float:
    """Return the highest learning rate of the paper's schedule, at the end of warm-up: `factor * d^-0.5 * warmup^-0.5`.

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
    """Return the factor in `noam` (1) or `noam * 2.0`; None for a learning rate that is a number, or neither."""
    found = re.fullmatch(r"noam(?:\s*\*\s*(\d+(?:\.\d*)?|\.\d+))?", str(learning_rate).strip())
    return None if found is None else float(found[1] or 1)


def peak_learning_rate(learning_rate: float | str, hidden_size: int, warmup_steps: float) -> float:
    """Return the learning rate of a recipe as a number: `noam` and its multiples for a model of that width."""
    factor = noam_factor(learning_rate)
    return float(learning_rate) if factor is None else noam_peak(hidden_size, int(warmup_steps), factor)


def inverse_sqrt_factor(step: int, warmup_steps: int) -> float:
    """Return the share of the peak rate at update `step`, counted from 1: linear up to `warmup_steps`, then `sqrt(warmup/step)`.

    Finite everywhere: without warm-up it decays from 1 at the first update.
    """
    step, warmup = max(step, 1), max(warmup_steps, 1)
    return min(step / warmup, (warmup / step) ** 0.5)


def _inverse_sqrt_factor_after(finished: int, *, warmup_steps: int) -> float:
    return inverse_sqrt_factor(finished + 1, warmup_steps)


def inverse_sqrt_schedule(optimizer: Optimizer, warmup_steps: int) -> LambdaLR:
    """Return a scheduler that takes the optimizer's learning rate as the peak; see [`inverse_sqrt_factor`]."""
    # not a lambda, which cannot be pickled
    return LambdaLR(optimizer, partial(_inverse_sqrt_factor_after, warmup_steps=warmup_steps))


def expected_updates(total: int, finished: int, time_share: float) -> float:
    """Return the number of updates that a run will make in all.

    Args:
        total: updates after which it ends.
        finished: updates so far.
        time_share: share of the run's time that has passed, 0 to 1; 0 where there is no limit.

    Returns:
        `total`, or as many updates as fit into the time at the pace so far.
    """
    return min(total, finished / time_share if finished and time_share > 0 else math.inf)


def warmup_in_run(warmup_steps: int, updates: float) -> float:
    """Return the updates of warm-up in a run of so many updates: those asked for, or `LONGEST_WARMUP` of the run."""
    return max(min(warmup_steps, LONGEST_WARMUP * updates), 1)


def inverse_sqrt_decay_factor(
    finished: int, warmup_steps: int, total: int, time_share: float = 0.0, decay_share: float = 0.8
) -> float:
    """Return the share of the peak rate for the update after `finished` ones.

    Linear warm-up, at most `LONGEST_WARMUP` of the run, then `sqrt(warmup / step)` as in the paper, multiplied by a
    straight line from 1 to 0 over the last `decay_share` of the run. How far the run is says the larger of two shares:
    of its updates and of its time. Without a limit of time it depends on the number of updates alone.

    Args:
        finished: updates so far.
        warmup_steps: updates of warm-up.
        total, time_share: as in [`expected_updates`].
        decay_share: above 0, at most 1.
    """
    warmup = warmup_in_run(warmup_steps, expected_updates(total, finished, time_share))
    step = finished + 1
    left = 1 - max(finished / total, time_share)
    return min(step / warmup, (warmup / step) ** 0.5) * min(max(left / decay_share, 0.0), 1.0)


def _decay_factor(finished: int, *, warmup_steps: int, total: int, decay_share: float, clock: Clock) -> float:
    return inverse_sqrt_decay_factor(finished, warmup_steps, total, clock(), decay_share)


def _factor_in_run(finished: int, *, factor: Any, total: int, clock: Clock) -> float:
    length, given = expected_updates(total, finished, clock()), factor.keywords
    if "num_training_steps" in given:
        return factor(finished, num_training_steps=length)
    # warmup_stable_decay has the lengths of its three parts
    return factor(finished, num_stable_steps=max(length - given["num_warmup_steps"] - given["num_decay_steps"], 0))


# Partial functions have no state of their own, so a checkpoint holds none of them and a run that is resumed for longer
# gets the schedule of its new length.


def decay_schedule(
    optimizer: Optimizer, warmup_steps: int, total: int, clock: Clock, decay_share: float = 0.8
) -> LambdaLR:
    """Return a scheduler that takes the optimizer's learning rate as the peak; see [`inverse_sqrt_decay_factor`].

    Args:
        clock: gives the share of the run's time that has passed.
    """
    options: Mapping[str, Any] = {"warmup_steps": warmup_steps, "total": total, "decay_share": decay_share}
    return LambdaLR(optimizer, partial(_decay_factor, clock=clock, **options))


def follow_clock(scheduler: LRScheduler, total: int, clock: Clock) -> bool:
    """Let a scheduler of transformers that has a length (linear, cosine, polynomial, ...) end when the run's time is up.

    Returns:
        False for a scheduler without a length, which stays as it is.
    """
    if not isinstance(scheduler, LambdaLR):
        return False
    factors = scheduler.lr_lambdas
    if not all(
        {"num_training_steps", "num_stable_steps"} & getattr(factor, "keywords", {}).keys() for factor in factors
    ):
        return False
    scheduler.lr_lambdas = [partial(_factor_in_run, factor=factor, total=total, clock=clock) for factor in factors]
    return True
