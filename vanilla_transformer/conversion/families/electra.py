"""ELECTRA (Clark et al. 2020): BERT's layers behind embeddings of a width of their own."""

from vanilla_transformer.conversion.architecture_adapter import ArchitectureAdapter, alike
from vanilla_transformer.conversion.families.bert import FIXED, POSITION_NUMBERS, REQUIRED, SAME, encoder_mappings
from vanilla_transformer.conversion.weight_mapping import WeightMapping

ELECTRA = ArchitectureAdapter(
    name="electra",
    heads={
        "ElectraForMaskedLM": "VanillaTransformerForMaskedLM",
        "ElectraModel": "VanillaTransformerModel",
        "ElectraForPreTraining": "VanillaTransformerModel",
        "ElectraForTokenClassification": "VanillaTransformerForTokenClassification",
    },
    prefix="electra.",
    weights=(
        *encoder_mappings("electra"),
        WeightMapping("electra.embeddings_project", "model.encoder.embed_projection"),
        WeightMapping("generator_predictions.dense", "output_transform.dense"),
        WeightMapping("generator_predictions.LayerNorm", "output_transform.norm"),
        WeightMapping("generator_lm_head", "lm_head"),
        WeightMapping("classifier", "score"),
    ),
    fixed=FIXED,
    same=SAME | alike("max_position_embeddings embedding_size"),
    required=REQUIRED,
    extra_settings=lambda config: {"embedding_size": config.embedding_width},
    ignored={
        "discriminator_predictions.": "which tokens have been replaced",
        "electra.embeddings.position_ids": POSITION_NUMBERS,
    },
    counts_padding=True,
    head_activation="gelu",
)
