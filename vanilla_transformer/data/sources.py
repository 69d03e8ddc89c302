"""Parallel text from files or a data set, as a `datasets` data set with the columns `id`, `source` and `target`.

Accepted are two aligned text files, a TSV file, JSON lines, Parquet, and whatever `datasets.load_dataset` finds, on the
Hub or in a folder. Files are UTF-8 unless told otherwise and may be gzipped (`.gz`). A pair that cannot be used is
left out and counted in the `DataReport`, which names the first lines of each kind; text is otherwise passed on exactly
as it stands.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vanilla_transformer.data.files import (
    SUFFIXES,
    InvalidText,
    as_paths,
    check_encoding,
    check_portion,
    column_names,
    count_lines,
    existing_file,
    explained,
    fault_of_text,
    iterate_records,
    join_paths,
    kind_of,
    load_hub,
    load_parquet,
    no_column,
    parse_record,
    portion_bounds,
    portion_in_words,
    read_lines,
    value_at,
)
from vanilla_transformer.data.report import DataReport, InputFile

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

__all__ = ["ParallelData", "load_parallel"]

FORMATS = ("tsv", "json", "parquet", "hub")


@dataclass(frozen=True, kw_only=True)
class ParallelData:
    """Where pairs of texts are found.

    Either `source` and `target` name aligned text files, or `path` names a file with both sides or a data set.

    Attributes:
        source, target: a text file, or several, whose lines correspond. Together with `path`: the names of the two
            columns, as `source_column` and `target_column`.
        path: a TSV, JSON lines or Parquet file, or several of one kind; or a Hub id or a folder for
            `datasets.load_dataset`.
        format: "tsv", "json", "parquet" or "hub", where the name of `path` does not tell.
        name, split, revision: configuration, split and revision of a Hub data set. The split may be any expression
            that `datasets` understands, such as "train[:10%]"; default "train".
        source_language, target_language: keys of the `translation` column, or names of columns, in JSON lines,
            Parquet and Hub data sets. For text files they are information only.
        source_column, target_column: the columns with the two sides; "a.b" is field b of column a. For TSV a name
            means that the first line is a header; a number counts fields from 0 in a file without one. Default: the
            `translation` column with the two languages, columns named by them, or columns `source` and `target`;
            for TSV the first two fields, or the header's if the first line holds those names.
        portion: the part of the pairs to take, two shares from 0 to 1 of the rows as they stand: [0, 0.9] and [0.9, 1]
            divide one file in two without overlap.
        encoding: of text, TSV and JSON files; any that has ASCII's line break, so not UTF-16.

    Raises:
        ValueError: a field is of the wrong type, or the fields contradict each other.
    """

    source: str | Path | Sequence[str | Path] | None = None
    target: str | Path | Sequence[str | Path] | None = None
    path: str | Path | Sequence[str | Path] | None = None
    format: str | None = None
    name: str | None = None
    split: str | None = None
    revision: str | None = None
    source_language: str | None = None
    target_language: str | None = None
    source_column: str | int | None = None
    target_column: str | int | None = None
    portion: Sequence[float] | None = None
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        for field in fields(self):
            _check_type(field.name, getattr(self, field.name))
        check_encoding(self.encoding)
        check_portion(self.portion)
        if self.path is None and (self.source is None or self.target is None):
            raise ValueError("Data needs either two text files, `source` and `target`, or a `path`.")
        if self.format is not None and self.format not in FORMATS:
            raise ValueError(f"Unknown data format {self.format!r}: choose one of {', '.join(FORMATS)}.")
        if self.path is None:
            idle = ["format", "name", "split", "revision", "source_column", "target_column"]
            given = [
                field.name for field in fields(self) if field.name in idle and getattr(self, field.name) is not None
            ]
            if given:
                raise ValueError(f"{', '.join(given)} cannot be given for two text files, only with `path`.")
            return
        for side in ("source", "target"):
            value, column = getattr(self, side), getattr(self, f"{side}_column")
            if value is None:
                continue
            if not isinstance(value, str):
                raise ValueError(f"Together with `path`, `{side}` must be the name of a column, not {value!r}.")
            if column is not None and column != value:
                raise ValueError(f"`{side}`={value!r} and `{side}_column`={column!r} name two different columns.")
            object.__setattr__(self, f"{side}_column", value)
        if (self.source_column is None) != (self.target_column is None):
            raise ValueError("Give both source_column and target_column, or neither.")
        for side in ("source", "target"):
            column = getattr(self, f"{side}_column")
            if isinstance(column, int) and (column < 0 or self.kind != "tsv"):
                raise ValueError(
                    f"{side}_column={column} is a number, which only counts the fields of a TSV file from 0."
                )
        if isinstance(self.source_column, int) != isinstance(self.target_column, int):
            raise ValueError("source_column and target_column must be two names or two numbers.")

    @property
    def kind(self) -> str:
        """How the data is stored: "text", "tsv", "json", "parquet" or "hub"."""
        if self.path is None:
            return "text"
        if self.format is not None:
            return self.format
        return kind_of(self.path, SUFFIXES)

    def describe(self) -> str:
        """One line that names the data."""
        if self.path is None:
            parts = [f"{join_paths(as_paths(self.source))} -> {join_paths(as_paths(self.target))}"]
        elif self.kind == "hub":
            parts = [str(self.path), self.name or "", self.split or "train", self.revision or ""]
        else:
            parts = [join_paths(as_paths(self.path))]
        return " ".join(part for part in [*parts, portion_in_words(self.portion)] if part)


def _check_type(name: str, value: Any) -> None:
    """Refuse what cannot be the value of a field, such as a year that YAML has read as a number."""
    if name in ("source", "target", "path"):
        wanted = "a path or a list of paths"
        parts = list(value) if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else [value]
        fits = bool(parts) and all(isinstance(part, (str, Path)) for part in parts)
    elif name in ("source_column", "target_column"):
        wanted = "the name of a column or a number"
        fits = isinstance(value, (str, int)) and not isinstance(value, bool)
    elif name == "portion":
        return  # see `check_portion`
    else:
        wanted = "text"
        fits = isinstance(value, str)
    if not fits and (value is not None or name == "encoding"):
        raise ValueError(f"{name}={value!r} must be {wanted}; YAML reads as text what stands in quotes.")


class _Row(NamedTuple):
    """A pair as read; `fault` says why it cannot be used."""

    id: int
    source: str = ""
    target: str = ""
    fault: str | None = None


def load_parallel(
    spec: ParallelData, *, streaming: bool = False
) -> "tuple[Dataset, DataReport] | tuple[IterableDataset, DataReport]":
    """Read pairs of texts.

    Args:
        spec: where they are.
        streaming: read them only when they are asked for, again in each pass, instead of keeping all in memory.

    Returns:
        A data set with the columns `id` (int: the line number of a pair, or its row number in a data set, from 1; with
        several files counted on from one to the next), `source` and `target` (str); and the report. The report of a
        stream fills while the stream is read in this process and starts again with each pass.

    Raises:
        FileNotFoundError: a file is missing; the message names the nearest name there is.
        ValueError: the two sides have unequal numbers of lines, a file is empty, damaged or in UTF-16, the columns
            asked for do not exist, a data set needs code of its own, or no pair can be used.
    """
    import datasets

    report = DataReport(spec.describe())
    read = _reader(spec, report, streaming)

    def rows() -> Iterable[_Row]:
        if spec.portion is None:
            return read()
        # read twice rather than kept in memory
        return islice(read(), *portion_bounds(sum(1 for _ in read()), spec.portion))

    features = datasets.Features(
        {"id": datasets.Value("int64"), "source": datasets.Value("string"), "target": datasets.Value("string")}
    )
    if streaming:
        return datasets.IterableDataset.from_generator(lambda: _usable(rows(), report), features=features), report

    chunks = []
    pairs = _usable(rows(), report)
    while chunk := list(islice(pairs, 50_000)):
        columns = {name: [pair[name] for pair in chunk] for name in features}
        chunks.append(datasets.Dataset.from_dict(columns, features=features))
    return datasets.concatenate_datasets(chunks), report


def _usable(rows: Iterable[_Row], report: DataReport) -> Iterator[dict[str, Any]]:
    """Yield what can be used and report what cannot."""
    report.restart()
    for row in rows:
        fault = row.fault or _emptiness(row) or _fault_of_texts(row)
        if fault:
            report.reject(fault, row.id)
        else:
            report.keep(row.source, row.target)
            yield {"id": row.id, "source": row.source, "target": row.target}
    if not report.read:
        raise ValueError(f"{report.name} holds no pair; take a larger portion, or other data.")
    if not report.kept:
        raise ValueError("No pair can be used. " + "; ".join(line.strip() for line in report.lines()))


def _emptiness(row: _Row) -> str | None:
    source, target = row.source.strip(), row.target.strip()
    if source and target:
        return None
    if source:
        return "empty target"
    return "empty source" if target else "empty pair"


def _fault_of_texts(row: _Row) -> str | None:
    for side in ("source", "target"):
        if fault := fault_of_text(getattr(row, side)):
            return f"{side} {fault}"
    return None


def _reader(spec: ParallelData, report: DataReport, streaming: bool) -> Callable[[], Iterator[_Row]]:
    """Check that the data is there and return what reads it from the beginning."""
    if spec.kind == "text":
        return _text_reader(spec, report)
    if spec.kind == "hub" and spec.path is not None:
        return _records_reader(
            load_hub(spec.path, name=spec.name, split=spec.split, revision=spec.revision, streaming=streaming), spec
        )

    assert spec.path is not None
    paths = [existing_file(path) for path in as_paths(spec.path)]
    if spec.kind == "parquet":
        return _records_reader(load_parquet(paths), spec)
    return _single_files_reader(paths, spec, report)


# ---------------------------------------------------------------------------------------------------------- text files


def _text_reader(spec: ParallelData, report: DataReport) -> Callable[[], Iterator[_Row]]:
    sources = [existing_file(path) for path in as_paths(spec.source)]
    targets = [existing_file(path) for path in as_paths(spec.target)]
    if len(sources) != len(targets):
        raise ValueError(
            f"There are {len(sources)} source files but {len(targets)} target files: they must be as many."
        )
    first_id = 1
    inputs = []
    for source, target in zip(sources, targets, strict=True):
        counts = count_lines(source), count_lines(target)
        if counts[0] != counts[1]:
            raise ValueError(
                f"{source} has {counts[0]:,} lines but {target} has {counts[1]:,}: "
                "the two sides must correspond line by line."
            )
        file = InputFile(f"{source.name} | {target.name}", first_id, counts[0])
        report.files.append(file)
        inputs.append((source, target, file))
        first_id += counts[0]

    def rows() -> Iterator[_Row]:
        for source, target, file in inputs:
            file.notes.clear()
            sides = (read_lines(source, spec.encoding, file), read_lines(target, spec.encoding, file))
            for number, (left, right) in enumerate(zip(*sides, strict=True), start=file.first_id):
                if left is None or right is None:
                    side = "pair" if left is right else "source" if left is None else "target"
                    yield _Row(number, fault=f"{side} is not valid {spec.encoding}")
                else:
                    yield _Row(number, left, right)

    return rows


# -------------------------------------------------------------------------------------------------- tsv and json lines


def _single_files_reader(paths: list[Path], spec: ParallelData, report: DataReport) -> Callable[[], Iterator[_Row]]:
    first_id = 1
    for path in paths:
        count = count_lines(path)
        report.files.append(InputFile(path.name, first_id, count))
        first_id += count
    read = _read_tsv if spec.kind == "tsv" else _read_json

    def rows() -> Iterator[_Row]:
        for path, file in zip(paths, report.files, strict=True):
            file.notes.clear()
            yield from read(path, spec, file)

    return rows


def _textless_row(number: int, line: str | None, spec: ParallelData) -> _Row:
    """What becomes of a line that cannot be decoded, or that is blank."""
    return _Row(number, fault=f"line is not valid {spec.encoding}" if line is None else None)


def _read_tsv(path: Path, spec: ParallelData, file: InputFile) -> Iterator[_Row]:
    """Fields are what stands between tabs; quotation marks have no special meaning, as sentences hold unpaired ones."""
    columns: tuple[int, int] | None = None
    for number, line in enumerate(read_lines(path, spec.encoding, file), start=file.first_id):
        if line is None or not line.strip():
            yield _textless_row(number, line, spec)
            continue
        values = line.split("\t")
        if columns is None:
            columns, is_header = _tsv_columns(values, spec, path)
            fields = f"fields {columns[0] + 1} and {columns[1] + 1} are source and target"
            file.notes.append(f"first line read as a header, {fields}" if is_header else f"no header, {fields}")
            if is_header:
                continue
        if max(columns) >= len(values):
            yield _Row(number, fault="too few fields")
        else:
            yield _Row(number, values[columns[0]], values[columns[1]])


def _tsv_columns(first: list[str], spec: ParallelData, path: Path) -> tuple[tuple[int, int], bool]:
    """Positions of the two sides, and whether the first line is a header."""
    if isinstance(spec.source_column, int) and isinstance(spec.target_column, int):
        return (spec.source_column, spec.target_column), False
    if spec.source_column is None:
        for names in ((spec.source_language, spec.target_language), ("source", "target")):
            if all(name in first for name in names):
                return (first.index(names[0]), first.index(names[1])), True  # type: ignore[arg-type]
        if len(first) < 2:
            raise ValueError(f"{path} has no two fields divided by a tab in its first line.")
        return (0, 1), False
    found = _find_columns(dict.fromkeys(first, ""), spec, str(path))
    return (first.index(found[0][0]), first.index(found[1][0])), True


def _read_json(path: Path, spec: ParallelData, file: InputFile) -> Iterator[_Row]:
    columns: _Columns | None = None
    for number, line in enumerate(read_lines(path, spec.encoding, file), start=file.first_id):
        if line is None or not line.strip():
            yield _textless_row(number, line, spec)
            continue
        if columns is None and line.lstrip().startswith("["):
            raise ValueError(f"{path} is one JSON list: write each record as an object on a line of its own.")
        record = parse_record(line)
        if isinstance(record, str):
            yield _Row(number, fault=record)
            continue
        columns = columns or _known_columns(record, spec, str(path))
        yield _record_row(number, record, columns)


# ------------------------------------------------------------------------------------------ records with named columns

_Columns = tuple[tuple[str, ...], tuple[str, ...]]
"""For each side the keys that lead to its text."""


def _records_reader(loaded: "Dataset | IterableDataset", spec: ParallelData) -> Callable[[], Iterator[_Row]]:
    def read() -> Iterator[Mapping[str, Any]]:
        with explained(spec.describe()):
            yield from iterate_records(loaded)

    def rows() -> Iterator[_Row]:
        columns: _Columns | None = None
        for number, record in enumerate(read(), start=1):
            columns = columns or _known_columns(record, spec, spec.describe())
            yield _record_row(number, record, columns)

    return rows


def _record_row(number: int, record: Mapping[str, Any], columns: _Columns | None) -> _Row:
    if columns is None:
        return _Row(number)
    texts = []
    for side, keys in zip(("source", "target"), columns, strict=True):
        value = value_at(record, keys)
        if isinstance(value, InvalidText):
            return _Row(number, fault=f"{side} is not valid utf-8")
        if value is not None and not isinstance(value, str):
            return _Row(number, fault=f"{side} is not text")
        texts.append(value or "")
    return _Row(number, *texts)


def _known_columns(record: Mapping[str, Any], spec: ParallelData, place: str) -> _Columns | None:
    """`_find_columns`, but None for a record with a null, which may hide the languages: a later one will tell."""
    try:
        return _find_columns(record, spec, place)
    except ValueError:
        if None in record.values():
            return None
        raise


def _find_columns(record: Mapping[str, Any], spec: ParallelData, place: str) -> _Columns:
    """Find the two sides in a record, or say which columns there are."""
    languages = (spec.source_language, spec.target_language)
    choices = column_names(record)
    if spec.source_column is not None:
        wanted: tuple[Any, Any] = (spec.source_column, spec.target_column)
    elif all(languages) and any(name in choices for name in (languages[0], f"translation.{languages[0]}")):
        nested = f"translation.{languages[0]}" in choices
        wanted = tuple(f"translation.{name}" if nested else name for name in languages)  # type: ignore[assignment]
    elif all(languages) and not ("source" in choices and "target" in choices):
        wanted = languages
    elif "source" in choices and "target" in choices:
        wanted = ("source", "target")
    else:
        raise ValueError(
            f"{place} does not tell which columns are source and target: give source_column and target_column or the "
            f"two languages. There are: {', '.join(choices)}."
        )
    for name in wanted:
        if name not in choices:
            raise no_column(place, name, choices)
    return choices[wanted[0]], choices[wanted[1]]
