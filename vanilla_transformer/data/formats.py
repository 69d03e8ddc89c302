"""Formats of files and data sets: how each is read into rows, whatever they hold.

A function for each format, and `LINE_FORMATS` for those that are read line by line.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vanilla_transformer.data.config import DataConfig, TextData
from vanilla_transformer.data.report import InputFile
from vanilla_transformer.data.rows import Row, RowType
from vanilla_transformer.utils.text_files import carriage_returns, open_input

__all__ = ["LINE_FORMATS", "Lines", "check_format", "read_records", "read_whole_files"]

Lines = Sequence[Iterable[str | None]]
"""The lines of files that correspond, of one for all formats but plain text; None for one that cannot be decoded."""


def check_format(config: DataConfig, row_type: RowType) -> None:
    """Refuse a format that cannot hold rows of a type.

    Raises:
        ValueError: naming formats that can.
    """
    if config.kind == "text" and isinstance(config, TextData) and len(row_type.columns) > 1:
        raise ValueError(
            f"{config.describe()} is plain text, which holds no labels: give JSON lines, TSV, Parquet or a data set."
        )
    if config.kind == "conll" and not row_type.has_lists:
        raise ValueError(f"{config.describe()} is of the CoNLL kind, which holds tokens with tags and no texts.")
    if config.kind == "tsv" and row_type.has_lists:
        raise ValueError(
            f"{config.describe()} is a TSV file, whose fields are not lists: give JSON lines or format: conll."
        )


# ---------------------------------------------------------------------------------------------------- read line by line


def _undecodable(config: DataConfig, what: str = "line") -> str:
    return f"{what} is not valid {config.encoding}; convert the file, or name its encoding"


def read_text(lines: Lines, config: DataConfig, row_type: RowType, file: InputFile) -> Iterator[Row]:
    """Read plain text files whose lines correspond, one for each column."""
    for number, texts in enumerate(zip(*lines, strict=True), start=file.first_id):
        if None in texts:
            broken = [column.name for column, text in zip(row_type.columns, texts, strict=True) if text is None]
            what = row_type.noun if len(broken) == len(texts) else broken[0]
            yield Row(number, fault=_undecodable(config, what))
        else:
            yield Row(number, texts)


def read_tsv(lines: Lines, config: DataConfig, row_type: RowType, file: InputFile) -> Iterator[Row]:
    """Read fields between tabs; quotation marks have no special meaning, as texts hold unpaired ones."""
    fields: list[int] = []
    for number, line in enumerate(lines[0], start=file.first_id):
        if line is None or not line.strip():
            yield Row(number, fault=_undecodable(config) if line is None else "empty line")
            continue
        values = line.split("\t")
        if not fields:
            fields, has_header = _tsv_fields(values, config, row_type, file)
            if has_header:
                continue
        if max(fields) >= len(values):
            yield Row(number, fault="too few fields")
        else:
            yield Row(number, tuple(values[field] for field in fields))


def _tsv_fields(first: list[str], config: DataConfig, row_type: RowType, file: InputFile) -> tuple[list[int], bool]:
    """Return the field of each column, by the first line that is not blank, and whether that is a header."""
    asked = config.asked_columns(row_type)
    numbers = [column for column in asked if isinstance(column, int)]
    has_header = False
    if 0 < len(numbers) < len(asked):
        raise ValueError(f"{file.path}: give both text and label as numbers of fields, or both as names.")
    if numbers:
        fields = numbers
    elif names := config.header(first, row_type, file.path):
        fields, has_header = [first.index(name) for name in names], True
    else:
        fields = list(range(len(row_type.columns)))
    places = " and ".join(str(field + 1) for field in fields)
    columns = " and ".join(column.name for column in row_type.columns)
    noun = f"fields {places} are" if len(fields) > 1 else f"field {places} is"
    file.notes.append(f"{'first line read as a header' if has_header else 'no header'}, {noun} {columns}")
    return fields, has_header


def read_json(lines: Lines, config: DataConfig, row_type: RowType, file: InputFile) -> Iterator[Row]:
    """Read an object a line."""
    columns = _Columns(config, row_type, file.path)

    def records() -> Iterator[tuple[int, Mapping[str, Any] | str]]:
        for number, line in enumerate(lines[0], start=file.first_id):
            if line is None:
                yield number, _undecodable(config)
            elif not line.strip():
                yield number, "empty line"
            elif not columns.found and line.lstrip().startswith("["):
                raise ValueError(f"{file.path} is one JSON list: write each record as an object on a line of its own.")
            else:
                yield number, _parse_object(line)

    return columns.rows(records())


def _parse_object(line: str) -> dict[str, Any] | str:
    """Return the object that a line of JSON holds, or what is wrong where it is not one."""
    try:
        record = json.loads(line, object_pairs_hook=_unique)
    except RecursionError:
        return "line is JSON nested too deeply"
    except _RepeatedKeyError:
        return "line has a key twice"
    except ValueError:
        record = None
    return record if isinstance(record, dict) else "line is not a JSON object"


class _RepeatedKeyError(Exception):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _RepeatedKeyError
    return found


def read_conll(lines: Lines, config: DataConfig, row_type: RowType, file: InputFile) -> Iterator[Row]:
    """Read a token and its tag a line, first and last field where nothing else is said; blank lines divide sentences.

    In a line that holds tabs fields are what stands between these, so that a token may hold spaces; else between spaces.
    """
    asked = config.asked_columns(row_type)
    for name, column in zip(("text", "label"), asked, strict=True):
        if isinstance(column, str):
            raise ValueError(f"{name}={column!r}: fields of {file.path} have numbers, from 0, and no names.")
    token_field, tag_field = (
        default if column is None else int(column) for column, default in zip(asked, (0, -1), strict=True)
    )
    start, fault = 0, None
    tokens: list[str] = []
    tags: list[str] = []
    for number, line in enumerate(lines[0], start=file.first_id):
        if line is not None and (not line.strip() or line.startswith("-DOCSTART-")):
            if start:
                yield Row(start, (tokens, tags), fault)
            start, tokens, tags, fault = 0, [], [], None
            continue
        start = start or number
        if line is None:
            fault = _undecodable(config)
            continue
        fields = [field.strip(" ") for field in line.split("\t")] if "\t" in line else re.split(" +", line.strip(" "))
        if len(fields) <= max(token_field, tag_field, 1):
            fault = "too few fields"
        else:
            tokens.append(fields[token_field])
            tags.append(fields[tag_field])
    if start:
        yield Row(start, (tokens, tags), fault)


LINE_FORMATS: dict[str, Callable[[Lines, DataConfig, RowType, InputFile], Iterator[Row]]] = {
    "text": read_text,
    "tsv": read_tsv,
    "json": read_json,
    "conll": read_conll,
}

# ----------------------------------------------------------------------------------------------------- read as a whole


def read_whole_files(paths: Sequence[Path], config: TextData) -> Iterator[Row]:
    """Read each file as one text; of a single one the portion."""
    for number, path in enumerate(paths, start=1):
        text = _read_whole(path, config.encoding)
        if config.portion is not None and len(paths) == 1:
            start, end = (int(share * len(text)) for share in config.portion)
            text = text[start:end]
        yield Row(number, (text,))


def _read_whole(path: Path, encoding: str) -> str:
    with open_input(path) as stream:
        raw = stream.read()
    if not raw:
        raise ValueError(f"{path} is empty.")
    if raw.count(b"\r") - raw.count(b"\r\n") > raw.count(b"\n"):
        raise carriage_returns(path)
    try:
        return raw.decode("utf-8-sig" if encoding.lower() in ("utf-8", "utf8") else encoding)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path} is not valid {encoding} in line {line}; convert it, or name its encoding."
        ) from error


# --------------------------------------------------------------------------------------------------------------- records


def read_records(records: Iterable[Mapping[str, Any]], config: DataConfig, row_type: RowType) -> Iterator[Row]:
    """Read the records of a data set."""
    return _Columns(config, row_type, config.describe()).rows(enumerate(records, start=1))


class _Columns:
    """The columns of records, found in the first of them that tells."""

    def __init__(self, config: DataConfig, row_type: RowType, place: str):
        self.config, self.row_type, self.place = config, row_type, place
        self.found: list[tuple[str, ...]] = []
        """The keys that lead to each column, one inside the other."""
        self.error: ValueError | None = None

    def rows(self, records: Iterable[tuple[int, Mapping[str, Any] | str]]) -> Iterator[Row]:
        """Yield the rows of records, or of what is wrong where there is none.

        Raises:
            ValueError: where no record has the columns.
        """
        for number, record in records:
            yield Row(number, fault=record) if isinstance(record, str) else self._row(number, record)
        if self.error is not None and not self.found:
            raise self.error

    def _row(self, number: int, record: Mapping[str, Any]) -> Row:
        if not self.found:
            choices = _column_names(record)
            try:
                names = self.config.choose_columns(choices, self.row_type, self.place)
            except ValueError as error:
                if None not in record.values():
                    raise
                # a null may hide a column of columns, such as the languages: a later record will tell
                self.error = error
                return Row(number, (None,) * len(self.row_type.columns))
            self.found = [choices[name] for name in names]
        return Row(number, tuple(_value_at(record, keys) for keys in self.found))


def _column_names(record: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return every name that a column can be asked for by, with the keys that lead to it."""
    names: dict[str, tuple[str, ...]] = {}
    for key, value in record.items():
        if isinstance(value, Mapping):
            names.update({f"{key}.{inner}": (key, inner) for inner in value})
        else:
            names[key] = (key,)
    return names


def _value_at(record: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    """Return what keys, one inside the other, lead to; None where there is nothing."""
    value: Any = record
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
