"""Ablations: what each choice of a recipe is worth, as a table of runs on the same data, for as long.

    ablation:
      seeds: [1, 2, 3]                            # optional; else the recipe's own
      cells:                                      # each is the recipe with a few fields changed
        pre-norm: {model.norm_position: pre}
        SwiGLU: {model.hidden_act: silu, model.gated_feed_forward: true, model.intermediate_size: 170}
      grid:                                       # optional: every choice of each axis with every one of the others
        model.norm_position: [post, pre]
        norm: {LayerNorm: {}, RMSNorm: {model.norm_type: rmsnorm}}

The rest of the file is a recipe like any other and the first row of the table, the baseline that all others are compared
with. Every run is one of `run_recipe`, in a folder of its own.
"""

import copy
import itertools
import re
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from vanilla_transformer.errors import RecipeError
from vanilla_transformer.recipes.recipe import Recipe, field_type
from vanilla_transformer.runs.ablation_table import format_changes
from vanilla_transformer.utils.schema import build_section, coerce_fields, override_fields, read_values, set_by_path

BASELINE, TOKENIZER = "baseline", "tokenizer"
LONGEST_NAME = 200
"""In bytes, of a folder; file systems allow 255, and libraries lengthen names while they write."""

VALUES, TABLE, TEXT, PICTURE = "ablation.yaml", "ablation.json", "ablation.md", "ablation.png"

# or cells could not be compared
_SAME_FOR_ALL = (
    "task",
    "seed",
    "max_minutes",
    "data.train",
    "data.validation",
    "data.test",
    "evaluation",
    "training.max_steps",
    "training.num_train_epochs",
)


@dataclass
class AblationSection:
    """What an ablation trains beside the recipe itself.

    Attributes:
        cells: by name, the fields that are changed, such as `model.norm_position: pre`.
        grid: axes, of which every choice is combined with every one of the others. An axis is a field and a list of its
            values, or any name and its choices as in `cells`. A combination that changes nothing is the baseline.
        seeds: of the runs of each cell; None for the recipe's own. With several, the table has means and standard
            deviations.
    """

    cells: dict[str, Any] = field(default_factory=dict)
    grid: dict[str, Any] = field(default_factory=dict)
    seeds: list[Any] | None = None


@dataclass(frozen=True)
class Cell:
    """A row of the table: what it changes in the recipe, and its recipe for each seed."""

    name: str
    changes: dict[str, Any]
    recipes: dict[int, Recipe]

    @classmethod
    def of(cls, plain: dict[str, Any], name: str, changes: dict[str, Any], seeds: list[int]) -> "Cell":
        """Return a cell by what it changes in the plain values of a recipe."""
        return cls(name, changes, {seed: _recipe(plain, name, changes, seed) for seed in seeds})

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Return what makes its first run, in whatever way it is written down."""
        recipe = next(iter(self.recipes.values()))
        config = recipe.config()
        model = config.to_dict() | {"attn_implementation": config._attn_implementation}
        values = recipe.to_dict() | {"model": model, "output_dir": None, "card": None}
        if values["tokenizer"]["path"] == str(Path(recipe.output_dir).parent / TOKENIZER):  # the one that all share
            values["tokenizer"]["path"] = None
        return values

    @property
    def has_own_tokens(self) -> bool:
        """Return whether it turns text into other tokens than the baseline does."""
        return any(name.startswith("tokenizer.") or name == "start_from" for name in self.changes)


@dataclass(frozen=True)
class Ablation:
    """A table of runs.

    Attributes:
        recipe: without the ablation section.
        cells: the baseline, then the others in their order.
        seeds: of the runs of each cell.
        values: plain, of the whole file.
    """

    recipe: Recipe
    cells: list[Cell]
    seeds: list[int]
    values: dict[str, Any]

    @property
    def folder(self) -> Path:
        return Path(self.recipe.output_dir)

    @classmethod
    def load(cls, path: str | Path, overrides: Iterable[str] = ()) -> "Ablation":
        """Read a recipe with an ablation section and apply `name=value` overrides.

        Raises:
            RecipeError: for what [`Recipe.load`] refuses, in the recipe or in a cell, which is named; for a cell that is
                the baseline or another cell over again; for a cell that changes what all must have in common.
        """
        values = override_fields(read_values(path), overrides)
        if "ablation" not in values:
            raise RecipeError(
                f"{path} has no ablation section; add one with the cells of the table, or train the recipe with "
                f"vanilla-transformer train {path}"
            )
        return cls.from_dict(values)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Ablation":
        """Build and check an ablation.

        Raises:
            RecipeError: as for [`Ablation.load`].
        """
        values = coerce_fields(values, _field_type)
        plain = {name: value for name, value in values.items() if name != "ablation"}
        section: AblationSection = build_section(AblationSection, values.get("ablation") or {}, "ablation.")
        recipe = Recipe.from_dict(plain)
        if recipe.training.get("push_to_hub"):
            raise RecipeError("training.push_to_hub would push every cell of an ablation to one place; leave it out.")
        seeds = [recipe.seed] if section.seeds is None else section.seeds
        if not seeds or any(type(seed) is not int for seed in seeds) or len(set(seeds)) < len(seeds):
            raise RecipeError(
                f"ablation.seeds={seeds!r} must be a list of different whole numbers, such as [1, 2, 3]."
            )
        # the baseline and the named cells, then those of the grid that change something
        named = {BASELINE: {}, **{_name(name): _changes(name, changes) for name, changes in section.cells.items()}}
        cells = [Cell.of(plain, name, changes, seeds) for name, changes in named.items()]
        combined = (Cell.of(plain, name, changes, seeds) for name, changes in _combinations(section.grid))
        cells += [cell for cell in combined if cell.identity != cells[0].identity]
        if len(cells) == 1:
            raise RecipeError("the ablation has no cell beside the baseline; name one in ablation.cells.")
        _check_distinct(cells)
        _check_folders(cells)
        return cls(recipe, cells, seeds, copy.deepcopy(dict(values)))

    def runs(self) -> Iterator[tuple[Cell, int]]:
        """Return every run: the whole table with the first seed, then with the next."""
        return ((cell, seed) for seed in self.seeds for cell in self.cells)


def _field_type(path: tuple[str, ...]) -> Any:
    """Return the type of a field of a recipe with an ablation section; see `field_type`."""
    if path[0] != "ablation":
        return field_type(path)
    if path[1:] == ("seeds",):
        return list[int]
    if path[1:2] == ("grid",) and len(path) == 3:
        hint = field_type(tuple(path[2].split(".")))
        return None if hint is None else types.GenericAlias(list, (hint,))
    inner = path[3:] if path[1:2] == ("cells",) else path[4:]
    return field_type((*inner[0].split("."), *inner[1:])) if inner else None


def _name(name: Any) -> str:
    """Return the name of a cell, which is that of its folder, too; refuse what cannot be one."""
    taken = {BASELINE, TOKENIZER, VALUES, TABLE, TEXT, PICTURE}
    if not isinstance(name, str):
        raise RecipeError(f"ablation cell {name!r}: a name must be text; put it in quotation marks.")
    if name.casefold() in taken or not re.fullmatch(r"\w[\w .,+=()-]*", name):
        raise RecipeError(
            f"ablation cell {name!r}: the name is that of a folder, made of letters, digits and any of ' .,+=()-', and "
            f"none of {', '.join(sorted(taken))}; choose another."
        )
    return name


def _changes(name: str, given: Any) -> dict[str, Any]:
    """Return the changed fields of a cell by their names with dots; those of a whole section may stand in a mapping."""
    if not isinstance(given, Mapping):
        raise RecipeError(
            f"ablation cell {name!r} must be a mapping of fields to values, such as {{model.norm_position: pre}}, not "
            f"{given!r}."
        )
    sections = {f.name for f in fields(Recipe)}
    changes: dict[str, Any] = {}
    for key, value in given.items():
        inner = isinstance(value, Mapping) and key in sections
        changes |= {f"{key}.{k}": v for k, v in value.items()} if inner else {str(key): value}
    for key in changes:
        if key.partition(".")[0] in ("output_dir", "card"):
            raise RecipeError(f"ablation cell {name!r}: {key} is set by the ablation; leave it out.")
        if any(f"{key}.".startswith(f"{same}.") for same in _SAME_FOR_ALL):
            remedy = "give ablation.seeds" if key == "seed" else "set it in the recipe"
            raise RecipeError(
                f"ablation cell {name!r}: {key} must be the same in all cells, or they could not be compared; {remedy}."
            )
    return changes


def _combinations(grid: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the names and changes of the cells of a grid."""
    axes = []
    for axis, choices in grid.items():
        if isinstance(choices, list):
            short = str(axis).rpartition(".")[2]
            # what cannot stand in the name of a folder, as in `noam * 2.0`, is left out of it
            named: dict[str, Any] = {}
            for choice in choices:
                name = re.sub(r"[^\w.,+=()-]+", "-", f"{short}={choice}")
                if named.setdefault(name, {axis: choice})[axis] != choice:
                    raise RecipeError(
                        f"ablation.grid.{axis}: {named[name][axis]!r} and {choice!r} would both be named {name!r}; give the "
                        "axis a mapping of names to changes."
                    )
            choices = named
        if not isinstance(choices, Mapping) or not choices:
            raise RecipeError(
                f"ablation.grid.{axis} must be a list of the values of a field, or a mapping of names to changes, not "
                f"{choices!r}."
            )
        axes.append([(_name(name), _changes(name, changes)) for name, changes in choices.items()])
    for chosen in itertools.product(*axes):
        changes: dict[str, Any] = {}
        for _, more in chosen:
            if clash := changes.keys() & more.keys():
                raise RecipeError(f"ablation.grid: {clash.pop()} is changed by two axes; change it in one.")
            changes |= more
        if changes:
            yield " + ".join(name for name, _ in chosen), changes


def _recipe(plain: dict[str, Any], name: str, changes: dict[str, Any], seed: int) -> Recipe:
    """Return the recipe of one run; its tokenizer is the one that all share, unless the recipe or the cell says otherwise."""
    values = copy.deepcopy(plain)
    first = values.get("seed", Recipe.seed)
    try:
        for key, value in changes.items():
            set_by_path(values, key, copy.deepcopy(value))
        folder = Path(values["output_dir"])
        # without a number for the recipe's own seed, so that others can be added to a table that is there
        values["output_dir"] = str(folder / (name if seed == first else f"{name}-seed-{seed}"))
        values["seed"] = seed
        set_by_path(values, "card.title", f"{values.get('card', {}).get('title') or folder.name}: {name}")
        own = any(key.startswith("tokenizer") for key in changes) or values.get("start_from") is not None
        if not own and (values.get("tokenizer") or {}).get("path") is None:
            set_by_path(values, "tokenizer.path", str(folder / TOKENIZER))
        return Recipe.from_dict(values)
    except RecipeError as error:
        raise RecipeError(f"ablation cell {name!r}: {error}") from error


def _check_distinct(cells: list[Cell]) -> None:
    """Refuse a cell that is the baseline, or another cell, in other words."""
    for number, cell in enumerate(cells):
        other = next((earlier.name for earlier in cells[:number] if earlier.identity == cell.identity), None)
        if other == BASELINE:
            raise RecipeError(
                f"ablation cell {cell.name!r} is the baseline over again: {format_changes(cell.changes)} is what the recipe "
                "has; leave it out."
            )
        if other is not None:
            raise RecipeError(f"ablation cells {other!r} and {cell.name!r} are the same model and run; leave one out.")


def _check_folders(cells: list[Cell]) -> None:
    """Refuse names of cells that no file system takes, or that are one name on some."""
    folders = [Path(recipe.output_dir).name.casefold() for cell in cells for recipe in cell.recipes.values()]
    for number, name in enumerate(folders):
        if len(name.encode()) > LONGEST_NAME:
            raise RecipeError(
                f"ablation cell {name[:40]!r}...: the name of its folder has {len(name.encode())} bytes and {LONGEST_NAME} "
                "are possible; name it, or the choices of the grid, shorter."
            )
        if name in folders[:number]:
            raise RecipeError(f"two runs of the ablation would have one folder, {name!r}; name the cells otherwise.")
