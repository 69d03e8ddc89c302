"""Checkpoints of fairseq as our models, from the weights and settings in them alone; fairseq itself is not needed."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers.utils import logging

import vanilla_transformer as vt
from vanilla_transformer.conversion.families.bart import stack_mappings
from vanilla_transformer.conversion.tokenizers import fairseq_dictionary
from vanilla_transformer.conversion.torch_checkpoints import (
    STACKS,
    build_translator,
    get_setting,
    is_in_both,
    read_checkpoint,
    refuse_unknown,
    sizes_of,
)
from vanilla_transformer.conversion.weight_mapping import ConversionError, WeightMapping, map_to_target
from vanilla_transformer.utils.log import Log

__all__ = ["from_fairseq"]

logger = logging.get_logger(__name__)

PAD = 1

# a version number, the device, a table of sinusoids
COMPUTED = r"(encoder|decoder)\.(version|embed_positions\._float_tensor|embed_positions\.weights)"

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_accurate": "gelu_new", "gelu_fast": "gelu_new", "swish": "silu"}

WEIGHTS = (
    *stack_mappings(
        {
            "embed_tokens": "embed_tokens",
            "embed_positions": "embed_positions",
            "layernorm_embedding": "embed_norm",
            "layer_norm": "norm",
        },
        prefix="",
    ),
    # before version 0.7: queries, keys and values as one matrix
    *(
        WeightMapping(
            f"{stack}.layers.{{n}}.{source}.in_proj",
            tuple(f"model.{stack}.layers.{{n}}.{target}.{p}_proj" for p in "qkv"),
        )
        for stack, source, target in (
            ("encoder", "self_attn", "self_attn"),
            ("decoder", "self_attn", "self_attn"),
            ("decoder", "encoder_attn", "cross_attn"),
        )
    ),
    WeightMapping("decoder.output_projection", "lm_head"),
)


def from_fairseq(
    path: str | Path,
    *,
    source_dictionary: str | Path | None = None,
    target_dictionary: str | Path | None = None,
    log: Log = logger.warning,
) -> vt.VanillaTransformerForConditionalGeneration:
    """Convert a translation model of fairseq (`--arch transformer` and its sizes).

    Args:
        path: such as `checkpoint_best.pt`.
        source_dictionary, target_dictionary: `dict.src.txt` and `dict.trg.txt`, whose sizes are compared with the model's;
            the first alone where both sides have one.
        log: gets a line for all that is left out on purpose.

    Raises:
        ConversionError: for a checkpoint with other objects than weights and settings, for settings and weights that have
            no place here, and for dictionaries of other sizes.
    """
    checkpoint = read_checkpoint(path)
    settings = _settings(checkpoint, path)

    def get(name: str, default: Any) -> Any:
        return get_setting(settings, name, default)

    def both(setting: str, default: Any) -> Any:
        encoder, decoder = (get(f"{stack}_{setting}", default) for stack in STACKS)
        if encoder != decoder:
            raise ConversionError(
                f"{path}: encoder_{setting}={encoder} and decoder_{setting}={decoder} cannot be converted, as both stacks "
                "have one of it here."
            )
        return encoder

    # weights
    weights = {_current_name(name): tensor for name, tensor in checkpoint["model"].items()}
    for name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"):
        if name not in weights:
            raise ConversionError(f"{path} has no {name}: only models with an encoder and a decoder can be converted.")
    weights.setdefault("decoder.output_projection.weight", weights["decoder.embed_tokens.weight"])
    mapped, unknown = map_to_target(WEIGHTS, weights)

    # settings without a place
    for name in ("no_cross_attention", "cross_self_attention", "adaptive_softmax_cutoff", "adaptive_input"):
        if value := get(name, None):
            raise ConversionError(f"{path}: {name}={value!r} cannot be converted.")
    if (heads := both("attention_heads", None)) is None:
        raise ConversionError(f"{path}: its settings do not say how many encoder_attention_heads there are.")
    activation = get("activation_fn", "relu")
    if activation not in ACTIVATIONS:
        raise ConversionError(
            f"{path}: activation_fn={activation!r} cannot be converted; {', '.join(ACTIVATIONS)} can."
        )
    refuse_unknown([name for name in unknown if not re.fullmatch(COMPUTED, name)], path)
    final_norm = is_in_both(mapped, "model.{}.norm.weight", path, "a norm at the end")
    for name in ("encoder_layerdrop", "decoder_layerdrop"):
        if value := get(name, 0):
            log(f"{name}={value} is left out: it matters only in training.")

    # vocabularies, whose tokens tell whether they are two
    dictionaries = []
    for side, dictionary in (("encoder", source_dictionary), ("decoder", target_dictionary or source_dictionary)):
        size = len(mapped[f"model.{side}.embed_tokens.weight"])
        tokens = None if dictionary is None else fairseq_dictionary(dictionary)
        if tokens is not None and len(tokens) != size:
            raise ConversionError(
                f"{dictionary} has {len(tokens)} entries with the 4 special ones, and the {side} of {path} {size}; name the "
                "dictionary of this model."
            )
        dictionaries.append(tokens)

    positions = mapped.get("model.encoder.embed_positions.weight")
    kind = "none" if get("no_token_positional_embeddings", False) else "sinusoidal"
    kind = "learned" if kind != "none" and both("learned_pos", False) else kind
    config = vt.VanillaTransformerConfig(
        **sizes_of(mapped, heads, path, separate=dictionaries[0] != dictionaries[1]),
        dropout=get("dropout", 0.0),
        attention_dropout=get("attention_dropout", 0.0),
        activation_dropout=get("activation_dropout", 0.0) or get("relu_dropout", 0.0),
        hidden_act=ACTIVATIONS[activation],
        norm_position="pre" if both("normalize_before", False) else "post",
        final_norm=final_norm,
        norm_eps=1e-5,
        embedding_norm=is_in_both(mapped, "model.{}.embed_norm.weight", path, "a norm of embeddings"),
        position_encoding=kind,
        sinusoidal_form="fairseq",
        position_offset=0 if kind == "none" else PAD + 1,
        max_position_embeddings=get("max_source_positions", 1024) if positions is None else len(positions) - PAD - 1,
        scale_embedding=not get("no_scale_embedding", False),
        label_smoothing=get("label_smoothing", 0.0),
        label_smoothing_form="others",
        init_scheme="fairseq",
        bos_token_id=0,
        pad_token_id=PAD,
        eos_token_id=2,
        decoder_start_token_id=2,
    )
    return build_translator(config, mapped, path)


def _settings(checkpoint: dict[str, Any], path: str | Path) -> Any:
    """Return `args`, or since 0.10 `cfg.model`."""
    settings = checkpoint.get("args")
    if settings is None and isinstance(checkpoint.get("cfg"), Mapping):
        settings = checkpoint["cfg"].get("model")
    if settings is None:
        raise ConversionError(f"{path} holds no settings, neither as 'args' nor as 'cfg'.")
    return settings


def _current_name(name: str) -> str:
    """Return the name that later versions give to a weight of older ones."""
    name = re.sub(r"in_proj_(weight|bias)$", r"in_proj.\1", name)
    norms = {"encoder": ("self_attn", "final"), "decoder": ("self_attn", "encoder_attn", "final")}
    if found := re.fullmatch(r"((encoder|decoder)\.layers\.\d+)\.layer_norms\.(\d)\.(\w+)", name):
        return f"{found[1]}.{norms[found[2]][int(found[3])]}_layer_norm.{found[4]}"
    return "decoder.output_projection.weight" if name == "decoder.embed_out" else name
