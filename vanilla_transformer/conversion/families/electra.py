"""ELECTRA (Clark et al. 2020): BERT's layers behind embeddings of a width of their own."""

from ..family import Family
from ..links import Link
from .bert import FIXED, ONLY, POSITION_NUMBERS, SAME, embedding_links, layer_links

ELECTRA = Family(
    name="electra",
    heads={
        "ElectraForMaskedLM": "VanillaTransformerForMaskedLM",
        "ElectraModel": "VanillaTransformerModel",
        "ElectraForPreTraining": "VanillaTransformerModel",
        "ElectraForTokenClassification": "VanillaTransformerForTokenClassification",
    },
    prefix="electra.",
    links=(
        *embedding_links("electra."),
        Link("model.encoder.embed_projection", "electra.embeddings_project"),
        *layer_links("electra."),
        Link("output_transform.dense", "generator_predictions.dense"),
        Link("output_transform.norm", "generator_predictions.LayerNorm"),
        Link("lm_head", "generator_lm_head"),
        Link("score", "classifier"),
    ),
    fixed=FIXED,
    same={
        **SAME,
        "max_position_embeddings": "max_position_embeddings",
        "embedding_size": "embedding_size",
    },
    only=ONLY,
    to_theirs=lambda config: {"embedding_size": config.embedding_width},
    dropped={
        "discriminator_predictions.": "which tokens have been replaced",
        "electra.embeddings.position_ids": POSITION_NUMBERS,
    },
    counts_padding=True,
    head_activation="gelu",
)
