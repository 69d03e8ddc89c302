"""What the libraries underneath print beside a command's own lines: where progress bars are drawn, and silence."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging


def shows_bars() -> bool:
    """Return whether bars are drawn: where standard error is a terminal. Elsewhere each would be thousands of carriage returns."""
    return sys.stderr is not None and sys.stderr.isatty()


def hide_progress_bars() -> None:
    """Turn off the progress bars of transformers for the rest of the process."""
    logging.disable_progress_bar()


@contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings and progress bars of transformers, for what is checked by this package in its own words."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def library_bars() -> Iterator[None]:
    """Let datasets and transformers draw bars only where this package does, within the block."""
    if shows_bars():
        yield
        return
    import datasets  # not before: a model is loaded without it

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
