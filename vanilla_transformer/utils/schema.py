"""The fields of a recipe's file: read from YAML, overridden by name, checked by type, put into dataclasses."""

import copy
import dataclasses
import math
import reprlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from vanilla_transformer.errors import RecipeError
from vanilla_transformer.utils.names import did_you_mean
from vanilla_transformer.utils.yaml_text import DEEPEST, PlainScalar, YAMLProblem, coerce_scalars, parse_yaml

LARGEST_FILE = 1 << 20
"""Bytes of the largest recipe that is read."""

_FORMS = {
    bool: "true or false",
    int: "a whole number, such as 1000",
    float: "a number, such as 0.0005 or 5e-4",
    str: "text",
    dict: "a mapping of fields to values",
    list: "a list",
    type(None): "null",
}


def shown(value: Any) -> str:
    """Return the value for a sentence, its middle left out where it is long."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = 120
    return short.repr(str(value) if isinstance(value, PlainScalar) else value)


def reject_unknown(given: Mapping[str, Any], choices: set[str], section: str) -> None:
    """Refuse what is not a mapping, and a name in it that is none of the choices.

    Raises:
        RecipeError: naming the nearest.
    """
    if not isinstance(given, Mapping):
        raise RecipeError(f"{section} must be a mapping of fields to values, not {shown(given)}.")
    for name in given:
        if name not in choices:
            raise RecipeError(f"unknown field {section}.{name}; {did_you_mean(str(name), choices)}")


def build_section(section: type, values: Any, prefix: str) -> Any:
    """Return a dataclass of a recipe from plain values, checked field by field.

    Args:
        prefix: what comes before the names of fields in a sentence.

    Raises:
        RecipeError: for an unknown field, naming the nearest one, and for a value of the wrong type.
    """
    fields = {f.name: f for f in dataclasses.fields(section)}
    if not isinstance(values, Mapping):
        raise RecipeError(f"{prefix.rstrip('.')} must be a mapping of fields to values, not {shown(values)}.")
    hints = get_type_hints(section)
    given: dict[str, Any] = {}
    for name, value in values.items():
        if name not in fields:
            raise RecipeError(f"unknown field {prefix}{name}; {did_you_mean(str(name), fields)}")
        hint = hints[name]
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            given[name] = build_section(hint, {} if value is None else value, f"{prefix}{name}.")
        else:
            given[name] = coerce(value, hint, f"{prefix}{name}")
    for name, f in fields.items():
        if name not in given and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise RecipeError(f"{prefix}{name} is missing in the recipe.")
    return section(**given)


def coerce(value: Any, hint: Any, name: str) -> Any:
    """Return the value, where it is of the field's type; whole numbers become floats where the field is one.

    Args:
        hint: a type, or a union of types.
        name: of the field, for the sentence.

    Raises:
        RecipeError: for a value of another type, and for nan.
    """
    options = (hint,) if get_origin(hint) in (dict, list) else get_args(hint) or (hint,)
    allowed = tuple(get_origin(option) or option for option in options)
    if float in allowed and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    wrong_bool = isinstance(value, bool) and bool not in allowed
    if wrong_bool or not isinstance(value, allowed):
        forms = " or ".join(_FORMS.get(option, getattr(option, "__name__", str(option))) for option in allowed)
        quotes = "" if value is not None or str not in allowed else " (in quotes, where null is meant as a name)"
        raise RecipeError(f"{name}={shown(value)} is of the wrong type: it must be {forms}{quotes}.")
    if isinstance(value, float) and math.isnan(value):
        raise RecipeError(
            f"{name}=nan compares with nothing; give a number{' or null' if type(None) in allowed else ''}."
        )
    return value


def read_values(path: str | Path) -> dict[str, Any]:
    """Return the plain values of a recipe file.

    Raises:
        RecipeError: for a file that is missing or not a YAML mapping.
    """
    path = Path(path)
    if not path.is_file():
        raise RecipeError(f"there is no recipe {path}; vanilla-transformer recipe --list names some to begin with.")
    if path.stat().st_size > LARGEST_FILE:
        raise RecipeError(f"{path} is larger than {LARGEST_FILE >> 20} MiB, which no recipe is; name another file.")
    try:
        values = parse_yaml(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path} is not valid UTF-8; convert it first.") from error
    except YAMLProblem as error:
        raise RecipeError(f"{path} {error}.") from error
    if not isinstance(values, dict):
        raise RecipeError(f"{path} holds no recipe: it must be a mapping of fields to values.")
    return values


def coerce_fields(values: Any, hint_of: Callable[[tuple[str, ...]], Any], path: tuple[str, ...] = ()) -> Any:
    """Give each value of a recipe that is written without quotes the type of its field.

    Args:
        values: plain, or of `read_values` and `override_fields`.
        hint_of: the type of a field by the names that lead to it; None where nobody knows.

    Raises:
        RecipeError: for what looks like a list or a mapping and is not.
    """
    if isinstance(values, Mapping):
        return {name: coerce_fields(value, hint_of, (*path, name)) for name, value in values.items()}
    try:
        return coerce_scalars(values, hint_of(path))
    except YAMLProblem as error:
        raise RecipeError(f"{'.'.join(map(str, path))}={shown(values)} {error}.") from error


def override_fields(values: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return the values of a recipe with `name=value` overrides applied; dots in a name lead into sections.

    Raises:
        RecipeError: for an override that is not of that form.
    """
    values = copy.deepcopy(values)
    for override in overrides:
        name, separator, text = override.partition("=")
        if not separator or not name:
            raise RecipeError(f"{override!r} is not an override: write name=value, such as training.max_steps=1000.")
        set_by_path(values, name, _read_override(override, text))
    return values


def _read_override(override: str, text: str) -> Any:
    """Read a value from the command line: text as it stands, but for lists, mappings and what is in quotes."""
    try:
        override.encode()
    except UnicodeEncodeError:
        raise RecipeError(
            f"{override!a} holds half a character or bytes that are not UTF-8; write it again."
        ) from None
    if "\0" in text:
        raise RecipeError(f"{override!a} holds a NUL character; leave it out.")
    scalar = PlainScalar(text.strip())
    if not scalar.startswith(("[", "{", "'", '"')):
        return scalar
    try:
        return parse_yaml(text)
    except YAMLProblem as error:
        scalar.problem = str(error)  # text may begin so as well
        return scalar


def set_by_path(values: dict[str, Any], name: str, value: Any) -> None:
    """Set a field in the plain values of a recipe; dots in its name lead into sections.

    Raises:
        RecipeError: where what should be a section is a value.
    """
    *sections, last = name.split(".")
    if len(sections) > DEEPEST:
        raise RecipeError(f"{shown(name)} leads more than {DEEPEST} levels deep; no field is there.")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise RecipeError(f"{name} cannot be set: {section} is a value, not a section.")
    values[last] = value
