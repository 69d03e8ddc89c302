"""Rows of data by kind: pairs, texts, texts with a label, tokens with a tag each; what makes one unusable.

A task reads rows of one type, whatever the format of the files; another type of row is one more entry here.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from vanilla_transformer.utils.text_files import LONGEST_LINE

__all__ = ["LABELLED_TEXTS", "PAIRS", "TAGGED_TOKENS", "TEXTS", "ColumnType", "InvalidText", "Row", "RowType"]


class InvalidText(bytes):
    """A text of a data set that is not valid UTF-8, as it stands there."""


class Row(NamedTuple):
    """A row as read: a value for each column, None where there is none; `fault` says why it cannot be used."""

    id: int
    values: tuple[Any, ...] = ()
    fault: str | None = None


class ColumnType(NamedTuple):
    """A column of rows.

    Attributes:
        name: in the data set that is made.
        usual: its names in files, where the data config gives none.
        each: what one of its texts is called; by default as the column.
    """

    name: str
    usual: tuple[str, ...]
    each: str = ""


@dataclass(frozen=True)
class RowType:
    """A kind of row.

    Attributes:
        noun: what a row is called; in the plural with an s.
        columns: in their order.
        check: the values of a usable row by those of one as read, or a fault.
        has_lists: whether each value is a list of texts, and not a text.
    """

    noun: str
    columns: tuple[ColumnType, ...]
    check: Callable[..., tuple[Any, ...] | str]
    has_lists: bool = False

    def usable(self, row: Row, longest: float = LONGEST_LINE) -> tuple[Any, ...] | str:
        """Return the values of a usable row, or what is wrong with it.

        Args:
            longest: characters of the longest text.
        """
        if row.fault is not None:
            return row.fault
        values = self.check(*row.values)
        if isinstance(values, str):
            return next((f"{name} is not valid utf-8" for name in self._invalid(row.values)), values)
        for column, value in zip(self.columns, values, strict=True):
            for text in value if self.has_lists else (value,):
                if fault := _fault(text, longest):
                    return f"{column.each or column.name} {fault}"
        return values

    def _invalid(self, values: tuple[Any, ...]) -> Iterator[str]:
        """Yield what the texts of a row that are not valid UTF-8 are called."""
        for column, value in zip(self.columns, values, strict=True):
            if any(isinstance(text, InvalidText) for text in (value if isinstance(value, list) else [value])):
                yield column.each or column.name


def _fault(text: str, longest: float) -> str | None:
    """Return what makes a text unusable whatever it is for: half of a surrogate pair, or more than `longest` characters."""
    if len(text) > longest:
        return f"is longer than {longest:,} characters"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "holds half a character (a lone surrogate, as of a cut emoji)"
    return None


def _check_pair(source: Any, target: Any) -> tuple[Any, ...] | str:
    source, target = "" if source is None else source, "" if target is None else target
    for side, text in (("source", source), ("target", target)):
        if not isinstance(text, str):
            return f"{side} is not text"
    has_source, has_target = bool(source.strip()), bool(target.strip())
    if has_source and has_target:
        return source, target
    return f"empty {'target' if has_source else 'source' if has_target else 'pair'}"


def _check_text(text: Any) -> tuple[Any, ...] | str:
    if isinstance(text, list) and all(isinstance(token, str) for token in text):
        text = " ".join(text)
    if text is not None and not isinstance(text, str):
        return "text is not text"
    return (text,) if text and text.strip() else "empty text"


def _check_labelled_text(text: Any, label: Any) -> tuple[Any, ...] | str:
    if text is not None and not isinstance(text, str):
        return "text is not text"
    if not text or not text.strip():
        return "empty text"
    name = _label_name(label)
    return "label is missing, or not a name or whole number" if name is None else (text, name)


def _check_tagged_tokens(tokens: Any, tags: Any) -> tuple[Any, ...] | str:
    if not isinstance(tokens, list) or not isinstance(tags, list):
        return "tokens and tags are not two lists"
    if not tokens:
        return "empty sentence"
    if len(tokens) != len(tags):
        return "not as many tags as tokens"
    if not all(isinstance(token, str) and token.strip(" ") for token in tokens):
        return "a token is empty or is not text"
    names = [_label_name(tag) for tag in tags]
    if None in names:
        return "a tag is missing, or not a name or whole number"
    # spaces stand between tokens, and may stand within one
    return [token.strip(" ") for token in tokens], names


def _label_name(value: Any) -> str | None:
    if isinstance(value, str):
        return value.strip() or None
    return str(value) if isinstance(value, int) else None


_TEXT = ("text", "sentence")
_TOKENS = ("tokens", "words")

PAIRS = RowType("pair", (ColumnType("source", ("source",)), ColumnType("target", ("target",))), _check_pair)

TEXTS = RowType("text", (ColumnType("text", (*_TEXT, *_TOKENS)),), _check_text)
"""Of sentences that stand there as lists of tokens, the tokens with spaces between."""

LABELLED_TEXTS = RowType(
    "text", (ColumnType("text", _TEXT), ColumnType("label", ("label", "labels"))), _check_labelled_text
)
"""Labels that are numbers or truth values are written out, and of the classes of a Hub data set it is their name."""

TAGGED_TOKENS = RowType(
    "sentence",
    (
        ColumnType("tokens", _TOKENS, each="a token"),
        ColumnType("tags", ("tags", "ner_tags", "chunk_tags", "pos_tags", "labels"), each="a tag"),
    ),
    _check_tagged_tokens,
    has_lists=True,
)
