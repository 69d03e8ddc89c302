"""Qwen2 (Yang et al. 2024): Llama with biases of queries, keys and values."""

from typing import Any

from transformers import PreTrainedConfig

from vanilla_transformer.configuration_vanilla_transformer import VanillaTransformerConfig

from ..family import Family
from ..links import ConversionError
from .llama import FIXED, LINKS, SAME, rotary_fields, rotary_settings


def _to_ours(config: PreTrainedConfig) -> dict[str, Any]:
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


def _to_theirs(config: VanillaTransformerConfig) -> dict[str, Any]:
    local = config.sliding_window is not None
    return {
        **rotary_settings(config),
        "use_sliding_window": local,
        "sliding_window": config.sliding_window,
        "max_window_layers": 0 if local else config.num_hidden_layers,
    }


QWEN2 = Family(
    name="qwen2",
    heads={
        "Qwen2ForCausalLM": "VanillaTransformerForCausalLM",
        "Qwen2Model": "VanillaTransformerModel",
    },
    prefix="model.",
    links=LINKS,
    fixed={**FIXED, "attention_bias": True, "attention_output_bias": False, "mlp_bias": False},
    same=SAME,
    to_ours=_to_ours,
    to_theirs=_to_theirs,
)
