"""PEGASUS (Zhang et al. 2020): pre-norm, with the sinusoids of Marian; the class for pre-norm translators, too."""

from typing import Any

from transformers import PreTrainedConfig

from vanilla_transformer.configuration_vanilla_transformer import VanillaTransformerConfig

from ..family import Family
from ..links import Link
from .bart import FIXED, ONLY, SAME, STACKS, check_stacks, decoder_settings, stack_links


def _to_ours(config: PreTrainedConfig) -> dict[str, Any]:
    return {**check_stacks(config), "share_encoder_decoder_embeddings": True}


def _to_theirs(config: VanillaTransformerConfig) -> dict[str, Any]:
    return decoder_settings(config)


PEGASUS = Family(
    name="pegasus",
    heads={
        "PegasusForConditionalGeneration": "VanillaTransformerForConditionalGeneration",
        "PegasusModel": "VanillaTransformerModel",
    },
    prefix="model.",
    links=(
        *(
            Link(f"model.{stack}.{ours}", f"model.{stack}.{theirs}")
            for stack in STACKS
            for ours, theirs in {"embed_tokens": "embed_tokens", "norm": "layer_norm"}.items()
        ),
        *stack_links(STACKS),
        Link("lm_head", "lm_head"),
        Link("output_bias", "final_logits_bias", whole=True),
    ),
    fixed={
        **FIXED,
        "norm_position": "pre",
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
