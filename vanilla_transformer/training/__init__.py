"""Training: recipe, tasks, run, trainer, schedule, metrics, averaging, curves, model card."""

from collections.abc import Sequence
from pathlib import Path

__all__ = ["DivergedError", "RecipeError", "RunInterrupted"]


class RecipeError(ValueError):
    """A recipe that cannot be run, in one sentence that names the field and the remedy."""


class RunInterrupted(Exception):
    """Training was interrupted by the user; the message says what is kept and how to go on."""


class DivergedError(Exception):
    """Training diverged; the message says when, by which examples, and what to do.

    Attributes:
        update: with which it began, from 1.
        reason: what was no longer as it must be.
        rows: numbers of the examples of that update, from 0, in the training data as tokenised; all batches, in order.
        checkpoint: the last one saved before, if any.
    """

    def __init__(self, message: str, update: int, reason: str, rows: Sequence[int], checkpoint: Path | None):
        super().__init__(message)
        self.update, self.reason, self.rows, self.checkpoint = update, reason, list(rows), checkpoint
