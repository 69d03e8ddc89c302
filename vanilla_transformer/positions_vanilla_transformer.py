# Copyright 2026 The vanilla_transformer authors. Licensed under the Apache License, Version 2.0.
"""Positions that the paper does not have: rotary, learned, and those that are added to the scores of attention.

Shapes as in the modeling file: B batch, T queries, S keys, H heads, d head_dim.
"""

import math
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from .sequences_vanilla_transformer import can_inspect_values


def position_angles(position_ids: Tensor, width: int, theta: float) -> Tensor:
    """Return `pos * theta^(-2i/width)`, (..., ceil(width / 2)), in float64 where the device has it."""
    precise = torch.float32 if position_ids.device.type == "mps" else torch.float64
    exponents = torch.arange(0, width, 2, device=position_ids.device, dtype=precise) / width
    return position_ids.unsqueeze(-1).to(precise) * torch.pow(theta, -exponents)


def rotary_embeddings(position_ids: Tensor, width: int, theta: float) -> Tensor:
    """Return cosine and sine of `pos * theta^(-2i/width)`, by which the i-th pair is turned (Su et al. 2021).

    Args:
        position_ids: (...), integers.
        width: even, of a head.

    Returns:
        (2, ..., width / 2) in float32.
    """
    angles = position_angles(position_ids, width, theta)
    return torch.stack([angles.cos(), angles.sin()]).float()


def rotary_embeddings_of(config: Any, kind: str, position_ids: Tensor) -> Tensor:
    """Return [`rotary_embeddings`] of one kind of layers (2, ..., rotary_dim / 2), scaled as `rope_parameters` say."""
    parameters = config.rope_parameters_of(kind)
    if parameters["rope_type"] == "default":
        return rotary_embeddings(position_ids, config.rotary_dim, parameters["rope_theta"])
    described = SimpleNamespace(
        rope_parameters=parameters,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_position_embeddings,
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_attention_heads,
        standardize_rope_params=lambda: None,
    )
    # how far frequencies are stretched follows from the longest sequence, where that is beyond what was trained on
    longest = position_ids.max() + 1 if parameters["rope_type"] == "dynamic" else None
    scaled = ROPE_INIT_FUNCTIONS[parameters["rope_type"]]
    frequencies, factor = scaled(described, position_ids.device, seq_len=longest)  # (rotary_dim / 2,)
    angles = position_ids.unsqueeze(-1).float() * frequencies
    return torch.stack([angles.cos(), angles.sin()]) * factor


def apply_rotary_pos_emb(states: Tensor, rotary: Tensor) -> Tensor:
    """Turn the pairs of queries or keys (B, H, T, d) by `rotary_embeddings` (2, B or 1, T, d/2 or fewer).

    A pair is i and i + d/2, as in Llama; of what is turned, where that is only the first part of a head.
    """
    cos, sin = rotary.unsqueeze(-3).to(states.dtype).unbind(0)  # (B or 1, 1, T, d/2) each
    turned, rest = states, None
    if 2 * cos.shape[-1] < states.shape[-1]:
        turned, rest = states.split([2 * cos.shape[-1], states.shape[-1] - 2 * cos.shape[-1]], dim=-1)
    first, second = turned.chunk(2, dim=-1)
    turned = [first * cos - second * sin, second * cos + first * sin]
    return torch.cat(turned if rest is None else [*turned, rest], dim=-1)


def alibi_slopes(heads: int) -> Tensor:
    """Return how fast scores fall with distance in each head (Press et al. 2022): `2^(-8i/n)`, i = 1 ... n; (heads,).

    For a number of heads that is no power of two, those of the power below, then every other one of the power above.
    """
    below = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * i / below) for i in range(1, below + 1)]
    slopes += [2 ** (-4 * i / below) for i in range(1, 2 * (heads - below), 2)]
    return torch.tensor(slopes)


def relative_buckets(distance: Tensor, is_causal: bool, buckets: int, max_distance: int) -> Tensor:
    """Return T5's buckets of distances (Raffel et al. 2020, section 2.1), 0 to `buckets` - 1.

    Half of them hold one distance each; those beyond grow with its logarithm up to `max_distance`, whose bucket holds all
    that is farther. Where tokens attend both ways, half of all buckets are for what comes later.

    Args:
        distance: integers, place of the key less that of the query.
    """
    if is_causal:
        later, distance = 0, (-distance).clamp(min=0)
    else:
        buckets //= 2
        later, distance = (distance > 0) * buckets, distance.abs()
    exact = buckets // 2
    share = (distance.clamp(min=1).float() / exact).log() / math.log(max_distance / exact)
    far = (exact + (share * (buckets - exact)).long()).clamp(max=buckets - 1)
    return later + torch.where(distance < exact, distance, far)


def position_bias(config: Any, table: nn.Embedding | None, distance: Tensor, is_causal: bool) -> Tensor:
    """Return what ALiBi, or T5's `table` of a number for each bucket and head, adds to scores at `distance` (T, S): (H, T, S)."""
    if table is None:
        slopes = alibi_slopes(config.num_attention_heads).to(distance.device)
        return -slopes[:, None, None] * distance.abs()
    buckets, farthest = config.relative_attention_num_buckets, config.relative_attention_max_distance
    return table(relative_buckets(distance, is_causal, buckets, farthest)).permute(2, 0, 1)


def compute_dtype(states: Tensor) -> torch.dtype:
    """Return the dtype in which matrices are multiplied: under autocast another than that of the states."""
    device = states.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype


def add_to_mask(bias: Tensor, mask: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return a mask that is added to scores, of `bias` (..., H, T, S) and a mask of booleans or numbers (..., 1, T, S).

    Its lowest values are finite in `dtype`, since softmax makes nothing of a row of infinite ones.
    """
    lowest = torch.finfo(dtype).min
    if mask is None:
        return bias.to(dtype)
    if mask.dtype == torch.bool:
        return bias.masked_fill(~mask, lowest).to(dtype)
    return (bias.float() + mask.float()).clamp(min=lowest).to(dtype)


class VanillaTransformerLearnedPositions(nn.Embedding):
    """A table with one vector per position, behind `offset` unused rows; the only encoding with a hard limit."""

    def __init__(self, count: int, width: int, offset: int):
        super().__init__(count + offset, width)
        self.offset = offset

    def forward(self, position_ids: Tensor) -> Tensor:
        count = self.num_embeddings - self.offset
        if can_inspect_values(position_ids) and (longest := int(position_ids.max()) + 1) > count:
            raise ValueError(
                f"a sequence of {longest} tokens is longer than the {count} learned positions of the model "
                "(max_position_embeddings); shorten it, or train with a larger table or another position_encoding."
            )
        return super().forward(position_ids + self.offset)
