# Copyright 2026 The vanilla_transformer authors. Licensed under the Apache License, Version 2.0.
"""The sequences of a batch: positions and masks, several of them packed in a row, and all of them without their padding.

Shapes as in the modeling file: B batch, T target or only sequence, S source, D hidden_size; N all tokens of a batch in one
row, without padding.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers.masking_utils import find_packed_sequence_indices
from transformers.utils.generic import is_flash_attention_requested
from transformers.utils.import_utils import is_tracing

# ------------------------------------------------------------------------------------------------- inputs and masks


def can_inspect_values(ids: torch.Tensor) -> bool:
    """Whether ids can be checked: reading a value off an accelerator would stall it, and a traced tensor has none."""
    return ids.device.type == "cpu" and ids.numel() > 0 and not is_tracing(ids)


def exactly_one(input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None, prefix: str = "") -> torch.Tensor:
    """Return the one of the two that is given.

    Raises:
        ValueError: for none, for both, and for one of other axes or without a token.
    """
    if (input_ids is None) == (inputs_embeds is None):
        sentence = f"give exactly one of {prefix}input_ids and {prefix}inputs_embeds"
        if prefix and input_ids is None:
            sentence += (
                ", or labels; where a Trainer with label_smoothing_factor has taken the labels out of the batch, give its "
                "collator the model, as in DataCollatorForSeq2Seq(tokenizer, model=model), or set label_smoothing in the "
                "config instead"
            )
        raise ValueError(f"{sentence}.")
    name, inputs, axes = "input_ids", input_ids, "(batch, tokens)"
    if inputs_embeds is not None:
        name, inputs, axes = "inputs_embeds", inputs_embeds, "(batch, tokens, width)"
    if inputs.dim() != axes.count(",") + 1:
        raise ValueError(f"{prefix}{name} of shape {tuple(inputs.shape)} must be {axes}.")
    if inputs.numel() == 0 and not is_tracing(inputs):  # attention backends differ in what they make of nothing
        raise ValueError(f"{prefix}{name} of shape {tuple(inputs.shape)} hold no token.")
    return inputs


def check_ids(ids: torch.Tensor, size: int, sentence: str) -> None:
    """Refuse ids that are no rows of a table of `size`, with a sentence that has places for the id and the size."""
    if ids.is_floating_point():
        raise ValueError(f"token ids are integers, not {ids.dtype}; give embeddings as inputs_embeds.")
    if can_inspect_values(ids):
        lowest, highest = ids.aminmax()
        if lowest < 0 or highest >= size:
            raise ValueError(sentence.format(int(lowest if lowest < 0 else highest), size))


def is_padding_mask(mask: Any) -> bool:
    """Whether a mask is (B, T), 1 for tokens and 0 for padding, and not a ready one of attention or none at all."""
    return isinstance(mask, torch.Tensor) and mask.dim() == 2


def check_mask(name: str, mask: Any, queries: int, keys: int, tokens: int | None) -> None:
    """Refuse a mask that does not fit, which could else be broadcast or filled up in silence.

    Args:
        name: of the argument, for the error.
        mask: (B, tokens), or (B, 1 or H, queries, keys); anything but a tensor is transformers' own.
        queries: number of positions that attend.
        keys: number of keys that attention will see; a static cache holds room for later ones.
        tokens: number of tokens so far; `None` where that is not known without waiting for an accelerator.
    """
    if not isinstance(mask, torch.Tensor):
        return
    fits = mask.dim() == 2 and tokens in (None, mask.shape[1])
    if not fits and not (mask.dim() == 4 and mask.shape[2:] == (queries, keys)):
        raise ValueError(
            f"{name} of shape {tuple(mask.shape)} does not fit: {queries} positions that attend to {keys} need "
            f"(batch, {'tokens' if tokens is None else tokens}) or (batch, 1, {queries}, {keys})."
        )


def positions_from_mask(attention_mask: torch.Tensor | None, places: torch.Tensor) -> torch.Tensor:
    """Return the position of every token in its own sequence, (B, T) or (1, T): padding on either side does not count.

    Args:
        attention_mask: (B, past + T), 1 for tokens; or `None`, or a ready 4D mask, where rows are taken as unpadded.
        places: (T,), of the tokens in a row, those that are cached before them.
    """
    if is_padding_mask(attention_mask):
        return (attention_mask.long().cumsum(-1) - 1).clamp(min=0).index_select(1, places)
    return places.unsqueeze(0)


# ----------------------------------------------------------------------------------- several sequences packed in a row


def packed_sequences(position_ids: torch.Tensor | None, mask: Any, batch_size: int) -> torch.Tensor | None:
    """Return which of several sequences in a row each token belongs to: (B, T); `None` where every row is one sequence.

    As everywhere in transformers, sequences are packed where there is no mask and `position_ids` start again.
    """
    if position_ids is None or mask is not None:
        return None
    return find_packed_sequence_indices(position_ids.expand(batch_size, -1))


def sequence_starts(position_ids: torch.Tensor | None, mask: Any, batch_size: int) -> torch.Tensor | None:
    """Return where each of several sequences in a row begins, and the one of a padded row: (B, T); `None` for no sign of it.

    Without a mask, and beside a 4D one, which may be of blocks, positions start again; a mask (B, T) is followed itself.
    """
    if is_padding_mask(mask):
        return (mask != 0) & (mask.long().cumsum(-1) == 1)
    if position_ids is None:
        return None
    if mask is not None:
        return position_ids.expand(batch_size, -1) == 0
    packed = packed_sequences(position_ids, mask, batch_size)
    # none in a traced graph, and where every row is one sequence
    return None if packed is None else nn.functional.pad(packed.diff(dim=-1) != 0, (1, 0), value=True)


def same_sequence(of_queries: torch.Tensor | None, of_keys: torch.Tensor | None) -> Callable | None:
    """Return for transformers' masks that a token attends to its own of [`packed_sequences`] alone; `None` for no such."""
    if of_queries is None or of_keys is None:
        return None
    return lambda batch, head, query, key: of_queries[batch, query] == of_keys[batch, key]


def check_pairs(targets: torch.Tensor | None, sources: torch.Tensor | None) -> None:
    """Refuse rows whose targets (B, T) are not as many as their sources (B, S), both as from [`packed_sequences`]."""
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


# ------------------------------------------------------------------------------------------------- layout of a batch


class PaddedBatch:
    """A batch that the layers get as it is."""

    lengths: list[int] | None = None

    def unpad(self, rows: torch.Tensor | None) -> torch.Tensor | None:
        """Return the rows as they are."""
        return rows

    def pad(self, states: torch.Tensor) -> torch.Tensor:
        """Return the states as they are."""
        return states


class PaddingFreeBatch(PaddedBatch):
    """The tokens of a batch as one row, sequence after sequence without padding, and the way back.

    Padding costs a layer as much as tokens do. Where attention can be told which tokens belong together, the layers get
    the tokens alone.

    Args:
        shape: B and T of the batch.
        lengths: number of tokens of each sequence, in their order in the row.
        index: (N,), where each token of the row stands among the B x T; `None` where nothing is left out.
    """

    def __init__(self, shape: torch.Size, lengths: list[int], index: torch.Tensor | None):
        self.shape, self.lengths, self.index = shape, lengths, index

    @classmethod
    def from_mask(cls, mask: torch.Tensor, order: list[int]) -> "PaddingFreeBatch":
        """Take rows with padding anywhere: `mask` (B, T), true for tokens. `order`: which rows, one after another."""
        rows = torch.tensor(order, device=mask.device)
        place, column = mask[rows].nonzero().unbind(-1)
        return cls(mask.shape, mask[rows].sum(1).tolist(), rows[place] * mask.shape[1] + column)

    @classmethod
    def from_packed(cls, packed: torch.Tensor) -> "PaddingFreeBatch":
        """Take rows that hold several sequences each: `packed` (B, T) as from `packed_sequences`."""
        starts = nn.functional.pad(packed.diff(dim=-1) != 0, (1, 0), value=True).flatten().nonzero().squeeze(-1)
        return cls(packed.shape, starts.diff(append=starts.new_tensor([packed.numel()])).tolist(), None)

    def unpad(self, rows: torch.Tensor | None) -> torch.Tensor | None:
        """Return (B or 1, T, ...) as (1, N, ...)."""
        if rows is None:
            return None
        flat = rows.expand(self.shape[0], *rows.shape[1:]).flatten(0, 1)
        return (flat if self.index is None else flat.index_select(0, self.index)).unsqueeze(0)

    def pad(self, states: torch.Tensor) -> torch.Tensor:
        """Return (1, N, D) as (B, T, D), zero where there is no token."""
        if self.index is None:
            return states.unflatten(1, self.shape).squeeze(0)
        empty = states.new_zeros(self.shape.numel(), states.shape[-1])
        return empty.index_copy(0, self.index, states.squeeze(0)).unflatten(0, self.shape)


def unpad_batches(*batches: tuple[torch.Tensor, Any]) -> list[PaddingFreeBatch]:
    """Return sequences, or targets and the sources that they attend to, as rows of the same order without padding.

    Args:
        batches: inputs (B, T, ...) and their mask (B, T), or `None` for a mask without padding.

    Returns:
        One for each batch, without rows of padding alone. None at all where nothing can be left out: without padding,
        where a mask says more than that, or where a target has no source.
    """
    given = [mask for _, mask in batches if mask is not None]
    if not all(map(is_padding_mask, given)) or not any(not mask.all() and mask.any() for mask in given):
        return []
    masks = [inputs.new_ones(inputs.shape[:2]).bool() if mask is None else mask.bool() for inputs, mask in batches]
    lengths = list(zip(*(mask.sum(1).tolist() for mask in masks), strict=True))
    # neighbours of like lengths, which attention can take at once
    order = sorted((row for row in range(len(lengths)) if lengths[row][0]), key=lengths.__getitem__)
    if not order or not all(all(lengths[row]) for row in order):
        return []
    return [PaddingFreeBatch.from_mask(mask, order) for mask in masks]


def has_gaps(mask: Any) -> bool:
    """Whether a row of a mask (B, T) has tokens on both sides of what it leaves out."""
    if not is_padding_mask(mask):
        return False
    steps = nn.functional.pad(mask.bool(), (1, 1)).int().diff(dim=1)
    return bool(((steps == 1).sum(1) > 1).any())


def supports_varlen(config: Any, inputs: torch.Tensor, kwargs: dict[str, Any]) -> bool:
    """Whether attention can go sequence by sequence: with flash attention, and with sdpa on a CPU.

    Not where the states of all layers are wanted, which have the shape of the batch; nor in a graph, whose shapes would
    depend on the data. Elsewhere a mask keeps sequences apart.

    Args:
        kwargs: of the forward.
    """
    wanted = ("output_hidden_states", "output_attentions")
    if any(kwargs.get(name, getattr(config, name, False)) for name in wanted) or is_tracing(inputs):
        return False
    on_cpu = config._attn_implementation == "sdpa" and inputs.device.type == "cpu"
    return on_cpu or is_flash_attention_requested(config)


def choose_layouts(
    config: Any, training: bool, kwargs: dict[str, Any], target: tuple, source: tuple | None = None
) -> tuple[PaddedBatch, PaddedBatch]:
    """Return inputs and the sources that they attend to, without padding where they are packed or, in training, padded.

    Args:
        kwargs: of the forward.
        target, source: the tensor (B, T, ...), its mask, and its [`packed_sequences`].
    """
    inputs, mask, packed = target
    batches = [target] if source is None else [target, source]
    found: list[Any] = []
    if supports_varlen(config, inputs, kwargs):
        if packed is not None:
            found = [PaddingFreeBatch.from_packed(sequences) for *_, sequences in batches]
        # where distances count, they count the padding between tokens
        elif training and not (config.uses_relative_positions and has_gaps(mask)):
            found = unpad_batches(*(batch[:2] for batch in batches))
    return (*found, PaddedBatch(), PaddedBatch())[:2]


class Block(NamedTuple):
    """Neighbours in a row that are attended to as one dense batch.

    Attributes:
        sequences: their number.
        queries, keys: length of each, in tokens.
        key_index: (sequences * keys,), where the keys stand in the row; `None` where they stand in order.
        mask: (sequences, 1, 1, keys), added to the scores of shorter ones.
    """

    sequences: int
    queries: int
    keys: int
    key_index: torch.Tensor | None = None
    mask: torch.Tensor | None = None


@dataclass
class SequenceLengths:
    """Which keys the queries of a row attend to: those of the i-th sequence to those of the i-th sequence.

    Attributes:
        queries, keys: number of tokens of each sequence.
    """

    queries: list[int]
    keys: list[int]
    _bounds: list[torch.Tensor] | None = field(default=None, init=False, repr=False)

    @classmethod
    def of(cls, targets: PaddedBatch, sources: PaddedBatch) -> "SequenceLengths | None":
        """Return those of two batches; `None` where they have padding, and a mask says what is attended to."""
        return None if targets.lengths is None or sources.lengths is None else cls(targets.lengths, sources.lengths)

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
        """Return the arguments by which transformers runs flash attention's varlen kernels; once for all layers."""
        if self._bounds is None:
            cumulated = (torch.tensor([0, *lengths]).cumsum(0).int() for lengths in (self.queries, self.keys))
            self._bounds = [bounds.to(device) for bounds in cumulated]
        return {
            "cu_seq_lens_q": self._bounds[0],
            "cu_seq_lens_k": self._bounds[1],
            "max_length_q": max(self.queries),
            "max_length_k": max(self.keys),
        }
