"""Batches without their padding, and attention over the sequences of a row.

Padding costs a layer as much as tokens do. Where attention can be told which tokens belong together, the layers get the
tokens alone: in training, and wherever rows hold several sequences.

Shapes as in the modeling file: B batch, T target or only sequence, S source, D hidden_size, H query and K key-value heads,
d head_dim; N all tokens of a batch in one row, M those that they attend to, L the longest sequence.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers.utils.generic import is_flash_attention_requested
from transformers.utils.import_utils import is_tracing

from vanilla_transformer.sequences_vanilla_transformer import PaddedBatch, is_padding_mask

__all__ = ["PaddingFreeBatch", "SequenceLengths", "choose_layouts", "supports_varlen", "variable_length_attention"]


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

    def choose_attention(self, config: Any, attention: Callable) -> Callable:
        """Return what attends sequence by sequence in place of transformers' `attention`: its varlen form, or one here."""
        if not is_flash_attention_requested(config):
            return partial(variable_length_attention, lengths=self)
        return lambda module, query, *args, **kwargs: attention(
            module, query, *args, **kwargs | self.for_flash_attention(query.device)
        )

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


def variable_length_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    lengths: SequenceLengths,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Scaled dot-product attention sequence by sequence: no padding, nothing computed to be thrown away.

    Args:
        module: the attention, whose heads and direction count.
        query: (1, H, N, d). key, value: (1, K, M, d). N and M are the sums of `lengths`.
        attention_mask: (1, 1 or H, L, L), of every sequence: true to attend, or added to the scores; `None` for neither.
        lengths: of the sequences, in tokens.

    Returns:
        (1, N, H, d), and no probabilities.
    """
    key = key.repeat_interleave(module.num_key_value_groups, dim=1)  # (1, H, M, d)
    value = value.repeat_interleave(module.num_key_value_groups, dim=1)
    query, key, value = (states.squeeze(0).transpose(0, 1) for states in (query, key, value))  # (N or M, H, d)
    blocks = lengths.blocks
    if blocks[0].key_index is not None:
        index = torch.cat([block.key_index for block in blocks if block.key_index is not None])
        key, value = key.index_select(0, index), value.index_select(0, index)
    # split, and not slices, each of which would fill a gradient of the whole row with zeros
    sizes = [(block.sequences * block.queries, block.sequences * block.keys) for block in blocks]
    query_sizes, key_sizes = (list(column) for column in zip(*sizes, strict=True))
    parts = zip(blocks, query.split(query_sizes), key.split(key_sizes), value.split(key_sizes), strict=True)
    outputs = []
    for block, *states in parts:
        mask = None if block.mask is None else block.mask.to(query.dtype)
        if attention_mask is not None:  # of self-attention, whose blocks have no masked keys
            mask = attention_mask[..., : block.queries, : block.keys]
        # (sequences, H, queries or keys, d) each
        queries, keys, values = (part.unflatten(0, (block.sequences, -1)).transpose(1, 2) for part in states)
        is_causal = module.is_causal and mask is None
        output = nn.functional.scaled_dot_product_attention(  # (sequences, H, queries, d)
            queries, keys, values, attn_mask=mask, dropout_p=dropout, is_causal=is_causal, scale=scaling
        )
        outputs.append(output.transpose(1, 2).flatten(0, 1))  # (sequences * queries, H, d)
    return torch.cat(outputs).unsqueeze(0), None


class PaddingFreeBatch(PaddedBatch):
    """The tokens of a batch as one row, sequence after sequence, and the way back.

    Args:
        shape: B and T of the batch.
        lengths: number of tokens of each sequence, in their order in the row.
        index: (N,), where each token of the row stands among the B x T; `None` where nothing is left out.
    """

    lengths: list[int]

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

    def attending_to(self, sources: PaddedBatch) -> SequenceLengths | None:
        """Return which sequences attend to which; `None` where the sources have padding."""
        return None if sources.lengths is None else SequenceLengths(self.lengths, sources.lengths)

    def self_attention_masks(
        self, stack: Any, states: torch.Tensor, mask: Any, queries: torch.Tensor, keys: dict[str, Any], **kwargs: Any
    ) -> dict[str, torch.Tensor | None]:
        """Return the mask (1, 1 or H, L, L) of every sequence for each kind of layer: of a window, and of position bias.

        `None` where there is neither, and for flash attention, which has windows of its own.

        Args:
            stack: whose self-attention it is.
            keys: of which the kinds count; the other arguments are those of a batch with padding.
        """
        config = stack.config
        if not config.uses_relative_positions or is_flash_attention_requested(config):
            return dict.fromkeys(keys)
        places = torch.arange(max(self.lengths), device=states.device)
        distance, window = places - places.unsqueeze(-1), config.sliding_window  # (L, L)
        within: dict[str, torch.Tensor | None] = dict.fromkeys(keys)
        if "sliding_attention" in within:
            near = (distance > -window) & (distance <= 0) if stack.is_causal else distance.abs() <= window
            within["sliding_attention"] = near[None, None]
        return {kind: stack.add_position_bias(near, places, places, states) for kind, near in within.items()}

    def cross_attention_mask(self, *args: Any) -> None:
        """Return no mask: the lengths of sequences say which tokens of the source are attended to."""

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
