"""Divergence: NaN losses and loss spikes, and the examples of the update; how `TokenTrainer` ends a run that has diverged."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from accelerate.utils import gather_object

from vanilla_transformer.errors import DivergedError
from vanilla_transformer.trainer.checkpoints import find_checkpoints, update_of

ROWS = "row_numbers"
"""Key of a batch's (B,) row numbers."""

WINDOW = 100
"""The running median is over so many updates."""

LEAST = 20
"""Fewer say nothing yet."""

MARGIN = 1.0
"""A loss that explodes is also above the median by so many nats: where the loss is tiny, a multiple of it is still fine."""

MOST_UNREAD = 1000
"""Updates are looked at after so many at the latest."""

SKIPPED = 30
"""After so many updates in a row that fp16's gradient scaler has skipped, it is no longer looking for the right scale, which
it halves each time: from 65,536 down to 0.00006."""


@dataclass
class Update:
    """What is known of one update: its number from 1, the losses and row numbers of its batches, its gradient norm."""

    number: int = 0
    losses: list[torch.Tensor] = field(default_factory=list)
    rows: list[torch.Tensor] = field(default_factory=list)
    grad_norm: Any = math.nan

    def row_numbers(self) -> list[int]:
        """Return those of all batches, in order."""
        return [row for rows in self.rows for row in rows.tolist()]


class DivergenceRule:
    """Decide update by update whether training has diverged.

    - Non-finite: the loss or the gradient norm is NaN or infinite. With fp16, whose gradient scaler skips such updates and
      continues with a smaller scale, only when it has skipped 30 in a row.
    - A loss spike: the loss is above a multiple of its running median, and above the median by 1 nat, for several updates in a row. The
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
        """Take losses that were logged before training was resumed for those of updates."""
        self.past.extend(loss for loss in losses if math.isfinite(loss))

    def check(self, update: Update, loss: float, grad_norm: float) -> tuple[Update, str] | None:
        """Return the update with which training diverged and what is wrong with it, once that is certain.

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


class DivergenceMonitor:
    """Apply a rule while a model trains; its methods are called on all processes.

    What is known of an update stays on the device until `check`, so that nothing waits for it before.

    Args:
        rule: when training has diverged.
        folder: of the run, whose checkpoints the error names.
        name_rows: names examples by the numbers of their rows, as in "lines 3, 17 of train.txt".
    """

    def __init__(self, rule: DivergenceRule, folder: Path, name_rows: Callable[[Sequence[int]], str] | None = None):
        self.rule, self.folder, self.name_rows = rule, folder, name_rows or _row_numbers
        self._current = self._last_read = Update()
        self._unread: list[Update] = []

    def add_batch(self, loss: torch.Tensor, rows: torch.Tensor | None) -> None:
        """Take in a batch of the current update: its share of the loss, and the numbers of its rows where known."""
        self._current.losses.append(loss)
        if rows is not None:
            self._current.rows.append(rows)

    def end_update(self, number: int, grad_norm: Any) -> None:
        """Take in the rest of the current update."""
        self._current.number, self._current.grad_norm = number, grad_norm
        self._unread.append(self._current)
        self._current = Update()
        if len(self._unread) >= MOST_UNREAD:
            self.check()

    def check(self, model: torch.nn.Module | None = None) -> None:
        """Look at the updates since the last check, and at the weights of a model.

        Raises:
            DivergedError: on all processes.
        """
        updates, self._unread = self._unread, []
        if updates:
            self._last_read = updates[-1]
            self._check_updates(updates)
        if model is not None and self.rule.non_finite:
            parts = [getattr(p, "to_local", lambda p=p: p)() for p in model.parameters()]
            finite = bool(torch.stack([part.isfinite().all() for part in parts]).all())
            if not all(gather_object([finite])):
                self._stop(self._last_read, "the weights are not finite")

    def _check_updates(self, updates: list[Update]) -> None:
        # all numbers in one transfer from the device
        numbers = [loss for update in updates for loss in update.losses]
        numbers += [_plain(update.grad_norm, numbers[0]) for update in updates]
        read = iter(torch.stack([number.float() for number in numbers]).tolist())
        own = [sum(next(read) for _ in update.losses) for update in updates]
        norms = list(read)
        losses = gather_object([own])  # of each process, of each update
        for position, update in enumerate(updates):
            of_processes = [of_process[position] for of_process in losses]
            found = self.rule.check(update, sum(of_processes) / len(losses), norms[position])
            if found:
                # a non-finite loss is the doing of the processes that have it
                innocent = math.isfinite(own[position]) and not all(map(math.isfinite, of_processes))
                self._stop(*found, innocent)

    def _stop(self, update: Update, reason: str, innocent: bool = False) -> None:
        rows = gather_object([] if innocent else update.row_numbers())
        before = [checkpoint for checkpoint in find_checkpoints(self.folder) if update_of(checkpoint) < update.number]
        if before:
            kept = f"the last checkpoint before it is {before[-1]}"
            start = f"start again, or start from its weights with start_from={before[-1]} and another output_dir"
        else:
            kept, start = "no checkpoint was saved before it", "start again"
        raise DivergedError(
            f"training diverged at update {update.number}: {reason}; its batches are {self.name_rows(rows)}; {kept}; "
            f"lower training.learning_rate, set training.max_grad_norm or mend these examples, then {start}.",
            update.number,
            reason,
            rows,
            before[-1] if before else None,
        )


def _row_numbers(rows: Sequence[int]) -> str:
    return f"the rows {', '.join(map(str, rows))} of the training data, counted from 0"


def _plain(grad_norm: Any, like: torch.Tensor) -> torch.Tensor:
    """Return a gradient norm, which may be a number or sharded, as a tensor on one device."""
    whole = getattr(grad_norm, "full_tensor", lambda: grad_norm)()
    return torch.as_tensor(whole, device=like.device)


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
    """Collate the rows of `NumberedRows`: their numbers, shape (B,), stand in the batch under `ROWS`."""

    collate: Callable[[list[Any]], Any]

    def __call__(self, numbered: Iterable[tuple[int, Any]]) -> Any:
        numbers, rows = zip(*numbered, strict=True)
        batch = self.collate(list(rows))
        batch[ROWS] = torch.tensor(numbers)
        return batch
