# Copyright 2026 The vanilla_transformer authors. Licensed under the Apache License, Version 2.0.
"""Several sequences in one row: packed ones, and those of a padded batch without their padding.

A checkpoint carries this file to the Hub beside the modeling file, so it imports only transformers and torch.

Shapes: (B, T) a batch, N all its tokens in one long row, S the tokens of a source, D hidden_size.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers.masking_utils import find_packed_sequence_indices
from transformers.utils.import_utils import is_tracing


def packed_sequences(position_ids: torch.Tensor | None, mask: Any, batch_size: int) -> torch.Tensor | None:
    """Which of several sequences in a row each token belongs to: (B, T); `None` where every row is one sequence.

    As everywhere in transformers, sequences are packed where there is no mask and `position_ids` start anew.
    """
    if position_ids is None or mask is not None:
        return None
    return find_packed_sequence_indices(position_ids.expand(batch_size, -1))


def sequence_starts(position_ids: torch.Tensor | None, mask: Any, batch_size: int) -> torch.Tensor | None:
    """Return where each of several sequences in a row begins, and the one of a padded row: (B, T); `None` for no sign of it.

    Without a mask, and beside a 4D one, which may be of blocks, positions start again; a mask (B, T) is followed itself.
    """
    if isinstance(mask, torch.Tensor) and mask.dim() == 2:
        return (mask != 0) & (mask.long().cumsum(-1) == 1)
    if position_ids is None:
        return None
    if mask is not None:
        return position_ids.expand(batch_size, -1) == 0
    packed = find_packed_sequence_indices(position_ids.expand(batch_size, -1))
    # none in a traced graph, and where every row is one sequence
    return None if packed is None else nn.functional.pad(packed.diff(dim=-1) != 0, (1, 0), value=True)


def check_rows(targets: torch.Tensor, sources: torch.Tensor) -> None:
    """Refuse sources (B or 1, S, ...) that are not one for each row of targets (B, T, ...), or one for all.

    Raises:
        ValueError: naming both numbers.
    """
    if len(sources) not in (1, len(targets)):
        raise ValueError(f"{len(sources)} sources do not fit {len(targets)} rows of targets.")


def check_pairs(targets: torch.Tensor | None, sources: torch.Tensor | None) -> None:
    """Refuse rows whose targets are not as many as their sources.

    Args:
        targets, sources: (B, T) and (B, S), as from [`packed_sequences`].

    Raises:
        ValueError: where one side alone is packed, or a row has more sequences on one side than on the other.
    """
    if (targets is None) != (sources is None):
        raise ValueError("where rows hold several pairs, position_ids and decoder_position_ids both start anew.")
    if targets is None or sources is None or is_tracing(targets):
        return
    of_targets, of_sources = targets[:, -1] + 1, sources[:, -1] + 1
    if not torch.equal(of_targets, of_sources):
        raise ValueError(
            f"rows of {of_sources.tolist()} sources cannot hold {of_targets.tolist()} targets: position_ids and "
            "decoder_position_ids start anew for each pair."
        )


def has_gaps(mask: Any) -> bool:
    """Whether a row of a mask (B, T) has tokens on both sides of what it leaves out."""
    if not isinstance(mask, torch.Tensor) or mask.dim() != 2:
        return False
    steps = nn.functional.pad(mask.bool(), (1, 1)).int().diff(dim=1)
    return bool(((steps == 1).sum(1) > 1).any())


def same_sequence(of_queries: torch.Tensor, of_keys: torch.Tensor) -> Callable:
    """For transformers' mask functions: a token attends to its own sequence alone."""
    return lambda batch, head, query, key: of_queries[batch, query] == of_keys[batch, key]


class PaddingFreeBatch:
    """The tokens of a batch as one long row, sequence after sequence without padding, and the way back.

    Padding costs a layer as much as tokens do. Where attention can be told which tokens belong together, the layers get
    the tokens alone.

    Args:
        shape: B and T of the batch.
        lengths: number of tokens of each sequence, in the order of the long row.
        index: (N,), where each token of the long row stands among the B x T; `None` where nothing is left out.
    """

    def __init__(self, shape: torch.Size, lengths: list[int], index: torch.Tensor | None):
        self.shape = shape
        self.lengths = lengths
        self.index = index

    @classmethod
    def from_mask(cls, mask: torch.Tensor, order: list[int]) -> "PaddingFreeBatch":
        """Of rows with padding anywhere: `mask` (B, T), true for tokens. `order`: which rows, one after another."""
        rows = torch.tensor(order, device=mask.device)
        place, column = mask[rows].nonzero().unbind(-1)
        return cls(mask.shape, mask[rows].sum(1).tolist(), rows[place] * mask.shape[1] + column)

    @classmethod
    def from_packed(cls, packed: torch.Tensor) -> "PaddingFreeBatch":
        """Of rows that hold several sequences each: `packed` (B, T) as from `packed_sequences`."""
        starts = nn.functional.pad(packed.diff(dim=-1) != 0, (1, 0), value=True).flatten().nonzero().squeeze(-1)
        lengths = starts.diff(append=starts.new_tensor([packed.numel()])).tolist()
        return cls(packed.shape, lengths, None)

    def unpad(self, rows: torch.Tensor | None) -> torch.Tensor | None:
        """(B or 1, T, ...) to (1, N, ...)."""
        if rows is None:
            return None
        flat = rows.expand(self.shape[0], *rows.shape[1:]).flatten(0, 1)
        return (flat if self.index is None else flat.index_select(0, self.index)).unsqueeze(0)

    def pad(self, states: torch.Tensor) -> torch.Tensor:
        """(1, N, D) to (B, T, D), zero where there is no token."""
        if self.index is None:
            return states.unflatten(1, self.shape).squeeze(0)
        empty = states.new_zeros(self.shape.numel(), states.shape[-1])
        return empty.index_copy(0, self.index, states.squeeze(0)).unflatten(0, self.shape)


def unpad_batches(*batches: tuple[torch.Tensor, Any]) -> list[PaddingFreeBatch]:
    """Sequences, or targets and the sources that they attend to, as long rows of the same order.

    Args:
        batches: inputs (B, T, ...) and their mask (B, T), or `None` for a mask without padding.

    Returns:
        One for each batch, without rows of padding alone. None at all where nothing can be left out: without padding,
        where a mask says more than that, or where a target has no source.
    """
    given = [mask for _, mask in batches if mask is not None]
    if any(not isinstance(mask, torch.Tensor) or mask.dim() != 2 for mask in given):
        return []
    if not any(not mask.all() and mask.any() for mask in given):
        return []
    masks = [inputs.new_ones(inputs.shape[:2]).bool() if mask is None else mask.bool() for inputs, mask in batches]
    lengths = list(zip(*(mask.sum(1).tolist() for mask in masks), strict=True))
    # neighbours of like lengths, which attention can take at once
    order = sorted((row for row in range(len(lengths)) if lengths[row][0]), key=lengths.__getitem__)
    if not order or not all(all(lengths[row]) for row in order):
        return []
    return [PaddingFreeBatch.from_mask(mask, order) for mask in masks]


class Block(NamedTuple):
    """Neighbours in a long row that are attended to as one dense batch.

    Attributes:
        sequences: their number.
        queries, keys: length of each, in tokens.
        key_index: (sequences * keys,), where the keys stand in the long row; `None` where they stand in order.
        mask: (sequences, 1, 1, keys), added to the scores of shorter ones.
    """

    sequences: int
    queries: int
    keys: int
    key_index: torch.Tensor | None = None
    mask: torch.Tensor | None = None


@dataclass
class SequenceLengths:
    """Which keys the queries of a long row attend to: those of the i-th sequence to those of the i-th sequence.

    Attributes:
        queries, keys: number of tokens of each sequence.
    """

    queries: list[int]
    keys: list[int]
    _bounds: list[torch.Tensor] | None = field(default=None, init=False, repr=False)

    @cached_property
    def blocks(self) -> list[Block]:
        """Neighbours of equal lengths. Where hardly any are equal in both, those whose queries are."""
        pairs = list(zip(self.queries, self.keys, strict=True))
        equal = [(len(list(group)), *pair) for pair, group in groupby(pairs)]
        if len(equal) <= 2 * len(list(groupby(self.queries))):
            return [Block(*block) for block in equal]
        # a call for each costs more than some masked keys
        blocks, start = [], 0
        for queries, group in groupby(pairs, key=lambda pair: pair[0]):
            lengths = torch.tensor([keys for _, keys in group])  # (n,)
            places = torch.arange(int(lengths.max()))
            first = start + lengths.cumsum(0) - lengths
            index = torch.minimum(first.unsqueeze(1) + places, (first + lengths - 1).unsqueeze(1)).flatten()
            beyond = places >= lengths.unsqueeze(1)
            mask = torch.zeros(beyond.shape).masked_fill(beyond, -torch.inf)[:, None, None]  # (n, 1, 1, keys)
            blocks.append(Block(len(lengths), queries, len(places), index, mask))
            start += int(lengths.sum())
        return blocks

    def for_flash_attention(self, device: torch.device) -> dict[str, Any]:
        """The arguments by which transformers runs the variable-length kernels of flash attention; once for all layers."""
        if self._bounds is None:
            cumulated = (torch.tensor([0, *lengths]).cumsum(0).int() for lengths in (self.queries, self.keys))
            self._bounds = [bounds.to(device) for bounds in cumulated]
        return {
            "cu_seq_lens_q": self._bounds[0],
            "cu_seq_lens_k": self._bounds[1],
            "max_length_q": max(self.queries),
            "max_length_k": max(self.keys),
        }
