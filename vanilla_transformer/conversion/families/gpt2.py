"""GPT-2 (Radford et al. 2019), whose matrices are stored as (inputs, outputs)."""

from typing import Any

from transformers import PreTrainedConfig

from vanilla_transformer.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.conversion.architecture_adapter import ArchitectureAdapter, Required, alike
from vanilla_transformer.conversion.weight_mapping import LAYER, WeightMapping, map_modules

BLOCK, LAYERS = f"transformer.h.{LAYER}", f"model.decoder.layers.{LAYER}"


def _extra_fields(config: PreTrainedConfig) -> dict[str, Any]:
    return {
        "intermediate_size": 4 * config.n_embd if config.n_inner is None else config.n_inner,
        "attention_scale": None if config.scale_attn_weights else 1.0,
    }


def _extra_settings(config: VanillaTransformerConfig) -> dict[str, Any]:
    return {
        "n_inner": config.intermediate_size,
        "scale_attn_weights": config.attention_scale != 1.0,
        "embd_pdrop": config.dropout,
    }


GPT2 = ArchitectureAdapter(
    name="gpt2",
    heads={"GPT2LMHeadModel": "VanillaTransformerForCausalLM", "GPT2Model": "VanillaTransformerModel"},
    prefix="transformer.",
    weights=(
        *map_modules(
            "transformer", "model.decoder", {"wte": "embed_tokens", "wpe": "embed_positions", "ln_f": "norm"}
        ),
        *map_modules(BLOCK, LAYERS, {"ln_1": "self_attn_norm", "ln_2": "feed_forward_norm"}),
        WeightMapping(f"{BLOCK}.attn.c_attn", tuple(f"{LAYERS}.self_attn.{p}_proj" for p in "qkv"), transposed=True),
        *map_modules(
            BLOCK,
            LAYERS,
            {
                "attn.c_proj": "self_attn.o_proj",
                "mlp.c_fc": "feed_forward.up_proj",
                "mlp.c_proj": "feed_forward.down_proj",
            },
            transposed=True,
        ),
        WeightMapping("lm_head", "lm_head"),
    ),
    fixed={
        "architecture": "decoder-only",
        "norm_position": "pre",
        "position_encoding": "learned",
        "scale_embedding": False,
        "init_scheme": "normal",
    },
    same={
        **alike("vocab_size initializer_range tie_word_embeddings use_cache"),
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "hidden_act": "activation_function",
        "norm_eps": "layer_norm_epsilon",
        "max_position_embeddings": "n_positions",
        "dropout": "resid_pdrop",
        "attention_dropout": "attn_pdrop",
    },
    required={
        "scale_attn_by_inverse_layer_idx": Required(False, "the scale of attention is the same in all layers here"),
        "add_cross_attention": Required(False, "a decoder on its own looks at no source here"),
    },
    extra_fields=_extra_fields,
    extra_settings=_extra_settings,
    # earlier versions of transformers saved it
    ignored={f"{BLOCK}.attn.masked_bias": "the score of what is masked"},
)
