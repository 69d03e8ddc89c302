"""Refuse mistyped fields of a recipe at once, before the seconds that importing torch and transformers takes.

Names are read from the source of the classes that have the fields, so this knows no list of its own. It refuses only what is
close to the name of a field; everything else is left to [`Recipe.check`], which knows all the rules.
"""

import ast
import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vanilla_transformer.errors import RecipeError
from vanilla_transformer.utils.names import nearest_name

__all__ = ["known_fields", "refuse_mistyped"]

CLOSE = 0.75
"""How alike two names are, 0 to 1, for the one to be taken for a slip of the other."""

_PACKAGE = Path(__file__).parents[1]


def refuse_mistyped(values: Mapping[str, Any]) -> None:
    """Refuse a recipe in which the name of a field is nearly that of another.

    Args:
        values: plain values of a recipe, checked in no other way.

    Raises:
        RecipeError: naming both.
    """
    _refuse(values, "", known_fields(""))
    for section, fields in values.items():
        if isinstance(fields, Mapping) and section != "ablation":
            _refuse(fields, f"{section}.", known_fields(str(section)))
    data = values.get("data")
    if isinstance(data, Mapping):
        tests = data.get("test")
        splits = {f"data.{name}.": data.get(name) for name in ("train", "validation")}
        splits |= {f"data.test.{name}.": split for name, split in tests.items()} if isinstance(tests, Mapping) else {}
        for prefix, split in splits.items():
            if isinstance(split, Mapping):
                _refuse(split, prefix, known_fields("data.train"))


def _refuse(values: Mapping[str, Any], prefix: str, known: Iterable[str]) -> None:
    for name in values:
        if isinstance(name, str) and name not in known and (near := nearest_name(name, known, least=CLOSE)):
            raise RecipeError(f"unknown field {prefix}{name}; did you mean {near!r}?")


@cache
def known_fields(section: str) -> frozenset[str]:
    """Return the names of the fields of a section, `""` for the recipe itself; none for a section that is not known."""
    library = find_spec("transformers")
    transformers = Path(library.origin).parent if library is not None and library.origin else _PACKAGE
    recipe = _class_fields(_PACKAGE / "recipes" / "recipe.py", "Recipe")
    if section == "":
        return frozenset(recipe) | {"ablation"}
    if section == "model":
        source = _PACKAGE / "configuration_vanilla_transformer.py"
        aliases = re.search(r"^    attribute_map\b[^=]*= (\{.*?\})", source.read_text(encoding="utf-8"), re.M | re.S)
        inherited = _class_fields(transformers / "configuration_utils.py", "PreTrainedConfig")
        return frozenset(
            {*_class_fields(source, "VanillaTransformerConfig"), *inherited, "preset"}
            | set(ast.literal_eval(aliases[1]) if aliases else ())
        )
    if section == "training":
        own = _class_fields(transformers / "training_args_seq2seq.py", "Seq2SeqTrainingArguments")
        return frozenset(own) | set(_class_fields(transformers / "training_args.py", "TrainingArguments"))
    if section == "generation":
        source = transformers / "generation" / "configuration_utils.py"
        popped = set(re.findall(r"kwargs\.pop\(\s*\"(\w+)\"", source.read_text(encoding="utf-8")))
        return frozenset(popped | {"max_length_over_source", "length_penalty_form"})
    if section == "data.train":
        source = _PACKAGE / "data" / "config.py"
        return frozenset(
            name for kind in ("DataConfig", "ParallelData", "TextData") for name in _class_fields(source, kind)
        )
    kind = recipe.get(section, "").partition(" ")[0]
    rooms = ("recipes", "tasks", "trainer", "runs") if kind.endswith("Section") else ()
    modules = [module for room in rooms for module in sorted((_PACKAGE / room).glob("*.py"))]
    return frozenset(name for module in modules for name in _class_fields(module, kind))


@cache
def _class_fields(path: Path, name: str) -> dict[str, str]:
    """Return the annotated attributes of a class by their names, with the annotation, without importing its module."""
    found = re.search(rf"^class {name}\b.*?(?=^\S|\Z)", path.read_text(encoding="utf-8"), re.M | re.S)
    if found is None:
        return {}
    # fields come before methods, and class bodies of thousands of lines take long to parse
    body = ast.parse(re.split(r"^    (?=def |@)", found[0], maxsplit=1, flags=re.M)[0]).body[0]
    assert isinstance(body, ast.ClassDef)
    return {
        line.target.id: ast.unparse(line.annotation)
        for line in body.body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
        if not ast.unparse(line.annotation).startswith("ClassVar")
    }
