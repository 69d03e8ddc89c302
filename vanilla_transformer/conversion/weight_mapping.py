"""Which weight of a source model is which of the target: tables that are read in both directions.

The source is a model of another package, the target one of this. A table is a tuple of [`WeightMapping`]s between modules, whose
weights and biases go along. Names hold `{n}` where layers are counted. Nothing is dropped or filled in here: names that no mapping
knows are handed back to the caller.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

__all__ = ["LAYER", "ConversionError", "WeightMapping", "Weights", "check_placement", "list_names"]
__all__ += ["map_modules", "map_to_source", "map_to_target"]

LAYER = "{n}"

MOST_NAMES = 20
"""Names of weights that a sentence has."""

Weights = dict[str, torch.Tensor]


class ConversionError(ValueError):
    """A model that cannot be converted, and what stands in the way; nothing has been written."""


@dataclass(frozen=True)
class WeightMapping:
    """Map one module of the source to one module, or several, of the target.

    Args:
        source: name of the module.
        target: its name here, or the names of those whose rows are stacked there, such as queries, keys and values.
        transposed: matrices of the source are (inputs, outputs) (GPT-2).
        is_row: the names are those of tensors, not of modules, and the source's is a row (1, V) (Marian, BART).
    """

    source: str
    target: str | tuple[str, ...]
    transposed: bool = False
    is_row: bool = False

    @property
    def targets(self) -> tuple[str, ...]:
        return (self.target,) if isinstance(self.target, str) else self.target

    @cached_property
    def _source_pattern(self) -> re.Pattern[str]:
        return self._pattern(self.source)

    @cached_property
    def _target_patterns(self) -> list[re.Pattern[str]]:
        return [self._pattern(target) for target in self.targets]

    def _pattern(self, name: str) -> re.Pattern[str]:
        layers = re.escape(name).replace(re.escape(LAYER), r"(?P<n>\d+)")
        return re.compile(layers if self.is_row else rf"{layers}(?P<suffix>\.weight|\.bias)")

    def match_source(self, name: str) -> list[str] | None:
        """Return the target's names for a tensor of the source, or None for another one."""
        found = self._source_pattern.fullmatch(name)
        return None if found is None else [_fill(target, found) for target in self.targets]

    def match_target(self, name: str) -> tuple[str, list[str]] | None:
        """Return the source's name for a tensor of the target, and all tensors of the target that make it up."""
        for pattern in self._target_patterns:
            if found := pattern.fullmatch(name):
                return _fill(self.source, found), [_fill(target, found) for target in self.targets]
        return None

    def split(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return the target's tensors for one of the source."""
        if self.is_row:
            return [tensor.squeeze(0)]
        tensor = tensor.t() if self.transposed and tensor.dim() == 2 else tensor
        return [part.contiguous() for part in tensor.chunk(len(self.targets))]

    def join(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        """Return the source's tensor for those of the target."""
        if self.is_row:
            return tensors[0].unsqueeze(0)
        tensor = torch.cat(tensors) if len(tensors) > 1 else tensors[0]
        return tensor.t().contiguous() if self.transposed and tensor.dim() == 2 else tensor


def map_modules(
    source: str, target: str, names: Mapping[str, str], *, transposed: bool = False
) -> tuple[WeightMapping, ...]:
    """Return a mapping for each module below a name of the source, to one below a name of the target.

    Args:
        source, target: what the names begin with, before a dot.
        names: of modules of the source, and what they are called in the target.
    """
    return tuple(
        WeightMapping(f"{source}.{there}", f"{target}.{here}", transposed=transposed) for there, here in names.items()
    )


def _fill(name: str, found: re.Match[str]) -> str:
    groups = found.groupdict()
    return name.replace(LAYER, groups.get("n") or "") + groups.get("suffix", "")


def map_to_target(mappings: Iterable[WeightMapping], weights: Mapping[str, torch.Tensor]) -> tuple[Weights, list[str]]:
    """Return weights of the source under the target's names, and the names that no mapping knows."""
    mapped: Weights = {}
    unknown = []
    for name, tensor in weights.items():
        for mapping in mappings:
            if (targets := mapping.match_source(name)) is not None:
                mapped.update(zip(targets, mapping.split(tensor), strict=True))
                break
        else:
            unknown.append(name)
    return mapped, unknown


def map_to_source(
    mappings: Iterable[WeightMapping], weights: Mapping[str, torch.Tensor], known: Collection[str]
) -> tuple[Weights, list[str]]:
    """Return weights of the target under the source's names, and the names that no mapping knows, or of which a part lacks.

    Args:
        known: names of the source. Where a tensor has several names in the table, it gets the one that is known.
    """
    mapped: Weights = {}
    unknown = []
    for name in weights:
        for mapping in mappings:
            found = mapping.match_target(name)
            if found is not None and found[0] in known and all(part in weights for part in found[1]):
                if found[0] not in mapped:
                    mapped[found[0]] = mapping.join([weights[part] for part in found[1]])
                break
        else:
            unknown.append(name)
    return mapped, unknown


def check_placement(
    what: str, unplaced: Collection[str], lacking: Collection[str], wrong: Collection[str] = ()
) -> None:
    """Refuse a conversion that would lose or make up a weight.

    Args:
        what: is converted, as the sentence begins.
        unplaced: weights that have no place in the other model.
        lacking: places there that have no weight.
        wrong: weights of another shape than their place.

    Raises:
        ConversionError: where there are any of these.
    """
    kinds = {"there is no place for": unplaced, "there is no weight for": lacking, "the size does not fit of": wrong}
    if reasons := [f"{kind} {list_names(names)}" for kind, names in kinds.items() if names]:
        raise ConversionError(f"{what}: {'; '.join(reasons)}.")


def list_names(names: Collection[str]) -> str:
    """Return names for a sentence, and of many the first ones and how many more there are."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(list(names)[:MOST_NAMES]) + more
