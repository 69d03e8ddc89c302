"""DistilBERT (Sanh et al. 2019): BERT's layers without token types, under other names."""

from vanilla_transformer.conversion.architecture_adapter import ArchitectureAdapter, Required, alike
from vanilla_transformer.conversion.families import bert
from vanilla_transformer.conversion.weight_mapping import LAYER, WeightMapping, map_modules

LAYERS = {
    **{f"attention.{p}_lin": f"self_attn.{p}_proj" for p in "qkv"},
    "attention.out_lin": "self_attn.o_proj",
    "sa_layer_norm": "self_attn_norm",
    "ffn.lin1": "feed_forward.up_proj",
    "ffn.lin2": "feed_forward.down_proj",
    "output_layer_norm": "feed_forward_norm",
}
EMBEDDINGS = {name: target for name, target in bert.EMBEDDINGS.items() if name != "token_type_embeddings"}

DISTILBERT = ArchitectureAdapter(
    name="distilbert",
    heads={
        "DistilBertForMaskedLM": "VanillaTransformerForMaskedLM",
        "DistilBertModel": "VanillaTransformerModel",
        "DistilBertForTokenClassification": "VanillaTransformerForTokenClassification",
    },
    prefix="distilbert.",
    weights=(
        *map_modules("distilbert.embeddings", "model.encoder", EMBEDDINGS),
        *map_modules(f"distilbert.transformer.layer.{LAYER}", f"model.encoder.layers.{LAYER}", LAYERS),
        WeightMapping("vocab_transform", "output_transform.dense"),
        WeightMapping("vocab_layer_norm", "output_transform.norm"),
        WeightMapping("vocab_projector", "lm_head"),
        WeightMapping("classifier", "score"),
    ),
    fixed={**bert.FIXED, "norm_eps": 1e-12, "type_vocab_size": 0},
    same={
        **alike("vocab_size max_position_embeddings dropout attention_dropout initializer_range tie_word_embeddings"),
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
    },
    required={"sinusoidal_pos_embds": Required(False, "its sinusoids are a table that was trained further")},
    ignored={"distilbert.embeddings.position_ids": bert.POSITION_NUMBERS},
    counts_padding=True,
)
