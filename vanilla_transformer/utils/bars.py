"""Progress bars, where somebody watches a terminal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import datasets
from transformers.utils import logging

__all__ = ["library_bars", "shows_bars"]


def shows_bars() -> bool:
    """Return whether bars are drawn: where standard error is a terminal. Elsewhere each would be thousands of carriage returns."""
    return sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def library_bars() -> Iterator[None]:
    """Let datasets and transformers draw bars only where this package does, within the block."""
    if shows_bars():
        yield
        return
    of_datasets, of_transformers = datasets.are_progress_bars_disabled(), logging.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if not of_datasets:
            datasets.enable_progress_bars()
        if of_transformers:
            logging.enable_progress_bar()
