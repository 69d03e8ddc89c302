"""PEGASUS (Zhang et al. 2020): pre-norm, with the sinusoids of Marian; the class for pre-norm translators, too."""

from dataclasses import replace

from vanilla_transformer.conversion.families.bart import OUTPUT, check_stacks, decoder_settings, stack_mappings
from vanilla_transformer.conversion.families.marian import MARIAN

PEGASUS = replace(
    MARIAN,
    name="pegasus",
    heads={
        "PegasusForConditionalGeneration": "VanillaTransformerForConditionalGeneration",
        "PegasusModel": "VanillaTransformerModel",
    },
    weights=(*stack_mappings({"embed_tokens": "embed_tokens", "layer_norm": "norm"}), *OUTPUT),
    fixed={**MARIAN.fixed, "norm_position": "pre"},
    extra_fields=lambda config: {**check_stacks(config), "share_encoder_decoder_embeddings": True},
    extra_settings=decoder_settings,
)
