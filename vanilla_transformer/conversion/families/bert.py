"""BERT (Devlin et al. 2019), and what its descendants have in common with it."""

from typing import Any

from ..family import Family, Only
from ..links import Link


def embedding_links(prefix: str) -> tuple[Link, ...]:
    return tuple(
        Link(f"model.encoder.{ours}", f"{prefix}embeddings.{theirs}")
        for ours, theirs in {
            "embed_tokens": "word_embeddings",
            "embed_positions": "position_embeddings",
            "embed_token_types": "token_type_embeddings",
            "embed_norm": "LayerNorm",
        }.items()
    )


def layer_links(prefix: str) -> tuple[Link, ...]:
    return tuple(
        Link(f"model.encoder.layers.{{n}}.{ours}", f"{prefix}encoder.layer.{{n}}.{theirs}")
        for ours, theirs in {
            "self_attn.q_proj": "attention.self.query",
            "self_attn.k_proj": "attention.self.key",
            "self_attn.v_proj": "attention.self.value",
            "self_attn.o_proj": "attention.output.dense",
            "self_attn_norm": "attention.output.LayerNorm",
            "feed_forward.up_proj": "intermediate.dense",
            "feed_forward.down_proj": "output.dense",
            "feed_forward_norm": "output.LayerNorm",
        }.items()
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
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "hidden_act": "hidden_act",
    "norm_eps": "layer_norm_eps",
    "type_vocab_size": "type_vocab_size",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "initializer_range": "initializer_range",
    "tie_word_embeddings": "tie_word_embeddings",
}
ONLY = {
    "is_decoder": Only(False, "with it the model is a decoder, and this is a table of encoders"),
    "add_cross_attention": Only(False, "an encoder here looks at no other sequence"),
}
POSITION_NUMBERS = "the numbers 0, 1, 2 and so on, which are counted here"
POOLER = "what makes one vector of a sequence"

BERT = Family(
    name="bert",
    heads={
        "BertForMaskedLM": "VanillaTransformerForMaskedLM",
        "BertForPreTraining": "VanillaTransformerForMaskedLM",
        "BertModel": "VanillaTransformerModel",
        "BertForTokenClassification": "VanillaTransformerForTokenClassification",
    },
    prefix="bert.",
    links=(
        *embedding_links("bert."),
        *layer_links("bert."),
        Link("output_transform.dense", "cls.predictions.transform.dense"),
        Link("output_transform.norm", "cls.predictions.transform.LayerNorm"),
        Link("lm_head", "cls.predictions.decoder"),
        Link("score", "classifier"),
    ),
    fixed=FIXED,
    same={**SAME, "max_position_embeddings": "max_position_embeddings"},
    only=ONLY,
    copies={"cls.predictions.bias": "cls.predictions.decoder.bias"},
    options={"BertModel": {"add_pooling_layer": False}},
    dropped={
        "bert.pooler.": POOLER,
        "cls.seq_relationship.": "whether one sentence follows another",
        "bert.embeddings.position_ids": POSITION_NUMBERS,
    },
    counts_padding=True,
)
