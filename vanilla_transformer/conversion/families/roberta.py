"""RoBERTa (Liu et al. 2019), BERT's layers and fairseq's positions; and XLM-RoBERTa and CamemBERT, which are the same model."""

from dataclasses import replace
from typing import Any

from transformers import PreTrainedConfig

from vanilla_transformer.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.conversion.architecture_adapter import ArchitectureAdapter
from vanilla_transformer.conversion.families import bert
from vanilla_transformer.conversion.weight_mapping import ConversionError


def offset_of_positions(config: PreTrainedConfig) -> int:
    """Return how many rows of fairseq's tables of positions are before that of the first token.

    Raises:
        ConversionError: for a model without a padding token.
    """
    if config.pad_token_id is None:
        raise ConversionError(
            f"{config.model_type}: a model without pad_token_id cannot be converted, as its positions count from there."
        )
    return int(config.pad_token_id) + 1


def _extra_fields(config: PreTrainedConfig) -> dict[str, Any]:
    offset = offset_of_positions(config)
    return {"position_offset": offset, "max_position_embeddings": config.max_position_embeddings - offset}


def _extra_settings(config: VanillaTransformerConfig) -> dict[str, Any]:
    return {"max_position_embeddings": config.max_position_embeddings + config.position_offset}


ROBERTA = replace(
    bert.BERT,
    name="roberta",
    heads={
        "RobertaForMaskedLM": "VanillaTransformerForMaskedLM",
        "RobertaModel": "VanillaTransformerModel",
        "RobertaForTokenClassification": "VanillaTransformerForTokenClassification",
    },
    prefix="roberta.",
    weights=(*bert.encoder_mappings("roberta"), *bert.head_mappings("lm_head", "lm_head.decoder", norm="layer_norm")),
    same=bert.SAME,
    extra_fields=_extra_fields,
    extra_settings=_extra_settings,
    copies={"lm_head.bias": "lm_head.decoder.bias"},
    options={"RobertaModel": {"add_pooling_layer": False}},
    ignored={"roberta.pooler.": bert.POOLER, "roberta.embeddings.position_ids": bert.POSITION_NUMBERS},
    head_activation="gelu",
    counts_padding=False,
)


def _renamed(name: str, prefix: str) -> ArchitectureAdapter:
    """Return RoBERTa's adapter for a family that differs in name alone.

    Args:
        name: its `model_type`.
        prefix: what the names of its classes begin with.
    """
    return replace(
        ROBERTA,
        name=name,
        heads={source.replace("Roberta", prefix, 1): target for source, target in ROBERTA.heads.items()},
        options={f"{prefix}Model": {"add_pooling_layer": False}},
    )


XLM_ROBERTA = _renamed("xlm-roberta", "XLMRoberta")
CAMEMBERT = _renamed("camembert", "Camembert")
