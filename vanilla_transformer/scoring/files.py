"""Texts to score, from files of one text a line."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from vanilla_transformer.utils.text_files import carriage_returns, open_input, text_lines

__all__ = ["read_aligned", "read_texts", "system_names"]


def read_texts(path: str | Path) -> list[str]:
    """Return the lines of a UTF-8 file, of a gzipped one (`.gz`), or of a pipe; all of them, also the empty ones.

    Raises:
        FileNotFoundError: where there is none.
        ValueError: for an empty file, one whose lines end in carriage returns alone, and a line that is not UTF-8.
    """
    path = Path("/dev/stdin") if str(path) == "-" else Path(os.path.expanduser(path))
    with open_input(path) as stream:
        texts = list(text_lines(stream, path))
    if len(texts) == 1 and "\r" in texts[0]:
        raise carriage_returns(path)
    if not texts:
        raise ValueError(f"{path} is empty.")
    return texts


def read_aligned(paths: Sequence[str | Path]) -> list[list[str]]:
    """Return the lines of several files, which must have the same number of them.

    Raises:
        ValueError: for unequal numbers of lines, with both; and as `read_texts` does.
    """
    files = [read_texts(path) for path in paths]
    for path, texts in zip(paths[1:], files[1:], strict=True):
        if len(texts) != len(files[0]):
            raise ValueError(
                f"{paths[0]} has {len(files[0]):,} lines but {path} has {len(texts):,}; line by line they must belong "
                "together."
            )
    return files


def system_names(paths: Sequence[str | Path]) -> list[str]:
    """Return a name for each file of outputs: its own where that tells them apart, otherwise the whole path.

    Raises:
        ValueError: for a file that is named twice.
    """
    whole = [str(path) for path in paths]
    for path, count in Counter(whole).items():
        if count > 1:
            raise ValueError(f"{path} is given {count} times; give each system once.")
    short = [Path(path).name for path in whole]
    return short if len(set(short)) == len(short) else whole
