"""Which weight of one model is which of another: tables that are read in both directions.

A table is a tuple of [`Link`]s between modules, whose weights and biases go along. Names hold `{n}` where layers are
counted. Nothing is dropped or filled in here: names that no link knows are handed back to the caller.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

__all__ = ["LAYER", "ConversionError", "Link", "rename_to_ours", "rename_to_theirs"]

LAYER = "{n}"


class ConversionError(ValueError):
    """A model that cannot be converted, and what stands in the way; nothing has been written."""


@dataclass(frozen=True)
class Link:
    """One module there is one module, or several, here.

    Args:
        ours: name of the module, or of those whose rows are stacked there, such as queries, keys and values.
        theirs: its name there.
        transposed: matrices are (inputs, outputs) there (GPT-2).
        whole: the names are those of tensors, not of modules, and the tensor is a row (1, V) there (Marian, BART).
    """

    ours: str | tuple[str, ...]
    theirs: str
    transposed: bool = False
    whole: bool = False

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.ours,) if isinstance(self.ours, str) else self.ours

    @cached_property
    def _their_pattern(self) -> re.Pattern[str]:
        return _pattern(self.theirs, self.whole)

    @cached_property
    def _our_patterns(self) -> list[re.Pattern[str]]:
        return [_pattern(part, self.whole) for part in self.parts]

    def match_theirs(self, name: str) -> list[str] | None:
        """Our names for a tensor of theirs."""
        found = self._their_pattern.fullmatch(name)
        return None if found is None else [_fill(part, found) for part in self.parts]

    def match_ours(self, name: str) -> tuple[str, list[str]] | None:
        """For a tensor of ours, its name there and all our tensors that make it up."""
        for pattern in self._our_patterns:
            if found := pattern.fullmatch(name):
                return _fill(self.theirs, found), [_fill(part, found) for part in self.parts]
        return None

    def split(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Their tensor as ours."""
        if self.whole:
            return [tensor.squeeze(0)]
        tensor = tensor.t() if self.transposed and tensor.dim() == 2 else tensor
        return [part.contiguous() for part in tensor.chunk(len(self.parts))]

    def join(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        """Our tensors as theirs."""
        if self.whole:
            return tensors[0].unsqueeze(0)
        tensor = torch.cat(tensors) if len(tensors) > 1 else tensors[0]
        return tensor.t().contiguous() if self.transposed and tensor.dim() == 2 else tensor


def _pattern(name: str, whole: bool) -> re.Pattern[str]:
    layers = re.escape(name).replace(re.escape(LAYER), r"(?P<n>\d+)")
    return re.compile(layers if whole else rf"{layers}(?P<suffix>\.weight|\.bias)")


def _fill(name: str, found: re.Match[str]) -> str:
    groups = found.groupdict()
    return name.replace(LAYER, groups.get("n") or "") + groups.get("suffix", "")


def rename_to_ours(
    links: Iterable[Link], theirs: Mapping[str, torch.Tensor]
) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Their tensors under our names, and the names that no link knows."""
    ours: dict[str, torch.Tensor] = {}
    unknown = []
    for name, tensor in theirs.items():
        for link in links:
            if (parts := link.match_theirs(name)) is not None:
                ours.update(zip(parts, link.split(tensor), strict=True))
                break
        else:
            unknown.append(name)
    return ours, unknown


def rename_to_theirs(
    links: Iterable[Link], ours: Mapping[str, torch.Tensor], known: Collection[str]
) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Our tensors under their names, and the names that no link knows, or of which a part is not there.

    Args:
        known: their names. Where a tensor of ours has several names in the table, it gets the one that is known.
    """
    theirs: dict[str, torch.Tensor] = {}
    unknown = []
    for name in ours:
        for link in links:
            found = link.match_ours(name)
            if found is not None and found[0] in known and all(part in ours for part in found[1]):
                if found[0] not in theirs:
                    theirs[found[0]] = link.join([ours[part] for part in found[1]])
                break
        else:
            unknown.append(name)
    return theirs, unknown
