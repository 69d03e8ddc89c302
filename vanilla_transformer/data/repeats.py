"""Rows that come twice: in the training data, and in the data that a model is tested on as well as in what it learns from.

Rows are compared by 64-bit hashes that `DataReport` collects while they are read: 16 bytes a row, 80 MB for five million,
and a chance of one in some 400,000 that among ten million rows a single one is taken for another.
"""

from collections.abc import Iterable

import numpy as np

from vanilla_transformer.data.report import DataReport, Repeats

__all__ = ["count_repeats"]


def count_repeats(train: DataReport, others: Iterable[DataReport]) -> None:
    """Note in each report how many of its rows come twice, and forget the hashes.

    Args:
        train: of the training data, where a row is counted that repeats an earlier one.
        others: of data for validation and tests, where a row is counted that the training data holds.
    """
    sources, rows = (_in_order(hashes) for hashes in (train.source_hashes, train.row_hashes))
    train.repeats = Repeats(
        "repeat an earlier one", len(train.row_hashes) - len(rows), len(train.source_hashes) - len(sources)
    )
    for report in others:
        report.repeats = Repeats(
            "are in the training data, too",
            _found_in(rows, report.row_hashes),
            _found_in(sources, report.source_hashes),
        )
        report.forget_hashes()
    train.forget_hashes()


def _in_order(hashes: Iterable[int]) -> np.ndarray:
    """Return each hash once, rising."""
    ordered = np.sort(np.asarray(hashes, dtype=np.int64))  # `np.unique` takes thirty times as long
    return ordered[np.diff(ordered, prepend=ordered[:1] - 1) != 0]


def _found_in(known: np.ndarray, hashes: Iterable[int]) -> int:
    """Count the hashes that are among those in order."""
    wanted = np.asarray(hashes, dtype=np.int64)
    if not len(known):
        return 0
    places = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return int((known[places] == wanted).sum())
