"""ERNIE 4.5 (Baidu 2025): Llama whose rotary pairs stand side by side, and whose biases are all there or none."""

from dataclasses import replace
from typing import Any

from transformers import PreTrainedConfig

from vanilla_transformer.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.conversion.families.llama import FIXED, LLAMA, SAME, rotary_fields, rotary_settings


def _extra_fields(config: PreTrainedConfig) -> dict[str, Any]:
    return {**rotary_fields(config), "attention_bias": config.use_bias, "mlp_bias": config.use_bias}


def _extra_settings(config: VanillaTransformerConfig) -> dict[str, Any]:
    return {**rotary_settings(config), "use_bias": config.mlp_bias}


ERNIE4_5 = replace(
    LLAMA,
    name="ernie4_5",
    heads={"Ernie4_5ForCausalLM": "VanillaTransformerForCausalLM", "Ernie4_5Model": "VanillaTransformerModel"},
    fixed={**FIXED, "attention_dropout": 0.0},
    same={target: source for target, source in SAME.items() if target != "attention_dropout"},
    extra_fields=_extra_fields,
    extra_settings=_extra_settings,
    interleaved=("self_attn.q_proj", "self_attn.k_proj"),
)
