"""ALBERT (Lan et al. 2020): one layer, run as often as the model is deep, and narrow embeddings."""

from dataclasses import replace
from typing import Any

from transformers import PreTrainedConfig

from vanilla_transformer.conversion.architecture_adapter import Required, alike
from vanilla_transformer.conversion.families import bert
from vanilla_transformer.conversion.weight_mapping import ConversionError, WeightMapping, map_modules

LAYER = {
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.dense": "self_attn.o_proj",
    "attention.LayerNorm": "self_attn_norm",
    "ffn": "feed_forward.up_proj",
    "ffn_output": "feed_forward.down_proj",
    "full_layer_layer_norm": "feed_forward_norm",
}
ONE_LAYER = Required(1, "layers are all one here, or all different")


def _check_width(config: PreTrainedConfig) -> dict[str, Any]:
    if config.embedding_size == config.hidden_size:
        raise ConversionError(
            f"albert: embedding_size={config.embedding_size} cannot be converted, as ALBERT projects embeddings that are as "
            "wide as its layers, too, and our models do not."
        )
    return {}


ALBERT = replace(
    bert.BERT,
    name="albert",
    heads={
        "AlbertForMaskedLM": "VanillaTransformerForMaskedLM",
        "AlbertForPreTraining": "VanillaTransformerForMaskedLM",
        "AlbertModel": "VanillaTransformerModel",
        "AlbertForTokenClassification": "VanillaTransformerForTokenClassification",
    },
    prefix="albert.",
    weights=(
        *map_modules("albert.embeddings", "model.encoder", bert.EMBEDDINGS),
        WeightMapping("albert.encoder.embedding_hidden_mapping_in", "model.encoder.embed_projection"),
        *map_modules("albert.encoder.albert_layer_groups.0.albert_layers.0", "model.encoder.layers.0", LAYER),
        *bert.head_mappings("predictions", "predictions.decoder"),
    ),
    fixed={**bert.FIXED, "shared_layers": True},
    same={**bert.BERT.same, **alike("embedding_size")},
    required={"num_hidden_groups": ONE_LAYER, "inner_group_num": ONE_LAYER},
    extra_fields=_check_width,
    extra_settings=lambda config: {"embedding_size": config.embedding_width},
    copies={"predictions.bias": "predictions.decoder.bias"},
    options={"AlbertModel": {"add_pooling_layer": False}},
    ignored={
        "albert.pooler.": bert.POOLER,
        "sop_classifier.": "which of two sentences comes first",
        "albert.embeddings.position_ids": bert.POSITION_NUMBERS,
    },
)
