"""Checkpoints of OpenNMT-py as our models, from the weights and settings in them alone; OpenNMT-py itself is not needed."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import vanilla_transformer as vt
from vanilla_transformer.conversion.convert import check_table
from vanilla_transformer.conversion.tokenizers import OPENNMT_SPECIAL
from vanilla_transformer.conversion.torch_checkpoints import (
    STACKS,
    build_translator,
    get_setting,
    read_checkpoint,
    refuse_unknown,
    sizes_of,
)
from vanilla_transformer.conversion.weight_mapping import (
    LAYER,
    ConversionError,
    WeightMapping,
    map_modules,
    map_to_target,
)

__all__ = ["from_opennmt", "opennmt_vocabularies"]

SINUSOIDS = {"SinusoidalInterleaved": "interleaved", "SinusoidalConcat": "fairseq"}
"""Its names of two of the forms of `sinusoidal_form`."""

ALLOWED: dict[str, tuple[Any, ...]] = {
    "encoder_type": ("transformer",),
    "decoder_type": ("transformer",),
    "self_attn_type": ("scaled-dot", "scaled-dot-flash"),
    "max_relative_positions": (0,),
    "copy_attn": (False,),
    "parallel_residual": (False,),
    "num_experts": (0,),
    "pos_ffn_activation_fn": ("relu", "gelu", "silu", "gated-gelu"),
    "layer_norm": ("standard", "rms"),
    "sliding_window": (0,),
    "position_encoding_type": tuple(SINUSOIDS),
}
"""Values of settings that can be converted, the default first."""

# the table of sinusoids, and the causal mask
COMPUTED = r"(encoder|decoder)\.(embeddings\.make_embedding\.pe\.pe|transformer_layers\.\d+\.mask)"

ATTENTION = {"linear_query": "q_proj", "linear_keys": "k_proj", "linear_values": "v_proj", "final_linear": "o_proj"}
EMBEDDINGS = "embeddings.make_embedding.emb_luts.0"


def _mappings(feed_forward: dict[str, str]) -> tuple[WeightMapping, ...]:
    """Return the table of weights of a model whose feed-forward networks have these matrices."""
    in_all = {
        **{f"feed_forward.{source}": f"feed_forward.{target}" for source, target in feed_forward.items()},
        "feed_forward.layer_norm": "feed_forward_norm",
        **{f"self_attn.{source}": f"self_attn.{target}" for source, target in ATTENTION.items()},
    }
    layers = {
        "encoder": ("transformer", {**in_all, "layer_norm": "self_attn_norm"}),
        "decoder": (
            "transformer_layers",
            {
                **in_all,
                "layer_norm_1": "self_attn_norm",
                **{f"context_attn.{source}": f"cross_attn.{target}" for source, target in ATTENTION.items()},
                "layer_norm_2": "cross_attn_norm",
            },
        ),
    }
    mappings = [WeightMapping("generator", "lm_head")]
    for stack, (place, names) in layers.items():
        mappings += map_modules(stack, f"model.{stack}", {EMBEDDINGS: "embed_tokens", "layer_norm": "norm"})
        mappings += map_modules(f"{stack}.{place}.{LAYER}", f"model.{stack}.layers.{LAYER}", names)
    return tuple(mappings)


WEIGHTS = _mappings({"w_1": "up_proj", "w_2": "down_proj"})
GATED_WEIGHTS = _mappings({"w_1": "gate_proj", "w_3": "up_proj", "w_2": "down_proj"})


def from_opennmt(path: str | Path) -> vt.VanillaTransformerForConditionalGeneration:
    """Convert a translation model of OpenNMT-py (`encoder_type: transformer`, `decoder_type: transformer`).

    Args:
        path: such as `model_step_100000.pt`.

    Raises:
        ConversionError: for a checkpoint with other objects than weights and settings, and for settings and weights that
            have no place here.
    """
    checkpoint = read_checkpoint(path)
    settings = checkpoint.get("opt")
    if settings is None or not isinstance(checkpoint.get("generator"), dict):
        raise ConversionError(f"{path} holds no 'opt' and 'generator', as checkpoints of OpenNMT-py do.")

    def get(name: str, default: Any) -> Any:
        return get_setting(settings, name, default)

    # settings without a place
    for name, allowed in ALLOWED.items():
        if (value := get(name, allowed[0])) not in allowed:
            can = " or ".join(repr(one) for one in allowed)
            raise ConversionError(f"{path}: {name}={value!r} cannot be converted; {can} can.")
    if (heads := get("heads", None)) is None:
        raise ConversionError(f"{path}: its settings do not say how many heads there are.")

    # weights; the generator is a linear layer, or the first of a sequence
    weights = {_current_name(name): tensor for name, tensor in checkpoint["model"].items()}
    weights |= {f"generator.{name.removeprefix('0.')}": tensor for name, tensor in checkpoint["generator"].items()}
    for stack in STACKS:
        if f"{stack}.{EMBEDDINGS}.weight" not in weights:
            raise ConversionError(f"{path} has no embeddings of its {stack} where a transformer has them.")
    gated = any(name.endswith(".w_3.weight") for name in weights)
    mapped, unknown = map_to_target(GATED_WEIGHTS if gated else WEIGHTS, weights)
    refuse_unknown([name for name in unknown if not re.fullmatch(COMPUTED, name)], path)

    # vocabularies and special tokens
    source, target = opennmt_vocabularies(checkpoint, path)
    ids = {f"{name}_id": target.index(token) for name, token in OPENNMT_SPECIAL.items() if token in target}
    del ids["unk_token_id"]
    start = checkpoint["vocab"].get("decoder_start_token", OPENNMT_SPECIAL["bos_token"])

    positions = bool(get("position_encoding", False))
    layer, dropout = "model.encoder.layers.0", get("dropout", 0.1)
    config = vt.VanillaTransformerConfig(
        **sizes_of(mapped, heads, path, separate=source != target),
        **{"bos_token_id": None, **ids},
        decoder_start_token_id=target.index(start) if start in target else None,
        dropout=_first(dropout),
        attention_dropout=_first(get("attention_dropout", 0.1)),
        activation_dropout=_first(dropout),
        hidden_act=get("pos_ffn_activation_fn", "relu").removeprefix("gated-"),
        gated_feed_forward=gated,
        norm_position="pre",
        norm_type="rmsnorm" if get("layer_norm", "standard") == "rms" else "layernorm",
        norm_eps=get("norm_eps", 1e-6),
        attention_bias=f"{layer}.self_attn.q_proj.bias" in mapped,
        attention_output_bias=f"{layer}.self_attn.o_proj.bias" in mapped,
        mlp_bias=f"{layer}.feed_forward.up_proj.bias" in mapped,
        position_encoding="sinusoidal" if positions else "none",
        sinusoidal_form=SINUSOIDS[get("position_encoding_type", "SinusoidalInterleaved")],
        scale_embedding=positions,
        output_bias="trained" if "lm_head.bias" in mapped else "none",
        max_position_embeddings=5000,  # the rows of OpenNMT-py's own table of sinusoids
        label_smoothing=get("label_smoothing", 0.0),
        label_smoothing_form="others",
    )
    for name in unknown:
        if positions and name.endswith(".pe.pe"):
            check_table(name, weights[name].flatten(0, 1), config)
    return build_translator(config, mapped, path)


def _current_name(name: str) -> str:
    """Return the name that later versions give to a weight of versions before 0.3."""
    name = re.sub(r"(layer_norm(?:_\d)?)\.a_2$", r"\1.weight", name)
    return re.sub(r"(layer_norm(?:_\d)?)\.b_2$", r"\1.bias", name)


def opennmt_vocabularies(checkpoint: dict[str, Any], path: str | Path) -> tuple[list[str], list[str]]:
    """Return the tokens of source and target, whose places are their ids."""
    vocab = checkpoint.get("vocab")
    source, target = (vocab.get(side) if isinstance(vocab, Mapping) else None for side in ("src", "tgt"))
    if not isinstance(source, list) or not isinstance(target, list):
        raise ConversionError(
            f"{path} holds no vocabulary as lists of tokens under 'vocab', as version 3 writes them."
        )
    for name in ("pad_token", "eos_token"):
        if OPENNMT_SPECIAL[name] not in target:
            raise ConversionError(f"{path}: its target vocabulary has no {OPENNMT_SPECIAL[name]}.")
    return source, target


def _first(value: Any) -> float:
    """Return the first of OpenNMT-py's list of dropouts, one for each phase of training."""
    return float(value[0] if isinstance(value, list) else value)
