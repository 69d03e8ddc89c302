"""BERT (Devlin et al. 2019), and what its descendants have in common with it."""

from typing import Any

from vanilla_transformer.conversion.architecture_adapter import ArchitectureAdapter, Required, alike
from vanilla_transformer.conversion.weight_mapping import LAYER, WeightMapping, map_modules

EMBEDDINGS = {
    "word_embeddings": "embed_tokens",
    "position_embeddings": "embed_positions",
    "token_type_embeddings": "embed_token_types",
    "LayerNorm": "embed_norm",
}
LAYERS = {
    "attention.self.query": "self_attn.q_proj",
    "attention.self.key": "self_attn.k_proj",
    "attention.self.value": "self_attn.v_proj",
    "attention.output.dense": "self_attn.o_proj",
    "attention.output.LayerNorm": "self_attn_norm",
    "intermediate.dense": "feed_forward.up_proj",
    "output.dense": "feed_forward.down_proj",
    "output.LayerNorm": "feed_forward_norm",
}


def encoder_mappings(model: str) -> tuple[WeightMapping, ...]:
    """Return the mappings of embeddings and layers below the name of a model, such as `bert`."""
    layers = map_modules(f"{model}.encoder.layer.{LAYER}", f"model.encoder.layers.{LAYER}", LAYERS)
    return (*map_modules(f"{model}.embeddings", "model.encoder", EMBEDDINGS), *layers)


def head_mappings(transform: str, output: str, norm: str = "LayerNorm") -> tuple[WeightMapping, ...]:
    """Return the mappings of the heads: what transforms states, what projects them to tokens, and what to labels."""
    return (
        *map_modules(transform, "output_transform", {"dense": "dense", norm: "norm"}),
        WeightMapping(output, "lm_head"),
        WeightMapping("classifier", "score"),
    )


FIXED: dict[str, Any] = {
    "architecture": "encoder-only",
    "norm_position": "post",
    "position_encoding": "learned",
    "embedding_norm": True,
    "scale_embedding": False,
    "output_transform": True,
    "output_bias": "trained",
    "init_scheme": "normal",
}
SAME = {
    **alike(
        "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act "
        "type_vocab_size initializer_range tie_word_embeddings"
    ),
    "norm_eps": "layer_norm_eps",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}
REQUIRED = {
    "is_decoder": Required(False, "with it the model is a decoder, and this is a table of encoders"),
    "add_cross_attention": Required(False, "an encoder here looks at no other sequence"),
}
POSITION_NUMBERS = "the numbers 0, 1, 2 and so on, which are counted here"
POOLER = "what makes one vector of a sequence"

BERT = ArchitectureAdapter(
    name="bert",
    heads={
        "BertForMaskedLM": "VanillaTransformerForMaskedLM",
        "BertForPreTraining": "VanillaTransformerForMaskedLM",
        "BertModel": "VanillaTransformerModel",
        "BertForTokenClassification": "VanillaTransformerForTokenClassification",
    },
    prefix="bert.",
    weights=(*encoder_mappings("bert"), *head_mappings("cls.predictions.transform", "cls.predictions.decoder")),
    fixed=FIXED,
    same=SAME | alike("max_position_embeddings"),
    required=REQUIRED,
    copies={"cls.predictions.bias": "cls.predictions.decoder.bias"},
    options={"BertModel": {"add_pooling_layer": False}},
    ignored={
        "bert.pooler.": POOLER,
        "cls.seq_relationship.": "whether one sentence follows another",
        "bert.embeddings.position_ids": POSITION_NUMBERS,
    },
    counts_padding=True,
)
