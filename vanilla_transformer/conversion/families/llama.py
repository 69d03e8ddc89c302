"""Llama (Touvron et al. 2023), 2 and 3."""

from typing import Any

from transformers import PreTrainedConfig

from vanilla_transformer.configuration_vanilla_transformer import VanillaTransformerConfig

from ..family import Family
from ..links import ConversionError, Link

HERE, THERE = "model.decoder.layers.{n}", "model.layers.{n}"

LINKS = (
    Link("model.decoder.embed_tokens", "model.embed_tokens"),
    *(Link(f"{HERE}.self_attn.{p}_proj", f"{THERE}.self_attn.{p}_proj") for p in "qkvo"),
    Link(f"{HERE}.self_attn_norm", f"{THERE}.input_layernorm"),
    *(Link(f"{HERE}.feed_forward.{p}_proj", f"{THERE}.mlp.{p}_proj") for p in ("gate", "up", "down")),
    Link(f"{HERE}.feed_forward_norm", f"{THERE}.post_attention_layernorm"),
    Link("model.decoder.norm", "model.norm"),
    Link("lm_head", "lm_head"),
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
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "num_key_value_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "intermediate_size": "intermediate_size",
    "hidden_act": "hidden_act",
    "norm_eps": "rms_norm_eps",
    "max_position_embeddings": "max_position_embeddings",
    "attention_dropout": "attention_dropout",
    "initializer_range": "initializer_range",
    "tie_word_embeddings": "tie_word_embeddings",
    "use_cache": "use_cache",
}


def rotary_fields(config: PreTrainedConfig) -> dict[str, Any]:
    """The base of rotary positions.

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


LLAMA = Family(
    name="llama",
    heads={
        "LlamaForCausalLM": "VanillaTransformerForCausalLM",
        "LlamaModel": "VanillaTransformerModel",
    },
    prefix="model.",
    links=LINKS,
    fixed=FIXED,
    same={**SAME, "attention_bias": "attention_bias", "mlp_bias": "mlp_bias"},
    to_ours=rotary_fields,
    to_theirs=rotary_settings,
)
