# Copyright 2026 The vanilla_transformer authors. Licensed under the Apache License, Version 2.0.
"""The Transformer of "Attention Is All You Need" (arXiv:1706.03762), as encoder-decoder, encoder-only and decoder-only.

Reads top to bottom: positions, dropout, attention, feed-forward, layer, stack, model, heads. A checkpoint carries this
file to the Hub together with its configuration, so it imports only transformers, torch and its siblings.

Shapes, as written at line ends:
    B  batch            T  target or only sequence, S  source (keys of cross-attention)
    D  hidden_size      F  intermediate_size
    H  query heads      K  key-value heads      d  head_dim
    E  width of embeddings, hidden_size unless they are factorised
    V  vocabulary       N  all tokens of a batch in one long row, M  those that they attend to
    L  the longest sequence of such a row
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.masking_utils import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    AttentionMaskInterface,
    create_bidirectional_mask,
    create_bidirectional_sliding_window_mask,
    create_causal_mask,
    create_sliding_window_causal_mask,
)
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPast,
    BaseModelOutputWithPastAndCrossAttentions,
    CausalLMOutputWithPast,
    MaskedLMOutput,
    QuestionAnsweringModelOutput,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
    Seq2SeqSequenceClassifierOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel, slice_logits_to_keep
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import is_flash_attention_requested, merge_with_config_defaults
from transformers.utils.import_utils import is_tracing
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .configuration_vanilla_transformer import AUTO_MAP, VanillaTransformerConfig
from .generation_vanilla_transformer import (
    VanillaTransformerGenerationMixin,
    check_continuous_batching,
    prepare_cache,
)
from .losses_vanilla_transformer import (
    IGNORED,
    check_labels,
    chunked_cross_entropy,
    compute_dtype,
    ignore_labels_without_context,
    ignore_padding_labels,
    let_trainer_count_labels,
    loss_per_item,
    shift_right,
    smoothed_cross_entropy,
)
from .sequences_vanilla_transformer import (
    PaddingFreeBatch,
    SequenceLengths,
    check_pairs,
    check_rows,
    has_gaps,
    packed_sequences,
    same_sequence,
    sequence_starts,
    unpad_batches,
)

# ---------------------------------------------------------------------------------------------------------- positions


def positions_from_mask(attention_mask: torch.Tensor | None, past_length: Any, length: int, device) -> torch.Tensor:
    """Position of every token in its own sequence: padding on either side does not count.

    Args:
        attention_mask: (B, past + T), 1 for tokens; or `None`, or a ready 4D mask, where rows are taken as unpadded.
        past_length: number of cached positions, an int or (static caches) a tensor.
        length: T.

    Returns:
        (B, T) or (1, T), starting at 0.
    """
    places = torch.arange(length, device=device) + past_length
    if isinstance(attention_mask, torch.Tensor) and attention_mask.dim() == 2:
        return (attention_mask.long().cumsum(-1) - 1).clamp(min=0).index_select(1, places)
    return places.unsqueeze(0)


def check_mask(name: str, mask: Any, queries: int, keys: int, tokens: int | None) -> None:
    """Refuse a mask that does not fit, which could else be broadcast or filled up in silence.

    Args:
        name: of the argument, for the error.
        mask: (B, tokens), or (B, 1 or H, queries, keys); anything but a tensor is transformers' own.
        queries: number of positions that attend.
        keys: number of keys that attention will see; a static cache holds room for later ones.
        tokens: number of tokens so far; `None` where that is not known without waiting for an accelerator.

    Raises:
        ValueError: for a mask of another shape.
    """
    if not isinstance(mask, torch.Tensor):
        return
    fits = mask.dim() == 2 and tokens in (None, mask.shape[1])
    if not fits and not (mask.dim() == 4 and mask.shape[2:] == (queries, keys)):
        raise ValueError(
            f"{name} of shape {tuple(mask.shape)} does not fit: {queries} positions that attend to {keys} need "
            f"(batch, {'tokens' if tokens is None else tokens}) or (batch, 1, {queries}, {keys})."
        )


def position_angles(position_ids: torch.Tensor, width: int, theta: float) -> torch.Tensor:
    """`pos * theta^(-2i/width)`, (..., ceil(width / 2)), in float64 where the device has it."""
    precise = torch.float32 if position_ids.device.type == "mps" else torch.float64
    exponents = torch.arange(0, width, 2, device=position_ids.device, dtype=precise) / width
    return position_ids.unsqueeze(-1).to(precise) * torch.pow(theta, -exponents)


def sinusoidal_encoding(position_ids: torch.Tensor, width: int, form: str = "interleaved") -> torch.Tensor:
    """Section 3.5: `PE(pos, 2i) = sin(pos / 10000^(2i/width))`, `PE(pos, 2i+1) = cos(pos / 10000^(2i/width))`.

    Computed from the formula at every call: there is no table that could be too short, lost on loading or rounded by a
    change of dtype.

    Args:
        position_ids: (...), integers.
        width: any positive integer; for an odd one the last sine has no cosine.
        form: `"interleaved"` as above; `"concatenated"`: the same sines, then the same cosines (Marian); `"fairseq"`:
            concatenated, with the n = width // 2 frequencies `10000^(-i/(n-1))` and, for an odd width, a zero at the end.

    Returns:
        (..., width) in float32.
    """
    if form == "fairseq":
        pairs = width // 2
        angles = position_angles(position_ids, 2 * pairs, 10000.0 ** (pairs / (pairs - 1)))
        return nn.functional.pad(torch.cat([angles.sin(), angles.cos()], dim=-1), (0, width % 2)).float()
    angles = position_angles(position_ids, width, 10000.0)
    if form == "concatenated":
        return torch.cat([angles.sin(), angles.cos()], dim=-1)[..., :width].float()
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[..., :width].float()


def rotary_embeddings(position_ids: torch.Tensor, width: int, theta: float) -> torch.Tensor:
    """Rotary positions (Su et al. 2021): cosine and sine of `pos * theta^(-2i/width)`, by which the i-th pair is turned.

    Args:
        position_ids: (...), integers.
        width: even, of a head.

    Returns:
        (2, ..., width / 2) in float32.
    """
    angles = position_angles(position_ids, width, theta)
    return torch.stack([angles.cos(), angles.sin()]).float()


def apply_rotary_pos_emb(states: torch.Tensor, rotary: torch.Tensor) -> torch.Tensor:
    """Turn the pairs of queries or keys (B, H, T, d) by `rotary_embeddings` (2, B or 1, T, d/2).

    A pair is i and i + d/2, as in Llama.
    """
    cos, sin = rotary.unsqueeze(-3).to(states.dtype).unbind(0)  # (B or 1, 1, T, d/2) each
    first, second = states.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def alibi_slopes(heads: int) -> torch.Tensor:
    """How fast scores fall with distance in each head (Press et al. 2022): `2^(-8i/n)`, i = 1 ... n; (heads,).

    For a number of heads that is no power of two, those of the power below, then every other one of the power above.
    """
    below = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * i / below) for i in range(1, below + 1)]
    slopes += [2 ** (-4 * i / below) for i in range(1, 2 * (heads - below), 2)]
    return torch.tensor(slopes)


def relative_buckets(distance: torch.Tensor, is_causal: bool, buckets: int, max_distance: int) -> torch.Tensor:
    """T5's buckets of distances (Raffel et al. 2020, section 2.1).

    Half of them hold one distance each; those beyond grow with its logarithm up to `max_distance`, whose bucket holds all
    that is farther. Where tokens attend both ways, half of all buckets are for what comes later.

    Args:
        distance: integers, place of the key less that of the query.

    Returns:
        Integers of the same shape, 0 to `buckets` - 1.
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


def add_to_mask(bias: torch.Tensor, mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """A mask that is added to scores, of `bias` (..., H, T, S) and a mask of booleans or numbers (..., 1, T, S).

    Its lowest values are finite in `dtype`, since softmax makes nothing of a row of infinite ones.
    """
    lowest = torch.finfo(dtype).min
    if mask is None:
        return bias.to(dtype)
    if mask.dtype == torch.bool:
        return bias.masked_fill(~mask, lowest).to(dtype)
    return (bias.float() + mask.float()).clamp(min=lowest).to(dtype)


def can_inspect_values(ids: torch.Tensor) -> bool:
    """Whether ids can be checked: reading a value off an accelerator would stall it, and a traced tensor has none."""
    return ids.device.type == "cpu" and ids.numel() > 0 and not is_tracing(ids)


class VanillaTransformerLearnedPositions(nn.Embedding):
    """A table with one vector per position, behind `offset` unused rows; the only encoding with a hard limit."""

    def __init__(self, count: int, width: int, offset: int):
        super().__init__(count + offset, width)
        self.offset = offset

    def forward(self, position_ids: torch.Tensor) -> torch.Tensor:
        count = self.num_embeddings - self.offset
        if can_inspect_values(position_ids) and (longest := int(position_ids.max()) + 1) > count:
            raise ValueError(
                f"a sequence of {longest} tokens is longer than the {count} learned positions of the model "
                "(max_position_embeddings); shorten it, or train with a larger table or another position_encoding."
            )
        return super().forward(position_ids + self.offset)


# ------------------------------------------------------------------------------------------------------------ dropout


class _Dropout(torch.autograd.Function):
    """Dropout from 16 random bits an element, and one byte an element kept for the backward pass.

    torch 2.13 draws a double for each element on a CPU and keeps a float: at the width of a small model that is a tenth
    of a training step. The share that is dropped is p to the nearest 1/65536, and so is the scale that makes up for it.
    """

    @staticmethod
    def forward(states: torch.Tensor, p: float) -> tuple[torch.Tensor, torch.Tensor]:
        count, dropped = states.numel(), round(p * 2**16)
        draws = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        kept = (draws.view(torch.int16)[:count] >= dropped - 2**15).view(states.shape)
        return states * kept.to(states.dtype).mul_(2**16 / (2**16 - dropped)), kept

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor, float], output: tuple[torch.Tensor, torch.Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])
        ctx.save_for_forward(output[1])
        ctx.scale = 2**16 / (2**16 - round(inputs[1] * 2**16))

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor, _: Any) -> tuple[torch.Tensor, None]:
        (kept,) = ctx.saved_tensors
        return grad_output * kept.to(grad_output.dtype).mul_(ctx.scale), None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, _: Any) -> tuple[torch.Tensor, None]:
        (kept,) = ctx.saved_tensors
        return tangent * kept.to(tangent.dtype).mul_(ctx.scale), None


def dropout(states: torch.Tensor, p: float, training: bool) -> torch.Tensor:
    """`torch.nn.functional.dropout`, faster on a CPU."""
    # nearer to 1 than to the largest share that 16 bits can tell from it
    if not training or p == 0 or p > 1 - 2**-17 or states.device.type != "cpu" or is_tracing(states):
        return nn.functional.dropout(states, p=p, training=training)
    return _Dropout.apply(states, p)[0]


class VanillaTransformerDropout(nn.Dropout):
    """[`dropout`] with the share that a field of the configuration holds, also where that is changed later.

    A share that is set on the module, as by what looks for `nn.Dropout` to turn it off, holds until the field changes.
    """

    def __init__(self, config: VanillaTransformerConfig, field: str):
        self.config, self.field = config, field
        super().__init__(getattr(config, field))

    @property
    def p(self) -> float:
        """Share of elements that is dropped."""
        share = getattr(self.config, self.field)
        return self._own if share == self._replaced else share

    @p.setter
    def p(self, value: float) -> None:
        self._own, self._replaced = value, getattr(self.config, self.field)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return dropout(states, self.p, self.training)


# ---------------------------------------------------------------------------------------------------------- attention


def variable_length_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    sequence_lengths: SequenceLengths,
    scaling: float,
    dropout: float = 0.0,
) -> torch.Tensor:
    """Scaled dot-product attention sequence by sequence: no padding, nothing computed to be thrown away.

    Args:
        module: the attention, whose heads and direction count.
        query: (1, H, N, d). key, value: (1, K, M, d). N and M are the sums of the lengths in `sequence_lengths`.
        attention_mask: (1, 1 or H, L, L), of every sequence: true to attend, or added to the scores; `None` for neither.
        sequence_lengths: where the sequences begin and end.

    Returns:
        (1, N, H, d)
    """
    key = key.repeat_interleave(module.num_key_value_groups, dim=1)  # (1, H, M, d)
    value = value.repeat_interleave(module.num_key_value_groups, dim=1)
    query, key, value = (states.squeeze(0).transpose(0, 1) for states in (query, key, value))  # (N or M, H, d)
    if sequence_lengths.blocks[0].key_index is not None:
        index = torch.cat([block.key_index for block in sequence_lengths.blocks if block.key_index is not None])
        key, value = key.index_select(0, index), value.index_select(0, index)
    query_sizes = [block.sequences * block.queries for block in sequence_lengths.blocks]
    key_sizes = [block.sequences * block.keys for block in sequence_lengths.blocks]
    outputs = []
    # split, and not slices, each of which would fill a gradient of the whole row with zeros
    for block, *states in zip(
        sequence_lengths.blocks, query.split(query_sizes), key.split(key_sizes), value.split(key_sizes), strict=True
    ):
        mask = None if block.mask is None else block.mask.to(query.dtype)
        if attention_mask is not None:  # of self-attention, whose blocks have no masked keys
            mask = attention_mask[..., : block.queries, : block.keys]
        block_query, block_key, block_value = (  # (sequences, H, queries or keys, d)
            part.unflatten(0, (block.sequences, -1)).transpose(1, 2) for part in states
        )
        output = nn.functional.scaled_dot_product_attention(  # (sequences, H, queries, d)
            block_query,
            block_key,
            block_value,
            attn_mask=mask,
            dropout_p=dropout,
            is_causal=module.is_causal and mask is None,
            scale=scaling,
        )
        outputs.append(output.transpose(1, 2).flatten(0, 1))  # (sequences * queries, H, d)
    return torch.cat(outputs).unsqueeze(0)


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scaled dot-product attention (section 3.2.1) that also returns the probabilities.

    Args:
        query: (B, H, T, d). key, value: (B, K, S, d).
        attention_mask: (B or 1, 1, T, S), added to the scores; `None` for none.

    Returns:
        outputs (B, T, H, d) and probabilities (B, H, T, S).
    """
    key = key.repeat_interleave(module.num_key_value_groups, dim=1)  # (B, H, S, d)
    value = value.repeat_interleave(module.num_key_value_groups, dim=1)
    scores = query @ key.transpose(2, 3) * scaling  # (B, H, T, S)
    if attention_mask is not None:
        if attention_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
        else:
            scores = scores + attention_mask
    probabilities = nn.functional.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    probabilities = nn.functional.dropout(probabilities, p=dropout, training=module.training)
    return (probabilities @ value).transpose(1, 2).contiguous(), probabilities


class VanillaTransformerAttention(nn.Module):
    """Multi-head attention (section 3.2.2): over the sequence itself, or over the encoder's output."""

    def __init__(
        self, config: VanillaTransformerConfig, layer_idx: int, is_causal: bool, sliding_window: int | None = None
    ):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.is_causal = is_causal
        # read by flash attention, which counts the token itself on either side; else it is in the mask
        self.sliding_window = sliding_window if is_causal or sliding_window is None else sliding_window + 1
        self.head_dim = config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = config.head_dim**-0.5 if config.attention_scale is None else config.attention_scale
        self.dropout = VanillaTransformerDropout(config, "attention_dropout")
        query_width = config.num_attention_heads * config.head_dim
        key_value_width = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, query_width, bias=config.attention_bias)
        self.k_proj = nn.Linear(config.hidden_size, key_value_width, bias=config.attention_bias)
        self.v_proj = nn.Linear(config.hidden_size, key_value_width, bias=config.attention_bias)
        self.o_proj = nn.Linear(query_width, config.hidden_size, bias=config.has_attention_output_bias)
        if config.init_scheme == "fairseq":
            # fairseq initialises the three as one matrix, whose larger fan-out gives each a gain of 1/sqrt(2)
            for projection in (self.q_proj, self.k_proj, self.v_proj):
                projection.init_gain = 2**-0.5

    def _heads(self, projection: nn.Linear, states: torch.Tensor) -> torch.Tensor:
        """(B, T, D) to (B, H, T, d), or K heads."""
        # -1, not the number of heads: under tensor parallelism a process holds only some of them
        return projection(states).view(*states.shape[:-1], -1, self.head_dim).transpose(1, 2)

    def _keys_and_values(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None,
        cache: Cache | None,
        rotary: torch.Tensor | None,
        layer_idx: int,
        kwargs: dict,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(B, K, S, d) each: of all positions so far, or of the source, which is projected once per generation."""
        if encoder_hidden_states is None:
            key, value = self._heads(self.k_proj, hidden_states), self._heads(self.v_proj, hidden_states)
            key = key if rotary is None else apply_rotary_pos_emb(key, rotary)
            layers = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
            return (key, value) if layers is None else layers.update(key, value, layer_idx, kwargs=kwargs)
        if not isinstance(cache, EncoderDecoderCache):
            return self._heads(self.k_proj, encoder_hidden_states), self._heads(self.v_proj, encoder_hidden_states)
        if not cache.is_updated.get(layer_idx):
            key = self._heads(self.k_proj, encoder_hidden_states)
            value = self._heads(self.v_proj, encoder_hidden_states)
            cache.cross_attention_cache.update(key, value, layer_idx, kwargs=kwargs)
            cache.is_updated[layer_idx] = True
        layer = cache.cross_attention_cache.layers[layer_idx]
        # a static cache may have room for longer sources, an offloaded one be elsewhere
        length, device = encoder_hidden_states.shape[1], encoder_hidden_states.device
        return layer.keys[:, :, :length].to(device), layer.values[:, :, :length].to(device)

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        cache: Cache | None = None,
        rotary: torch.Tensor | None = None,
        sequence_lengths: SequenceLengths | None = None,
        layer_idx: int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(B, T, D) to (B, T, D), with the probabilities (B, H, T, S) where the backend has them.

        `rotary` (2, B or 1, T, d/2): `rotary_embeddings` of the positions, for self-attention. `sequence_lengths`: where the
        batch is one long row; `attention_mask` is then that of `variable_length_attention`. `layer_idx`: whose keys and values
        of the cache, where layers are shared.
        """
        layer_idx = self.layer_idx if layer_idx is None else layer_idx
        query = self._heads(self.q_proj, hidden_states)  # (B, H, T, d)
        query = query if rotary is None else apply_rotary_pos_emb(query, rotary)
        key, value = self._keys_and_values(  # (B, K, S, d)
            hidden_states, encoder_hidden_states, cache, rotary, layer_idx, kwargs
        )
        attention_interface: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        dropout = self.dropout.p if self.training else 0.0
        if sequence_lengths is not None:
            if not is_flash_attention_requested(self.config):
                output = variable_length_attention(
                    self, query, key, value, attention_mask, sequence_lengths, self.scaling, dropout
                )
                return self.o_proj(output.flatten(-2)), None
            kwargs |= sequence_lengths.for_flash_attention(query.device)
        output, probabilities = attention_interface(  # (B, T, H, d) and (B, H, T, S)
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=dropout,
            scaling=self.scaling,
            sliding_window=self.sliding_window,
            **kwargs,
        )
        return self.o_proj(output.flatten(-2).contiguous()), probabilities


# -------------------------------------------------------------------------------------------------- layers and stacks


class VanillaTransformerFeedForward(nn.Module):
    """Position-wise network (section 3.3): `down(act(up(x)))`, or `down(act(gate(x)) * up(x))` where gated."""

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__()
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.gate_proj = None
        if config.gated_feed_forward:
            self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)
        self.activation = ACT2FN[config.hidden_act]
        self.dropout = VanillaTransformerDropout(config, "activation_dropout")

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        inner = self.up_proj(hidden_states)  # (B, T, F)
        if self.gate_proj is None:
            inner = self.activation(inner)
        else:
            inner = self.activation(self.gate_proj(hidden_states)) * inner
        return self.down_proj(self.dropout(inner))  # (B, T, D)


def build_norm(config: VanillaTransformerConfig, width: int | None = None) -> nn.Module:
    """Over `hidden_size`, or another width."""
    width = config.hidden_size if width is None else width
    if config.norm_type == "rmsnorm":
        return nn.RMSNorm(width, eps=config.norm_eps)
    return nn.LayerNorm(width, eps=config.norm_eps, bias=config.norm_bias)


class VanillaTransformerLayer(GradientCheckpointingLayer):
    """Self-attention, in decoders of an encoder-decoder cross-attention, feed-forward; each with residual and norm."""

    def __init__(self, config: VanillaTransformerConfig, layer_idx: int, is_causal: bool, has_cross_attention: bool):
        super().__init__()
        self.pre_norm = config.norm_position == "pre"
        self.dropout = VanillaTransformerDropout(config, "dropout")
        self.self_attn = VanillaTransformerAttention(config, layer_idx, is_causal, config.sliding_window)
        self.self_attn_norm = build_norm(config)
        if has_cross_attention:
            self.cross_attn = VanillaTransformerAttention(config, layer_idx, is_causal=False)
            self.cross_attn_norm = build_norm(config)
        self.feed_forward = VanillaTransformerFeedForward(config)
        self.feed_forward_norm = build_norm(config)

    def _before(self, norm: nn.Module, hidden_states: torch.Tensor) -> torch.Tensor:
        return norm(hidden_states) if self.pre_norm else hidden_states

    def _after(self, norm: nn.Module, residual: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        # section 5.4: dropout on the output of the sublayer, before it is added and normalised
        hidden_states = residual + self.dropout(output)
        return hidden_states if self.pre_norm else norm(hidden_states)

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,  # read by GradientCheckpointingLayer
        position_ids: torch.Tensor | None = None,
        rotary: torch.Tensor | None = None,
        sequence_lengths: SequenceLengths | None = None,
        cross_sequence_lengths: SequenceLengths | None = None,
        layer_idx: int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """(B, T, D) to (B, T, D); `rotary` to `layer_idx` as in [`VanillaTransformerAttention.forward`]."""
        output, _ = self.self_attn(
            self._before(self.self_attn_norm, hidden_states),
            attention_mask=attention_mask,
            cache=cache,
            position_ids=position_ids,
            rotary=rotary,
            sequence_lengths=sequence_lengths,
            layer_idx=layer_idx,
            **kwargs,
        )
        hidden_states = self._after(self.self_attn_norm, hidden_states, output)
        if encoder_hidden_states is not None:
            output, _ = self.cross_attn(
                self._before(self.cross_attn_norm, hidden_states),
                encoder_hidden_states,
                attention_mask=encoder_attention_mask,
                cache=cache,
                sequence_lengths=cross_sequence_lengths,
                layer_idx=layer_idx,
                **kwargs,
            )
            hidden_states = self._after(self.cross_attn_norm, hidden_states, output)
        output = self.feed_forward(self._before(self.feed_forward_norm, hidden_states))
        return self._after(self.feed_forward_norm, hidden_states, output)


class VanillaTransformerPreTrainedModel(PreTrainedModel):
    """Initialisation, and what transformers asks of every model."""

    config: VanillaTransformerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["VanillaTransformerLayer"]
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True

    def __init__(self, config: VanillaTransformerConfig):
        config.validate_architecture()  # fields may have been changed since the configuration was made
        super().__init__(config)

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: Any, *args: Any, use_safetensors: bool | None = None, **kwargs: Any
    ) -> Any:
        """As in transformers, but pickled weights, a format that can carry code, only when asked for.

        Args:
            use_safetensors: `False` for pickled weights (`pytorch_model.bin`).

        Raises:
            OSError: where there are no others and they were not asked for.
        """
        only_safe = use_safetensors is None and kwargs.get("gguf_file") is None
        try:
            return super().from_pretrained(
                pretrained_model_name_or_path, *args, use_safetensors=only_safe or use_safetensors, **kwargs
            )
        except OSError as error:
            if only_safe and "model.safetensors" in str(error):
                raise OSError(
                    f"{pretrained_model_name_or_path} holds no model.safetensors. Pickled weights (pytorch_model.bin), a "
                    "format that can carry code, are read only when asked for; ask for safetensors, or load them with "
                    "use_safetensors=False, which reads tensors alone, and save the model again."
                ) from error
            raise

    def to_empty(self, *, device: Any, recurse: bool = True) -> Any:
        """As in torch, which would take tied matrices apart; here they stay tied."""
        super().to_empty(device=device, recurse=recurse)
        self.tie_weights()
        return self

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        """As in transformers, but without backends that cannot add a number of each head to scores.

        A backend that was registered with `AttentionInterface` alone gets masks as sdpa does: `None`, or true to attend.
        """
        implementation = super().get_correct_attn_implementation(requested_attention, is_init_check)
        is_paged = implementation.startswith("paged|")  # continuous batching, which brings masks of its own
        if implementation in ALL_ATTENTION_FUNCTIONS.keys() - ALL_MASK_ATTENTION_FUNCTIONS.keys() and not is_paged:
            # else transformers makes no mask for it, and padding, windows and packed sequences are ignored in silence
            AttentionMaskInterface.register(implementation, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
        if self.config.has_position_bias and ("flash" in implementation or "flex" in implementation):
            raise ValueError(
                f"attn_implementation={requested_attention!r} cannot add what "
                f"position_encoding={self.config.position_encoding!r} adds to scores; use 'sdpa' or 'eager'."
            )
        return implementation

    def save_pretrained(self, *args: Any, **kwargs: Any) -> Any:
        """As in transformers; a matrix in several places is saved once, and the configuration says where it stands.

        Where the output was untied after the model was built, also by PEFT's `merge_and_unload`, sharing that was left to
        follow `tie_word_embeddings` would no longer be read from the file, while both stacks still embed by one matrix.
        """
        weights = dict(self.base_model.named_parameters(remove_duplicate=False))
        of_encoder, of_decoder = (weights.get(f"{stack}.embed_tokens.weight") for stack in ("encoder", "decoder"))
        if of_encoder is not None and of_encoder is of_decoder and not self.config.has_shared_embeddings:
            self.config.share_encoder_decoder_embeddings = True
        return super().save_pretrained(*args, **kwargs)

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)  # norms, zero biases, the normal scheme and the zero row of the padding token
        if self.config.init_scheme == "normal":
            return
        if isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight, gain=getattr(module, "init_gain", 1.0))
        elif isinstance(module, nn.Embedding) and not getattr(module.weight, "_is_hf_initialized", False):
            # asked here, since `init` looks for this mark of loaded weights, and the padding token's row has none
            # variance 1/D, so that the scaled embedding has variance 1 and the tied output projection unit-scale logits
            init.normal_(module.weight, mean=0.0, std=self.config.hidden_size**-0.5)
            if module.padding_idx is not None:
                init.zeros_(module.weight[module.padding_idx])

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Resize the vocabulary everywhere it stands: the embeddings of both sides and the output projection.

        Raises:
            ValueError: where source and target vocabularies are separate, since one number cannot say which is meant.
        """
        if self.config.target_vocab_size is not None and (new_num_tokens or pad_to_multiple_of):
            raise ValueError(
                f"this model has separate vocabularies of {self.config.vocab_size} source and "
                f"{self.config.target_vocab_size} target tokens, and resizing one of them is not offered; train with "
                "larger ones."
            )
        embeddings = super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        # a stack alone has none
        decoder = getattr(self.base_model, "decoder", None) if self.config.is_encoder_decoder else None
        if decoder is not None and embeddings.num_embeddings != decoder.embed_tokens.num_embeddings:
            decoder.embed_tokens = self._get_resized_embeddings(
                decoder.embed_tokens, embeddings.num_embeddings, mean_resizing=mean_resizing
            )
            self.tie_weights()
        return embeddings


class VanillaTransformerStack(VanillaTransformerPreTrainedModel):
    """Embedding, positions and layers: what the encoder, the decoder and a language model have in common."""

    def __init__(
        self, config: VanillaTransformerConfig, depth: int, vocab_size: int, is_causal: bool, has_cross: bool
    ):
        super().__init__(config)
        self.is_causal = is_causal
        self.has_cross_attention = has_cross
        width = config.embedding_width
        self.embed_tokens = nn.Embedding(vocab_size, width, padding_idx=config.pad_token_id)
        self.embed_scale = math.sqrt(width) if config.scale_embedding else 1.0
        self.embed_positions = self.embed_token_types = self.embed_projection = self.relative_bias = None
        if config.position_encoding == "learned":
            self.embed_positions = VanillaTransformerLearnedPositions(
                config.max_position_embeddings, width, config.position_offset
            )
        if config.type_vocab_size:
            self.embed_token_types = nn.Embedding(config.type_vocab_size, width)
        self.embed_norm = build_norm(config, width) if config.embedding_norm else nn.Identity()
        self.dropout = VanillaTransformerDropout(config, "dropout")
        if width != config.hidden_size:
            self.embed_projection = nn.Linear(width, config.hidden_size)
        if config.position_encoding == "relative":
            self.relative_bias = nn.Embedding(config.relative_attention_num_buckets, config.num_attention_heads)
        self.depth = depth
        self.layers = nn.ModuleList(
            [
                VanillaTransformerLayer(config, i, is_causal=is_causal, has_cross_attention=has_cross)
                for i in range(1 if config.shared_layers else depth)
            ]
        )
        # post-norm layers already end in a norm
        self.norm = build_norm(config) if config.has_final_norm else nn.Identity()
        self.gradient_checkpointing = False
        self.post_init()

    def init_parallel_plans(self) -> None:
        """The plans of the config are those of the base model, which names its stacks; a stack has none of its own."""
        none: dict[str, Any] = {}
        self._tp_plan = self._ep_plan = self._pp_plan = self._fsdp_plan = none

    def get_input_embeddings(self) -> nn.Module:
        return self.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embed_tokens = value

    def embed(
        self,
        input_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
        position_ids: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Sections 3.4 and 3.5: scaled token embeddings plus positions, then dropout; (B, T, D).

        In between, where the model has them, token types and a norm; at the end a projection to the width of layers.
        """
        if inputs_embeds is not None and inputs_embeds.shape[-1] != self.embed_tokens.embedding_dim:
            raise ValueError(
                f"inputs_embeds of shape {tuple(inputs_embeds.shape)} must have the width of the model's embeddings, "
                f"{self.embed_tokens.embedding_dim}."
            )
        if inputs_embeds is None:
            self._check_ids(input_ids, self.embed_tokens, "token id {} is outside the vocabulary of {} tokens.")
            inputs_embeds = self.embed_tokens(input_ids)
        hidden_states = inputs_embeds * self.embed_scale  # (B, T, E)
        if self.config.position_encoding == "sinusoidal":
            encoding = sinusoidal_encoding(
                position_ids + self.config.position_offset, hidden_states.shape[-1], self.config.sinusoidal_form
            )
            hidden_states = hidden_states + encoding.to(hidden_states.device, hidden_states.dtype)
        elif self.embed_positions is not None:
            hidden_states = hidden_states + self.embed_positions(position_ids)
        if self.embed_token_types is not None:
            if token_type_ids is None:
                token_type_ids = torch.zeros_like(position_ids)
            self._check_ids(token_type_ids, self.embed_token_types, "token type {} is none of the model's {} types.")
            hidden_states = hidden_states + self.embed_token_types(token_type_ids)
        elif token_type_ids is not None and can_inspect_values(token_type_ids) and token_type_ids.any():
            raise ValueError("the model has no token types: leave token_type_ids out, or set type_vocab_size.")
        hidden_states = self.dropout(self.embed_norm(hidden_states))
        return hidden_states if self.embed_projection is None else self.embed_projection(hidden_states)

    @staticmethod
    def _check_ids(ids: torch.Tensor, table: nn.Embedding, sentence: str) -> None:
        if ids.is_floating_point():
            raise ValueError(f"token ids are integers, not {ids.dtype}; give embeddings as inputs_embeds.")
        if can_inspect_values(ids):
            size, (lowest, highest) = table.weight.shape[0], ids.aminmax()
            if lowest < 0 or highest >= size:
                raise ValueError(sentence.format(int(lowest if lowest < 0 else highest), size))

    def add_position_bias(
        self, mask: torch.Tensor | None, queries: torch.Tensor, keys: torch.Tensor, states: torch.Tensor
    ) -> torch.Tensor | None:
        """The mask of self-attention, with what ALiBi or T5's relative positions add to the scores of each head.

        Distances are counted in places of a row, so padding on either side changes none.

        Args:
            mask: (B, 1, T, S) or `None`, as transformers makes it for `states`.
            queries, keys: (T,) and (S,), their places in a row.

        Returns:
            (B or 1, H, T, S); `mask` where positions are of another kind.
        """
        if not self.config.has_position_bias:
            return mask
        distance = keys - queries.unsqueeze(-1)  # (T, S)
        if self.relative_bias is None:
            slopes = alibi_slopes(self.config.num_attention_heads).to(distance.device)
            bias = -slopes[:, None, None] * distance.abs()  # (H, T, S)
        else:
            buckets = relative_buckets(
                distance,
                self.is_causal,
                self.config.relative_attention_num_buckets,
                self.config.relative_attention_max_distance,
            )
            bias = self.relative_bias(buckets).permute(2, 0, 1)  # (H, T, S)
        if mask is None and self.is_causal:  # which sdpa would have seen to
            mask = distance <= 0
        return add_to_mask(bias.unsqueeze(0), mask, compute_dtype(states))

    def segment_mask(self, lengths: list[int], states: torch.Tensor) -> torch.Tensor | None:
        """The mask (1, 1 or H, L, L) of every sequence of a long row, L the longest: of a window, and what adds to scores.

        `None` where there is neither, and for flash attention, which has windows of its own.
        """
        if not self._uses_relative_positions or is_flash_attention_requested(self.config):
            return None
        places = torch.arange(max(lengths), device=states.device)
        mask, window = None, self.config.sliding_window
        if window is not None:
            distance = places - places.unsqueeze(-1)  # (L, L)
            mask = (distance > -window) & (distance <= 0) if self.is_causal else distance.abs() <= window
            mask = mask[None, None]
        return self.add_position_bias(mask, places, places, states)

    def layers_in_order(self) -> list[VanillaTransformerLayer]:
        """As often as the stack is deep, also where all are one."""
        return list(self.layers) * self.depth if self.config.shared_layers else list(self.layers)

    def supports_varlen(self, inputs: torch.Tensor, kwargs: dict[str, Any]) -> bool:
        """Whether attention can go sequence by sequence: with flash attention, and with sdpa on a CPU.

        Not where the states of all layers are wanted, which have the shape of the batch; nor in a graph, whose shapes
        would depend on the data. Elsewhere a mask keeps sequences apart.
        """
        wanted = any(
            kwargs.get(name, getattr(self.config, name, False))
            for name in ("output_hidden_states", "output_attentions")
        )
        if wanted or is_tracing(inputs):
            return False
        on_cpu = self.config._attn_implementation == "sdpa" and inputs.device.type == "cpu"
        return on_cpu or is_flash_attention_requested(self.config)

    @property
    def _uses_relative_positions(self) -> bool:
        return self.config.sliding_window is not None or self.config.has_position_bias

    def unpad(
        self, kwargs: dict[str, Any], *batches: tuple
    ) -> tuple[PaddingFreeBatch | None, PaddingFreeBatch | None]:
        """Inputs, and the sources that they attend to, as long rows: where they are packed and, in training, padded.

        `None` where they stay as they are.

        Args:
            kwargs: of the forward.
            batches: of each its tensor (B, T, ...), its mask, and its `packed_sequences`.
        """
        inputs, mask, packed = batches[0]
        found: list[PaddingFreeBatch] = []
        if self.supports_varlen(inputs, kwargs):
            if packed is not None:
                found = [PaddingFreeBatch.from_packed(sequences) for *_, sequences in batches]
            # where distances count, they count the padding between tokens
            elif self.training and not (self._uses_relative_positions and has_gaps(mask)):
                found = unpad_batches(*(batch[:2] for batch in batches))
        return (*found, None, None)[:2]

    def rotary_embeddings(self, position_ids: torch.Tensor) -> torch.Tensor | None:
        """`rotary_embeddings` (2, B or 1, T, d/2), once for all layers; `None` where positions are of another kind."""
        if self.config.position_encoding != "rope":
            return None
        return rotary_embeddings(position_ids, self.config.head_dim, self.config.rope_theta)


def _exactly_one(input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None, prefix: str = "") -> torch.Tensor:
    """The one of the two that is given; an error of one sentence for none, both, or one without a token."""
    if (input_ids is None) == (inputs_embeds is None):
        sentence = f"give exactly one of {prefix}input_ids and {prefix}inputs_embeds"
        if prefix and input_ids is None:
            sentence += (
                ", or labels; where a Trainer with label_smoothing_factor has taken the labels out of the batch, give its "
                "collator the model, as in DataCollatorForSeq2Seq(tokenizer, model=model), or set label_smoothing in the "
                "config instead"
            )
        raise ValueError(f"{sentence}.")
    name, inputs, axes = ("input_ids", input_ids, "(batch, tokens)")
    if inputs_embeds is not None:
        name, inputs, axes = ("inputs_embeds", inputs_embeds, "(batch, tokens, width)")
    if inputs.dim() != axes.count(",") + 1:
        raise ValueError(f"{prefix}{name} of shape {tuple(inputs.shape)} must be {axes}.")
    if inputs.numel() == 0 and not is_tracing(inputs):  # attention backends differ in what they make of nothing
        raise ValueError(f"{prefix}{name} of shape {tuple(inputs.shape)} hold no token.")
    return inputs


class VanillaTransformerEncoder(VanillaTransformerStack):
    """A stack in which every token attends to every other (section 3.1)."""

    _can_record_outputs = {
        "hidden_states": VanillaTransformerLayer,
        "attentions": VanillaTransformerAttention,
    }

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config, config.num_hidden_layers, config.vocab_size, is_causal=False, has_cross=False)

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        """`input_ids` (B, S) or `inputs_embeds` (B, S, E); `attention_mask` (B, S) or 4D. Returns states (B, S, D)."""
        inputs = _exactly_one(input_ids, inputs_embeds)
        check_mask("attention_mask", attention_mask, inputs.shape[1], inputs.shape[1], inputs.shape[1])
        packed = packed_sequences(position_ids, attention_mask, inputs.shape[0])
        if position_ids is None:
            position_ids = positions_from_mask(attention_mask, 0, inputs.shape[1], inputs.device)
        sequence_lengths = None
        unpadded, _ = self.unpad(kwargs, (inputs, attention_mask, packed))
        if unpadded is not None:
            rows = (input_ids, inputs_embeds, position_ids, token_type_ids)
            input_ids, inputs_embeds, position_ids, token_type_ids = map(unpadded.unpad, rows)  # (1, N, ...)
        hidden_states = self.embed(input_ids, inputs_embeds, position_ids, token_type_ids)  # (B, S, D) or (1, N, D)
        if unpadded is not None:
            attention_mask = self.segment_mask(unpadded.lengths, hidden_states)
            sequence_lengths = SequenceLengths(unpadded.lengths, unpadded.lengths)
        else:
            local = self.config.sliding_window is not None
            create_mask = create_bidirectional_sliding_window_mask if local else create_bidirectional_mask
            attention_mask = create_mask(
                self.config,
                hidden_states,
                attention_mask,
                and_mask_function=None if packed is None else same_sequence(packed, packed),
            )
            places = torch.arange(hidden_states.shape[1], device=hidden_states.device)
            attention_mask = self.add_position_bias(attention_mask, places, places, hidden_states)
        rotary = self.rotary_embeddings(position_ids)
        for layer in self.layers_in_order():
            hidden_states = layer(
                hidden_states,
                attention_mask,
                position_ids=position_ids,
                rotary=rotary,
                sequence_lengths=sequence_lengths,
                **kwargs,
            )
        hidden_states = self.norm(hidden_states)
        return BaseModelOutput(hidden_states if unpadded is None else unpadded.pad(hidden_states))


class VanillaTransformerDecoder(VanillaTransformerStack):
    """A stack in which every token attends to earlier ones, and in an encoder-decoder to the source (section 3.1)."""

    _can_record_outputs = {
        "hidden_states": OutputRecorder(VanillaTransformerLayer, num_hidden_layers_key="num_decoder_layers"),
        "attentions": OutputRecorder(VanillaTransformerAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(VanillaTransformerAttention, index=1, layer_name="cross_attn"),
    }

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(
            config,
            config.num_decoder_layers,
            config.output_vocab_size,
            is_causal=True,
            has_cross=config.is_encoder_decoder,
        )

    def _new_cache(self) -> Cache:
        if self.has_cross_attention:
            return EncoderDecoderCache(DynamicCache(config=self.config), DynamicCache())
        return DynamicCache(config=self.config)

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        encoder_position_ids: torch.LongTensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        token_type_ids: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """`input_ids` (B, T) or `inputs_embeds` (B, T, E), behind `cache`; `attention_mask` (B, past + T) or 4D.

        `encoder_hidden_states` (B, S, D) with `encoder_attention_mask` (B, S) or 4D for an encoder-decoder, and
        `encoder_position_ids` (B, S) where several pairs are packed in a row. Returns states (B, T, D) and, with
        `use_cache` and rows that can be continued, the cache.
        """
        inputs = _exactly_one(input_ids, inputs_embeds)
        if self.has_cross_attention and encoder_hidden_states is None:
            raise ValueError("the decoder of an encoder-decoder needs encoder_hidden_states.")
        if encoder_hidden_states is not None and not is_tracing(inputs):
            check_rows(inputs, encoder_hidden_states)
        prepare_cache(cache, inputs, encoder_hidden_states)
        packed, starts = None, cache is None
        # in a traced graph packing cannot be seen, so there it takes use_cache=False
        if starts and not (use_cache and is_tracing(inputs)):
            packed = packed_sequences(position_ids, attention_mask, inputs.shape[0])
        if use_cache and cache is None and packed is None:
            cache = self._new_cache()
        # restarting positions mark packed sequences only where the caller gave them
        packing_positions = position_ids
        own_cache = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
        past_length, keys, first_key = 0, inputs.shape[1], 0
        if isinstance(own_cache, Cache):  # not that of continuous batching, which comes with positions and no mask
            past_length = own_cache.get_seq_length()
            keys, first_key = own_cache.get_mask_sizes(inputs.shape[1], 0)
            seen = None if own_cache.is_compileable else past_length + inputs.shape[1]
            check_mask("attention_mask", attention_mask, inputs.shape[1], keys, seen)
        elif own_cache is None:
            check_mask("attention_mask", attention_mask, inputs.shape[1], inputs.shape[1], inputs.shape[1])
        else:
            check_continuous_batching(self.config)
        if position_ids is None:
            position_ids = positions_from_mask(attention_mask, past_length, inputs.shape[1], inputs.device)
        batches = [(inputs, attention_mask, packed)]
        if encoder_hidden_states is not None:
            shape = encoder_hidden_states.shape
            check_mask("cross_attention_mask", encoder_attention_mask, inputs.shape[1], shape[1], shape[1])
            packed_source = packed_sequences(encoder_position_ids, encoder_attention_mask, shape[0])
            if starts:
                check_pairs(packed, packed_source)
            batches.append((encoder_hidden_states, encoder_attention_mask, packed_source))
        unpadded = source = sequence_lengths = cross_sequence_lengths = None
        if starts and not use_cache:
            unpadded, source = self.unpad(kwargs, *batches)
        if unpadded is not None:
            rows = (input_ids, inputs_embeds, position_ids, token_type_ids)
            input_ids, inputs_embeds, position_ids, token_type_ids = map(unpadded.unpad, rows)  # (1, N, ...)
        if source is not None:
            encoder_hidden_states, encoder_attention_mask = source.unpad(encoder_hidden_states), None
            cross_sequence_lengths = SequenceLengths(unpadded.lengths, source.lengths)
        hidden_states = self.embed(input_ids, inputs_embeds, position_ids, token_type_ids)  # (B, T, D) or (1, N, D)
        if unpadded is not None:
            attention_mask = self.segment_mask(unpadded.lengths, hidden_states)
            sequence_lengths = SequenceLengths(unpadded.lengths, unpadded.lengths)
        else:
            local = self.config.sliding_window is not None
            create_mask = create_sliding_window_causal_mask if local else create_causal_mask
            attention_mask = create_mask(
                self.config,
                hidden_states,
                attention_mask,
                cache=own_cache,
                position_ids=packing_positions,
            )
            places = torch.arange(inputs.shape[1], device=hidden_states.device) + past_length
            key_places = torch.arange(keys, device=hidden_states.device) + first_key
            attention_mask = self.add_position_bias(attention_mask, places, key_places, hidden_states)
        if encoder_hidden_states is not None and cross_sequence_lengths is None:
            encoder_attention_mask = create_bidirectional_mask(
                self.config,
                hidden_states,
                encoder_attention_mask,
                encoder_hidden_states=encoder_hidden_states,
                and_mask_function=None if packed is None else same_sequence(packed, packed_source),
            )
        rotary = self.rotary_embeddings(position_ids)
        for index, layer in enumerate(self.layers_in_order()):
            # states positional, cache by keyword: the gradient checkpointing layer tells them apart so
            hidden_states = layer(
                hidden_states,
                attention_mask,
                encoder_hidden_states,
                encoder_attention_mask=encoder_attention_mask,
                cache=cache,
                use_cache=use_cache,
                position_ids=position_ids,
                rotary=rotary,
                sequence_lengths=sequence_lengths,
                cross_sequence_lengths=cross_sequence_lengths,
                layer_idx=index,
                **kwargs,
            )
        hidden_states = self.norm(hidden_states)
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=hidden_states if unpadded is None else unpadded.pad(hidden_states),
            cache=cache if use_cache else None,
        )


# --------------------------------------------------------------------------------------------------------- base model


class VanillaTransformerModel(VanillaTransformerPreTrainedModel):
    """The stacks that `config.architecture` asks for: `encoder`, `decoder`, or both, without a head."""

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        if config.architecture != "decoder-only":
            self.encoder = VanillaTransformerEncoder(config)
        if config.architecture != "encoder-only":
            self.decoder = VanillaTransformerDecoder(config)
        if config.is_encoder_decoder and config.target_vocab_size is None:
            self._tied_weights_keys = {"decoder.embed_tokens.weight": "encoder.embed_tokens.weight"}
        self.post_init()

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """As in transformers, which asks `tie_word_embeddings` whether the stacks share an embedding."""
        if all_submodels:
            return super().get_expanded_tied_weights_keys(all_submodels=True)
        return dict(self._tied_weights_keys) if self.config.has_shared_embeddings else {}

    @property
    def _input_stack(self) -> VanillaTransformerStack:
        return self.decoder if self.config.architecture == "decoder-only" else self.encoder

    @property
    def _output_stack(self) -> VanillaTransformerStack:
        return self.encoder if self.config.architecture == "encoder-only" else self.decoder

    def get_input_embeddings(self) -> nn.Module:
        return self._input_stack.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self._input_stack.embed_tokens = value

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        decoder_position_ids: torch.LongTensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        cross_attention_mask: torch.Tensor | None = None,
        use_cache: bool | None = None,
        token_type_ids: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput | BaseModelOutputWithPast | Seq2SeqModelOutput:
        """Run the stacks.

        Args:
            input_ids, inputs_embeds: (B, S) or (B, S, D), one of them: the source, or the only sequence.
            attention_mask: (B, S) with 1 for tokens; (B, past + T) with a cache; or a ready 4D mask (B, 1, T, S), either
                of booleans, true to attend, or of numbers that are added to the scores.
            position_ids: (B, S); by default counted from the mask. Without a mask, positions that start anew say that a
                row holds several sequences, which then do not see each other; with all their pairs in an
                encoder-decoder, where `decoder_position_ids` start anew as often.
            decoder_*: the same for the target side of an encoder-decoder, T long.
            cross_attention_mask: which of the source's tokens the target sees, (B, S) or 4D; by default `attention_mask`.
                States at padding mean nothing, and in training are zeros.
            encoder_outputs: of an earlier call, instead of the source.
            cache: keys and values of earlier positions; `use_cache` returns it.
            token_type_ids: (B, S), where `type_vocab_size` says that there are types; 0 by default.
        """
        if self.config.architecture == "encoder-only":
            return self.encoder(
                input_ids, attention_mask, position_ids, inputs_embeds, token_type_ids=token_type_ids, **kwargs
            )
        if self.config.architecture == "decoder-only":
            outputs = self.decoder(
                input_ids,
                attention_mask,
                position_ids,
                cache=cache,
                inputs_embeds=inputs_embeds,
                use_cache=use_cache,
                token_type_ids=token_type_ids,
                **kwargs,
            )
            return BaseModelOutputWithPast(
                last_hidden_state=outputs.last_hidden_state,
                cache=outputs.cache,
                hidden_states=outputs.hidden_states,
                attentions=outputs.attentions,
            )
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids, attention_mask, position_ids, inputs_embeds, token_type_ids=token_type_ids, **kwargs
            )
        elif not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = BaseModelOutput(*encoder_outputs[:3])
        # BART takes the source for the target where none is given, which of a translator is wrong in silence
        _exactly_one(decoder_input_ids, decoder_inputs_embeds, prefix="decoder_")
        outputs = self.decoder(
            decoder_input_ids,
            decoder_attention_mask,
            decoder_position_ids,
            encoder_hidden_states=encoder_outputs[0],
            encoder_attention_mask=attention_mask if cross_attention_mask is None else cross_attention_mask,
            encoder_position_ids=position_ids,
            cache=cache,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=outputs.last_hidden_state,
            cache=outputs.cache,
            decoder_hidden_states=outputs.hidden_states,
            decoder_attentions=outputs.attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs[0],
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
        )


# -------------------------------------------------------------------------------------------------------------- heads


class VanillaTransformerHeadModel(VanillaTransformerPreTrainedModel):
    """A base model under `model`, and what its heads share."""

    supported_architectures: tuple[str, ...]
    _has_label_for_each_token = False

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        if config.architecture not in self.supported_architectures:
            heads = [head.__name__ for head in HEADS if config.architecture in head.supported_architectures]
            auto_classes = {path.rpartition(".")[2]: name for name, path in AUTO_MAP.items()}
            raise ValueError(
                f"{type(self).__name__} needs architecture={' or '.join(map(repr, self.supported_architectures))}, not "
                f"{config.architecture!r}, whose heads are {', '.join(heads)}; load it with {auto_classes[heads[0]]}."
            )
        self.model = VanillaTransformerModel(config)

    def get_input_embeddings(self) -> nn.Module:
        return self.model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.model.set_input_embeddings(value)

    @property
    def accepts_loss_kwargs(self) -> bool:
        """Whether losses are divided by `num_items_in_batch`; `Trainer` asks, once, before it counts these items."""
        let_trainer_count_labels()
        return True

    def counted_labels(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return the `labels` (B, T) among a forward's `inputs`, -100 where the mask leaves them out of the loss.

        `Trainer` counts them, as any loop should that gives `num_items_in_batch`. Empty for a head without such labels.
        """
        labels = inputs.get("labels")
        if labels is not None and (labels.dim() != 2 or not self._has_label_for_each_token):
            return {}
        mask = "decoder_attention_mask" if self.config.is_encoder_decoder else "attention_mask"
        counted = ignore_padding_labels(labels, inputs.get(mask))
        return {} if counted is None else {"labels": counted}

    def _loss_options(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """For `smoothed_cross_entropy`, of the keywords of a forward; `label_smoothing` overrides the config's."""
        return {
            "label_smoothing": kwargs.get("label_smoothing", self.config.label_smoothing),
            "label_smoothing_form": self.config.label_smoothing_form,
            "num_items_in_batch": kwargs.get("num_items_in_batch"),
        }


class VanillaTransformerPredictionHeadTransform(nn.Module):
    """States (..., D) to what embeddings (..., E) are compared with, as the masked language models of BERT's family do."""

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.embedding_width)
        self.activation = ACT2FN[config.hidden_act]
        self.norm = build_norm(config, config.embedding_width)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.norm(self.activation(self.dense(hidden_states)))


class VanillaTransformerLMHeadModel(VanillaTransformerHeadModel):
    """A projection from states to tokens, tied to the embedding of the side that is written (section 3.4)."""

    _has_label_for_each_token = True

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        if self.can_generate():
            # from a file marked as derived from the model config, settings that transformers does not know are dropped
            self.generation_config._from_model_config = False
        self.output_transform = VanillaTransformerPredictionHeadTransform(config) if config.output_transform else None
        width = config.embedding_width if config.output_transform else config.hidden_size
        self.lm_head = nn.Linear(width, config.output_vocab_size, bias=config.output_bias == "trained")
        fixed = config.output_bias == "fixed"
        self.output_bias: torch.Tensor | None
        self.register_buffer("output_bias", torch.zeros(config.output_vocab_size) if fixed else None)
        side = "encoder" if config.architecture == "encoder-only" or config.has_shared_embeddings else "decoder"
        self._tied_weights_keys = {"lm_head.weight": f"model.{side}.embed_tokens.weight"}
        self.post_init()

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        embeddings = super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        if self.output_bias is not None:
            missing = embeddings.num_embeddings - len(self.output_bias)  # cut off where below 0
            self.output_bias = nn.functional.pad(self.output_bias, (0, missing))
        return embeddings

    @property
    def _projects_by_weight_alone(self) -> bool:
        """Whether the projection is its weight and bias, and no adapter, hook or other forward that has to be called."""
        head = self.lm_head
        hooks = (head._forward_hooks, head._forward_pre_hooks, head._backward_hooks, head._backward_pre_hooks)
        return type(head) is nn.Linear and not any(hooks) and "forward" not in vars(head)

    def _init_weights(self, module: nn.Module) -> None:
        if module is not self.lm_head or module.weight is not self._tied_embedding():
            super()._init_weights(module)
        elif module.bias is not None:  # a tied matrix is initialised as an embedding
            init.zeros_(module.bias)
        if module is self and self.output_bias is not None:
            init.zeros_(self.output_bias)

    def _tied_embedding(self) -> nn.Parameter:
        """Return the embedding that the output is tied to, or would be."""
        return self.get_parameter(self._tied_weights_keys["lm_head.weight"])

    def save_pretrained(self, *args: Any, **kwargs: Any) -> Any:
        """As in transformers; one matrix in two places is saved as one, whatever the configuration says by then.

        PEFT's `merge_and_unload` says there that it is two wherever output and input embedding differ, as they do with
        separate vocabularies; of a tied one, saved once, nothing would then fill the second place.
        """
        weights = dict(self.named_parameters(remove_duplicate=False))
        pairs = [(weights.get(one), weights.get(other)) for one, other in self._tied_weights_keys.items()]
        if all(one is not None and one is other for one, other in pairs):
            self.config.tie_word_embeddings = True
        return super().save_pretrained(*args, **kwargs)

    def skips_logits(
        self, skip_logits: bool | None, labels: torch.Tensor | None, logits_to_keep: int | torch.Tensor = 0
    ) -> bool:
        """Whether a forward returns the loss alone: where that is asked for and, by default, in training with labels."""
        if labels is None or not self._projects_by_weight_alone:
            return False
        if skip_logits is None:
            # a graph cannot depend on which labels count
            return self.training and isinstance(logits_to_keep, int) and not logits_to_keep and not is_tracing(labels)
        return skip_logits

    def logits_and_loss(
        self,
        hidden_states: torch.Tensor,
        labels: torch.Tensor | None,
        logits_to_keep: int | torch.Tensor = 0,
        skip_logits: bool | None = False,
        **kwargs: Any,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Logits (B, T, V), and the loss where there are labels (B, T), aligned with the states (B, T, D).

        `skip_logits` gives the same loss without ever holding all logits: less memory, and faster. `None`, the default of
        forwards, does so in training, as fused kernels do; evaluation has logits, as has a forward without labels.
        """
        options = self._loss_options(kwargs)
        check_labels(labels, hidden_states.shape[:2])
        skip_logits = self.skips_logits(skip_logits, labels, logits_to_keep)
        if labels is None:
            hidden_states = slice_logits_to_keep(hidden_states, logits_to_keep)
        if self.output_transform is not None:
            hidden_states = self.output_transform(hidden_states)
        if self.config.output_scale != 1:
            hidden_states = hidden_states * self.config.output_scale
        if skip_logits:
            bias = self.lm_head.bias if self.output_bias is None else self.output_bias
            return None, chunked_cross_entropy(hidden_states, self.lm_head.weight, labels, bias=bias, **options)
        logits = self.lm_head(hidden_states)
        logits = logits if self.output_bias is None else logits + self.output_bias
        if labels is None:
            return logits, None
        loss = smoothed_cross_entropy(logits, labels, **options)
        if isinstance(logits_to_keep, int) and not logits_to_keep:
            return logits, loss  # and not a view of them, so that the loss is a function of what is returned
        return slice_logits_to_keep(logits, logits_to_keep), loss


class VanillaTransformerForConditionalGeneration(VanillaTransformerGenerationMixin, VanillaTransformerLMHeadModel):
    """Encoder-decoder that writes a target for a source: translation, summarization, any text to text."""

    supported_architectures = ("encoder-decoder",)
    _tp_plan = {"lm_head": "colwise_gather_output"}
    _fsdp_plan = {"lm_head": "keep_full_weight"}

    def prepare_decoder_input_ids_from_labels(
        self, labels: torch.Tensor, starts: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B, T) labels to (B, T) decoder inputs: shifted right behind the start token, as often as `starts` (B, T) says."""
        return shift_right(labels, self.config.start_token_id, self.config.pad_token_id, starts)

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        decoder_position_ids: torch.LongTensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        skip_logits: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqLMOutput:
        """As [`VanillaTransformerModel.forward`], with logits (B, T, V), and a loss where there are labels.

        Args:
            labels: (B, T), the target itself: decoder inputs are made from it where none are given, for each of several
                targets in a row that `decoder_position_ids` tell apart. -100: no loss; nor where
                `decoder_attention_mask` has padding.
            logits_to_keep: only the last so many positions, or these positions, get logits; 0 for all.
            skip_logits: with labels, return the loss alone, without ever holding all logits; by default in training.
        """
        if labels is not None:
            use_cache = False  # a loss needs all positions at once
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                starts = sequence_starts(decoder_position_ids, decoder_attention_mask, labels.shape[0])
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels, starts)
            labels = ignore_padding_labels(labels, decoder_attention_mask)
            free = decoder_attention_mask is None and decoder_position_ids is None and cache is None
            skip_logits = self.skips_logits(skip_logits, labels, logits_to_keep)
            if skip_logits and self.training and free and self.model.decoder.supports_varlen(labels, kwargs):
                # nothing looks back at what stands behind the last label of a row, so it can be left out
                decoder_attention_mask = (labels != IGNORED).flip(-1).cumsum(-1).flip(-1) > 0
        outputs = self.model(
            input_ids,
            attention_mask,
            position_ids,
            decoder_input_ids,
            decoder_attention_mask,
            decoder_position_ids,
            encoder_outputs=encoder_outputs,
            cache=cache,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        logits, loss = self.logits_and_loss(outputs.last_hidden_state, labels, logits_to_keep, skip_logits, **kwargs)
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            cache=outputs.cache,
            decoder_hidden_states=outputs.decoder_hidden_states,
            decoder_attentions=outputs.decoder_attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
            encoder_attentions=outputs.encoder_attentions,
        )


class VanillaTransformerForCausalLM(VanillaTransformerGenerationMixin, VanillaTransformerLMHeadModel):
    """Decoder-only language model: continues a text."""

    supported_architectures = ("decoder-only",)
    _tp_plan = {"lm_head": "colwise_gather_output"}
    _fsdp_plan = {"lm_head": "keep_full_weight"}

    def counted_labels(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """As for other heads, of `labels` and of `shift_labels`; see `ignore_labels_without_context`."""
        mask, counted = inputs.get("attention_mask"), {}
        for name in ("labels", "shift_labels"):
            if (labels := inputs.get(name)) is not None:
                starts = sequence_starts(inputs.get("position_ids"), mask, labels.shape[0])
                counted[name] = ignore_labels_without_context(labels, mask, starts, shifted=name == "shift_labels")
        return counted

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        skip_logits: bool | None = None,
        token_type_ids: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> CausalLMOutputWithPast:
        """(B, T) ids to logits (B, T, V).

        Args:
            labels: (B, T), the inputs themselves: position t is compared with label t + 1. -100: no loss. Padding, and
                what stands behind it or behind the end of another sequence in the row, has none either, so that the loss
                is the mean over tokens that follow a token, on whichever side padding stands and if it has labels.
            logits_to_keep: only the last so many positions, or these positions, get logits; 0 for all.
            skip_logits: with labels, return the loss alone, without ever holding all logits; by default in training.
            shift_labels (among the `kwargs`): (B, T), the token that follows each, in place of what `labels` would give.
        """
        if labels is not None or kwargs.get("shift_labels") is not None:
            use_cache = False  # a loss needs all positions at once
        outputs = self.model(
            input_ids,
            attention_mask,
            position_ids,
            cache=cache,
            inputs_embeds=inputs_embeds,
            token_type_ids=token_type_ids,
            use_cache=use_cache,
            **kwargs,
        )
        given = {"labels": labels, "shift_labels": kwargs.get("shift_labels"), "attention_mask": attention_mask}
        counted = self.counted_labels(given | {"position_ids": position_ids})
        next_tokens = counted.get("shift_labels")
        if next_tokens is None and labels is not None:
            check_labels(labels, outputs.last_hidden_state.shape[:2])
            next_tokens = nn.functional.pad(counted["labels"][:, 1:], (0, 1), value=IGNORED)
        logits, loss = self.logits_and_loss(
            outputs.last_hidden_state, next_tokens, logits_to_keep, skip_logits, **kwargs
        )
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            cache=outputs.cache,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class VanillaTransformerForMaskedLM(VanillaTransformerLMHeadModel):
    """Encoder-only model that fills in masked tokens."""

    supported_architectures = ("encoder-only",)
    _tp_plan = {"lm_head": "colwise_gather_output"}
    _fsdp_plan = {"lm_head": "keep_full_weight"}

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        skip_logits: bool | None = None,
        token_type_ids: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedLMOutput:
        """(B, T) ids to logits (B, T, V); `labels` (B, T) hold the token at masked positions and -100 elsewhere.

        Those at padding do not count.
        """
        outputs = self.model(
            input_ids,
            attention_mask,
            position_ids,
            inputs_embeds=inputs_embeds,
            token_type_ids=token_type_ids,
            **kwargs,
        )
        labels = ignore_padding_labels(labels, attention_mask)
        logits, loss = self.logits_and_loss(outputs.last_hidden_state, labels, skip_logits=skip_logits, **kwargs)
        return MaskedLMOutput(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class VanillaTransformerForSequenceClassification(VanillaTransformerHeadModel):
    """Classifies, or rates, whole sequences.

    The state that is classified: of an encoder the mean over all tokens, which trains well from scratch because every
    token gets a gradient; of a decoder the one of the last token, which alone has seen them all. Padding, on whichever
    side, has no part in either. The decoder of an encoder-decoder reads the start token alone where it is given nothing
    else, and asks the source by cross-attention.
    """

    supported_architectures = ("encoder-decoder", "encoder-only", "decoder-only")

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        self.dropout = VanillaTransformerDropout(config, "dropout")
        self.score = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def pool(self, hidden_states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """States (B, T, D) and their mask (B, T) to (B, D)."""
        if mask is None or mask.dim() != 2:
            mask = torch.ones(hidden_states.shape[:2], dtype=torch.long, device=hidden_states.device)
        if self.config.architecture == "encoder-only":
            weights = mask.to(hidden_states.dtype).unsqueeze(-1)
            return (hidden_states * weights).sum(1) / weights.sum(1).clamp(min=1)
        last = (mask.long() * torch.arange(1, mask.shape[1] + 1, device=mask.device)).argmax(-1)  # (B,)
        return hidden_states[torch.arange(len(last), device=last.device), last]

    def classification_loss(self, logits: torch.Tensor, labels: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """By `config.problem_type`; where that is unset, the labels set it, as everywhere in transformers.

        Numbers: mean squared error. One of several classes: cross entropy, smoothed. Several classes at once: binary
        cross entropy. All are means over labels, so that `num_items_in_batch` holds for each.
        """
        if self.config.problem_type is None:
            if self.config.num_labels == 1:
                self.config.problem_type = "regression"
            elif labels.is_floating_point():
                self.config.problem_type = "multi_label_classification"
            else:
                self.config.problem_type = "single_label_classification"
        if self.config.problem_type == "single_label_classification":
            return smoothed_cross_entropy(logits, labels, **self._loss_options(kwargs))
        labels = labels.to(logits.device).view_as(logits).float()
        if self.config.problem_type == "regression":
            total = nn.functional.mse_loss(logits.float(), labels, reduction="sum")
        else:
            total = nn.functional.binary_cross_entropy_with_logits(logits.float(), labels, reduction="sum")
        return loss_per_item(total, labels.numel(), kwargs.get("num_items_in_batch"))

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SequenceClassifierOutput | Seq2SeqSequenceClassifierOutput:
        """(B, T) ids to logits (B, num_labels).

        Args:
            labels: (B,) classes or numbers, or (B, num_labels) with 0 and 1 or numbers; see `classification_loss`.
        """
        inputs = _exactly_one(input_ids, inputs_embeds)
        mask = attention_mask
        kwargs["use_cache"] = False
        if self.config.is_encoder_decoder:
            if decoder_input_ids is None:
                nothing = torch.full((inputs.shape[0], 1), IGNORED, device=inputs.device)
                decoder_input_ids = shift_right(nothing, self.config.start_token_id, self.config.pad_token_id)
            mask = decoder_attention_mask
            kwargs |= {"decoder_input_ids": decoder_input_ids, "decoder_attention_mask": decoder_attention_mask}
        outputs = self.model(
            input_ids,
            attention_mask,
            position_ids,
            inputs_embeds=inputs_embeds,
            token_type_ids=token_type_ids,
            **kwargs,
        )
        pooled = self.pool(outputs.last_hidden_state, mask)
        logits = self.score(self.dropout(pooled))
        if labels is not None and labels.shape[0] != logits.shape[0]:
            raise ValueError(f"labels of shape {tuple(labels.shape)} do not fit {logits.shape[0]} rows.")
        loss = None if labels is None else self.classification_loss(logits, labels, **kwargs)
        if not self.config.is_encoder_decoder:
            return SequenceClassifierOutput(
                loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
            )
        return Seq2SeqSequenceClassifierOutput(
            loss=loss,
            logits=logits,
            decoder_hidden_states=outputs.decoder_hidden_states,
            decoder_attentions=outputs.decoder_attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
            encoder_attentions=outputs.encoder_attentions,
        )


class VanillaTransformerForTokenClassification(VanillaTransformerHeadModel):
    """Classifies every token: tags, chunks, names."""

    supported_architectures = ("encoder-only", "decoder-only")
    _has_label_for_each_token = True

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        self.dropout = VanillaTransformerDropout(config, "dropout")
        self.score = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> TokenClassifierOutput:
        """(B, T) ids to logits (B, T, num_labels); `labels` (B, T) are classes, -100 where none counts, as at padding."""
        kwargs["use_cache"] = False
        outputs = self.model(
            input_ids,
            attention_mask,
            position_ids,
            inputs_embeds=inputs_embeds,
            token_type_ids=token_type_ids,
            **kwargs,
        )
        check_labels(labels, outputs.last_hidden_state.shape[:2])
        labels = ignore_padding_labels(labels, attention_mask)
        logits = self.score(self.dropout(outputs.last_hidden_state))
        return TokenClassifierOutput(
            loss=None if labels is None else smoothed_cross_entropy(logits, labels, **self._loss_options(kwargs)),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class VanillaTransformerForQuestionAnswering(VanillaTransformerHeadModel):
    """Finds the answer in the text: the tokens at which it starts and ends."""

    supported_architectures = ("encoder-only", "decoder-only")
    accepts_loss_kwargs = False  # Trainer counts `labels`, and there are none of that name here

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        self.dropout = VanillaTransformerDropout(config, "dropout")
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        start_positions: torch.LongTensor | None = None,
        end_positions: torch.LongTensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> QuestionAnsweringModelOutput:
        """(B, T) ids to start and end logits (B, T), lowest at padding.

        Args:
            start_positions, end_positions: (B,) or (B, 1); those outside the text, which truncation leaves, do not
                count. The loss is not smoothed: neighbours of the right token are not as wrong as any other.
        """
        kwargs["use_cache"] = False
        outputs = self.model(
            input_ids,
            attention_mask,
            position_ids,
            inputs_embeds=inputs_embeds,
            token_type_ids=token_type_ids,
            **kwargs,
        )
        logits = self.qa_outputs(self.dropout(outputs.last_hidden_state))  # (B, T, 2)
        if attention_mask is not None and attention_mask.dim() == 2:
            # the softmax is over positions, so padding would have a share in it
            logits = logits.masked_fill(attention_mask.unsqueeze(-1) == 0, torch.finfo(logits.dtype).min)
        start_logits, end_logits = logits.unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            count = kwargs.get("num_items_in_batch")
            losses = []
            for position_logits, positions in ((start_logits, start_positions), (end_logits, end_positions)):
                outside = (positions < 0) | (positions >= position_logits.shape[1])
                positions = positions.masked_fill(outside, IGNORED)
                if attention_mask is not None and attention_mask.dim() == 2:
                    is_token = attention_mask.gather(1, positions.view(-1, 1).clamp(min=0)).view_as(positions)
                    positions = positions.masked_fill(is_token == 0, IGNORED)
                losses.append(smoothed_cross_entropy(position_logits, positions, num_items_in_batch=count))
            loss = sum(losses) / 2
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_logits,
            end_logits=end_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


# named in the error of a head that is given an architecture it cannot serve
HEADS: tuple[type[VanillaTransformerHeadModel], ...] = (
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerForCausalLM,
    VanillaTransformerForMaskedLM,
    VanillaTransformerForSequenceClassification,
    VanillaTransformerForTokenClassification,
    VanillaTransformerForQuestionAnswering,
)


__all__ = [
    "VanillaTransformerForCausalLM",
    "VanillaTransformerForConditionalGeneration",
    "VanillaTransformerForMaskedLM",
    "VanillaTransformerForQuestionAnswering",
    "VanillaTransformerForSequenceClassification",
    "VanillaTransformerForTokenClassification",
    "VanillaTransformerModel",
    "VanillaTransformerPreTrainedModel",
]
