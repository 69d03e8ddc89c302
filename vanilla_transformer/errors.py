"""Errors of training that callers may want to catch by name."""

import signal
from collections.abc import Sequence
from pathlib import Path


class RecipeError(ValueError):
    """A recipe that cannot be run, in one sentence that names the field and the remedy."""


class RunInterrupted(Exception):
    """A signal ended a run; the message says what is kept and what to type to resume.

    Attributes:
        what: when it was interrupted and what is kept.
        number: of the signal.
    """

    def __init__(self, what: str, remedy: str, number: int = signal.SIGINT):
        super().__init__(f"{what}; {remedy}")
        self.what, self.number = what, int(number)


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
