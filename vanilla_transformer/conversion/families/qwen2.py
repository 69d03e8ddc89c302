"""Qwen2 (Yang et al. 2024): Llama with biases of queries, keys and values."""

from dataclasses import replace
from typing import Any

from transformers import PreTrainedConfig

from vanilla_transformer.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.conversion.families.llama import FIXED, LLAMA, SAME, rotary_fields, rotary_settings
from vanilla_transformer.conversion.weight_mapping import ConversionError


def _extra_fields(config: PreTrainedConfig) -> dict[str, Any]:
    kinds = set(config.layer_types)
    if len(kinds) > 1:
        raise ConversionError(
            f"qwen2: max_window_layers={config.max_window_layers} cannot be converted, as it gives some of the layers a "
            "sliding window, and here all have one or none has."
        )
    return {
        **rotary_fields(config),
        "sliding_window": config.sliding_window if kinds == {"sliding_attention"} else None,
    }


def _extra_settings(config: VanillaTransformerConfig) -> dict[str, Any]:
    local = config.sliding_window is not None
    return {
        **rotary_settings(config),
        "use_sliding_window": local,
        "sliding_window": config.sliding_window,
        "max_window_layers": 0 if local else config.num_hidden_layers,
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
