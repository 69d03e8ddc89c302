"""T5 (Raffel et al. 2020) and T5 1.1, whose feed-forward networks are gated and whose output matrix is one of its own."""

from typing import Any

from transformers import PreTrainedConfig

from vanilla_transformer.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.conversion.architecture_adapter import ArchitectureAdapter, Required, alike
from vanilla_transformer.conversion.weight_mapping import LAYER, WeightMapping, map_modules

ATTENTION = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj"}
# where the network is gated, `up` is `wi_1`, and else `wi`
FEED_FORWARD = {"wi": "up_proj", "wi_0": "gate_proj", "wi_1": "up_proj", "wo": "down_proj"}


def _stack(stack: str, attentions: dict[str, str]) -> tuple[WeightMapping, ...]:
    """Return the mappings of a stack whose layers have these attentions, in their order, before the feed-forward network."""
    names = {
        "embed_tokens": "embed_tokens",
        "block.0.layer.0.SelfAttention.relative_attention_bias": "relative_bias",
        "final_layer_norm": "norm",
    }
    for number, (source, target) in enumerate(attentions.items()):
        sublayer = f"block.{LAYER}.layer.{number}"
        names |= {f"{sublayer}.{source}.{p}": f"layers.{LAYER}.{target}.{q}" for p, q in ATTENTION.items()}
        names[f"{sublayer}.layer_norm"] = f"layers.{LAYER}.{target}_norm"
    sublayer = f"block.{LAYER}.layer.{len(attentions)}"
    names |= {f"{sublayer}.DenseReluDense.{p}": f"layers.{LAYER}.feed_forward.{q}" for p, q in FEED_FORWARD.items()}
    names[f"{sublayer}.layer_norm"] = f"layers.{LAYER}.feed_forward_norm"
    return map_modules(stack, f"model.{stack}", names)


def _extra_fields(config: PreTrainedConfig) -> dict[str, Any]:
    return {
        "hidden_act": config.dense_act_fn,
        "gated_feed_forward": config.is_gated_act,
        "output_scale": config.d_model**-0.5 if config.scale_decoder_outputs else 1.0,
        # checkpoints have named the length of their training so
        "max_position_embeddings": getattr(config, "n_positions", None) or 512,
        "attention_dropout": config.dropout_rate,
        "activation_dropout": config.dropout_rate,
    }


def _extra_settings(config: VanillaTransformerConfig) -> dict[str, Any]:
    activation = config.hidden_act
    if config.gated_feed_forward:
        # T5's name of `gelu_new`
        activation = "gated-gelu" if activation == "gelu_new" else f"gated-{activation}"
    return {
        "feed_forward_proj": activation,
        "num_decoder_layers": config.num_decoder_layers,
        # transformers ties the output matrix whatever is said here, unless the weights that it is given differ
        "scale_decoder_outputs": config.output_scale != 1.0,
        "n_positions": config.max_position_embeddings,
    }


T5 = ArchitectureAdapter(
    name="t5",
    heads={
        "T5ForConditionalGeneration": "VanillaTransformerForConditionalGeneration",
        "T5Model": "VanillaTransformerModel",
    },
    prefix="",
    weights=(
        *_stack("encoder", {"SelfAttention": "self_attn"}),
        *_stack("decoder", {"SelfAttention": "self_attn", "EncDecAttention": "cross_attn"}),
        WeightMapping("lm_head", "lm_head"),
    ),
    fixed={
        "architecture": "encoder-decoder",
        "norm_position": "pre",
        "norm_type": "rmsnorm",
        "position_encoding": "relative",
        "scale_embedding": False,
        "share_encoder_decoder_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "attention_scale": 1.0,
    },
    same={
        **alike(
            "vocab_size relative_attention_num_buckets relative_attention_max_distance tie_word_embeddings use_cache"
        ),
        "hidden_size": "d_model",
        "head_dim": "d_kv",
        "intermediate_size": "d_ff",
        "num_hidden_layers": "num_layers",
        "decoder_layers": "num_decoder_layers",
        "num_attention_heads": "num_heads",
        "norm_eps": "layer_norm_epsilon",
        "dropout": "dropout_rate",
    },
    required={
        "is_decoder": Required(
            False, "a decoder on its own that can still look at a source is none of our architectures"
        )
    },
    extra_fields=_extra_fields,
    extra_settings=_extra_settings,
    copies={"shared.weight": "encoder.embed_tokens.weight"},
    ties_by_weights=True,
)
