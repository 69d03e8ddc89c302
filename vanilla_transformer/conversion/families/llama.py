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
    """Return the field of the base of rotary positions.

    Raises:
        ConversionError: for frequencies that are stretched, or turn a part of a head only.
    """
    given = {name: value for name, value in (config.rope_parameters or {}).items() if value is not None}
    kind, theta = given.pop("rope_type", "default"), given.pop("rope_theta", 10000.0)
    if given.pop("partial_rotary_factor", 1.0) != 1.0 or kind != "default":
        raise ConversionError(
            f"{config.model_type}: rope_parameters={config.rope_parameters} cannot be converted, as rotary positions here "
            "are those of Su et al. 2021, neither stretched nor for a part of a head."
        )
    return {"rope_theta": theta}


def rotary_settings(config: VanillaTransformerConfig) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta}}


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
