"""FSMT: fairseq's translation models of WMT19 (Ng et al. 2019)."""

from typing import Any

from transformers import PreTrainedConfig

from vanilla_transformer.configuration_vanilla_transformer import VanillaTransformerConfig

from ..family import Family
from ..links import ConversionError, Link
from .bart import FIXED, SAME, STACKS, check_stacks, decoder_settings, stack_links


def _to_ours(config: PreTrainedConfig) -> dict[str, Any]:
    if config.pad_token_id is None:
        raise ConversionError(
            "fsmt: a model without pad_token_id cannot be converted, as its positions count from there."
        )
    source, target = config.src_vocab_size, config.tgt_vocab_size
    return {
        **check_stacks(config),
        "vocab_size": source,
        "target_vocab_size": None if target == source else target,
        "share_encoder_decoder_embeddings": config.tie_word_embeddings,
        "position_offset": config.pad_token_id + 1,
    }


def _to_theirs(config: VanillaTransformerConfig) -> dict[str, Any]:
    return {
        **decoder_settings(config),
        "src_vocab_size": config.vocab_size,
        "tgt_vocab_size": config.output_vocab_size,
    }


FSMT = Family(
    name="fsmt",
    # FSMTModel is not here: what it calls states are logits
    heads={"FSMTForConditionalGeneration": "VanillaTransformerForConditionalGeneration"},
    prefix="model.",
    links=(
        *(Link(f"model.{stack}.embed_tokens", f"model.{stack}.embed_tokens") for stack in STACKS),
        *stack_links(STACKS),
        Link("lm_head", "model.decoder.output_projection"),
    ),
    fixed={
        **FIXED,
        "position_encoding": "sinusoidal",
        "sinusoidal_form": "fairseq",
    },
    same=SAME,
    to_ours=_to_ours,
    to_theirs=_to_theirs,
    computed=("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"),
    training=("encoder_layerdrop", "decoder_layerdrop"),
)
