"""The recipes that come with the package, and the fields that a recipe may have, with what they mean."""

import dataclasses
import inspect
import re
from importlib.resources import files
from importlib.resources.abc import Traversable

from vanilla_transformer.utils.names import did_you_mean

__all__ = ["describe_fields", "recipe_text", "recipes"]


def recipes() -> dict[str, Traversable]:
    """Return the files of the recipes by their names; in a checkout they are in `scripts/recipes`."""
    package = files("vanilla_transformer")
    folder = package / "recipes" / "bundled"
    if not folder.is_dir():
        folder = package / ".." / "scripts" / "recipes"
    found = {file.name.removesuffix(".yaml"): file for file in folder.iterdir() if file.name.endswith(".yaml")}
    return dict(sorted(found.items()))


def recipe_text(name: str) -> str:
    """Return a recipe as it stands in its file.

    Raises:
        ValueError: for a name that no recipe has, naming the nearest.
    """
    known = recipes()
    name = name.removesuffix(".yaml")
    if name not in known:
        raise ValueError(f"there is no recipe {name!r}; {did_you_mean(name, known)}")
    return known[name].read_text(encoding="utf-8")


def describe_fields() -> list[tuple[str, str, str]]:
    """Return all fields of a recipe: name, default and meaning, read from the classes that have them."""
    from vanilla_transformer import VanillaTransformerConfig
    from vanilla_transformer.recipes.recipe import Recipe

    rows: list[tuple[str, str, str]] = []
    meanings = _meanings(Recipe)
    for field in dataclasses.fields(Recipe):
        if isinstance(field.type, type) and dataclasses.is_dataclass(field.type):
            inner = _meanings(field.type)
            rows += [
                (f"{field.name}.{f.name}", _default(f), inner.get(f.name, "")) for f in dataclasses.fields(field.type)
            ]
        else:
            rows.append((field.name, _default(field), meanings.get(field.name, "")))
        if field.name == "data":
            rows += _split_fields()
        if field.name == "model":
            inner = _meanings(VanillaTransformerConfig)
            own = (f for f in dataclasses.fields(VanillaTransformerConfig) if f.name in inner)
            rows += [(f"model.{f.name}", _default(f), inner[f.name]) for f in own]
    return rows


def _split_fields() -> list[tuple[str, str, str]]:
    """Return the fields of a split, which are the same for training, validation and test data."""
    from vanilla_transformer.data.config import DataConfig, ParallelData, TextData

    meanings, defaults = _meanings(DataConfig), dict[str, str]()
    for task, config in (("seq2seq", ParallelData), ("all other tasks", TextData)):
        defaults |= {field.name: _default(field) for field in dataclasses.fields(config)}
        for name, meaning in _meanings(config).items():
            before = f"{meanings[name]} " if name in meanings else ""
            meanings[name] = f"{before}For {task}: {meaning}"
    return [(f"data.train.{name}", default, meanings[name]) for name, default in defaults.items()]


def _default(field: dataclasses.Field) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return "{}"
    if field.default is dataclasses.MISSING:
        return "required"
    if field.default is None or isinstance(field.default, bool):  # not by equality: 1 == True
        return "null" if field.default is None else str(field.default).lower()
    return str(field.default)


def _meanings(owner: type) -> dict[str, str]:
    """Return what the docstring of a class says of its attributes."""
    _, _, attributes = re.sub(r"\n(Args|Attributes):\n", "\n\0", inspect.getdoc(owner) or "", count=1).partition("\0")
    attributes = re.split(r"\n(?=\S)", attributes)[0]
    found: dict[str, str] = {}
    for entry in re.split(r"^    (?=\S)", attributes, flags=re.M)[1:]:
        names, _, text = entry.partition(":")
        for name in re.findall(r"\w+", re.sub(r"\(.*?\)", "", names)):
            found[name] = " ".join(text.split())
    return found
