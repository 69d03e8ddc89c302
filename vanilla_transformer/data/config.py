"""Data configs: where the texts of a split are found, and which columns of it are read."""

import codecs
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, get_args

from vanilla_transformer.data.rows import RowType
from vanilla_transformer.utils.names import nearest_name

__all__ = ["DataConfig", "ParallelData", "TextData", "as_paths", "join_paths"]

Paths = str | Path | Sequence[str | Path]
Column = str | int

SUFFIXES = {
    ".tsv": "tsv",
    ".tab": "tsv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
}
"""Formats of files with columns by the ends of their names."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What all data configs have in common.

    Attributes:
        path: a file, or several of one format; or a Hub id or a folder for `datasets.load_dataset`.
        format: where the name of `path` does not tell.
        name, split, revision: configuration, split and revision of a Hub data set. The split may be any expression
            that `datasets` understands, such as "train[:10%]"; default "train".
        portion: the part of the data to take, two shares from 0 to 1 of the rows as they stand: [0, 0.9] and [0.9, 1]
            divide one file in two without overlap.
        encoding: of files; any that has ASCII's line break, so not UTF-16.

    Raises:
        ValueError: a field is of the wrong type, or the fields contradict each other.
    """

    suffixes: ClassVar[Mapping[str, str]] = SUFFIXES
    formats: ClassVar[tuple[str, ...]]

    path: Paths | None = None
    format: str | None = None
    name: str | None = None
    split: str | None = None
    revision: str | None = None
    portion: Sequence[float] | None = None
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name == "portion":
                check_portion(self.portion)
            else:
                _check_type(field.name, getattr(self, field.name), get_args(field.type) or (field.type,))
        check_encoding(self.encoding)
        if self.format is not None and self.format not in self.formats:
            raise ValueError(f"Unknown data format {self.format!r}: choose one of {', '.join(self.formats)}.")

    @property
    def kind(self) -> str:
        """Return how the data is stored: one of the formats, by `format` or the ends of the names of the files.

        Raises:
            ValueError: for files of several kinds.
        """
        if self.format is not None:
            return self.format
        found = {self.suffixes.get(_suffix_of(path), "hub") for path in as_paths(self.path)}
        if len(found) > 1:
            raise ValueError(
                f"The files of one data set must be of one kind, but these are {', '.join(sorted(found))}."
            )
        return found.pop()

    def describe(self) -> str:
        """Return one line that names the data."""
        parts = [join_paths(as_paths(self.path))]
        if self.kind == "hub":
            parts += [self.name or "", self.split or "train", self.revision or ""]
        if self.portion is not None:
            parts.append(f"[{self.portion[0]:g} to {self.portion[1]:g}]")
        return " ".join(part for part in parts if part)

    def text_files(self) -> list[list[str | Path]]:
        """Return the plain text files, as lists of those that correspond line by line."""
        return [[path] for path in as_paths(self.path)]

    def asked_columns(self, row_type: RowType) -> tuple[Column | None, ...]:
        """Return the names or numbers of the columns as the config has them, None for one that it leaves open."""
        raise NotImplementedError

    def choose_columns(self, choices: Collection[str], row_type: RowType, place: str) -> Sequence[str]:
        """Return the names of the columns to read, of those that there are.

        Raises:
            ValueError: where a column is not there, or nothing tells which it is; `place` names the data.
        """
        raise NotImplementedError

    def header(self, first: Sequence[str], row_type: RowType, place: str) -> Sequence[str] | None:
        """Return the same where the first line of a TSV file is a header, None where it is not."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class ParallelData(DataConfig):
    """Where pairs of texts are found.

    Either `source` and `target` name aligned text files, or `path` names a file with both sides or a data set.

    Attributes:
        source, target: a text file, or several, whose lines correspond. Together with `path`: the names of the two
            columns, as `source_column` and `target_column`.
        format: "tsv", "json", "parquet" or "hub".
        source_language, target_language: keys of the `translation` column, or names of columns, in JSON lines,
            Parquet and Hub data sets. For text files they are information only.
        source_column, target_column: the columns with the two sides; "a.b" is field b of column a. For TSV a name
            means that the first line is a header; a number counts fields from 0 in a file without one. Default: the
            `translation` column with the two languages, columns named by them, or columns `source` and `target`;
            for TSV the first two fields, or the header's if the first line holds those names.
    """

    formats: ClassVar[tuple[str, ...]] = ("tsv", "json", "parquet", "hub")

    source: Paths | None = None
    target: Paths | None = None
    source_language: str | None = None
    target_language: str | None = None
    source_column: Column | None = None
    target_column: Column | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.path is None and (self.source is None or self.target is None):
            raise ValueError("Data needs either two text files, `source` and `target`, or a `path`.")
        if self.path is None:
            idle = ("format", "name", "split", "revision", "source_column", "target_column")
            if given := [name for name in idle if getattr(self, name) is not None]:
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
        columns = (self.source_column, self.target_column)
        if (columns[0] is None) != (columns[1] is None):
            raise ValueError("Give both source_column and target_column, or neither.")
        for side, column in zip(("source", "target"), columns, strict=True):
            if isinstance(column, int) and (column < 0 or self.kind != "tsv"):
                raise ValueError(
                    f"{side}_column={column} is a number, which only counts the fields of a TSV file from 0."
                )
        if isinstance(columns[0], int) != isinstance(columns[1], int):
            raise ValueError("source_column and target_column must be two names or two numbers.")

    @property
    def kind(self) -> str:
        return "text" if self.path is None else super().kind

    def describe(self) -> str:
        if self.path is not None:
            return super().describe()
        files = f"{join_paths(as_paths(self.source))} -> {join_paths(as_paths(self.target))}"
        return f"{files} {super().describe()}".rstrip()

    def text_files(self) -> list[list[str | Path]]:
        sources, targets = as_paths(self.source), as_paths(self.target)
        if len(sources) != len(targets):
            raise ValueError(
                f"There are {len(sources)} source files but {len(targets)} target files: they must be as many."
            )
        return [list(pair) for pair in zip(sources, targets, strict=True)]

    def asked_columns(self, row_type: RowType) -> tuple[Column | None, ...]:
        return self.source_column, self.target_column

    def header(self, first: Sequence[str], row_type: RowType, place: str) -> Sequence[str] | None:
        if self.source_column is not None:
            return self.choose_columns(dict.fromkeys(first), row_type, place)
        for names in ((self.source_language, self.target_language), ("source", "target")):
            if all(name in first for name in names):
                return names  # type: ignore[return-value]
        if len(first) < 2:
            raise ValueError(f"{place} has no two fields divided by a tab in its first line.")
        return None

    def choose_columns(self, choices: Collection[str], row_type: RowType, place: str) -> Sequence[str]:
        languages = [name for name in (self.source_language, self.target_language) if name]
        has_sides = "source" in choices and "target" in choices
        if self.source_column is not None:
            wanted = [str(self.source_column), str(self.target_column)]
        elif len(languages) == 2 and f"translation.{languages[0]}" in choices:
            wanted = [f"translation.{name}" for name in languages]
        elif len(languages) == 2 and (languages[0] in choices or not has_sides):
            wanted = languages
        elif has_sides:
            wanted = ["source", "target"]
        else:
            raise ValueError(
                f"{place} does not tell which columns are source and target: give source_column and target_column or the "
                f"two languages. There are: {', '.join(choices)}."
            )
        return [_known_column(name, choices, place) for name in wanted]


@dataclass(frozen=True, kw_only=True)
class TextData(DataConfig):
    """Where texts are found, with labels or tags where the task has them.

    Attributes:
        format: "text", "tsv", "json", "parquet", "conll" or "hub".
        unit: of plain text files: "line", each line is a text; or "file", all of a file is one text, of which `portion` takes
            characters.
        text: the column of texts, or of lists of tokens; "a.b" is field b of column a, and a number counts the fields of
            a TSV file without a header, or of a CoNLL file, from 0. Default: the first of the usual names there is.
        label: the column of labels, or of lists of tags, likewise.
    """

    suffixes: ClassVar[Mapping[str, str]] = {
        **SUFFIXES,
        **dict.fromkeys((".txt", ".text"), "text"),
        **dict.fromkeys((".conll", ".iob", ".iob2", ".bio"), "conll"),
    }
    formats: ClassVar[tuple[str, ...]] = ("text", "tsv", "json", "parquet", "conll", "hub")

    unit: str = "line"
    text: Column | None = None
    label: Column | None = None

    def __post_init__(self) -> None:
        if self.path is None:
            raise ValueError("Data needs a `path`.")
        super().__post_init__()
        if self.unit not in ("line", "file"):
            raise ValueError(f"unit={self.unit!r} must be 'line' or 'file'.")
        if self.unit == "file" and self.kind != "text":
            raise ValueError(f"unit='file' is for plain text files, not for {self.kind}.")
        for name in ("text", "label"):
            if isinstance(number := getattr(self, name), int) and number < 0:
                raise ValueError(f"{name}={number} must not be negative: fields are counted from 0.")

    def asked_columns(self, row_type: RowType) -> tuple[Column | None, ...]:
        return (self.text, self.label)[: len(row_type.columns)]

    def header(self, first: Sequence[str], row_type: RowType, place: str) -> Sequence[str] | None:
        found = [next((name for name in column.usual if name in first), None) for column in row_type.columns]
        if all(name is None for name in self.asked_columns(row_type)) and None in found:
            return None
        return self.choose_columns(dict.fromkeys(first), row_type, place)

    def choose_columns(self, choices: Collection[str], row_type: RowType, place: str) -> Sequence[str]:
        wanted = []
        for field, asked, column in zip(
            ("text", "label"), self.asked_columns(row_type), row_type.columns, strict=False
        ):
            name = next((name for name in column.usual if name in choices), None) if asked is None else asked
            if name is None:
                raise ValueError(
                    f"{place} does not tell which column is the {field}: give {field}=NAME. There are: {', '.join(choices)}."
                )
            wanted.append(_known_column(name, choices, place))
        return wanted


def check_encoding(encoding: str) -> None:
    """Refuse what is not an encoding, or has another line break than ASCII.

    Raises:
        ValueError: naming the field and the remedy.
    """
    try:
        codecs.lookup(encoding)
        has_line_break = b"\n".decode(encoding) == "\n"
    except LookupError:
        raise ValueError(
            f"encoding={encoding!r} is not a text encoding that Python knows; most files are in 'utf-8'."
        ) from None
    except UnicodeError:
        has_line_break = False
    if not has_line_break:
        raise ValueError(
            f"encoding={encoding!r} cannot be read, only encodings with ASCII's line break: convert the files to UTF-8 "
            f"first, as with `iconv -f {encoding} -t utf-8`."
        )


def check_portion(portion: Sequence[float] | None) -> None:
    """Refuse shares that are not two numbers that rise within 0 and 1.

    Raises:
        ValueError: naming the field.
    """
    if portion is None:
        return
    numbers = isinstance(portion, (list, tuple)) and all(
        isinstance(share, (int, float)) and not isinstance(share, bool) for share in portion
    )
    if not numbers or len(portion) != 2:
        raise ValueError(f"portion={portion!r} must be two numbers, as in [0, 0.9].")
    if not 0 <= portion[0] < portion[1] <= 1:
        raise ValueError(f"portion={list(portion)} must be two shares that rise within 0 and 1, as in [0, 0.9].")


def _check_type(name: str, value: Any, types: tuple[Any, ...]) -> None:
    """Refuse what cannot be the value of a field, such as a year that YAML has read as a number."""
    if value is None and type(None) in types:
        return
    if Path in types:
        wanted = "a path or a list of paths"
        parts = list(value) if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else [value]
        fits = bool(parts) and all(isinstance(part, (str, Path)) for part in parts)
    elif int in types:
        wanted = "the name of a column or a number"
        fits = isinstance(value, (str, int)) and not isinstance(value, bool)
    else:
        wanted, fits = "text", isinstance(value, str)
    if not fits:
        raise ValueError(f"{name}={value!r} must be {wanted}; YAML reads as text what stands in quotes.")


def _known_column(name: Column, choices: Collection[str], place: str) -> str:
    """Return the name of a column that is there.

    Raises:
        ValueError: for another one, with the nearest that there is.
    """
    if name in choices:
        return str(name)
    near = nearest_name(str(name), choices)
    hint = f" Did you mean {near!r}?" if near else ""
    raise ValueError(f"{place} has no column {name!r}.{hint} There are: {', '.join(choices)}.")


def as_paths(value: Paths | None) -> list[str | Path]:
    """Return one path, or several, as a list."""
    if value is None:
        return []
    return [value] if isinstance(value, (str, Path)) else list(value)


def join_paths(paths: Sequence[str | Path]) -> str:
    """Return paths for a sentence."""
    return ", ".join(str(path) for path in paths)


def _suffix_of(path: str | Path) -> str:
    return Path(str(path).removesuffix(".gz")).suffix.lower()
