"""What can go wrong in an export."""

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["ExportError", "needs"]


class ExportError(ValueError):
    """Say why a model was not exported, and what to do, in one sentence. Nothing was written."""


@contextmanager
def needs(*packages: str) -> Iterator[None]:
    """Turn a missing package of the `export` extra into one sentence.

    Raises:
        ImportError: naming the package and how to install it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in packages:
            raise
        raise ImportError(
            f"this export needs {error.name}, which is not installed: install this package with its extra `export`, or run "
            f"`pip install {error.name}`."
        ) from error
