"""ALBERT (Lan et al. 2020): one layer, run as often as the model is deep, and narrow embeddings."""

from typing import Any

from transformers import PreTrainedConfig

from ..family import Family, Only
from ..links import ConversionError, Link
from .bert import FIXED, POOLER, POSITION_NUMBERS, SAME, embedding_links

LAYER = "albert.encoder.albert_layer_groups.0.albert_layers.0"


def _to_ours(config: PreTrainedConfig) -> dict[str, Any]:
    if config.embedding_size == config.hidden_size:
        raise ConversionError(
            f"albert: embedding_size={config.embedding_size} cannot be converted, as ALBERT projects embeddings that are as "
            "wide as its layers, too, and our models do not."
        )
    return {}


ALBERT = Family(
    name="albert",
    heads={
        "AlbertForMaskedLM": "VanillaTransformerForMaskedLM",
        "AlbertForPreTraining": "VanillaTransformerForMaskedLM",
        "AlbertModel": "VanillaTransformerModel",
        "AlbertForTokenClassification": "VanillaTransformerForTokenClassification",
    },
    prefix="albert.",
    links=(
        *embedding_links("albert."),
        Link("model.encoder.embed_projection", "albert.encoder.embedding_hidden_mapping_in"),
        *(
            Link(f"model.encoder.layers.0.{ours}", f"{LAYER}.{theirs}")
            for ours, theirs in {
                "self_attn.q_proj": "attention.query",
                "self_attn.k_proj": "attention.key",
                "self_attn.v_proj": "attention.value",
                "self_attn.o_proj": "attention.dense",
                "self_attn_norm": "attention.LayerNorm",
                "feed_forward.up_proj": "ffn",
                "feed_forward.down_proj": "ffn_output",
                "feed_forward_norm": "full_layer_layer_norm",
            }.items()
        ),
        Link("output_transform.dense", "predictions.dense"),
        Link("output_transform.norm", "predictions.LayerNorm"),
        Link("lm_head", "predictions.decoder"),
        Link("score", "classifier"),
    ),
    fixed={**FIXED, "shared_layers": True},
    same={
        **SAME,
        "max_position_embeddings": "max_position_embeddings",
        "embedding_size": "embedding_size",
    },
    only={
        "num_hidden_groups": Only(1, "layers are all one here, or all different"),
        "inner_group_num": Only(1, "layers are all one here, or all different"),
    },
    to_ours=_to_ours,
    to_theirs=lambda config: {"embedding_size": config.embedding_width},
    copies={"predictions.bias": "predictions.decoder.bias"},
    options={"AlbertModel": {"add_pooling_layer": False}},
    dropped={
        "albert.pooler.": POOLER,
        "sop_classifier.": "which of two sentences comes first",
        "albert.embeddings.position_ids": POSITION_NUMBERS,
    },
    counts_padding=True,
)
