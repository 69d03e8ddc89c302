# Copyright 2026 The vanilla_transformer authors. Licensed under the Apache License, Version 2.0.
"""The Transformer of "Attention Is All You Need" (arXiv:1706.03762), as encoder-decoder, encoder-only and decoder-only.

In the order of the paper's section 3, from parts to the whole: attention (3.2), feed-forward network (3.3), embeddings
(3.4) and positions (3.5), layers and stacks (3.1); then base model and heads. What the paper does not have stands in
siblings: positions_ (rotary, ALiBi, T5's), sequences_ (masks, packing, padding), kernels_ (faster ways to the same
numbers), losses_, generation_. A checkpoint carries these files, so they import only transformers, torch and each other.

Shapes, as written at line ends:
    B  batch            T  target or only sequence, S  source (keys of cross-attention)
    D  hidden_size      F  intermediate_size
    H  query heads      K  key-value heads      d  head_dim
    E  width of embeddings, hidden_size unless they are factorised
    V  vocabulary       N  all tokens of a batch in one row, without padding
    L  the longest sequence of such a row
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.masking_utils import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    AttentionMaskInterface,
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
from transformers.utils import ModelOutput, TransformersKwargs, can_return_tuple
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.import_utils import is_tracing
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .configuration_vanilla_transformer import AUTO_MAP, VanillaTransformerConfig
from .generation_vanilla_transformer import (
    VanillaTransformerGenerationMixin,
    new_cache,
    places_in_rows,
    prepare_cache,
)
from .kernels_vanilla_transformer import (
    Kernels,
    VanillaTransformerDropout,
)
from .losses_vanilla_transformer import (
    IGNORED,
    check_labels,
    ignore_labels_without_context,
    ignore_padding_labels,
    let_trainer_count_labels,
    loss_per_item,
    shift_right,
    smoothed_cross_entropy,
)
from .positions_vanilla_transformer import (
    VanillaTransformerLearnedPositions,
    add_to_mask,
    apply_rotary_pos_emb,
    compute_dtype,
    position_angles,
    position_bias,
    rotary_embeddings_of,
)
from .sequences_vanilla_transformer import (
    PaddedBatch,
    can_inspect_values,
    check_ids,
    check_mask,
    check_pairs,
    exactly_one,
    is_padding_mask,
    packed_sequences,
    positions_from_mask,
    same_sequence,
    sequence_starts,
)

# ---------------------------------------------------------------------------------------------------- 3.2: attention


def eager_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Scaled dot-product attention (section 3.2.1) that also returns the probabilities.

    Args:
        query: (B, H, T, d). key, value: (B, K, S, d).
        attention_mask: (B or 1, 1, T, S), true to attend or added to the scores; `None` for none.

    Returns:
        outputs (B, T, H, d) and probabilities (B, H, T, S).
    """
    key = key.repeat_interleave(module.num_key_value_groups, dim=1)  # (B, H, S, d)
    value = value.repeat_interleave(module.num_key_value_groups, dim=1)
    scores = query @ key.transpose(2, 3) * scaling  # (B, H, T, S)
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    elif attention_mask is not None:
        scores = scores + attention_mask
    probabilities = nn.functional.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    probabilities = nn.functional.dropout(probabilities, p=dropout, training=module.training)
    return (probabilities @ value).transpose(1, 2).contiguous(), probabilities


def choose_attention(config: VanillaTransformerConfig, lengths: Any) -> Callable:
    """Return the function that attends: transformers' of this name, or one for the sequences of a row without padding."""
    attention = ALL_ATTENTION_FUNCTIONS.get_interface(config._attn_implementation, eager_attention_forward)
    return attention if lengths is None else lengths.choose_attention(config, attention)


class VanillaTransformerAttention(nn.Module):
    """Multi-head attention (section 3.2.2): over the sequence itself, or over the encoder's output (3.2.3)."""

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
        heads, key_value_heads, bias = config.num_attention_heads, config.num_key_value_heads, config.attention_bias
        self.q_proj = nn.Linear(config.hidden_size, heads * config.head_dim, bias=bias)
        self.k_proj = nn.Linear(config.hidden_size, key_value_heads * config.head_dim, bias=bias)
        self.v_proj = nn.Linear(config.hidden_size, key_value_heads * config.value_dim, bias=bias)
        self.o_proj = nn.Linear(heads * config.value_dim, config.hidden_size, bias=config.has_attention_output_bias)
        self.q_norm = self.k_norm = None
        if config.qk_norm is not None:  # of each head, beyond the paper
            self.q_norm, self.k_norm = (build_norm(config, config.head_dim, config.qk_norm) for _ in range(2))
        if config.init_scheme == "fairseq":
            # fairseq initialises the three as one matrix, whose larger fan-out gives each a gain of 1/sqrt(2)
            for projection in (self.q_proj, self.k_proj, self.v_proj):
                projection.init_gain = 2**-0.5

    def _split_heads(self, states: Tensor, width: int, norm: nn.Module | None = None) -> Tensor:
        """Return projected states (B, T, H * d) as (B, H, T, d), or with K heads; each normed where the model does so."""
        # -1, not the number of heads: under tensor parallelism a process holds only some of them
        heads = states.view(*states.shape[:-1], -1, width).transpose(1, 2)
        return heads if norm is None else norm(heads)

    def _keys_and_values(self, states: Tensor, rotary: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return keys and values (B, K, S, d) of states (B, S, D), keys turned by their positions."""
        key = self._split_heads(self.k_proj(states), self.head_dim, self.k_norm)
        value = self._split_heads(self.v_proj(states), self.config.value_dim)
        return key if rotary is None else apply_rotary_pos_emb(key, rotary), value

    def _keys_and_values_of_source(
        self, source: Tensor, cache: Cache | None, layer_idx: int, kwargs: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """Return keys and values (B, K, S, d) of the source (B, S, D), which is projected once per generation."""
        if not isinstance(cache, EncoderDecoderCache):
            return self._keys_and_values(source)
        if not cache.is_updated.get(layer_idx):
            cache.cross_attention_cache.update(*self._keys_and_values(source), layer_idx, kwargs=kwargs)
            cache.is_updated[layer_idx] = True
        layer = cache.cross_attention_cache.layers[layer_idx]
        # a static cache may have room for longer sources, an offloaded one be elsewhere
        keys, values = layer.keys[:, :, : source.shape[1]], layer.values[:, :, : source.shape[1]]
        return keys.to(source.device), values.to(source.device)

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        rotary: Tensor | None = None,
        lengths: Any = None,
        layer_idx: int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[Tensor, Tensor | None]:
        """(B, T, D) to (B, T, D), with the probabilities (B, H, T, S) where the backend has them.

        Args:
            rotary: (2, B or 1, T, d/2), `rotary_embeddings` of the positions, for self-attention.
            lengths: of the sequences of a row without padding; `attention_mask` is then that of each of them.
            layer_idx: whose keys and values of the cache, where layers are shared.
        """
        layer_idx = self.layer_idx if layer_idx is None else layer_idx
        query = self._split_heads(self.q_proj(hidden_states), self.head_dim, self.q_norm)  # (B, H, T, d)
        query = query if rotary is None else apply_rotary_pos_emb(query, rotary)
        if encoder_hidden_states is None:
            key, value = self._keys_and_values(hidden_states, rotary)  # (B, K, T, d)
            own_cache = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
            if own_cache is not None:  # (B, K, past + T, d)
                key, value = own_cache.update(key, value, layer_idx, kwargs=kwargs)
        else:
            key, value = self._keys_and_values_of_source(encoder_hidden_states, cache, layer_idx, kwargs)
        attention = choose_attention(self.config, lengths)
        options = {"scaling": self.scaling, "sliding_window": self.sliding_window}
        options["dropout"] = self.dropout.p if self.training else 0.0
        # (B, T, H, d) and (B, H, T, S)
        output, probabilities = attention(self, query, key, value, attention_mask, **options, **kwargs)
        return self.o_proj(output.flatten(-2).contiguous()), probabilities


# ------------------------------------------------------------------------------------------ 3.3: feed-forward network


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

    def forward(self, hidden_states: Tensor) -> Tensor:
        inner = self.up_proj(hidden_states)  # (B, T, F)
        if self.gate_proj is None:
            inner = self.activation(inner)
        else:
            inner = self.activation(self.gate_proj(hidden_states)) * inner
        return self.down_proj(self.dropout(inner))  # (B, T, D)


# -------------------------------------------------------------------------------- 3.4 and 3.5: embeddings and positions


def sinusoidal_encoding(position_ids: Tensor, width: int, form: str = "interleaved") -> Tensor:
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


def build_norm(config: VanillaTransformerConfig, width: int | None = None, kind: str | None = None) -> nn.Module:
    """Return a norm over `hidden_size`, or another width, of the model's kind, or another."""
    width = config.hidden_size if width is None else width
    if (kind or config.norm_type) == "rmsnorm":
        return nn.RMSNorm(width, eps=config.norm_eps)
    return nn.LayerNorm(width, eps=config.norm_eps, bias=config.norm_bias)


class VanillaTransformerEmbeddings:
    """What a stack does before its first layer: token embeddings (3.4) plus positions (3.5), by modules of the stack."""

    config: VanillaTransformerConfig

    def build_embeddings(self, config: VanillaTransformerConfig, vocab_size: int) -> None:
        """Make the modules; those that the configuration does not ask for are `None`."""
        width = config.embedding_width
        self.embed_tokens = nn.Embedding(vocab_size, width, padding_idx=config.pad_token_id)
        self.embed_scale = math.sqrt(width) if config.scale_embedding else 1.0
        self.embed_positions = self.embed_token_types = self.embed_projection = self.relative_bias = None
        if config.position_encoding == "learned":
            count, offset = config.max_position_embeddings, config.position_offset
            self.embed_positions = VanillaTransformerLearnedPositions(count, width, offset)
        if config.type_vocab_size:
            self.embed_token_types = nn.Embedding(config.type_vocab_size, width)
        self.embed_norm = build_norm(config, width) if config.embedding_norm else nn.Identity()
        self.dropout = VanillaTransformerDropout(config, "dropout")
        if width != config.hidden_size:
            self.embed_projection = nn.Linear(width, config.hidden_size)
        if config.position_encoding == "relative":
            self.relative_bias = nn.Embedding(config.relative_attention_num_buckets, config.num_attention_heads)

    def check_token_ids(self, ids: Tensor) -> None:
        """Refuse ids outside the vocabulary, where they can be inspected."""
        check_ids(ids, self.embed_tokens.weight.shape[0], "token id {} is outside the vocabulary of {} tokens.")

    def embed(
        self,
        input_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        position_ids: Tensor,
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        """Return scaled token embeddings plus positions, after dropout: (B, T, D).

        In between, where the model has them, token types and a norm; at the end a projection to the width of layers.
        """
        # tokens (3.4)
        width = self.config.embedding_width
        if inputs_embeds is None:
            self.check_token_ids(input_ids)
            inputs_embeds = self.embed_tokens(input_ids)
        elif inputs_embeds.shape[-1] != width:
            raise ValueError(
                f"inputs_embeds of shape {tuple(inputs_embeds.shape)} must have the width of the model's embeddings, "
                f"{width}."
            )
        hidden_states = inputs_embeds * self.embed_scale  # (B, T, E)
        # positions (3.5)
        if self.config.position_encoding == "sinusoidal":
            places = position_ids + self.config.position_offset
            encoding = sinusoidal_encoding(places, width, self.config.sinusoidal_form)
            hidden_states = hidden_states + encoding.to(hidden_states.device, hidden_states.dtype)
        elif self.embed_positions is not None:
            hidden_states = hidden_states + self.embed_positions(position_ids)
        # token types
        if self.embed_token_types is not None:
            if token_type_ids is None:
                token_type_ids = torch.zeros_like(position_ids)
            size = self.embed_token_types.weight.shape[0]
            check_ids(token_type_ids, size, "token type {} is none of the model's {} types.")
            hidden_states = hidden_states + self.embed_token_types(token_type_ids)
        elif token_type_ids is not None and can_inspect_values(token_type_ids) and token_type_ids.any():
            raise ValueError("the model has no token types: leave token_type_ids out, or set type_vocab_size.")
        hidden_states = self.dropout(self.embed_norm(hidden_states))
        return hidden_states if self.embed_projection is None else self.embed_projection(hidden_states)


# --------------------------------------------------------------------------------------------- 3.1: layers and stacks


class VanillaTransformerLayer(GradientCheckpointingLayer):
    """Self-attention, in decoders of an encoder-decoder cross-attention, feed-forward; each with residual and norm."""

    def __init__(self, config: VanillaTransformerConfig, layer_idx: int, is_causal: bool, has_cross_attention: bool):
        super().__init__()
        self.pre_norm = config.norm_position == "pre"
        self.dropout = VanillaTransformerDropout(config, "dropout")
        window = config.sliding_window if config.attention_kinds[layer_idx] == "sliding_attention" else None
        self.self_attn = VanillaTransformerAttention(config, layer_idx, is_causal, window)
        self.self_attn_norm = build_norm(config)
        if has_cross_attention:
            self.cross_attn = VanillaTransformerAttention(config, layer_idx, is_causal=False)
            self.cross_attn_norm = build_norm(config)
        self.feed_forward = VanillaTransformerFeedForward(config)
        self.feed_forward_norm = build_norm(config)

    def _before(self, norm: nn.Module, hidden_states: Tensor) -> Tensor:
        return norm(hidden_states) if self.pre_norm else hidden_states

    def _after(self, norm: nn.Module, residual: Tensor, output: Tensor) -> Tensor:
        # section 5.4: dropout on the output of the sublayer, before it is added and normalised
        hidden_states = residual + self.dropout(output)
        return hidden_states if self.pre_norm else norm(hidden_states)

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,  # read by GradientCheckpointingLayer
        position_ids: Tensor | None = None,
        rotary: Tensor | None = None,
        lengths: Any = None,
        cross_lengths: Any = None,
        layer_idx: int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Tensor:
        """(B, T, D) to (B, T, D); `rotary`, `lengths` and `layer_idx` as in [`VanillaTransformerAttention.forward`]."""
        output, _ = self.self_attn(
            self._before(self.self_attn_norm, hidden_states),
            attention_mask=attention_mask,
            cache=cache,
            position_ids=position_ids,
            rotary=rotary,
            lengths=lengths,
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
                lengths=cross_lengths,
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
        """Load as in transformers, but pickled weights, a format that can carry code, only with `use_safetensors=False`."""
        only_safe = use_safetensors is None and kwargs.get("gguf_file") is None
        kwargs["use_safetensors"] = only_safe or use_safetensors
        try:
            return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        except OSError as error:
            if only_safe and "model.safetensors" in str(error):
                raise OSError(
                    f"{pretrained_model_name_or_path} holds no model.safetensors. Pickled weights (pytorch_model.bin), a "
                    "format that can carry code, are read only when asked for; ask for safetensors, or load them with "
                    "use_safetensors=False, which reads tensors alone, and save the model again."
                ) from error
            raise

    def generate_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse, as a model that writes no text does; one that does has transformers' own."""
        raise ValueError(
            f"a {type(self).__name__} writes no text, so it has no generate_batch(); call it on all rows."
        )

    def to_empty(self, *, device: Any, recurse: bool = True) -> Any:
        """Move without values, as in torch, which would take tied matrices apart; here they stay tied."""
        super().to_empty(device=device, recurse=recurse)
        self.tie_weights()
        return self

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        """Return the backend as transformers does, but none that cannot add a number of each head to scores."""
        implementation = super().get_correct_attn_implementation(requested_attention, is_init_check)
        is_paged = implementation.startswith("paged|")  # continuous batching, which brings masks of its own
        if implementation in ALL_ATTENTION_FUNCTIONS.keys() - ALL_MASK_ATTENTION_FUNCTIONS.keys() and not is_paged:
            # registered with `AttentionInterface` alone, it gets masks as sdpa does; transformers would make none for it,
            # and padding, windows and packed sequences would be ignored in silence
            AttentionMaskInterface.register(implementation, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
        if self.config.has_position_bias and ("flash" in implementation or "flex" in implementation):
            raise ValueError(
                f"attn_implementation={requested_attention!r} cannot add what "
                f"position_encoding={self.config.position_encoding!r} adds to scores; use 'sdpa' or 'eager'."
            )
        return implementation

    def save_pretrained(self, *args: Any, **kwargs: Any) -> Any:
        """Save as in transformers; a matrix in several places once, and in the configuration where it stands."""
        weights = dict(self.base_model.named_parameters(remove_duplicate=False))
        of_encoder, of_decoder = (weights.get(f"{stack}.embed_tokens.weight") for stack in ("encoder", "decoder"))
        # untied from the output since, as by PEFT's `merge_and_unload`, both stacks still embed by one matrix
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
        """Resize the vocabulary everywhere it stands, unless there are two: one number cannot say which is meant."""
        if self.config.target_vocab_size is not None and (new_num_tokens or pad_to_multiple_of):
            raise ValueError(
                f"this model has separate vocabularies of {self.config.vocab_size} source and "
                f"{self.config.target_vocab_size} target tokens, and resizing one of them is not offered; train with "
                "larger ones."
            )
        embeddings = super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        # a stack alone has none
        decoder = getattr(self.base_model, "decoder", None) if self.config.is_encoder_decoder else None
        if decoder is not None and len(embeddings.weight) != len(decoder.embed_tokens.weight):
            resize = self._get_resized_embeddings
            decoder.embed_tokens = resize(decoder.embed_tokens, len(embeddings.weight), mean_resizing=mean_resizing)
            self.tie_weights()
        return embeddings


class VanillaTransformerStack(VanillaTransformerEmbeddings, VanillaTransformerPreTrainedModel):
    """Embeddings and layers: what the encoder, the decoder and a language model have in common."""

    def __init__(
        self, config: VanillaTransformerConfig, depth: int, vocab_size: int, is_causal: bool, has_cross: bool
    ):
        super().__init__(config)
        self.is_causal = is_causal
        self.has_cross_attention = has_cross
        self.build_embeddings(config, vocab_size)
        self.depth = depth
        self.layers = nn.ModuleList(
            VanillaTransformerLayer(config, i, is_causal=is_causal, has_cross_attention=has_cross)
            for i in range(1 if config.shared_layers else depth)
        )
        # post-norm layers already end in a norm
        self.norm = build_norm(config) if config.has_final_norm else nn.Identity()
        self.gradient_checkpointing = False
        self.post_init()

    def init_parallel_plans(self) -> None:
        """Leave the plans of the config to the base model, which names its stacks; a stack has none of its own."""
        none: dict[str, Any] = {}
        self._tp_plan = self._ep_plan = self._pp_plan = self._fsdp_plan = none

    def add_position_bias(self, mask: Tensor | None, queries: Tensor, keys: Tensor, states: Tensor) -> Tensor | None:
        """Return the mask of self-attention with what ALiBi or T5's relative positions add: (B or 1, H, T, S).

        Args:
            mask: (B, 1, T, S) or `None`, as transformers makes it for `states`; returned where positions are of another kind.
            queries, keys: (T,) and (S,), their places in a row, so that padding on either side changes no distance.
        """
        if not self.config.has_position_bias:
            return mask
        distance = (keys - queries.unsqueeze(-1)).to(states.device)  # (T, S)
        bias = position_bias(self.config, self.relative_bias, distance, self.is_causal)  # (H, T, S)
        if mask is None and self.is_causal:  # which sdpa would have seen to
            mask = distance <= 0
        return add_to_mask(bias.unsqueeze(0), mask, compute_dtype(states))

    def layers_in_order(self) -> list[VanillaTransformerLayer]:
        """Return the layers as often as the stack is deep, also where all are one."""
        return list(self.layers) * self.depth if self.config.shared_layers else list(self.layers)

    def run_layers(
        self, states: Tensor, masks: dict[str, Any], source: Tensor | None, position_ids: Tensor, **kwargs: Any
    ) -> Tensor:
        """Run states (B, T, D) through the layers, and the last norm.

        Args:
            masks: of self-attention, by kind of layer.
            source: (B, S, D), for cross-attention.
            kwargs: those of a layer.
        """
        rotary: dict[str, Tensor] = {}
        if self.config.position_encoding == "rope":  # once for all layers of a kind
            rotary = {kind: rotary_embeddings_of(self.config, kind, position_ids) for kind in masks}
        for index, layer in enumerate(self.layers_in_order()):
            kind = self.config.attention_kinds[index]
            kwargs |= {"position_ids": position_ids, "rotary": rotary.get(kind), "layer_idx": index}
            # states positional, cache by keyword: the gradient checkpointing layer tells them apart so
            states = layer(states, masks[kind], source, **kwargs)
        return self.norm(states)


class VanillaTransformerEncoder(VanillaTransformerStack):
    """A stack in which every token attends to every other (section 3.1)."""

    _can_record_outputs = {"hidden_states": VanillaTransformerLayer, "attentions": VanillaTransformerAttention}

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config, config.num_hidden_layers, config.vocab_size, is_causal=False, has_cross=False)

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        """`input_ids` (B, S) or `inputs_embeds` (B, S, E); `attention_mask` (B, S) or 4D. Returns states (B, S, D)."""
        # layout of the batch: which rows hold several sequences, and whether the layers get padding
        inputs = exactly_one(input_ids, inputs_embeds)
        rows, length = inputs.shape[:2]
        check_mask("attention_mask", attention_mask, length, length, length)
        packed = packed_sequences(position_ids, attention_mask, rows)
        places = torch.arange(length, device=inputs.device)
        if position_ids is None:
            position_ids = positions_from_mask(attention_mask, places)
        batch, _ = Kernels.used.choose_layouts(self.config, self.training, kwargs, (inputs, attention_mask, packed))
        # embed
        given = (input_ids, inputs_embeds, position_ids, token_type_ids)
        input_ids, inputs_embeds, position_ids, token_type_ids = map(batch.unpad, given)  # (B, S, ...) or (1, N, ...)
        states = self.embed(input_ids, inputs_embeds, position_ids, token_type_ids)  # (B, S, D) or (1, N, D)
        # masks
        keys, own = dict.fromkeys(self.config.attention_kinds, places), same_sequence(packed, packed)
        masks = batch.self_attention_masks(self, states, attention_mask, places, keys, and_mask_function=own)
        # layers
        lengths = batch.attending_to(batch)
        states = self.run_layers(states, masks, None, position_ids, lengths=lengths, **kwargs)
        # back to the shape of the batch
        return BaseModelOutput(batch.pad(states))


class VanillaTransformerDecoder(VanillaTransformerStack):
    """A stack in which every token attends to earlier ones, and in an encoder-decoder to the source (section 3.1)."""

    _can_record_outputs = {
        "hidden_states": OutputRecorder(VanillaTransformerLayer, num_hidden_layers_key="num_decoder_layers"),
        "attentions": OutputRecorder(VanillaTransformerAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(VanillaTransformerAttention, index=1, layer_name="cross_attn"),
    }

    def __init__(self, config: VanillaTransformerConfig):
        depth, has_cross = config.num_decoder_layers, config.is_encoder_decoder
        super().__init__(config, depth, config.output_vocab_size, is_causal=True, has_cross=has_cross)

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        encoder_position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        token_type_ids: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """`input_ids` (B, T) or `inputs_embeds` (B, T, E), behind `cache`; `attention_mask` (B, past + T) or 4D.

        `encoder_hidden_states` (B, S, D) with `encoder_attention_mask` (B, S) or 4D for an encoder-decoder, and
        `encoder_position_ids` (B, S) where several pairs are packed in a row. Returns states (B, T, D) and, with
        `use_cache` and rows that can be continued, the cache.
        """
        # layout of the batch: behind what is cached, or from the start, where rows may hold several sequences
        inputs = exactly_one(input_ids, inputs_embeds)
        self._check_source(inputs, encoder_hidden_states, encoder_attention_mask)
        prepare_cache(cache, inputs, encoder_hidden_states)
        is_start, packed, source = cache is None, None, None
        # in a traced graph packing cannot be seen, so there it takes use_cache=False
        if is_start and not (use_cache and is_tracing(inputs)):
            packed = packed_sequences(position_ids, attention_mask, inputs.shape[0])
        if encoder_hidden_states is not None:
            rows = encoder_hidden_states.shape[0]
            packed_source = packed_sequences(encoder_position_ids, encoder_attention_mask, rows)
            source = (encoder_hidden_states, encoder_attention_mask, packed_source)
            if is_start:
                check_pairs(packed, packed_source)
        if is_start and use_cache and packed is None:
            cache = new_cache(self.config)
        own_cache = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
        places, key_places = places_in_rows(self.config, own_cache, inputs, attention_mask)
        given_positions = position_ids  # which alone mark packed sequences where they start again
        if position_ids is None:
            position_ids = positions_from_mask(attention_mask, places)
        batch = batch_of_source = PaddedBatch()
        if is_start and not use_cache:
            target = (inputs, attention_mask, packed)
            batch, batch_of_source = Kernels.used.choose_layouts(self.config, self.training, kwargs, target, source)
        # embed
        given = (input_ids, inputs_embeds, position_ids, token_type_ids)
        input_ids, inputs_embeds, position_ids, token_type_ids = map(batch.unpad, given)  # (B, T, ...) or (1, N, ...)
        states = self.embed(input_ids, inputs_embeds, position_ids, token_type_ids)  # (B, T, D) or (1, N, D)
        # masks
        masks = batch.self_attention_masks(
            self, states, attention_mask, places, key_places, cache=own_cache, position_ids=given_positions
        )
        cross_mask = None
        if source is not None:
            pairs = same_sequence(packed, packed_source)
            cross_mask = batch_of_source.cross_attention_mask(
                self.config, states, encoder_attention_mask, encoder_hidden_states, pairs
            )
        # layers
        kwargs |= {"cache": cache, "use_cache": use_cache, "encoder_attention_mask": cross_mask}
        kwargs |= {"lengths": batch.attending_to(batch), "cross_lengths": batch.attending_to(batch_of_source)}
        states = self.run_layers(states, masks, batch_of_source.unpad(encoder_hidden_states), position_ids, **kwargs)
        # back to the shape of the batch
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=batch.pad(states), cache=cache if use_cache else None
        )

    def _check_source(self, inputs: Tensor, source: Tensor | None, mask: Any) -> None:
        """Refuse a source (B or 1, S, D) that is missing, has other rows than the inputs (B, T, ...), or another mask."""
        if source is None:
            if self.has_cross_attention:
                raise ValueError("the decoder of an encoder-decoder needs encoder_hidden_states.")
            return
        if not is_tracing(inputs) and len(source) not in (1, len(inputs)):
            raise ValueError(f"{len(source)} sources do not fit {len(inputs)} rows of targets.")
        check_mask("cross_attention_mask", mask, inputs.shape[1], source.shape[1], source.shape[1])


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
        """Return which are tied; transformers would ask `tie_word_embeddings` whether the stacks share an embedding."""
        if all_submodels:
            return super().get_expanded_tied_weights_keys(all_submodels=True)
        return dict(self._tied_weights_keys) if self.config.has_shared_embeddings else {}

    @property
    def _input_stack(self) -> VanillaTransformerStack:
        return self.decoder if self.config.architecture == "decoder-only" else self.encoder

    def get_input_embeddings(self) -> nn.Module:
        return self._input_stack.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self._input_stack.embed_tokens = value

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        decoder_position_ids: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        cross_attention_mask: Tensor | None = None,
        use_cache: bool | None = None,
        token_type_ids: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput | BaseModelOutputWithPast | Seq2SeqModelOutput:
        """Run the stacks.

        Args:
            input_ids, inputs_embeds: (B, S) or (B, S, E), one of them: the source, or the only sequence.
            attention_mask: (B, S) with 1 for tokens; (B, past + T) with a cache; or a ready 4D mask (B, 1, T, S), either
                of booleans, true to attend, or of numbers that are added to the scores.
            position_ids: (B, S); by default counted from the mask. Without one, positions that start again say that a
                row holds several sequences, in an encoder-decoder with `decoder_position_ids` as many pairs.
            decoder_*: the same for the target side of an encoder-decoder, T long.
            cross_attention_mask: which of the source's tokens the target sees, (B, S) or 4D; by default `attention_mask`.
            encoder_outputs: of an earlier call, instead of the source. States at padding mean nothing.
            cache: keys and values of earlier positions; `use_cache` returns it.
            token_type_ids: (B, S), where `type_vocab_size` says that there are types; 0 by default.
        """
        given = (input_ids, attention_mask, position_ids)
        if self.config.architecture == "encoder-only":
            return self.encoder(*given, inputs_embeds, token_type_ids, **kwargs)
        if self.config.architecture == "decoder-only":
            kwargs |= {"token_type_ids": token_type_ids, "cache": cache, "use_cache": use_cache}
            outputs = self.decoder(*given, inputs_embeds=inputs_embeds, **kwargs)
            return BaseModelOutputWithPast(
                last_hidden_state=outputs.last_hidden_state,
                cache=outputs.cache,
                hidden_states=outputs.hidden_states,
                attentions=outputs.attentions,
            )
        if encoder_outputs is None:
            encoder_outputs = self.encoder(*given, inputs_embeds, token_type_ids, **kwargs)
        elif not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = BaseModelOutput(*encoder_outputs[:3])
        # BART takes the source for the target where none is given, which of a translator is wrong in silence
        exactly_one(decoder_input_ids, decoder_inputs_embeds, prefix="decoder_")
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


def beside_states(outputs: ModelOutput) -> dict[str, Any]:
    """Return what a base model returns beside its last states, for the output of a head."""
    return {name: value for name, value in outputs.items() if name != "last_hidden_state"}


class VanillaTransformerHeadModel(VanillaTransformerPreTrainedModel):
    """A base model under `model`, and what its heads share."""

    supported_architectures: tuple[str, ...]
    _has_label_for_each_token = False

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        if not self.supports(config):
            classes = {
                globals()[path.rpartition(".")[2]]: auto for auto, path in AUTO_MAP.items() if "ModelFor" in auto
            }
            heads = {head.__name__: auto for head, auto in classes.items() if head.supports(config)}
            raise ValueError(
                f"{type(self).__name__} needs architecture={' or '.join(map(repr, self.supported_architectures))}, not "
                f"{config.architecture!r}, whose heads are {', '.join(heads)}; load it with {next(iter(heads.values()))}."
            )
        self.model = VanillaTransformerModel(config)

    @classmethod
    def supports(cls, config: VanillaTransformerConfig) -> bool:
        """Whether the head can stand on a model of this architecture."""
        return config.architecture in cls.supported_architectures

    @property
    def accepts_loss_kwargs(self) -> bool:
        """Whether losses are divided by `num_items_in_batch`; `Trainer` asks, once, before it counts these items."""
        let_trainer_count_labels()
        return True

    def counted_labels(self, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the `labels` (B, T) among a forward's `inputs`, -100 where the mask leaves them out; `{}` for none.

        `Trainer` counts them, as any loop should that gives `num_items_in_batch`.
        """
        labels = inputs.get("labels")
        if labels is not None and (labels.dim() != 2 or not self._has_label_for_each_token):
            return {}
        mask = "decoder_attention_mask" if self.config.is_encoder_decoder else "attention_mask"
        counted = ignore_padding_labels(labels, inputs.get(mask))
        return {} if counted is None else {"labels": counted}

    def _loss_options(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return those of `smoothed_cross_entropy` from the keywords of a forward."""
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

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(hidden_states)))


class VanillaTransformerLMHeadModel(VanillaTransformerHeadModel):
    """A projection from states to tokens, tied to the embedding of the side that is written (section 3.4)."""

    _has_label_for_each_token = True
    _tp_plan = {"lm_head": "colwise_gather_output"}
    _fsdp_plan = {"lm_head": "keep_full_weight"}

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        if self.can_generate():
            # from a file marked as derived from the model config, settings that transformers does not know are dropped
            self.generation_config._from_model_config = False
        self.output_transform = VanillaTransformerPredictionHeadTransform(config) if config.output_transform else None
        width = config.embedding_width if config.output_transform else config.hidden_size
        self.lm_head = nn.Linear(width, config.output_vocab_size, bias=config.output_bias == "trained")
        fixed = config.output_bias == "fixed"
        self.output_bias: Tensor | None
        self.register_buffer("output_bias", torch.zeros(config.output_vocab_size) if fixed else None)
        side = "encoder" if config.architecture == "encoder-only" or config.has_shared_embeddings else "decoder"
        self._tied_weights_keys = {"lm_head.weight": f"model.{side}.embed_tokens.weight"}
        self.post_init()

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        embeddings = super().resize_token_embeddings(*args, **kwargs)
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
        tied_to = self._tied_weights_keys["lm_head.weight"]
        if module is not self.lm_head or module.weight is not self.get_parameter(tied_to):
            super()._init_weights(module)
        elif module.bias is not None:  # a tied matrix is initialised as an embedding
            init.zeros_(module.bias)
        if module is self and self.output_bias is not None:
            init.zeros_(self.output_bias)

    def save_pretrained(self, *args: Any, **kwargs: Any) -> Any:
        """Save as in transformers; one matrix in two places as one, whatever the configuration says by then."""
        weights = dict(self.named_parameters(remove_duplicate=False))
        # PEFT's `merge_and_unload` unties what differs from the input embedding, as with separate vocabularies; saved once,
        # the matrix would then be missing in its second place
        pairs = [(weights.get(one), weights.get(other)) for one, other in self._tied_weights_keys.items()]
        if all(one is not None and one is other for one, other in pairs):
            self.config.tie_word_embeddings = True
        return super().save_pretrained(*args, **kwargs)

    def skips_logits(self, skip_logits: bool | None, labels: Tensor | None, logits_to_keep: int | Tensor = 0) -> bool:
        """Whether a forward returns the loss alone: where that is asked for and, by default, in training with labels."""
        if labels is None or not self._projects_by_weight_alone:
            return False
        if skip_logits is None:
            # a graph cannot depend on which labels count
            return self.training and isinstance(logits_to_keep, int) and not logits_to_keep and not is_tracing(labels)
        return skip_logits

    def logits_and_loss(
        self,
        hidden_states: Tensor,
        labels: Tensor | None,
        logits_to_keep: int | Tensor = 0,
        skip_logits: bool | None = False,
        **kwargs: Any,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return logits (B, T, V), and the loss where there are labels (B, T), aligned with the states (B, T, D).

        With `skip_logits`, by default (`None`) in training, the loss alone: the package never holds all logits then.
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
            project = Kernels.used.projected_cross_entropy
            return None, project(hidden_states, self.lm_head.weight, labels, bias=bias, **options)
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

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor, starts: Tensor | None = None) -> Tensor:
        """(B, T) labels to (B, T) decoder inputs: shifted right behind the start token, as often as `starts` (B, T) says."""
        return shift_right(labels, self.config.start_token_id, self.config.pad_token_id, starts)

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        decoder_position_ids: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        skip_logits: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqLMOutput:
        """As [`VanillaTransformerModel.forward`], with logits (B, T, V), and a loss where there are labels.

        Args:
            labels: (B, T), the target itself: decoder inputs are made from it where none are given, for each of several
                targets in a row that `decoder_position_ids` tell apart. -100: no loss; nor where
                `decoder_attention_mask` has padding.
            logits_to_keep: only the last so many positions, or these positions, get logits; 0 for all.
            skip_logits: with labels, return the loss alone; by default in training.
        """
        if labels is not None:
            use_cache = False  # a loss needs all positions at once
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                starts = sequence_starts(decoder_position_ids, decoder_attention_mask, labels.shape[0])
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels, starts)
            labels = ignore_padding_labels(labels, decoder_attention_mask)
            free = decoder_attention_mask is None and decoder_position_ids is None and cache is None
            skip_logits = self.skips_logits(skip_logits, labels, logits_to_keep)
            if skip_logits and self.training and free and Kernels.used.supports_varlen(self.config, labels, kwargs):
                # nothing looks back at what stands behind the last label of a row, so it can be left out
                decoder_attention_mask = (labels != IGNORED).flip(-1).cumsum(-1).flip(-1) > 0
        source = (input_ids, attention_mask, position_ids)
        target = (decoder_input_ids, decoder_attention_mask, decoder_position_ids)
        kwargs |= {"inputs_embeds": inputs_embeds, "decoder_inputs_embeds": decoder_inputs_embeds}
        kwargs |= {"encoder_outputs": encoder_outputs, "cache": cache, "use_cache": use_cache}
        outputs = self.model(*source, *target, **kwargs)
        logits, loss = self.logits_and_loss(outputs.last_hidden_state, labels, logits_to_keep, skip_logits, **kwargs)
        return Seq2SeqLMOutput(loss=loss, logits=logits, **beside_states(outputs))


class VanillaTransformerForCausalLM(VanillaTransformerGenerationMixin, VanillaTransformerLMHeadModel):
    """Decoder-only language model: continues a text."""

    supported_architectures = ("decoder-only",)

    def counted_labels(self, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
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
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        skip_logits: bool | None = None,
        token_type_ids: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> CausalLMOutputWithPast:
        """(B, T) ids to logits (B, T, V).

        Args:
            labels: (B, T), the inputs themselves: position t is compared with label t + 1. -100: no loss; nor at padding,
                and at what stands behind it or behind another sequence in the row: the loss is the mean over tokens that
                follow a token, on whichever side padding stands.
            logits_to_keep: only the last so many positions, or these positions, get logits; 0 for all.
            skip_logits: with labels, return the loss alone; by default in training.
            shift_labels (among the `kwargs`): (B, T), the token that follows each, in place of what `labels` would give.
        """
        if labels is not None or kwargs.get("shift_labels") is not None:
            use_cache = False  # a loss needs all positions at once
        kwargs |= {"token_type_ids": token_type_ids, "cache": cache, "use_cache": use_cache}
        outputs = self.model(input_ids, attention_mask, position_ids, inputs_embeds=inputs_embeds, **kwargs)
        given = {"labels": labels, "shift_labels": kwargs.get("shift_labels"), "attention_mask": attention_mask}
        counted = self.counted_labels(given | {"position_ids": position_ids})
        next_tokens = counted.get("shift_labels")
        if next_tokens is None and labels is not None:
            check_labels(labels, outputs.last_hidden_state.shape[:2])
            next_tokens = nn.functional.pad(counted["labels"][:, 1:], (0, 1), value=IGNORED)
        logits, loss = self.logits_and_loss(
            outputs.last_hidden_state, next_tokens, logits_to_keep, skip_logits, **kwargs
        )
        return CausalLMOutputWithPast(loss=loss, logits=logits, **beside_states(outputs))


class VanillaTransformerForMaskedLM(VanillaTransformerLMHeadModel):
    """Encoder-only model that fills in masked tokens."""

    supported_architectures = ("encoder-only",)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        skip_logits: bool | None = None,
        token_type_ids: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedLMOutput:
        """(B, T) ids to logits (B, T, V); `labels` (B, T): the token at masked positions, -100 elsewhere as at padding."""
        kwargs["token_type_ids"] = token_type_ids
        outputs = self.model(input_ids, attention_mask, position_ids, inputs_embeds=inputs_embeds, **kwargs)
        labels = ignore_padding_labels(labels, attention_mask)
        logits, loss = self.logits_and_loss(outputs.last_hidden_state, labels, skip_logits=skip_logits, **kwargs)
        return MaskedLMOutput(loss=loss, logits=logits, **beside_states(outputs))


class VanillaTransformerForSequenceClassification(VanillaTransformerHeadModel):
    """Classifies, or rates, whole sequences.

    By the mean over all tokens of an encoder, which trains well from scratch because every token gets a gradient, or by a
    decoder's last token, which alone has seen them all; padding has no part in either. The decoder of an encoder-decoder
    reads the start token where it is given nothing else, and asks the source by cross-attention.
    """

    supported_architectures = ("encoder-decoder", "encoder-only", "decoder-only")

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        self.dropout = VanillaTransformerDropout(config, "dropout")
        self.score = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def pool(self, hidden_states: Tensor, mask: Tensor | None) -> Tensor:
        """States (B, T, D) and their mask (B, T) to (B, D)."""
        if not is_padding_mask(mask):
            mask = torch.ones(hidden_states.shape[:2], dtype=torch.long, device=hidden_states.device)
        if self.config.architecture == "encoder-only":
            weights = mask.to(hidden_states.dtype).unsqueeze(-1)
            return (hidden_states * weights).sum(1) / weights.sum(1).clamp(min=1)
        last = (mask.long() * torch.arange(1, mask.shape[1] + 1, device=mask.device)).argmax(-1)  # (B,)
        return hidden_states[torch.arange(len(last), device=last.device), last]

    def classification_loss(self, logits: Tensor, labels: Tensor, **kwargs: Any) -> Tensor:
        """Return the mean over labels: squared error of numbers, smoothed cross entropy of one class, binary of several.

        By `config.problem_type`; where that is unset, the labels set it, as everywhere in transformers.
        """
        if self.config.problem_type is None:
            classes = "multi_label" if labels.is_floating_point() else "single_label"
            self.config.problem_type = "regression" if self.config.num_labels == 1 else f"{classes}_classification"
        if self.config.problem_type == "single_label_classification":
            return smoothed_cross_entropy(logits, labels, **self._loss_options(kwargs))
        labels = labels.to(logits.device).view_as(logits).float()
        is_regression = self.config.problem_type == "regression"
        loss = nn.functional.mse_loss if is_regression else nn.functional.binary_cross_entropy_with_logits
        total = loss(logits.float(), labels, reduction="sum")
        return loss_per_item(total, labels.numel(), kwargs.get("num_items_in_batch"))

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SequenceClassifierOutput | Seq2SeqSequenceClassifierOutput:
        """(B, T) ids to logits (B, num_labels).

        Args:
            labels: (B,) classes or numbers, or (B, num_labels) with 0 and 1 or numbers; see `classification_loss`.
        """
        inputs = exactly_one(input_ids, inputs_embeds)
        mask = attention_mask
        kwargs |= {"token_type_ids": token_type_ids, "use_cache": False}
        if self.config.is_encoder_decoder:
            if decoder_input_ids is None:
                nothing = torch.full((inputs.shape[0], 1), IGNORED, device=inputs.device)
                decoder_input_ids = shift_right(nothing, self.config.start_token_id, self.config.pad_token_id)
            mask = decoder_attention_mask
            kwargs |= {"decoder_input_ids": decoder_input_ids, "decoder_attention_mask": decoder_attention_mask}
        outputs = self.model(input_ids, attention_mask, position_ids, inputs_embeds=inputs_embeds, **kwargs)
        pooled = self.pool(outputs.last_hidden_state, mask)
        logits = self.score(self.dropout(pooled))
        if labels is not None and labels.shape[0] != logits.shape[0]:
            raise ValueError(f"labels of shape {tuple(labels.shape)} do not fit {logits.shape[0]} rows.")
        loss = None if labels is None else self.classification_loss(logits, labels, **kwargs)
        kind = Seq2SeqSequenceClassifierOutput if self.config.is_encoder_decoder else SequenceClassifierOutput
        return kind(loss=loss, logits=logits, **beside_states(outputs))


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
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> TokenClassifierOutput:
        """(B, T) ids to logits (B, T, num_labels); `labels` (B, T) are classes, -100 where none counts, as at padding."""
        kwargs |= {"token_type_ids": token_type_ids, "use_cache": False}
        outputs = self.model(input_ids, attention_mask, position_ids, inputs_embeds=inputs_embeds, **kwargs)
        check_labels(labels, outputs.last_hidden_state.shape[:2])
        labels = ignore_padding_labels(labels, attention_mask)
        logits = self.score(self.dropout(outputs.last_hidden_state))
        loss = None if labels is None else smoothed_cross_entropy(logits, labels, **self._loss_options(kwargs))
        return TokenClassifierOutput(loss=loss, logits=logits, **beside_states(outputs))


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
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> QuestionAnsweringModelOutput:
        """(B, T) ids to start and end logits (B, T), lowest at padding.

        Args:
            start_positions, end_positions: (B,) or (B, 1); those outside the text, which truncation leaves, do not
                count. The loss is not smoothed: neighbours of the right token are not as wrong as any other.
        """
        kwargs |= {"token_type_ids": token_type_ids, "use_cache": False}
        outputs = self.model(input_ids, attention_mask, position_ids, inputs_embeds=inputs_embeds, **kwargs)
        logits = self.qa_outputs(self.dropout(outputs.last_hidden_state))  # (B, T, 2)
        if is_padding_mask(attention_mask):
            # the softmax is over positions, so padding would have a share in it
            logits = logits.masked_fill(attention_mask.unsqueeze(-1) == 0, torch.finfo(logits.dtype).min)
        start_logits, end_logits = logits.unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            count = kwargs.get("num_items_in_batch")
            loss = 0.0
            for position_logits, positions in ((start_logits, start_positions), (end_logits, end_positions)):
                outside = (positions < 0) | (positions >= position_logits.shape[1])
                labels = positions.masked_fill(outside, IGNORED)
                if is_padding_mask(attention_mask):
                    is_token = attention_mask.gather(1, labels.view(-1, 1).clamp(min=0)).view_as(labels)
                    labels = labels.masked_fill(is_token == 0, IGNORED)
                loss = loss + smoothed_cross_entropy(position_logits, labels, num_items_in_batch=count) / 2
        return QuestionAnsweringModelOutput(
            loss=loss, start_logits=start_logits, end_logits=end_logits, **beside_states(outputs)
        )
