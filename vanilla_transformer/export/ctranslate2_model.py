"""Models of this package as models of CTranslate2, whose Translator, Generator and Encoder run them without Python's torch.

CTranslate2 describes a model as a specification whose places are filled with arrays. The table here fills it from the names of our
weights, so no class of transformers stands in between, and what one of those fixes (Marian's norm eps) is free.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from vanilla_transformer.export.errors import ExportError
from vanilla_transformer.export.vocabulary import token_list
from vanilla_transformer.modeling_vanilla_transformer import (
    VanillaTransformerAttention,
    VanillaTransformerLayer,
    VanillaTransformerPreTrainedModel,
    VanillaTransformerStack,
    sinusoidal_encoding,
)
from vanilla_transformer.utils.extras import needs

__all__ = ["QUANTIZATIONS", "build_spec", "vocabularies", "write_ctranslate2"]

QUANTIZATIONS = ("float32", "float16", "bfloat16", "int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16")
"""What weights can be stored as: those of CTranslate2."""

LEAST_POSITIONS = 1024
"""Rows of a table of computed positions, where the configuration names fewer; CTranslate2 has tables alone."""

ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_new": "GELUTanh",
    "gelu_fast": "GELUTanh",
    "gelu_pytorch_tanh": "GELUTanh",
    "quick_gelu": "GELUSigmoid",
    "silu": "SWISH",
    "swish": "SWISH",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
}
"""Our activations by the names of CTranslate2's."""


def write_ctranslate2(
    model: VanillaTransformerPreTrainedModel,
    tokens: tuple[list[str], list[str]],
    folder: Path,
    quantization: str = "float32",
    *,
    target_tokenizer: PreTrainedTokenizerBase,
) -> None:
    """Write `model.bin`, `config.json` and the vocabularies of CTranslate2 into a folder.

    Args:
        model: in float32; encoder-decoder, decoder-only or encoder-only.
        tokens: the `vocabularies`.
        folder: that exists.
        quantization: one of `QUANTIZATIONS`.
        target_tokenizer: names the special tokens.

    Raises:
        ExportError: for what CTranslate2 cannot hold, naming the field in the way.
    """
    spec = build_spec(model)
    _set_vocabularies(spec, model, tokens, target_tokenizer)
    spec.validate()
    spec.optimize(quantization=None if quantization == "float32" else quantization)
    spec.save(str(folder))


def build_spec(model: VanillaTransformerPreTrainedModel) -> Any:
    """Return the specification of a model, with its weights, without vocabularies.

    Raises:
        ExportError: for what CTranslate2 cannot hold, naming the field in the way.
    """
    with needs("this export"):
        from ctranslate2.specs import transformer_spec as specs
    config = model.config
    _check(model)
    base = model.base_model
    if config.architecture == "encoder-only":
        encoder = _encoder_spec(config)
        spec = specs.TransformerEncoderModelSpec(encoder)
        _fill_stack(encoder, base.encoder)
    elif config.architecture == "decoder-only":
        decoder = _decoder_spec(config, has_cross=False)
        spec = specs.TransformerDecoderModelSpec(decoder)
        _fill_stack(decoder, base.decoder)
    else:
        encoder, decoder = _encoder_spec(config), _decoder_spec(config, has_cross=True)
        spec = specs.TransformerSpec(encoder, decoder)
        _fill_stack(encoder, base.encoder)
        _fill_stack(decoder, base.decoder)
    if config.architecture != "encoder-only":
        _fill_projection(decoder, model)
    spec.config.layer_norm_epsilon = float(config.norm_eps)
    return spec


def _check(model: VanillaTransformerPreTrainedModel) -> None:
    """Refuse what CTranslate2 has no place for, by the field that is in the way."""
    config = model.config
    is_decoder = config.architecture == "decoder-only"
    if config.architecture != "encoder-only" and not hasattr(model, "lm_head"):
        raise ExportError(f"{type(model).__name__} writes no text; CTranslate2 takes a model with a language head.")
    obstacles = {
        f"hidden_act={config.hidden_act!r}": config.hidden_act not in ACTIVATIONS,
        f"embedding_size={config.embedding_size}": config.embedding_width != config.hidden_size,
        "output_transform=True": config.output_transform and config.architecture != "encoder-only",
        f"final_norm={config.final_norm}": config.has_final_norm and config.norm_position == "post",
        "position_encoding='alibi'": config.position_encoding == "alibi" and not is_decoder,
        f"type_vocab_size={config.type_vocab_size}": bool(config.type_vocab_size) and is_decoder,
        f"sliding_window={config.sliding_window}": config.sliding_window is not None,
        # which CTranslate2 does not have in attention to a source
        f"qk_norm={config.qk_norm!r}": config.qk_norm == "layernorm" or (config.qk_norm and config.is_encoder_decoder),
        f"value_head_dim={config.value_head_dim}": config.value_dim != config.head_dim,
        f"rotary_scaling={config.rotary_scaling}": config.rotary_scaling is not None,
    }
    if in_the_way := [field for field, is_obstacle in obstacles.items() if is_obstacle]:
        raise ExportError(
            f"CTranslate2 cannot hold this model; in the way is {', '.join(in_the_way)}. Export it to onnx, or train "
            "without."
        )


def _options(config: Any) -> dict[str, Any]:
    """Return what encoder and decoder specifications have in common."""
    from ctranslate2.specs import common_spec

    options: dict[str, Any] = {
        "num_heads": config.num_attention_heads,
        "pre_norm": config.norm_position == "pre",
        "no_final_norm": not config.has_final_norm,
        "activation": getattr(common_spec.Activation, ACTIVATIONS[config.hidden_act]),
        "layernorm_embedding": config.embedding_norm,
        "relative_attention_bias": config.position_encoding == "relative",
        "ffn_glu": config.gated_feed_forward,
        "rms_norm": config.norm_type == "rmsnorm",
        "head_dim": config.head_dim,
        "qk_norm": config.qk_norm is not None,
    }
    # with a source, heads that share keys and values get a copy each
    if config.num_key_value_heads != config.num_attention_heads and not config.is_encoder_decoder:
        options["num_heads_kv"] = config.num_key_value_heads
    if config.position_encoding == "rope":
        part = 0 if config.rotary_dim == config.head_dim else config.rotary_dim  # 0 for all of a head
        options |= {"rotary_dim": part, "rotary_interleave": False, "rotary_base": config.rope_theta}
    return options


def _encoder_spec(config: Any) -> Any:
    from ctranslate2.specs import common_spec, transformer_spec

    types = {}
    if config.type_vocab_size:
        types = {"num_source_embeddings": 2, "embeddings_merge": common_spec.EmbeddingsMerge.ADD}
    return transformer_spec.TransformerEncoderSpec(config.num_hidden_layers, **_options(config), **types)


def _decoder_spec(config: Any, has_cross: bool) -> Any:
    from ctranslate2.specs import transformer_spec

    return transformer_spec.TransformerDecoderSpec(
        config.num_decoder_layers,
        with_encoder_attention=has_cross,
        alibi=config.position_encoding == "alibi",
        **_options(config),
    )


def _fill_stack(spec: Any, stack: VanillaTransformerStack) -> None:
    config = stack.config
    embeddings = spec.embeddings if isinstance(spec.embeddings, list) else [spec.embeddings]
    embeddings[0].weight = _array(stack.embed_tokens.weight)
    spec.scale_embeddings = config.scale_embedding
    if len(embeddings) > 1:  # token types, which CTranslate2 would scale as well
        embeddings[0].weight = embeddings[0].weight * np.float32(stack.embed_scale)
        embeddings[1].weight = _array(stack.embed_token_types.weight)  # type: ignore[union-attr]
        spec.scale_embeddings = False
    if hasattr(spec, "position_encodings"):
        spec.position_encodings.encodings = _position_table(stack)
    if config.embedding_norm:
        _fill_norm(spec.layernorm_embedding, stack.embed_norm)
    if config.has_final_norm:
        _fill_norm(spec.layer_norm, stack.norm)
    for layer_spec, layer in zip(spec.layer, stack.layers_in_order(), strict=True):
        _fill_layer(layer_spec, layer)
        if stack.relative_bias is not None:  # T5's: one table for all layers
            layer_spec.self_attention.relative_attention_bias = _array(stack.relative_bias.weight)
            layer_spec.self_attention.relative_attention_max_distance = np.int32(
                config.relative_attention_max_distance
            )


def _fill_layer(spec: Any, layer: VanillaTransformerLayer) -> None:
    _fill_attention(spec.self_attention, layer.self_attn, layer.self_attn_norm)
    if hasattr(spec, "attention"):
        _fill_attention(spec.attention, layer.cross_attn, layer.cross_attn_norm)
    network = layer.feed_forward
    if hasattr(spec.ffn, "linear_0_noact"):
        _fill_linear(spec.ffn.linear_0, network.gate_proj)  # type: ignore[arg-type]
        _fill_linear(spec.ffn.linear_0_noact, network.up_proj)
    else:
        _fill_linear(spec.ffn.linear_0, network.up_proj)
    _fill_linear(spec.ffn.linear_1, network.down_proj)
    _fill_norm(spec.ffn.layer_norm, layer.feed_forward_norm)


def _fill_attention(spec: Any, attention: VanillaTransformerAttention, norm: nn.Module) -> None:
    """Fill one product for queries, keys and values of self-attention; one for keys and values of cross-attention."""
    spec.queries_scale = float(attention.scaling)
    _fill_norm(spec.layer_norm, norm)
    if attention.config.qk_norm is not None:
        _fill_norm(spec.q_norm, attention.q_norm)  # type: ignore[arg-type]
        _fill_norm(spec.k_norm, attention.k_norm)  # type: ignore[arg-type]
    query = attention.q_proj
    copies = attention.num_key_value_groups if attention.config.is_encoder_decoder else 1
    key, value = (_repeat_heads(p, attention.head_dim, copies) for p in (attention.k_proj, attention.v_proj))
    if len(spec.linear) == 2:
        _fill_fused(spec.linear[0], query, key, value)
    else:
        _fill_linear(spec.linear[0], query)
        _fill_fused(spec.linear[1], key, value)
    _fill_linear(spec.linear[-1], attention.o_proj)


def _fill_projection(spec: Any, model: VanillaTransformerPreTrainedModel) -> None:
    _fill_linear(spec.projection, model.lm_head)
    if model.output_bias is not None:
        spec.projection.bias = _array(model.output_bias)
    if model.config.output_scale != 1:
        spec.scale_outputs = np.float32(model.config.output_scale)


def _fill_fused(spec: Any, *projections: nn.Linear) -> None:
    spec.weight = np.concatenate([_array(projection.weight) for projection in projections])
    if projections[0].bias is not None:
        spec.bias = np.concatenate([_array(projection.bias) for projection in projections])


def _repeat_heads(projection: nn.Linear, head_dim: Any, copies: int) -> nn.Linear:
    """Return a projection to keys or values in which each head stands `copies` times, one for each query head of its group."""
    if copies == 1:
        return projection
    repeated = nn.Linear(projection.in_features, projection.out_features * copies, bias=projection.bias is not None)
    with torch.no_grad():
        for name, tensor in projection.named_parameters():
            heads = tensor.unflatten(0, (-1, head_dim)).repeat_interleave(copies, dim=0).flatten(0, 1)
            getattr(repeated, name).copy_(heads)
    return repeated


def _fill_linear(spec: Any, projection: nn.Linear) -> None:
    spec.weight = _array(projection.weight)
    if projection.bias is not None:
        spec.bias = _array(projection.bias)


def _fill_norm(spec: Any, norm: nn.Module) -> None:
    spec.gamma = _array(norm.weight)
    if hasattr(spec, "beta"):
        bias = getattr(norm, "bias", None)
        spec.beta = np.zeros_like(spec.gamma) if bias is None else _array(bias)


def _position_table(stack: VanillaTransformerStack) -> np.ndarray:
    """Return the vectors (P, D) that are added to embeddings, from position 0 on; zeros where positions are of no such kind."""
    config = stack.config
    if stack.embed_positions is not None:
        return _array(stack.embed_positions.weight[stack.embed_positions.offset :])
    count = max(config.max_position_embeddings or 0, LEAST_POSITIONS)
    if config.position_encoding == "sinusoidal":
        places = torch.arange(count) + config.position_offset
        return _array(sinusoidal_encoding(places, config.hidden_size, config.sinusoidal_form))
    return np.zeros((count, config.hidden_size), dtype=np.float32)


def _array(tensor: Any) -> np.ndarray:
    """Return a copy, since CTranslate2 quantizes arrays in place."""
    return tensor.detach().cpu().float().numpy().copy()


def vocabularies(
    model: VanillaTransformerPreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    target_tokenizer: PreTrainedTokenizerBase,
) -> tuple[list[str], list[str]]:
    """Return the tokens of source and target, in the order of ids; the same twice where there is one vocabulary.

    Raises:
        ExportError: for a tokenizer with tokens that the model lacks.
    """
    config = model.config
    return token_list(tokenizer, config.vocab_size), token_list(target_tokenizer, config.output_vocab_size)


def _set_vocabularies(
    spec: Any,
    model: VanillaTransformerPreTrainedModel,
    tokens: tuple[list[str], list[str]],
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    config = model.config
    source, target = tokens
    spec.config.unk_token = source[tokenizer.unk_token_id or 0]
    if config.architecture != "encoder-only":
        end = model.generation_config.eos_token_id
        end = end[0] if isinstance(end, list) else end
        if end is None:
            raise ExportError("the model's generation settings name no eos_token_id, without which nothing ends.")
        spec.config.eos_token = target[end]
        spec.config.bos_token = target[end if config.bos_token_id is None else config.bos_token_id]
    if config.is_encoder_decoder:
        start = model.generation_config.decoder_start_token_id
        spec.register_source_vocabulary(source)
        spec.register_target_vocabulary(target)
        spec.config.decoder_start_token = target[int(config.start_token_id if start is None else start)]  # type: ignore[arg-type]
    else:
        spec.register_vocabulary(source)
