"""Texts by themselves, texts with a label, and tokens with a tag each, as `datasets` data sets.

Accepted are plain text files (texts by themselves, a line or a file each), TSV, JSON lines, Parquet, the two-column
files of the CoNLL shared tasks (tokens with tags), and whatever `datasets.load_dataset` finds, on the Hub or in a folder.
A row that cannot be used is left out and counted in the `DataReport`, which names the first lines of each kind.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vanilla_transformer.data.files import (
    LONGEST_LINE,
    SUFFIXES,
    InvalidText,
    as_paths,
    carriage_returns,
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
    open_file,
    parse_record,
    portion_bounds,
    portion_in_words,
    read_lines,
    value_at,
)
from vanilla_transformer.data.report import DataReport, InputFile

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["TextData", "load_labelled_texts", "load_tagged_tokens", "load_texts"]

KINDS = {
    **SUFFIXES,
    ".txt": "text",
    ".text": "text",
    ".conll": "conll",
    ".iob": "conll",
    ".iob2": "conll",
    ".bio": "conll",
}
FORMATS = ("text", "tsv", "json", "parquet", "conll", "hub")

TEXT_COLUMNS = ("text", "sentence")
LABEL_COLUMNS = ("label", "labels")
TOKEN_COLUMNS = ("tokens", "words")
TAG_COLUMNS = ("tags", "ner_tags", "chunk_tags", "pos_tags", "labels")


@dataclass(frozen=True, kw_only=True)
class TextData:
    """Where texts are found, with labels or tags where the task has them.

    Attributes:
        path: a file, or several of one kind; or a Hub id or a folder for `datasets.load_dataset`.
        format: "text", "tsv", "json", "parquet", "conll" or "hub", where the name of `path` does not tell.
        unit: of plain text files: "line", each line is a text; or "file", all of a file is one text.
        portion: the part of the data to take, two shares from 0 to 1: of the characters of a single text, else of the
            rows as they stand. [0, 0.9] and [0.9, 1] divide one file in two without overlap.
        text: the column of texts, or of lists of tokens; "a.b" is field b of column a, and a number counts the fields of
            a TSV file without a header, or of a CoNLL file, from 0. Default: the first of the usual names there is.
        label: the column of labels, or of lists of tags, likewise.
        name, split, revision: configuration, split and revision of a Hub data set; default split "train".
        encoding: of files; any that has ASCII's line break, so not UTF-16.

    Raises:
        ValueError: a field is of the wrong type, or the fields contradict each other.
    """

    path: str | Path | Sequence[str | Path]
    format: str | None = None
    unit: str = "line"
    portion: Sequence[float] | None = None
    text: str | int | None = None
    label: str | int | None = None
    name: str | None = None
    split: str | None = None
    revision: str | None = None
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        for field in fields(self):
            _check_type(field.name, getattr(self, field.name))
        check_encoding(self.encoding)
        if self.format is not None and self.format not in FORMATS:
            raise ValueError(f"Unknown data format {self.format!r}: choose one of {', '.join(FORMATS)}.")
        if self.unit not in ("line", "file"):
            raise ValueError(f"unit={self.unit!r} must be 'line' or 'file'.")
        if self.unit == "file" and self.kind != "text":
            raise ValueError(f"unit='file' is for plain text files, not for {self.kind}.")
        for name in ("text", "label"):
            if isinstance(number := getattr(self, name), int) and number < 0:
                raise ValueError(f"{name}={number} must not be negative: fields are counted from 0.")
        check_portion(self.portion)

    @property
    def kind(self) -> str:
        """How the data is stored: one of the formats."""
        return self.format or kind_of(self.path, KINDS)

    def describe(self) -> str:
        """One line that names the data."""
        parts = [join_paths(as_paths(self.path))]
        if self.kind == "hub":
            parts += [self.name or "", self.split or "train", self.revision or ""]
        parts.append(portion_in_words(self.portion))
        return " ".join(part for part in parts if part)


def _check_type(name: str, value: Any) -> None:
    if name == "path":
        wanted = "a path or a list of paths"
        parts = list(value) if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else [value]
        fits = bool(parts) and all(isinstance(part, (str, Path)) for part in parts)
    elif name == "portion":
        return  # see `check_portion`
    elif name in ("text", "label"):
        wanted = "the name of a column or a number"
        fits = value is None or (isinstance(value, (str, int)) and not isinstance(value, bool))
    else:
        wanted = "text"
        fits = isinstance(value, str) or (value is None and name not in ("unit", "encoding"))
    if not fits:
        raise ValueError(f"{name}={value!r} must be {wanted}; YAML reads as text what stands in quotes.")


class _Row(NamedTuple):
    """A row as read, `values` a text or a text and its label; `fault` says why it cannot be used."""

    id: int
    values: tuple[Any, ...] = ()
    fault: str | None = None


def load_texts(spec: TextData) -> "tuple[Dataset, DataReport]":
    """Read texts; of sentences that stand there as lists of tokens, the tokens with spaces between.

    Returns:
        A data set with the columns `id` (line or row number from 1) and `text` (str); and the report.

    Raises:
        FileNotFoundError, ValueError: as `load_parallel` of the parallel data.
    """
    import datasets

    features = {"id": datasets.Value("int64"), "text": datasets.Value("string")}

    def check(row: _Row) -> tuple[Any, ...] | str:
        (text,) = row.values
        if isinstance(text, list) and all(isinstance(token, str) for token in text):
            text = " ".join(text)
        if not isinstance(text, str):
            return "text is not text"
        return (text,) if text.strip() else "empty text"

    return _load(spec, "texts", ((*TEXT_COLUMNS, *TOKEN_COLUMNS),), check, features)


def load_labelled_texts(spec: TextData) -> "tuple[Dataset, DataReport]":
    """Read texts with a label each.

    Returns:
        A data set with the columns `id`, `text` (str) and `label` (str: numbers and truth values are written out, and
        of the classes of a Hub data set it is their name); and the report.

    Raises:
        FileNotFoundError, ValueError: as `load_texts`.
    """
    import datasets

    features = {name: datasets.Value("string") for name in ("text", "label")}

    def check(row: _Row) -> tuple[Any, ...] | str:
        text, label = row.values
        if not isinstance(text, str):
            return "text is not text"
        if not text.strip():
            return "empty text"
        name = _label_name(label)
        return "label is missing or no name or whole number" if name is None else (text, name)

    return _load(spec, "texts", (TEXT_COLUMNS, LABEL_COLUMNS), check, {"id": datasets.Value("int64"), **features})


def load_tagged_tokens(spec: TextData) -> "tuple[Dataset, DataReport]":
    """Read sentences as tokens with a tag each.

    Returns:
        A data set with the columns `id`, `tokens` and `tags` (lists of str, equally long); and the report.

    Raises:
        FileNotFoundError, ValueError: as `load_texts`.
    """
    import datasets

    features = {name: datasets.List(datasets.Value("string")) for name in ("tokens", "tags")}

    def check(row: _Row) -> tuple[Any, ...] | str:
        tokens, tags = row.values
        if not isinstance(tokens, list) or not isinstance(tags, list):
            return "tokens and tags are not two lists"
        if not tokens:
            return "empty sentence"
        if len(tokens) != len(tags):
            return "not as many tags as tokens"
        if not all(isinstance(token, str) and token.strip(" ") for token in tokens):
            return "a token is empty or is not text"
        tokens = [token.strip(" ") for token in tokens]  # spaces stand between tokens, and may stand within one
        names = [_label_name(tag) for tag in tags]
        return "a tag is missing or no name or whole number" if None in names else (tokens, names)

    return _load(spec, "sentences", (TOKEN_COLUMNS, TAG_COLUMNS), check, {"id": datasets.Value("int64"), **features})


def _label_name(value: Any) -> str | None:
    if isinstance(value, str):
        return value.strip() or None
    return str(value) if isinstance(value, int) else None


def _load(
    spec: TextData,
    noun: str,
    columns: tuple[tuple[str, ...], ...],
    check: Callable[[_Row], tuple[Any, ...] | str],
    features: dict[str, Any],
) -> "tuple[Dataset, DataReport]":
    import datasets

    report = DataReport(spec.describe(), noun=noun)
    names = list(features)
    collected: dict[str, list[Any]] = {name: [] for name in names}
    for row in _portioned(_rows(spec, columns, report), spec):
        result = row.fault or _invalid(row.values) or check(row)
        if not isinstance(result, str):
            result = _unusable(result, math.inf if spec.unit == "file" else LONGEST_LINE) or result
        if isinstance(result, str):
            report.reject(result, row.id)
            continue
        report.keep(*(value if isinstance(value, str) else "\x00".join(value) for value in result))
        for name, value in zip(names, (row.id, *result), strict=True):
            collected[name].append(value)
    if not report.read and spec.portion is not None:
        raise ValueError(f"{report.name} holds no row: the portion is too small.")
    if not report.kept:
        raise ValueError(f"No row can be used. {'; '.join(line.strip() for line in report.lines())}")
    return datasets.Dataset.from_dict(collected, features=datasets.Features(features)), report


def _invalid(values: Iterable[Any]) -> str | None:
    """Say what is wrong with a row of a data set that holds a text that cannot be decoded."""
    flat = [one for value in values for one in (value if isinstance(value, list) else [value])]
    return "row is not valid utf-8" if any(isinstance(value, InvalidText) for value in flat) else None


def _unusable(values: Iterable[str | list[str]], longest: float) -> str | None:
    """Say what is wrong with a text, label, token or tag whatever it is for."""
    flat = (one for value in values for one in (value if isinstance(value, list) else [value]))
    fault = next((fault for one in flat if (fault := fault_of_text(one, longest))), None)
    return fault and f"a text, token or label {fault}"


def _portioned(all_rows: Iterator[_Row], spec: TextData) -> Iterable[_Row]:
    if spec.portion is None:
        return all_rows
    rows = list(all_rows)
    if spec.unit == "file" and len(rows) == 1:
        text = rows[0].values[0]
        start, end = portion_bounds(len(text), spec.portion)
        return [_Row(rows[0].id, (text[start:end],))]
    start, end = portion_bounds(len(rows), spec.portion)
    return rows[start:end]


def _rows(spec: TextData, columns: tuple[tuple[str, ...], ...], report: DataReport) -> Iterator[_Row]:
    """All rows, good or bad, with as many values each as there are columns."""
    kind = spec.kind
    if kind == "text" and len(columns) > 1:
        raise ValueError(
            f"{spec.describe()} is plain text, which holds no labels: give JSON lines, TSV, Parquet or a data set."
        )
    if kind == "conll" and columns[0] is not TOKEN_COLUMNS:
        raise ValueError(f"{spec.describe()} is of the CoNLL kind, which holds tokens with tags and no texts.")
    if kind == "tsv" and columns[0] is TOKEN_COLUMNS:
        raise ValueError(
            f"{spec.describe()} is a TSV file, whose fields are no lists: give JSON lines or format: conll."
        )
    if kind == "hub":
        loaded = load_hub(spec.path, name=spec.name, split=spec.split, revision=spec.revision)
        yield from _records(_with_names(loaded), spec, columns)
        return
    paths = [existing_file(path) for path in as_paths(spec.path)]
    if kind == "parquet":
        yield from _records(_with_names(load_parquet(paths)), spec, columns)
        return
    if kind == "text" and spec.unit == "file":
        for number, path in enumerate(paths, start=1):
            yield _Row(number, (_whole_text(path, spec.encoding),))
        return
    first_id = 1
    for path in paths:
        file = InputFile(path.name, first_id, count_lines(path))
        report.files.append(file)
        first_id += file.lines or 0
        lines = enumerate(read_lines(path, spec.encoding, file), start=file.first_id)
        if kind == "text":
            yield from (_undecodable(n, spec) if line is None else _Row(n, (line,)) for n, line in lines)
        elif kind == "conll":
            yield from _conll(lines, spec, path)
        elif kind == "tsv":
            yield from _tsv(lines, spec, columns, path, file)
        else:
            yield from _json(lines, spec, columns, path)


def _undecodable(number: int, spec: TextData) -> _Row:
    return _Row(number, fault=f"line is not valid {spec.encoding}; convert the file, or name its encoding")


def _whole_text(path: Path, encoding: str) -> str:
    with open_file(path) as stream:
        raw = stream.read()
    if not raw:
        raise ValueError(f"{path} is empty.")
    if raw.count(b"\r") - raw.count(b"\r\n") > raw.count(b"\n"):
        raise ValueError(carriage_returns(path))
    try:
        return raw.decode("utf-8-sig" if encoding.lower() in ("utf-8", "utf8") else encoding)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path} is not valid {encoding} in line {line}; convert it, or name its encoding."
        ) from error


def _conll(lines: Iterable[tuple[int, str | None]], spec: TextData, path: Path) -> Iterator[_Row]:
    """Read a token and its tag a line, first and last field where nothing else is said; blank lines divide sentences.

    In a line that holds tabs fields are what stands between these, so that a token may hold spaces; else between spaces.
    """
    for name in ("text", "label"):
        if isinstance(getattr(spec, name), str):
            raise ValueError(f"{name}={getattr(spec, name)!r}: fields of {path} have numbers, from 0, and no names.")
    token_field, tag_field = spec.text or 0, -1 if spec.label is None else spec.label
    assert isinstance(token_field, int) and isinstance(tag_field, int)
    start, fault = 0, None
    tokens: list[str] = []
    tags: list[str] = []
    for number, line in lines:
        if line is not None and (not line.strip() or line.startswith("-DOCSTART-")):
            if start:
                yield _Row(start, (tokens, tags), fault)
            start, tokens, tags, fault = 0, [], [], None
            continue
        start = start or number
        if line is None:
            parts = []
        elif "\t" in line:
            parts = [field.strip(" ") for field in line.split("\t")]
        else:
            parts = re.split(" +", line.strip(" "))
        if line is None:
            fault = f"line is not valid {spec.encoding}"
        elif len(parts) <= max(token_field, tag_field, 1):
            fault = "too few fields"
        else:
            tokens.append(parts[token_field])
            tags.append(parts[tag_field])
    if start:
        yield _Row(start, (tokens, tags), fault)


def _tsv(
    lines: Iterable[tuple[int, str | None]],
    spec: TextData,
    columns: tuple[tuple[str, ...], ...],
    path: Path,
    file: InputFile,
) -> Iterator[_Row]:
    """Fields are what stands between tabs; quotation marks have no special meaning, as texts hold unpaired ones."""
    places: list[int] | None = None
    for number, line in lines:
        if line is None:
            yield _undecodable(number, spec)
            continue
        if not line.strip():
            yield _Row(number, fault="empty text")
            continue
        values = line.split("\t")
        if places is None:
            asked = [spec.text, spec.label][: len(columns)]
            header = dict.fromkeys(values)
            if any(isinstance(name, int) for name in asked) and not all(isinstance(name, int) for name in asked):
                raise ValueError(f"{path}: give both text and label as numbers of fields, or both as names.")
            if all(isinstance(name, int) for name in asked):
                places, is_header = [int(name) for name in asked if name is not None], False
            elif any(isinstance(name, str) for name in asked) or all(any(n in values for n in c) for c in columns):
                keys = _find_columns(header, spec, columns, str(path))
                places, is_header = [values.index(key[0]) for key in keys], True
            else:
                places, is_header = list(range(len(columns))), False
            read = "first line read as a header" if is_header else "no header"
            file.notes.append(
                f"{read}, field{'s' if len(places) > 1 else ''} {' and '.join(str(p + 1) for p in places)} read"
            )
            if is_header:
                continue
        if max(places) >= len(values):
            yield _Row(number, fault="too few fields")
        else:
            yield _Row(number, tuple(values[place] for place in places))


def _json(
    lines: Iterable[tuple[int, str | None]], spec: TextData, columns: tuple[tuple[str, ...], ...], path: Path
) -> Iterator[_Row]:
    keys: list[tuple[str, ...]] | None = None
    for number, line in lines:
        if line is None:
            yield _undecodable(number, spec)
            continue
        if not line.strip():
            yield _Row(number, fault="empty line")
            continue
        if keys is None and line.lstrip().startswith("["):
            raise ValueError(f"{path} is one JSON list: write each record as an object on a line of its own.")
        record = parse_record(line)
        if isinstance(record, str):
            yield _Row(number, fault=record)
            continue
        keys = keys or _find_columns(record, spec, columns, str(path))
        yield _Row(number, tuple(value_at(record, key) for key in keys))


def _records(
    records: Iterable[Mapping[str, Any]], spec: TextData, columns: tuple[tuple[str, ...], ...]
) -> Iterator[_Row]:
    keys: list[tuple[str, ...]] | None = None
    with explained(spec.describe()):
        for number, record in enumerate(records, start=1):
            keys = keys or _find_columns(record, spec, columns, spec.describe())
            yield _Row(number, tuple(value_at(record, key) for key in keys))


def _with_names(loaded: Any) -> Iterator[Mapping[str, Any]]:
    """Records in which classes stand by their names, which the data set knows, instead of their numbers."""
    import datasets

    classes: dict[str, Any] = {}
    for name, feature in (loaded.features or {}).items():
        inner = getattr(feature, "feature", feature)
        if isinstance(inner, datasets.ClassLabel):
            classes[name] = inner
    for record in iterate_records(loaded):
        for name, feature in classes.items():
            value = record[name]
            if isinstance(value, list):
                record[name] = [None if v is None or v < 0 else feature.int2str(v) for v in value]
            else:
                record[name] = None if value is None or value < 0 else feature.int2str(value)
        yield record


def _find_columns(
    record: Mapping[str, Any], spec: TextData, columns: tuple[tuple[str, ...], ...], place: str
) -> list[tuple[str, ...]]:
    """The keys that lead to each column, or a sentence that says which columns there are."""
    choices = column_names(record)
    found = []
    for field, usual in zip(("text", "label"), columns, strict=False):
        asked = getattr(spec, field)
        if asked is None:
            asked = next((name for name in usual if name in choices), None)
            if asked is None:
                raise ValueError(
                    f"{place} does not tell which column is the {field}: give {field}=NAME. There are: {', '.join(choices)}."
                )
        if asked not in choices:
            raise no_column(place, asked, choices)
        found.append(choices[asked])
    return found
