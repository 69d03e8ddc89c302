"""Marian (Junczys-Dowmunt et al. 2018), of which the OPUS-MT models are."""

from typing import Any

from transformers import PreTrainedConfig

from vanilla_transformer.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.conversion.architecture_adapter import ArchitectureAdapter, alike
from vanilla_transformer.conversion.families.bart import (
    FIXED,
    LAYER_DROP,
    OUTPUT,
    REQUIRED,
    SAME,
    SHARED,
    SINUSOIDS,
    check_stacks,
    decoder_settings,
    stack_mappings,
)


def _extra_fields(config: PreTrainedConfig) -> dict[str, Any]:
    target = config.decoder_vocab_size
    shared = config.share_encoder_decoder_embeddings and config.tie_word_embeddings
    return {
        **check_stacks(config),
        "target_vocab_size": None if target == config.vocab_size else target,
        "share_encoder_decoder_embeddings": shared,
    }


def _extra_settings(config: VanillaTransformerConfig) -> dict[str, Any]:
    return {
        **decoder_settings(config),
        "decoder_vocab_size": config.output_vocab_size,
        "share_encoder_decoder_embeddings": config.has_shared_embeddings,
    }


MARIAN = ArchitectureAdapter(
    name="marian",
    heads={"MarianMTModel": "VanillaTransformerForConditionalGeneration", "MarianModel": "VanillaTransformerModel"},
    prefix="model.",
    weights=(*stack_mappings({"embed_tokens": "embed_tokens"}), *OUTPUT),
    fixed={**FIXED, "position_encoding": "sinusoidal", "sinusoidal_form": "concatenated", "output_bias": "fixed"},
    same=SAME | alike("vocab_size"),
    required=REQUIRED,
    extra_fields=_extra_fields,
    extra_settings=_extra_settings,
    copies=SHARED,
    computed=SINUSOIDS,
    training=LAYER_DROP,
    counts_padding=True,
)
