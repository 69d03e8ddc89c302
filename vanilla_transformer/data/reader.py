"""One reader of data: rows of any type, in any format, as a `datasets` data set and a report.

Accepted are plain text files (two that correspond for pairs; a line or a file for each text), TSV, JSON lines, Parquet, the
files of the CoNLL shared tasks (tokens with tags), and whatever `datasets.load_dataset` finds, on the Hub or in a folder. A
row that cannot be used is left out and counted in the `DataReport`, which names the first lines of each kind; text is
otherwise passed on exactly as it stands.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vanilla_transformer.data.config import DataConfig, ParallelData, TextData, as_paths
from vanilla_transformer.data.formats import LINE_FORMATS, check_format, read_records, read_whole_files
from vanilla_transformer.data.hub import iterate_records, load_hub, load_parquet
from vanilla_transformer.data.report import DataReport, InputFile
from vanilla_transformer.data.rows import LABELLED_TEXTS, PAIRS, TAGGED_TOKENS, TEXTS, Row, RowType
from vanilla_transformer.utils.text_files import LONGEST_LINE, count_lines, decode_lines, existing_file, open_input

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

__all__ = ["load_data", "load_labelled_texts", "load_parallel", "load_tagged_tokens", "load_texts"]

CHUNK = 50_000
"""Rows that are put into a table at once."""


def load_data(
    config: DataConfig, row_type: RowType, *, streaming: bool = False
) -> "tuple[Dataset | IterableDataset, DataReport]":
    """Read rows.

    Args:
        config: where they are.
        row_type: what they hold.
        streaming: read them only when they are asked for, again in each pass, instead of keeping all in memory.

    Returns:
        A data set with the columns of the row type and `id` (int: the line number of a row, or its row number in a data
        set, from 1; with several files counted on from one to the next); and the report. The report of a stream fills while
        the stream is read in this process and starts again with each pass.

    Raises:
        FileNotFoundError: a file is missing; the message names the nearest name there is.
        ValueError: the two sides have unequal numbers of lines, a file is empty, damaged or in UTF-16, the columns
            asked for do not exist, a data set needs code of its own, or no row can be used.
    """
    import datasets

    report = DataReport(config.describe(), noun=f"{row_type.noun}s")
    check_format(config, row_type)
    whole = isinstance(config, TextData) and config.unit == "file"
    read = _reader(config, row_type, report, streaming)

    def rows() -> Iterable[Row]:
        if config.portion is None or (whole and len(as_paths(config.path)) == 1):
            return read()
        return _portion(read, config.portion, report)

    def usable() -> Iterator[dict[str, Any]]:
        return _usable(rows(), row_type, report, math.inf if whole else LONGEST_LINE)

    text = datasets.Value("string")
    features = datasets.Features({"id": datasets.Value("int64")})
    features |= {column.name: datasets.List(text) if row_type.has_lists else text for column in row_type.columns}
    if streaming:
        return datasets.IterableDataset.from_generator(usable, features=features), report
    chunks = []
    left = usable()
    while chunk := list(islice(left, CHUNK)):
        chunks.append(datasets.Dataset.from_list(chunk, features=features))
    return datasets.concatenate_datasets(chunks), report


def load_parallel(config: ParallelData, *, streaming: bool = False) -> "tuple[Dataset | IterableDataset, DataReport]":
    """Read pairs of texts, with the columns `id`, `source` and `target`; see `load_data`."""
    return load_data(config, PAIRS, streaming=streaming)


def load_texts(config: TextData) -> "tuple[Dataset | IterableDataset, DataReport]":
    """Read texts by themselves, with the columns `id` and `text`; see `load_data`."""
    return load_data(config, TEXTS)


def load_labelled_texts(config: TextData) -> "tuple[Dataset | IterableDataset, DataReport]":
    """Read texts with a label each, with the columns `id`, `text` and `label`; see `load_data`."""
    return load_data(config, LABELLED_TEXTS)


def load_tagged_tokens(config: TextData) -> "tuple[Dataset | IterableDataset, DataReport]":
    """Read sentences as tokens with a tag each, with the columns `id`, `tokens` and `tags`; see `load_data`."""
    return load_data(config, TAGGED_TOKENS)


def _portion(read: Callable[[], Iterator[Row]], portion: Sequence[float], report: DataReport) -> Iterator[Row]:
    """Yield the part of the rows that a portion takes, reading twice rather than keeping all in memory."""
    count = sum(1 for _ in read())
    notes = [
        list(file.notes) for file in report.files
    ]  # of whole files; the second time they may not be read to the end
    yield from islice(read(), *(int(share * count) for share in portion))
    for file, whole in zip(report.files, notes, strict=True):
        file.notes[:] = whole


def _usable(rows: Iterable[Row], row_type: RowType, report: DataReport, longest: float) -> Iterator[dict[str, Any]]:
    """Yield what can be used and report what cannot."""
    report.restart()
    names = ("id", *(column.name for column in row_type.columns))
    for row in rows:
        values = row_type.usable(row, longest)
        if isinstance(values, str):
            report.reject(values, row.id)
        else:
            report.keep(*(map("\x00".join, values) if row_type.has_lists else values))
            yield dict(zip(names, (row.id, *values), strict=True))
    if not report.read:
        raise ValueError(f"{report.name} holds no {row_type.noun}; take a larger portion, or other data.")
    if not report.kept:
        raise ValueError(f"No {row_type.noun} can be used. {'; '.join(line.strip() for line in report.lines())}")


def _reader(config: DataConfig, row_type: RowType, report: DataReport, streaming: bool) -> Callable[[], Iterator[Row]]:
    """Check that the data is there and return what reads its rows from the beginning."""
    kind = config.kind
    if kind == "hub" or kind == "parquet":
        if kind == "hub":
            loaded = load_hub(config, streaming=streaming)
        else:
            loaded = load_parquet([existing_file(path) for path in as_paths(config.path)])
        return lambda: read_records(iterate_records(loaded, config.describe()), config, row_type)
    # files that correspond line by line stand together
    groups = config.text_files() if kind == "text" else [[path] for path in as_paths(config.path)]
    found = [[existing_file(path) for path in group] for group in groups]
    if isinstance(config, TextData) and config.unit == "file":
        return lambda: read_whole_files([path for (path,) in found], config)

    first_id = 1
    for paths in found:
        counts = [count_lines(path) for path in paths]
        if len(set(counts)) > 1:
            raise ValueError(
                f"{paths[0]} has {counts[0]:,} lines but {paths[1]} has {counts[1]:,}: "
                "the two sides must correspond line by line."
            )
        name, path = (" | ".join(names) for names in ([path.name for path in paths], map(str, paths)))
        report.files.append(InputFile(name, first_id, counts[0], path))
        first_id += counts[0]

    def rows() -> Iterator[Row]:
        for paths, file in zip(found, report.files, strict=True):
            file.notes.clear()
            lines = [_lines(path, config.encoding, file) for path in paths]
            yield from LINE_FORMATS[kind](lines, config, row_type, file)

    return rows


def _lines(path: Path, encoding: str, file: InputFile) -> Iterator[str | None]:
    with open_input(path) as stream:
        yield from decode_lines(stream, path, encoding, file.notes)
