"""mBART (Liu et al. 2020), BART with norms before its layers; Blenderbot (Roller et al. 2020), without one of embeddings."""

from dataclasses import replace

from vanilla_transformer.conversion.families import bart

MBART = replace(
    bart.BART,
    name="mbart",
    heads={
        "MBartForConditionalGeneration": "VanillaTransformerForConditionalGeneration",
        "MBartModel": "VanillaTransformerModel",
    },
    weights=(
        *bart.stack_mappings(
            {
                "embed_tokens": "embed_tokens",
                "embed_positions": "embed_positions",
                "layernorm_embedding": "embed_norm",
                "layer_norm": "norm",
            }
        ),
        *bart.OUTPUT,
    ),
    fixed={**bart.BART.fixed, "norm_position": "pre"},
)

BLENDERBOT = replace(
    MBART,
    name="blenderbot",
    heads={
        "BlenderbotForConditionalGeneration": "VanillaTransformerForConditionalGeneration",
        "BlenderbotModel": "VanillaTransformerModel",
    },
    weights=(
        *bart.stack_mappings(
            {"embed_tokens": "embed_tokens", "embed_positions": "embed_positions", "layer_norm": "norm"}
        ),
        *bart.OUTPUT,
    ),
    fixed={**MBART.fixed, "position_offset": 0, "embedding_norm": False},
)
