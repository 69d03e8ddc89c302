"""Marian (Junczys-Dowmunt et al. 2018), of which the OPUS-MT models are."""

from dataclasses import replace
from typing import Any

from transformers import PreTrainedConfig

from vanilla_transformer.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.conversion.families import bart


def _extra_fields(config: PreTrainedConfig) -> dict[str, Any]:
    target = config.decoder_vocab_size
    shared = config.share_encoder_decoder_embeddings and config.tie_word_embeddings
    return {
        **bart.check_stacks(config),
        "target_vocab_size": None if target == config.vocab_size else target,
        "share_encoder_decoder_embeddings": shared,
    }


def _extra_settings(config: VanillaTransformerConfig) -> dict[str, Any]:
    return {
        **bart.decoder_settings(config),
        "decoder_vocab_size": config.output_vocab_size,
        "share_encoder_decoder_embeddings": config.has_shared_embeddings,
    }


MARIAN = replace(
    bart.BART,
    name="marian",
    heads={"MarianMTModel": "VanillaTransformerForConditionalGeneration", "MarianModel": "VanillaTransformerModel"},
    weights=(*bart.stack_mappings({"embed_tokens": "embed_tokens"}), *bart.OUTPUT),
    fixed=bart.FIXED | bart.SINUSOIDAL | {"output_bias": "fixed"},
    extra_fields=_extra_fields,
    extra_settings=_extra_settings,
    computed=bart.SINUSOIDS,
)
