"""Training: recipe, tasks, run, trainer, schedule, metrics, averaging, curves, model card."""

__all__ = ["RecipeError", "RunInterrupted"]


class RecipeError(ValueError):
    """A recipe that cannot be run, in one sentence that names the field and the remedy."""


class RunInterrupted(Exception):
    """Training was interrupted by the user; the message says what is kept and how to go on."""
