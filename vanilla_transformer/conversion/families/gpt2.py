"""GPT-2 (Radford et al. 2019), whose matrices are stored as (inputs, outputs)."""

from typing import Any

from transformers import PreTrainedConfig

from vanilla_transformer.configuration_vanilla_transformer import VanillaTransformerConfig

from ..family import Family, Only
from ..links import Link

HERE, THERE = "model.decoder.layers.{n}", "transformer.h.{n}"


def _to_ours(config: PreTrainedConfig) -> dict[str, Any]:
    return {
        "intermediate_size": 4 * config.n_embd if config.n_inner is None else config.n_inner,
        "attention_scale": None if config.scale_attn_weights else 1.0,
    }


def _to_theirs(config: VanillaTransformerConfig) -> dict[str, Any]:
    return {
        "n_inner": config.intermediate_size,
        "scale_attn_weights": config.attention_scale != 1.0,
        "embd_pdrop": config.dropout,
    }


GPT2 = Family(
    name="gpt2",
    heads={
        "GPT2LMHeadModel": "VanillaTransformerForCausalLM",
        "GPT2Model": "VanillaTransformerModel",
    },
    prefix="transformer.",
    links=(
        Link("model.decoder.embed_tokens", "transformer.wte"),
        Link("model.decoder.embed_positions", "transformer.wpe"),
        Link(tuple(f"{HERE}.self_attn.{p}_proj" for p in "qkv"), f"{THERE}.attn.c_attn", transposed=True),
        Link(f"{HERE}.self_attn.o_proj", f"{THERE}.attn.c_proj", transposed=True),
        Link(f"{HERE}.self_attn_norm", f"{THERE}.ln_1"),
        Link(f"{HERE}.feed_forward.up_proj", f"{THERE}.mlp.c_fc", transposed=True),
        Link(f"{HERE}.feed_forward.down_proj", f"{THERE}.mlp.c_proj", transposed=True),
        Link(f"{HERE}.feed_forward_norm", f"{THERE}.ln_2"),
        Link("model.decoder.norm", "transformer.ln_f"),
        Link("lm_head", "lm_head"),
    ),
    fixed={
        "architecture": "decoder-only",
        "norm_position": "pre",
        "position_encoding": "learned",
        "scale_embedding": False,
        "init_scheme": "normal",
    },
    same={
        "vocab_size": "vocab_size",
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "hidden_act": "activation_function",
        "norm_eps": "layer_norm_epsilon",
        "max_position_embeddings": "n_positions",
        "dropout": "resid_pdrop",
        "attention_dropout": "attn_pdrop",
        "initializer_range": "initializer_range",
        "tie_word_embeddings": "tie_word_embeddings",
        "use_cache": "use_cache",
    },
    only={
        "scale_attn_by_inverse_layer_idx": Only(False, "the scale of attention is the same in all layers here"),
        "add_cross_attention": Only(False, "a decoder on its own looks at no source here"),
    },
    to_ours=_to_ours,
    to_theirs=_to_theirs,
    # earlier versions of transformers saved it
    dropped={f"{THERE}.attn.masked_bias": "the score of what is masked"},
)
