"""Silence what the libraries underneath print beside a command's own lines."""

from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging

__all__ = ["hide_progress_bars", "quiet"]


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
