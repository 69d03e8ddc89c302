"""Training: recipe, run, trainer, schedule, metrics, averaging, curves, model card."""

__all__ = ["RunInterrupted"]


class RunInterrupted(Exception):
    """Training was interrupted by the user; the message says what is kept and how to go on."""
