"""T5 (Raffel et al. 2020) and T5 1.1, whose feed-forward networks are gated and whose output matrix is one of its own."""

from typing import Any

from transformers import PreTrainedConfig

from vanilla_transformer.configuration_vanilla_transformer import VanillaTransformerConfig

from ..family import Family, Only
from ..links import Link


def _stack(stack: str) -> list[Link]:
    here, there = f"model.{stack}", stack
    links = [
        Link(f"{here}.embed_tokens", f"{there}.embed_tokens"),
        Link(f"{here}.relative_bias", f"{there}.block.0.layer.0.SelfAttention.relative_attention_bias"),
        Link(f"{here}.norm", f"{there}.final_layer_norm"),
    ]
    attentions = {"self_attn": "SelfAttention"} | ({"cross_attn": "EncDecAttention"} if stack == "decoder" else {})
    for number, (ours, theirs) in enumerate(attentions.items()):
        sublayer = f"{there}.block.{{n}}.layer.{number}"
        links += [Link(f"{here}.layers.{{n}}.{ours}.{p}_proj", f"{sublayer}.{theirs}.{p}") for p in "qkvo"]
        links.append(Link(f"{here}.layers.{{n}}.{ours}_norm", f"{sublayer}.layer_norm"))
    sublayer = f"{there}.block.{{n}}.layer.{len(attentions)}"
    # where the network is gated, `up` is `wi_1`, and else `wi`
    feed_forward = (("up", "wi"), ("gate", "wi_0"), ("up", "wi_1"), ("down", "wo"))
    return [
        *links,
        *(
            Link(f"{here}.layers.{{n}}.feed_forward.{ours}_proj", f"{sublayer}.DenseReluDense.{theirs}")
            for ours, theirs in feed_forward
        ),
        Link(f"{here}.layers.{{n}}.feed_forward_norm", f"{sublayer}.layer_norm"),
    ]


def _to_ours(config: PreTrainedConfig) -> dict[str, Any]:
    return {
        "hidden_act": config.dense_act_fn,
        "gated_feed_forward": config.is_gated_act,
        "output_scale": config.d_model**-0.5 if config.scale_decoder_outputs else 1.0,
        # checkpoints have named the length of their training so
        "max_position_embeddings": getattr(config, "n_positions", None) or 512,
        "attention_dropout": config.dropout_rate,
        "activation_dropout": config.dropout_rate,
    }


def _to_theirs(config: VanillaTransformerConfig) -> dict[str, Any]:
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


T5 = Family(
    name="t5",
    heads={
        "T5ForConditionalGeneration": "VanillaTransformerForConditionalGeneration",
        "T5Model": "VanillaTransformerModel",
    },
    prefix="",
    links=(*_stack("encoder"), *_stack("decoder"), Link("lm_head", "lm_head")),
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
        "vocab_size": "vocab_size",
        "hidden_size": "d_model",
        "head_dim": "d_kv",
        "intermediate_size": "d_ff",
        "num_hidden_layers": "num_layers",
        "decoder_layers": "num_decoder_layers",
        "num_attention_heads": "num_heads",
        "norm_eps": "layer_norm_epsilon",
        "relative_attention_num_buckets": "relative_attention_num_buckets",
        "relative_attention_max_distance": "relative_attention_max_distance",
        "dropout": "dropout_rate",
        "tie_word_embeddings": "tie_word_embeddings",
        "use_cache": "use_cache",
    },
    only={
        "is_decoder": Only(False, "a decoder on its own that can still look at a source is none of our architectures")
    },
    to_ours=_to_ours,
    to_theirs=_to_theirs,
    copies={"shared.weight": "encoder.embed_tokens.weight"},
    ties_by_weights=True,
)
