"""YAML without guesses: a value that stands there without quotes is text until the type of its field is known.

YAML's own rules would read `no` as false, `1e5` as text, `1.0e5` as a number, `010` as 8 and `2024-01-01` as a date, whatever
the field is. Here numbers are numbers and text is text by the field, in a file and on the command line alike. What
other people's files may hold is bounded: `DEEPEST` levels, `MOST_VALUES` values after all aliases are followed, no tags.
"""

import enum
import math
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import yaml

DEEPEST, MOST_VALUES = 50, 100_000

_NULL = re.compile(r"~|null|Null|NULL|")
_TRUE, _FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")
_YES, _NO = ("yes", "Yes", "YES", "on", "On", "ON"), ("no", "No", "NO", "off", "Off", "OFF")
_INT = re.compile(r"[-+]?[0-9]+(_[0-9]+)*")
_HEX_OR_OCTAL = re.compile(r"0x[0-9a-fA-F]+|0o[0-7]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(_[0-9]+)*(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITE_OR_NAN = re.compile(r"([-+]?)(\.?inf|\.?Inf|\.?INF)|\.?nan|\.?NaN|\.?NAN")


class PlainScalar(str):
    """A value without quotes, as it is written.

    Attributes:
        problem: why it is not the list or mapping that it looks like, for a field that cannot be text.
    """

    problem: str | None = None


class YAMLProblem(ValueError):
    """What is wrong with a YAML text, in words, with the line."""


# Text to values ------------------------------------------------------------------------------------------------------


def parse_yaml(text: str) -> Any:
    """Parse one YAML document to dicts, lists, `PlainScalar` where no quotes stand, and `str` where they do.

    Raises:
        YAMLProblem: for what is not YAML, a key that stands twice, tags, aliases that contain themselves, and for
            more or deeper values than the bounds.
    """
    try:
        return _Builder(yaml.parse(text, Loader=yaml.SafeLoader)).document()
    except yaml.MarkedYAMLError as error:
        where = f" at line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise YAMLProblem(f"is not valid YAML{where}: {error.problem}") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise YAMLProblem(f"is not valid YAML at line {line}: {error.reason} (#x{error.character:04x})") from error


class _Builder:
    """Values from the events of the parser."""

    def __init__(self, events: Iterator[Any]):
        self.events = events
        self.anchors: dict[str, Any] = {}
        self.values = 0

    def document(self) -> Any:
        next(self.events)  # the start of the stream
        if isinstance(next(self.events), yaml.StreamEndEvent):
            return None
        value = self._value(next(self.events), 0)
        next(self.events)  # the end of the document
        if not isinstance(next(self.events), yaml.StreamEndEvent):
            raise YAMLProblem("holds several documents, divided by ---; give one")
        return value

    def _value(self, event: Any, depth: int) -> Any:
        line = event.start_mark.line + 1
        self._count(line, depth)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(str(event.anchor), line, depth)
        if event.tag not in (None, "!", "tag:yaml.org,2002:str"):
            raise YAMLProblem(f"has the tag {event.tag} at line {line}, and tags are not read; leave it out")
        if event.anchor is not None:
            self.anchors[event.anchor] = None  # until it is complete
        if isinstance(event, yaml.ScalarEvent):
            value: Any = _scalar(event, line)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = []
            while not isinstance(inner := next(self.events), yaml.SequenceEndEvent):
                value.append(self._value(inner, depth + 1))
        else:
            value = self._mapping(line, depth)
        if event.anchor is not None:
            self.anchors[event.anchor] = value
        return value

    def _mapping(self, first_line: int, depth: int) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        lines: dict[str, int] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            line = event.start_mark.line + 1
            key = self._value(event, depth + 1)
            if not isinstance(key, str):
                raise YAMLProblem(f"has a key at line {line} that is not a name")
            if key in lines:
                raise YAMLProblem(
                    f"has the key {str(key)!r} twice, at line {lines[key]} and line {line}; leave one out"
                )
            lines[key] = line
            value = self._value(next(self.events), depth + 1)
            if key == "<<" and isinstance(key, PlainScalar):
                for more in value if isinstance(value, list) else [value]:
                    if not isinstance(more, dict):
                        raise YAMLProblem(f"merges at line {line} what is not a mapping")
                    merged = {**more, **merged}
            else:
                own[str(key)] = value
        return {**merged, **own}

    def _alias(self, name: str, line: int, depth: int) -> Any:
        if name not in self.anchors:
            raise YAMLProblem(f"has the alias *{name} at line {line}, which no anchor &{name} stands before")
        value = self.anchors[name]
        if value is None:
            raise YAMLProblem(f"has the alias *{name} at line {line} within what it stands for")
        return self._copied(value, line, depth)

    def _copied(self, value: Any, line: int, depth: int) -> Any:
        """Return what an alias stands for once more, every value of it counted."""
        self._count(line, depth)
        if isinstance(value, dict):
            return {name: self._copied(inner, line, depth + 1) for name, inner in value.items()}
        return [self._copied(inner, line, depth + 1) for inner in value] if isinstance(value, list) else value

    def _count(self, line: int, depth: int) -> None:
        self.values += 1
        if self.values > MOST_VALUES:
            raise YAMLProblem(f"holds more than {MOST_VALUES:,} values, its aliases followed, by line {line}")
        if depth > DEEPEST:
            raise YAMLProblem(f"is nested more than {DEEPEST} levels deep at line {line}")


def _scalar(event: Any, line: int) -> str:
    try:
        event.value.encode()
    except UnicodeEncodeError:
        raise YAMLProblem(f"holds half a character (a lone surrogate, as of a cut emoji) at line {line}") from None
    if "\0" in event.value:
        raise YAMLProblem(f"holds a NUL character at line {line}")
    return PlainScalar(event.value) if event.style is None and event.tag is None else str(event.value)


# Values by the type of their field -----------------------------------------------------------------------------------


def scalar_types(hint: Any) -> set[type]:
    """Return the types of single values that a hint allows, of bool, int, float, str and NoneType; all for None and Any."""
    if hint is None or hint is Any:
        return {bool, int, float, str, type(None)}
    if get_origin(hint) in (Union, types.UnionType):
        return set().union(*map(scalar_types, get_args(hint)))
    if get_origin(hint) is Literal:
        return {type(value) for value in get_args(hint)}
    if isinstance(hint, type) and issubclass(hint, (enum.Enum, Path)):
        return {str}
    return {hint} if hint in (bool, int, float, str, type(None)) else set()


def element_type(hint: Any) -> Any:
    """Return the type of the elements where a hint allows a list, None where it does not say."""
    for option in get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,):
        origin = get_origin(option)
        if isinstance(origin, type) and issubclass(origin, Sequence) and get_args(option):
            return get_args(option)[0]
    return None


def coerce_scalars(value: Any, hint: Any = None) -> Any:
    """Give each value without quotes the type of its field; what does not fit becomes what it looks like.

    Args:
        hint: of the field; None and Any for a value that is read as what it looks like.

    Raises:
        YAMLProblem: for what looks like a list or mapping and is not, in a field that cannot be text.
    """
    if isinstance(value, list):
        return [coerce_scalars(inner, element_type(hint)) for inner in value]
    if isinstance(value, Mapping):
        return {name: coerce_scalars(inner) for name, inner in value.items()}
    if not isinstance(value, PlainScalar):
        return value
    options = scalar_types(hint)
    text = str(value)
    if value.problem is not None and str not in options:
        raise YAMLProblem(value.problem)
    if _NULL.fullmatch(text):
        return None
    if options <= {str, type(None)} and options:
        return text
    if bool in options and text in (*_TRUE, *_FALSE):
        return text in _TRUE
    if bool in options and str not in options and text in (*_YES, *_NO):
        return text in _YES
    number = _number(text)
    if isinstance(number, float) and int in options and float not in options and number.is_integer():
        number = int(number)  # as in 1e5
    if isinstance(number, int) and not options.isdisjoint({int, float}):
        return number
    is_name = str in options and text.isalpha()  # such as nan, which is a language, too
    if isinstance(number, float) and float in options and not is_name:
        return number
    if str in options:
        return text
    # of no type that the field has: as what it looks like, for the sentence that refuses it
    return (text in _TRUE) if text in (*_TRUE, *_FALSE) else text if number is None else number


def _number(text: str) -> int | float | None:
    if _INT.fullmatch(text):
        # Python reads no more digits than these
        return int(text) if len(text) < 4000 else math.inf
    if _HEX_OR_OCTAL.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    if found := _INFINITE_OR_NAN.fullmatch(text):
        return float(f"{found[1]}inf") if found[2] else math.nan
    return None


# Values to text ------------------------------------------------------------------------------------------------------


class _Dumper(yaml.SafeDumper):
    """Puts in quotes what would be read as another value than text."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    looks_like_more = not isinstance(coerce_scalars(PlainScalar(text)), str)
    return dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style="'" if looks_like_more else None)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_representer(PlainScalar, _represent_text)


def dump_yaml(values: Any, width: int = 119) -> str:
    """Write plain values as YAML that `parse_yaml` and any other reader give back."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=width)
