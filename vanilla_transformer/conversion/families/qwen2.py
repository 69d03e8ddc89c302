"""Qwen2 (Yang et al. 2024), Llama with biases of queries, keys and values; and Qwen3 (Yang et al. 2025), with norms of both."""

from dataclasses import replace
from typing import Any

from transformers import PreTrainedConfig

from vanilla_transformer.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.conversion.architecture_adapter import alike
from vanilla_transformer.conversion.families.llama import (
    FIXED,
    LLAMA,
    SAME,
    WEIGHTS,
    rotary_fields,
    rotary_settings,
    window_fields,
)
from vanilla_transformer.conversion.weight_mapping import LAYER, map_modules


def _extra_fields(config: PreTrainedConfig) -> dict[str, Any]:
    return rotary_fields(config) | window_fields(config)


def _extra_settings(config: VanillaTransformerConfig) -> dict[str, Any]:
    local = config.sliding_window is not None
    return {
        **rotary_settings(config),
        "use_sliding_window": local,
        "sliding_window": config.sliding_window,
        "layer_types": config.attention_kinds,
        "max_window_layers": config.attention_kinds.count("full_attention"),
    }


QWEN2 = replace(
    LLAMA,
    name="qwen2",
    heads={"Qwen2ForCausalLM": "VanillaTransformerForCausalLM", "Qwen2Model": "VanillaTransformerModel"},
    fixed={**FIXED, "attention_bias": True, "attention_output_bias": False, "mlp_bias": False},
    same=SAME,
    extra_fields=_extra_fields,
    extra_settings=_extra_settings,
)

QWEN3 = replace(
    QWEN2,
    name="qwen3",
    heads={"Qwen3ForCausalLM": "VanillaTransformerForCausalLM", "Qwen3Model": "VanillaTransformerModel"},
    weights=(
        *WEIGHTS,
        *map_modules(
            f"model.layers.{LAYER}.self_attn",
            f"model.decoder.layers.{LAYER}.self_attn",
            {"q_norm": "q_norm", "k_norm": "k_norm"},
        ),
    ),
    fixed={**FIXED, "mlp_bias": False, "qk_norm": "rmsnorm"},
    same=SAME | alike("attention_bias"),
)
