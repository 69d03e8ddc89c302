"""The fields of a recipe's file: read from YAML, overridden by name, checked by type, put into dataclasses."""

import contextlib
import copy
import dataclasses
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import yaml

from vanilla_transformer.training import RecipeError
from vanilla_transformer.utils.names import did_you_mean

__all__ = ["build_section", "check_known", "override_fields", "read_values", "set_field", "suggest", "typed"]


def suggest(name: str, choices: Iterable[str]) -> str:
    """The end of a sentence about a name that is none of the choices: the nearest of them, or all."""
    choices = sorted(choices)
    return did_you_mean(name, choices, otherwise=f"the choices are {', '.join(choices)}.")


def check_known(given: Mapping[str, Any], choices: set[str], section: str) -> None:
    """Refuse what is no mapping, and a name in it that is none of the choices.

    Raises:
        RecipeError: naming the nearest.
    """
    if not isinstance(given, Mapping):
        raise RecipeError(f"{section} must be a mapping of fields to values, not {given!r}.")
    for name in given:
        if name not in choices:
            raise RecipeError(f"unknown field {section}.{name}; {suggest(str(name), choices)}")


def build_section(section: type, values: Any, prefix: str) -> Any:
    """A dataclass of a recipe from plain values, checked field by field.

    Args:
        prefix: what comes before the names of fields in a sentence.

    Raises:
        RecipeError: for an unknown field, naming the nearest one, and for a value of the wrong type.
    """
    fields = {f.name: f for f in dataclasses.fields(section)}
    if not isinstance(values, Mapping):
        raise RecipeError(f"{prefix.rstrip('.')} must be a mapping of fields to values, not {values!r}.")
    hints = get_type_hints(section)
    given: dict[str, Any] = {}
    for name, value in values.items():
        if name not in fields:
            raise RecipeError(f"unknown field {prefix}{name}; {suggest(str(name), fields)}")
        hint = hints[name]
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            given[name] = build_section(hint, {} if value is None else value, f"{prefix}{name}.")
        else:
            given[name] = typed(value, hint, f"{prefix}{name}")
    missing = [
        name
        for name, f in fields.items()
        if name not in given and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise RecipeError(f"{prefix}{missing[0]} is missing in the recipe.")
    return section(**given)


def typed(value: Any, hint: Any, name: str) -> Any:
    """The value, where it is of the field's type; whole numbers pass as floats.

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
        names = " or ".join("nothing" if option is type(None) else option.__name__ for option in allowed)
        raise RecipeError(f"{name}={value!r} is of the wrong type: it must be {names}.")
    if isinstance(value, float) and math.isnan(value):
        raise RecipeError(
            f"{name}=nan compares with nothing; give a number{' or null' if type(None) in allowed else ''}."
        )
    return value


def read_values(path: str | Path) -> dict[str, Any]:
    """The plain values of a recipe file.

    Raises:
        RecipeError: for a file that is missing or no YAML mapping.
    """
    path = Path(path)
    if not path.is_file():
        raise RecipeError(f"there is no recipe {path}; recipes of the project are in scripts/recipes.")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = getattr(error, "problem_mark", None)
        line = f" at line {where.line + 1}" if where else ""
        raise RecipeError(f"{path} is not valid YAML{line}: {getattr(error, 'problem', None) or error}.") from error
    if not isinstance(values, dict):
        raise RecipeError(f"{path} holds no recipe: it must be a mapping of fields to values.")
    return values


def override_fields(values: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """The values of a recipe with `name=value` overrides applied; dots in a name lead into sections.

    Raises:
        RecipeError: for an override that is not of that form.
    """
    values = copy.deepcopy(values)
    for override in overrides:
        _override(values, override)
    return values


def _override(values: dict[str, Any], override: str) -> None:
    name, separator, text = override.partition("=")
    if not separator or not name:
        raise RecipeError(f"{override!r} is no override: write name=value, such as training.max_steps=1000.")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise RecipeError(f"the value of {override!r} is not valid YAML.") from error
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = float(value)  # YAML reads 5e-3 as text
    set_field(values, name, value)


def set_field(values: dict[str, Any], name: str, value: Any) -> None:
    """Set a field in the plain values of a recipe; dots in its name lead into sections.

    Raises:
        RecipeError: where what should be a section is a value.
    """
    *sections, last = name.split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise RecipeError(f"{name} cannot be set: {section} is a value, not a section.")
    values[last] = value
