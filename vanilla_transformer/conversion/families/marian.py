"""Marian (Junczys-Dowmunt et al. 2018), of which the OPUS-MT models are."""

from typing import Any

from transformers import PreTrainedConfig

from vanilla_transformer.configuration_vanilla_transformer import VanillaTransformerConfig

from ..family import Family
from ..links import Link
from .bart import FIXED, ONLY, SAME, STACKS, check_stacks, decoder_settings, stack_links


def _to_ours(config: PreTrainedConfig) -> dict[str, Any]:
    target = config.decoder_vocab_size
    shared = config.share_encoder_decoder_embeddings and config.tie_word_embeddings
    return {
        **check_stacks(config),
        "target_vocab_size": None if target == config.vocab_size else target,
        "share_encoder_decoder_embeddings": shared,
    }


def _to_theirs(config: VanillaTransformerConfig) -> dict[str, Any]:
    return {
        **decoder_settings(config),
        "decoder_vocab_size": config.output_vocab_size,
        "share_encoder_decoder_embeddings": config.has_shared_embeddings,
    }


MARIAN = Family(
    name="marian",
    heads={
        "MarianMTModel": "VanillaTransformerForConditionalGeneration",
        "MarianModel": "VanillaTransformerModel",
    },
    prefix="model.",
    links=(
        *(Link(f"model.{stack}.embed_tokens", f"model.{stack}.embed_tokens") for stack in STACKS),
        *stack_links(STACKS),
        Link("lm_head", "lm_head"),
        Link("output_bias", "final_logits_bias", whole=True),
    ),
    fixed={
        **FIXED,
        "position_encoding": "sinusoidal",
        "sinusoidal_form": "concatenated",
        "output_bias": "fixed",
    },
    same={**SAME, "vocab_size": "vocab_size"},
    only=ONLY,
    to_ours=_to_ours,
    to_theirs=_to_theirs,
    copies={"model.shared.weight": "model.encoder.embed_tokens.weight"},
    computed=("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"),
    training=("encoder_layerdrop", "decoder_layerdrop"),
    counts_padding=True,
)
