"""RoBERTa (Liu et al. 2019): BERT's layers, fairseq's positions."""

from typing import Any

from transformers import PreTrainedConfig

from vanilla_transformer.configuration_vanilla_transformer import VanillaTransformerConfig

from ..family import Family
from ..links import ConversionError, Link
from .bert import FIXED, ONLY, POOLER, POSITION_NUMBERS, SAME, embedding_links, layer_links


def _to_ours(config: PreTrainedConfig) -> dict[str, Any]:
    if config.pad_token_id is None:
        raise ConversionError(
            "roberta: a model without pad_token_id cannot be converted, as its positions count from there."
        )
    offset = config.pad_token_id + 1
    return {"position_offset": offset, "max_position_embeddings": config.max_position_embeddings - offset}


def _to_theirs(config: VanillaTransformerConfig) -> dict[str, Any]:
    return {"max_position_embeddings": config.max_position_embeddings + config.position_offset}


ROBERTA = Family(
    name="roberta",
    heads={
        "RobertaForMaskedLM": "VanillaTransformerForMaskedLM",
        "RobertaModel": "VanillaTransformerModel",
        "RobertaForTokenClassification": "VanillaTransformerForTokenClassification",
    },
    prefix="roberta.",
    links=(
        *embedding_links("roberta."),
        *layer_links("roberta."),
        Link("output_transform.dense", "lm_head.dense"),
        Link("output_transform.norm", "lm_head.layer_norm"),
        Link("lm_head", "lm_head.decoder"),
        Link("score", "classifier"),
    ),
    fixed=FIXED,
    same=SAME,
    only=ONLY,
    to_ours=_to_ours,
    to_theirs=_to_theirs,
    copies={"lm_head.bias": "lm_head.decoder.bias"},
    options={"RobertaModel": {"add_pooling_layer": False}},
    dropped={
        "roberta.pooler.": POOLER,
        "roberta.embeddings.position_ids": POSITION_NUMBERS,
    },
    head_activation="gelu",
)
