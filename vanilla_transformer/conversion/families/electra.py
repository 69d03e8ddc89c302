"""ELECTRA (Clark et al. 2020): BERT's layers behind embeddings of a width of their own."""

from dataclasses import replace

from vanilla_transformer.conversion.architecture_adapter import alike
from vanilla_transformer.conversion.families import bert
from vanilla_transformer.conversion.weight_mapping import WeightMapping

ELECTRA = replace(
    bert.BERT,
    name="electra",
    heads={
        "ElectraForMaskedLM": "VanillaTransformerForMaskedLM",
        "ElectraModel": "VanillaTransformerModel",
        "ElectraForPreTraining": "VanillaTransformerModel",
        "ElectraForTokenClassification": "VanillaTransformerForTokenClassification",
    },
    prefix="electra.",
    weights=(
        *bert.encoder_mappings("electra"),
        WeightMapping("electra.embeddings_project", "model.encoder.embed_projection"),
        *bert.head_mappings("generator_predictions", "generator_lm_head"),
    ),
    same={**bert.BERT.same, **alike("embedding_size")},
    extra_settings=lambda config: {"embedding_size": config.embedding_width},
    copies={},
    options={},
    ignored={
        "discriminator_predictions.": "which tokens have been replaced",
        "electra.embeddings.position_ids": bert.POSITION_NUMBERS,
    },
    head_activation="gelu",
)
