"""When training has diverged, and by which examples: what `TokenTrainer` goes by to end a run that cannot be saved any more."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

__all__ = ["ROWS", "DivergenceRule", "NumberedCollator", "NumberedRows", "Update"]

ROWS = "row_numbers"
"""Key of a batch's (B,) row numbers."""

WINDOW = 100
"""The running median is over so many updates."""

LEAST = 20
"""Fewer say nothing yet."""

MARGIN = 1.0
"""A loss that explodes is also above the median by so many nats: where the loss is tiny, a multiple of it is still fine."""

SKIPPED = 30
"""After so many updates in a row that fp16's gradient scaler has skipped, it is no longer looking for the right scale, which
it halves each time: from 65,536 down to 0.00006."""


@dataclass
class Update:
    """What is known of one update: its number from 1, the losses and row numbers of its batches, its gradient norm."""

    number: int
    losses: list[torch.Tensor] = field(default_factory=list)
    rows: list[torch.Tensor] = field(default_factory=list)
    grad_norm: Any = math.nan

    def row_numbers(self) -> list[int]:
        """Of all batches, in order."""
        return [row for rows in self.rows for row in rows.tolist()]


class DivergenceRule:
    """Decides update by update whether training has diverged.

    - The loss or the gradient norm is no finite number. With fp16, whose gradient scaler skips such updates and goes on
      with a smaller scale, only when it has skipped 30 in a row.
    - The loss is above a multiple of its running median, and above the median by 1 nat, for several updates in a row. The
      median is that of the last 100 updates before these, and of 20 at least.

    Args:
        non_finite: whether the first holds.
        loss_over_median: the multiple; None for never.
        updates: how many in a row.

    Attributes:
        scaled: whether there is a gradient scaler.
    """

    def __init__(self, non_finite: bool = True, loss_over_median: float | None = 3.0, updates: int = 10):
        self.non_finite, self.loss_over_median, self.updates = non_finite, loss_over_median, updates
        self.scaled = False
        self.past: deque[float] = deque(maxlen=WINDOW)
        self.bad: list[Update] = []
        self.skipped = 0

    def remember(self, losses: Iterable[float]) -> None:
        """Take losses of earlier sittings for those of updates."""
        self.past.extend(loss for loss in losses if math.isfinite(loss))

    def trouble(self, update: Update, loss: float, grad_norm: float) -> tuple[Update, str] | None:
        """The update with which training diverged and what is wrong with it, once that is certain.

        Args:
            update: the next one.
            loss, grad_norm: of it, over all batches and processes.
        """
        for name, value in (("loss", loss), ("gradient norm", grad_norm)):
            if not math.isfinite(value):
                self.skipped += self.scaled
                if self.non_finite and not self.scaled:
                    return update, f"the {name} is {value}"
                if self.non_finite and self.skipped >= SKIPPED:
                    return update, f"the {name} is {value}, for {SKIPPED} updates in a row, however small fp16's scale"
                return None
        self.skipped = 0
        if self.loss_over_median is None:
            return None
        usual = median(self.past) if len(self.past) >= LEAST else math.inf
        if loss <= max(self.loss_over_median * usual, usual + MARGIN):
            # what was above for a while only is part of what is usual
            self.past.append(loss)
            self.bad.clear()
            return None
        self.bad.append(update)
        if len(self.bad) < self.updates:
            return None
        return self.bad[0], (
            f"the loss is {loss:.4g}, and for {self.updates} update{'s' if self.updates > 1 else ''} in a row above "
            f"{self.loss_over_median:g} times its running median of {usual:.4g}"
        )


class NumberedRows(torch.utils.data.Dataset):
    """A data set whose rows come with their numbers, so that a batch can tell what it is made of."""

    def __init__(self, rows: Any):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[int, Any]:
        return index, self.rows[index]

    def __getitems__(self, indices: Sequence[int]) -> Iterator[tuple[int, Any]]:
        # the data sets of `datasets` read many rows at once much faster than one by one
        many = getattr(self.rows, "__getitems__", None)
        found = many(indices) if many is not None else [self.rows[index] for index in indices]
        return zip(indices, found, strict=True)


@dataclass
class NumberedCollator:
    """Collates the rows of `NumberedRows`: their numbers, shape (B,), stand in the batch under `ROWS`."""

    collate: Callable[[list[Any]], Any]

    def __call__(self, numbered: Iterable[tuple[int, Any]]) -> Any:
        numbers, rows = zip(*numbered, strict=True)
        batch = self.collate(list(rows))
        batch[ROWS] = torch.tensor(numbers)
        return batch
