"""BART (Lewis et al. 2020), and the names that fairseq's descendants share."""

from typing import Any

from transformers import PreTrainedConfig

from vanilla_transformer.configuration_vanilla_transformer import VanillaTransformerConfig

from ..family import Family, Only
from ..links import ConversionError, Link


def stack_links(names: dict[str, str]) -> tuple[Link, ...]:
    """Of the layers of both stacks, as fairseq names them.

    Args:
        names: of each stack of theirs, `encoder` and `decoder`, the name.
    """
    links = []
    for ours, theirs in names.items():
        here, there = f"model.{ours}.layers.{{n}}", f"{theirs}.layers.{{n}}"
        attentions = {"self_attn": "self_attn"} | ({"cross_attn": "encoder_attn"} if ours == "decoder" else {})
        for our_attention, their_attention in attentions.items():
            for projection in "qkv":
                links.append(
                    Link(f"{here}.{our_attention}.{projection}_proj", f"{there}.{their_attention}.{projection}_proj")
                )
            links.append(Link(f"{here}.{our_attention}.o_proj", f"{there}.{their_attention}.out_proj"))
            links.append(Link(f"{here}.{our_attention}_norm", f"{there}.{their_attention}_layer_norm"))
        links += [
            Link(f"{here}.feed_forward.up_proj", f"{there}.fc1"),
            Link(f"{here}.feed_forward.down_proj", f"{there}.fc2"),
            Link(f"{here}.feed_forward_norm", f"{there}.final_layer_norm"),
        ]
    return tuple(links)


STACKS = {"encoder": "model.encoder", "decoder": "model.decoder"}

# of BART, Marian and FSMT
FIXED: dict[str, Any] = {
    "architecture": "encoder-decoder",
    "norm_position": "post",
    "norm_eps": 1e-5,
    "init_scheme": "normal",
}
SAME = {
    "hidden_size": "d_model",
    "num_hidden_layers": "encoder_layers",
    "decoder_layers": "decoder_layers",
    "num_attention_heads": "encoder_attention_heads",
    "intermediate_size": "encoder_ffn_dim",
    "hidden_act": "activation_function",
    "max_position_embeddings": "max_position_embeddings",
    "scale_embedding": "scale_embedding",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "activation_dropout": "activation_dropout",
    "initializer_range": "init_std",
    "tie_word_embeddings": "tie_word_embeddings",
    "use_cache": "use_cache",
}
ONLY = {
    "is_decoder": Only(False, "a decoder on its own that can still look at a source is none of our architectures"),
}


def check_stacks(config: PreTrainedConfig) -> dict[str, Any]:
    """No fields, as `Family.to_ours` has them, but an error for stacks of unlike widths.

    Raises:
        ConversionError: where encoder and decoder differ in heads or in the width of feed-forward networks.
    """
    for setting in ("attention_heads", "ffn_dim"):
        encoder, decoder = getattr(config, f"encoder_{setting}"), getattr(config, f"decoder_{setting}")
        if encoder != decoder:
            raise ConversionError(
                f"{config.model_type}: encoder_{setting}={encoder} and decoder_{setting}={decoder} cannot be converted, "
                "as both stacks have one number here."
            )
    return {}


def decoder_settings(config: VanillaTransformerConfig) -> dict[str, Any]:
    return {
        "decoder_layers": config.num_decoder_layers,
        "decoder_attention_heads": config.num_attention_heads,
        "decoder_ffn_dim": config.intermediate_size,
    }


BART = Family(
    name="bart",
    heads={
        "BartForConditionalGeneration": "VanillaTransformerForConditionalGeneration",
        "BartModel": "VanillaTransformerModel",
    },
    prefix="model.",
    links=(
        *(
            Link(f"model.{stack}.{ours}", f"model.{stack}.{theirs}")
            for stack in STACKS
            for ours, theirs in {
                "embed_tokens": "embed_tokens",
                "embed_positions": "embed_positions",
                "embed_norm": "layernorm_embedding",
            }.items()
        ),
        *stack_links(STACKS),
        Link("lm_head", "lm_head"),
        Link("output_bias", "final_logits_bias", whole=True),
    ),
    fixed={
        **FIXED,
        "position_encoding": "learned",
        "position_offset": 2,
        "embedding_norm": True,
        "output_bias": "fixed",
    },
    same={**SAME, "vocab_size": "vocab_size"},
    only=ONLY,
    to_ours=check_stacks,
    to_theirs=decoder_settings,
    copies={"model.shared.weight": "model.encoder.embed_tokens.weight"},
    training=("encoder_layerdrop", "decoder_layerdrop"),
    counts_padding=True,
)
