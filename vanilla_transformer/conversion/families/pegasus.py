"""PEGASUS (Zhang et al. 2020): pre-norm, with the sinusoids of Marian; the class for pre-norm translators, too."""

from dataclasses import replace

from vanilla_transformer.conversion.families import bart
from vanilla_transformer.conversion.families.marian import MARIAN

PEGASUS = replace(
    MARIAN,
    name="pegasus",
    heads={
        "PegasusForConditionalGeneration": "VanillaTransformerForConditionalGeneration",
        "PegasusModel": "VanillaTransformerModel",
    },
    weights=(*bart.stack_mappings({"embed_tokens": "embed_tokens", "layer_norm": "norm"}), *bart.OUTPUT),
    fixed={**MARIAN.fixed, "norm_position": "pre"},
    extra_fields=lambda config: {**bart.check_stacks(config), "share_encoder_decoder_embeddings": True},
    extra_settings=bart.decoder_settings,
)
