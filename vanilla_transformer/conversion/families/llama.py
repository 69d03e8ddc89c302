"""Llama (Touvron et al. 2023), 2 and 3."""

from typing import Any

from transformers import PreTrainedConfig

from vanilla_transformer.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.conversion.architecture_adapter import ArchitectureAdapter, alike
from vanilla_transformer.conversion.weight_mapping import LAYER, ConversionError, WeightMapping, map_modules

LAYERS = {
    **{f"self_attn.{p}_proj": f"self_attn.{p}_proj" for p in "qkvo"},
    "input_layernorm": "self_attn_norm",
    **{f"mlp.{p}_proj": f"feed_forward.{p}_proj" for p in ("gate", "up", "down")},
    "post_attention_layernorm": "feed_forward_norm",
}
WEIGHTS = (
    *map_modules("model", "model.decoder", {"embed_tokens": "embed_tokens", "norm": "norm"}),
    *map_modules(f"model.layers.{LAYER}", f"model.decoder.layers.{LAYER}", LAYERS),
    WeightMapping("lm_head", "lm_head"),
)
FIXED: dict[str, Any] = {
    "architecture": "decoder-only",
    "norm_position": "pre",
    "norm_type": "rmsnorm",
    "position_encoding": "rope",
    "gated_feed_forward": True,
    "scale_embedding": False,
    "dropout": 0.0,
    "init_scheme": "normal",
}
SAME = {
    **alike(
        "vocab_size hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
        "intermediate_size hidden_act max_position_embeddings attention_dropout initializer_range "
        "tie_word_embeddings use_cache"
    ),
    "norm_eps": "rms_norm_eps",
}


def rotary_fields(config: PreTrainedConfig) -> dict[str, Any]:
    """Return the fields of rotary positions.

    Raises:
        ConversionError: for frequencies that are scaled in a way that is not known here, and for a part of a head.
    """
    given = {name: value for name, value in (config.rope_parameters or {}).items() if value is not None}
    kind, theta, part = (
        given.pop(name, default)
        for name, default in (("rope_type", "default"), ("rope_theta", 10000.0), ("partial_rotary_factor", 1.0))
    )
    given.pop("type", None)  # the name of rope_type in older files
    if kind not in ("default", "linear", "dynamic", "yarn", "llama3"):
        raise ConversionError(f"{config.model_type}: rope_type={kind!r} of rope_parameters cannot be converted.")
    if part != 1:
        raise ConversionError(
            f"{config.model_type}: partial_rotary_factor={part} cannot be converted, as its class in transformers turns whole heads."
        )
    if kind in ("default", "linear", "dynamic"):
        given.pop("original_max_position_embeddings", None)  # which none of them reads
    scaling = None if kind == "default" else {"rope_type": kind, **given}
    return {"rope_theta": theta, "rotary_scaling": scaling}


def rotary_settings(config: VanillaTransformerConfig) -> dict[str, Any]:
    scaling = config.rotary_scaling or {"rope_type": "default"}
    return {"rope_parameters": {**scaling, "rope_theta": config.rope_theta}}


def window_fields(config: PreTrainedConfig) -> dict[str, Any]:
    """Return the fields of windows, of all layers or of some."""
    kinds = getattr(config, "layer_types", None) or []
    local = "sliding_attention" in kinds if kinds else config.sliding_window is not None
    return {
        "sliding_window": config.sliding_window if local else None,
        "layer_types": list(kinds) if len(set(kinds)) > 1 else None,
    }


LLAMA = ArchitectureAdapter(
    name="llama",
    heads={"LlamaForCausalLM": "VanillaTransformerForCausalLM", "LlamaModel": "VanillaTransformerModel"},
    prefix="model.",
    weights=WEIGHTS,
    fixed=FIXED,
    same=SAME | alike("attention_bias mlp_bias"),
    extra_fields=rotary_fields,
    extra_settings=rotary_settings,
)
