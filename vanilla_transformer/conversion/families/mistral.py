"""Mistral (Jiang et al. 2023): Llama without biases, with a sliding window."""

from dataclasses import replace

from vanilla_transformer.conversion.families.llama import (
    FIXED,
    LLAMA,
    SAME,
    rotary_fields,
    rotary_settings,
    window_fields,
)

MISTRAL = replace(
    LLAMA,
    name="mistral",
    heads={"MistralForCausalLM": "VanillaTransformerForCausalLM", "MistralModel": "VanillaTransformerModel"},
    fixed={**FIXED, "attention_bias": False, "mlp_bias": False},
    same=SAME,
    extra_fields=lambda config: rotary_fields(config) | window_fields(config),
    extra_settings=lambda config: rotary_settings(config) | {"sliding_window": config.sliding_window},
)
