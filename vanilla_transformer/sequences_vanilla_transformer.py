# Copyright 2026 The vanilla_transformer authors. Licensed under the Apache License, Version 2.0.
"""The sequences of a batch: positions and masks, several of them packed in a row, and all of them without their padding.

Shapes as in the modeling file: B batch, T target or only sequence, S source, D hidden_size; N all tokens of a batch in one
row, without padding.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import (
    create_bidirectional_mask,
    create_bidirectional_sliding_window_mask,
    create_causal_mask,
    create_sliding_window_causal_mask,
    find_packed_sequence_indices,
)
from transformers.utils.generic import is_flash_attention_requested
from transformers.utils.import_utils import is_tracing

# ------------------------------------------------------------------------------------------------- inputs and masks


def can_inspect_values(ids: Tensor) -> bool:
    """Whether ids can be checked: reading a value off an accelerator would stall it, and a traced tensor has none."""
    return ids.device.type == "cpu" and ids.numel() > 0 and not is_tracing(ids)


def exactly_one(input_ids: Tensor | None, inputs_embeds: Tensor | None, prefix: str = "") -> Tensor:
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


def check_ids(ids: Tensor, size: int, sentence: str) -> None:
    """Refuse ids that are no rows of a table of `size`, with a sentence that has places for the id and the size."""
    if ids.is_floating_point():
        raise ValueError(f"token ids are integers, not {ids.dtype}; give embeddings as inputs_embeds.")
    if can_inspect_values(ids):
        lowest, highest = ids.aminmax()
        if lowest < 0 or highest >= size:
            raise ValueError(sentence.format(int(lowest if lowest < 0 else highest), size))


def is_padding_mask(mask: Any) -> bool:
    """Whether a mask is (B, T), 1 for tokens and 0 for padding, and not a ready one of attention or none at all."""
    return isinstance(mask, Tensor) and mask.dim() == 2


def check_mask(name: str, mask: Any, queries: int, keys: int, tokens: int | None) -> None:
    """Refuse a mask that does not fit, which could else be broadcast or filled up in silence.

    Args:
        name: of the argument, for the error.
        mask: (B, tokens), or (B, 1 or H, queries, keys); anything but a tensor is transformers' own.
        queries: number of positions that attend.
        keys: number of keys that attention will see; a static cache holds room for later ones.
        tokens: number of tokens so far; `None` where that is not known without waiting for an accelerator.
    """
    if not isinstance(mask, Tensor):
        return
    fits = mask.dim() == 2 and tokens in (None, mask.shape[1])
    if not fits and not (mask.dim() == 4 and mask.shape[2:] == (queries, keys)):
        raise ValueError(
            f"{name} of shape {tuple(mask.shape)} does not fit: {queries} positions that attend to {keys} need "
            f"(batch, {'tokens' if tokens is None else tokens}) or (batch, 1, {queries}, {keys})."
        )


def positions_from_mask(attention_mask: Tensor | None, places: Tensor) -> Tensor:
    """Return the position of every token in its own sequence, (B, T) or (1, T): padding on either side does not count.

    Args:
        attention_mask: (B, past + T), 1 for tokens; or `None`, or a ready 4D mask, where rows are taken as unpadded.
        places: (T,), of the tokens in a row, those that are cached before them.
    """
    if is_padding_mask(attention_mask):
        return (attention_mask.long().cumsum(-1) - 1).clamp(min=0).index_select(1, places)
    return places.unsqueeze(0)


# ----------------------------------------------------------------------------------- several sequences packed in a row


def packed_sequences(position_ids: Tensor | None, mask: Any, batch_size: int) -> Tensor | None:
    """Return which of several sequences in a row each token belongs to: (B, T); `None` where every row is one sequence.

    As everywhere in transformers, sequences are packed where there is no mask and `position_ids` start again.
    """
    if position_ids is None or mask is not None:
        return None
    return find_packed_sequence_indices(position_ids.expand(batch_size, -1))


def sequence_starts(position_ids: Tensor | None, mask: Any, batch_size: int) -> Tensor | None:
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


def same_sequence(of_queries: Tensor | None, of_keys: Tensor | None) -> Callable | None:
    """Return for transformers' masks that a token attends to its own of [`packed_sequences`] alone; `None` for no such."""
    if of_queries is None or of_keys is None:
        return None
    return lambda batch, head, query, key: of_queries[batch, query] == of_keys[batch, key]


def check_pairs(targets: Tensor | None, sources: Tensor | None) -> None:
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


CREATE_MASK = {  # by whether attention is causal, and whether it has a window
    (False, "full_attention"): create_bidirectional_mask,
    (False, "sliding_attention"): create_bidirectional_sliding_window_mask,
    (True, "full_attention"): create_causal_mask,
    (True, "sliding_attention"): create_sliding_window_causal_mask,
}


class PaddedBatch:
    """A batch that the layers get as it is, with masks."""

    lengths: list[int] | None = None

    def unpad(self, rows: Tensor | None) -> Tensor | None:
        """Return the rows as they are."""
        return rows

    def pad(self, states: Tensor) -> Tensor:
        """Return the states as they are."""
        return states

    def attending_to(self, source: "PaddedBatch") -> Any:
        """Return no lengths of sequences: masks say what is attended to."""
        return None

    def self_attention_masks(
        self, stack: Any, states: Tensor, mask: Any, queries: Tensor, keys: dict[str, Any], **kwargs: Any
    ) -> dict[str, Tensor | None]:
        """Return the mask (B, 1 or H, T, S) of each kind of a stack's layers; `None` for nothing to leave out or to add.

        Args:
            states: (B, T, D), those of the first layer.
            mask: (B, past + T), a ready 4D mask, or `None`.
            queries: (T,), their places in a row.
            keys: (S,), theirs, for each kind.
            kwargs: of transformers' masks.
        """
        create = {kind: CREATE_MASK[stack.is_causal, kind] for kind in keys}
        made = {kind: create[kind](stack.config, states, mask, **kwargs) for kind in keys}
        return {kind: stack.add_position_bias(made[kind], queries, keys[kind], states) for kind in keys}

    def cross_attention_mask(
        self, config: Any, states: Tensor, mask: Any, source: Tensor, pairs: Callable | None
    ) -> Tensor | None:
        """Return the mask (B, 1, T, S) of attention to a `source` (B, S, D); `pairs`: as from [`same_sequence`]."""
        if pairs is not None and is_flash_attention_requested(config):
            raise ValueError(
                "several pairs in a row cannot be told apart by flash attention here; install the package, "
                "or use attn_implementation='sdpa'."
            )
        return create_bidirectional_mask(config, states, mask, encoder_hidden_states=source, and_mask_function=pairs)
