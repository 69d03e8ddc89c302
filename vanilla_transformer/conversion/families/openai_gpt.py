"""GPT (Radford et al. 2018): GPT-2's layers with norms behind them, and a GELU by its tangent."""

from typing import Any

from transformers import PreTrainedConfig

from vanilla_transformer.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.conversion.architecture_adapter import ArchitectureAdapter, alike
from vanilla_transformer.conversion.weight_mapping import LAYER, ConversionError, WeightMapping, map_modules

BLOCK, LAYERS = f"transformer.h.{LAYER}", f"model.decoder.layers.{LAYER}"
ACTIVATIONS = {"gelu": "gelu_new", "relu": "relu", "silu": "silu"}


def _extra_fields(config: PreTrainedConfig) -> dict[str, Any]:
    if config.afn not in ACTIVATIONS:
        raise ConversionError(f"openai-gpt: afn={config.afn!r} cannot be converted; {', '.join(ACTIVATIONS)} can.")
    return {"hidden_act": ACTIVATIONS[config.afn], "intermediate_size": 4 * config.n_embd}


def _extra_settings(config: VanillaTransformerConfig) -> dict[str, Any]:
    return {
        "afn": next((name for name, target in ACTIVATIONS.items() if target == config.hidden_act), config.hidden_act),
        "embd_pdrop": config.dropout,
    }


OPENAI_GPT = ArchitectureAdapter(
    name="openai-gpt",
    heads={"OpenAIGPTLMHeadModel": "VanillaTransformerForCausalLM", "OpenAIGPTModel": "VanillaTransformerModel"},
    prefix="transformer.",
    weights=(
        *map_modules(
            "transformer", "model.decoder", {"tokens_embed": "embed_tokens", "positions_embed": "embed_positions"}
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
        "norm_position": "post",
        "position_encoding": "learned",
        "scale_embedding": False,
        "init_scheme": "normal",
    },
    same={
        **alike("vocab_size initializer_range tie_word_embeddings"),
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "norm_eps": "layer_norm_epsilon",
        "max_position_embeddings": "n_positions",
        "dropout": "resid_pdrop",
        "attention_dropout": "attn_pdrop",
    },
    extra_fields=_extra_fields,
    extra_settings=_extra_settings,
    ignored={
        "transformer.position_ids": "the numbers 0, 1, 2 and so on, which are counted here",
        f"{BLOCK}.attn.bias": "the mask of earlier positions, which is made here",
    },
    counts_padding=True,
)
