"""BART (Lewis et al. 2020), and the names that fairseq's descendants share."""

from typing import Any

from transformers import PreTrainedConfig

from vanilla_transformer.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.conversion.architecture_adapter import ArchitectureAdapter, Required, alike
from vanilla_transformer.conversion.weight_mapping import LAYER, ConversionError, WeightMapping, map_modules

STACKS = ("encoder", "decoder")

ATTENTION = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "out_proj": "o_proj"}
ENCODER_LAYER = {
    **{f"self_attn.{source}": f"self_attn.{target}" for source, target in ATTENTION.items()},
    "self_attn_layer_norm": "self_attn_norm",
    "fc1": "feed_forward.up_proj",
    "fc2": "feed_forward.down_proj",
    "final_layer_norm": "feed_forward_norm",
}
DECODER_LAYER = {
    **ENCODER_LAYER,
    **{f"encoder_attn.{source}": f"cross_attn.{target}" for source, target in ATTENTION.items()},
    "encoder_attn_layer_norm": "cross_attn_norm",
}


def stack_mappings(names: dict[str, str], prefix: str = "model.") -> tuple[WeightMapping, ...]:
    """Return the mappings of both stacks, as fairseq names their layers.

    Args:
        names: of the modules of a stack beside its layers, and what they are called here.
        prefix: of the source's stacks.
    """
    mappings: tuple[WeightMapping, ...] = ()
    for stack, layer in (("encoder", ENCODER_LAYER), ("decoder", DECODER_LAYER)):
        source, target = f"{prefix}{stack}", f"model.{stack}"
        mappings += map_modules(source, target, names)
        mappings += map_modules(f"{source}.layers.{LAYER}", f"{target}.layers.{LAYER}", layer)
    return mappings


OUTPUT = (WeightMapping("lm_head", "lm_head"), WeightMapping("final_logits_bias", "output_bias", is_row=True))

# of BART, Marian, PEGASUS and FSMT
FIXED = {"architecture": "encoder-decoder", "norm_position": "post", "norm_eps": 1e-5, "init_scheme": "normal"}
SINUSOIDAL = {"position_encoding": "sinusoidal", "sinusoidal_form": "concatenated"}
SAME = {
    **alike(
        "decoder_layers max_position_embeddings scale_embedding dropout attention_dropout activation_dropout "
        "tie_word_embeddings use_cache"
    ),
    "hidden_size": "d_model",
    "num_hidden_layers": "encoder_layers",
    "num_attention_heads": "encoder_attention_heads",
    "intermediate_size": "encoder_ffn_dim",
    "hidden_act": "activation_function",
    "initializer_range": "init_std",
}
LAYER_DROP = ("encoder_layerdrop", "decoder_layerdrop")
SINUSOIDS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")


def check_stacks(config: PreTrainedConfig) -> dict[str, Any]:
    """Return no fields, as `extra_fields` has them, but raise for stacks of unlike widths.

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


BART = ArchitectureAdapter(
    name="bart",
    heads={
        "BartForConditionalGeneration": "VanillaTransformerForConditionalGeneration",
        "BartModel": "VanillaTransformerModel",
    },
    prefix="model.",
    weights=(
        *stack_mappings(
            {"embed_tokens": "embed_tokens", "embed_positions": "embed_positions", "layernorm_embedding": "embed_norm"}
        ),
        *OUTPUT,
    ),
    fixed=FIXED
    | {"position_encoding": "learned", "position_offset": 2, "embedding_norm": True, "output_bias": "fixed"},
    same=SAME | alike("vocab_size"),
    required={
        "is_decoder": Required(
            False, "a decoder on its own that can still look at a source is none of our architectures"
        )
    },
    extra_fields=check_stacks,
    extra_settings=decoder_settings,
    copies={"model.shared.weight": "model.encoder.embed_tokens.weight"},
    training=LAYER_DROP,
    counts_padding=True,
)
