"""Checkpoints of `torch.save` that hold weights and settings of another package, read as data alone.

Nothing in a checkpoint is run: it is read with `weights_only=True`, and of classes only `argparse.Namespace`, which holds the
settings, is let in.
"""

import argparse
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig

import vanilla_transformer as vt
from vanilla_transformer.conversion.convert import build_vanilla_model
from vanilla_transformer.conversion.weight_mapping import ConversionError, Weights, list_names
from vanilla_transformer.loading import pickled_objects

__all__ = ["build_translator", "get_setting", "is_in_both", "read_checkpoint", "refuse_unknown", "sizes_of"]

STACKS = ("encoder", "decoder")


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Return what a file of `torch.save` holds, without running anything that is in it.

    Raises:
        ConversionError: for a file with objects of other classes than tensors and settings, naming these classes; and for
            one that is no such file.
    """
    path = Path(path)
    if not path.is_file():
        raise ConversionError(f"there is no checkpoint {path}; name a file such as checkpoint_best.pt.")
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        classes = ", ".join(_unsafe_classes(path)) or pickled_objects(error)
        if not classes:
            raise ConversionError(f"{path} is not a checkpoint of torch.save.") from error
        raise ConversionError(
            f"{path} holds objects of {classes} beside weights and settings, and reading such can run any code; where the "
            "program that wrote it is installed, save its weights and settings without them."
        ) from error
    except Exception as error:  # whatever its reader stumbles over first
        raise ConversionError(f"{path} is not a checkpoint of torch.save, or is not whole.") from error
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("model"), dict):
        raise ConversionError(f"{path} holds no weights under 'model', where fairseq and OpenNMT-py keep them.")
    for part in ("model", "generator"):
        weights = checkpoint.get(part)
        for name, tensor in weights.items() if isinstance(weights, dict) else ():
            if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
                raise ConversionError(f"{path}: {name!r}, under {part!r}, is not a weight with a name.")
    return checkpoint


def _unsafe_classes(path: Path) -> list[str]:
    try:
        return sorted(set(torch.serialization.get_unsafe_globals_in_checkpoint(path)) - {"argparse.Namespace"})
    except (ValueError, RuntimeError, pickle.UnpicklingError):
        return []  # of a file in the format before torch 1.6


def get_setting(settings: Any, name: str, default: Any) -> Any:
    """Return a setting of a namespace or a dictionary; older versions lack some."""
    value = settings.get(name) if isinstance(settings, Mapping) else getattr(settings, name, None)
    return default if value is None else value


def refuse_unknown(names: list[str], path: str | Path) -> None:
    """Refuse weights without a place.

    Raises:
        ConversionError: where there are any.
    """
    if names:
        raise ConversionError(f"{path}: there is no place for {list_names(names)}.")


def is_in_both(weights: Weights, name: str, path: str | Path, what: str) -> bool:
    """Return whether both stacks have a weight, in whose name `{}` is the stack.

    Raises:
        ConversionError: where one has it and one has not.
    """
    encoder, decoder = (name.format(stack) in weights for stack in STACKS)
    if encoder != decoder:
        raise ConversionError(f"{path}: one stack has {what} and one has not, which cannot be converted.")
    return encoder


def sizes_of(weights: Weights, heads: int, path: str | Path, *, separate: bool) -> dict[str, Any]:
    """Return the fields that shapes of weights tell.

    Args:
        weights: of the target.
        separate: whether source and target are known to have a vocabulary each, be they of one size.
    """
    source, target = (weights[f"model.{stack}.embed_tokens.weight"] for stack in STACKS)
    for stack in STACKS:
        if f"model.{stack}.layers.0.self_attn.k_proj.weight" not in weights:
            raise ConversionError(f"{path}: there is no layer 0 of the {stack}.")
    depth = {
        stack: 1 + max(int(name.split(".")[3]) for name in weights if name.startswith(f"model.{stack}.layers."))
        for stack in STACKS
    }
    width = source.shape[1]
    if width % heads:
        raise ConversionError(f"{path}: states of width {width} cannot be split among {heads} heads.")
    return {
        "vocab_size": len(source),
        "target_vocab_size": len(target) if separate or len(source) != len(target) else None,
        "share_encoder_decoder_embeddings": source.shape == target.shape and torch.equal(source, target),
        "tie_word_embeddings": torch.equal(weights["lm_head.weight"], target),
        "hidden_size": width,
        "num_hidden_layers": depth["encoder"],
        "decoder_layers": depth["decoder"],
        "num_attention_heads": heads,
        "num_key_value_heads": len(weights["model.encoder.layers.0.self_attn.k_proj.weight"]) * heads // width,
        "intermediate_size": len(weights["model.encoder.layers.0.feed_forward.up_proj.weight"]),
    }


def build_translator(
    config: vt.VanillaTransformerConfig, weights: Weights, path: str | Path
) -> vt.VanillaTransformerForConditionalGeneration:
    """Build the model, with settings of generation that hold for both packages, which never choose padding."""
    dtype = next(iter(weights.values())).dtype
    model = build_vanilla_model(vt.VanillaTransformerForConditionalGeneration, config, weights, dtype, str(path))
    names = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    model.generation_config = GenerationConfig(
        **{name: getattr(config, name) for name in names}, bad_words_ids=[[config.pad_token_id]]
    )
    return model  # type: ignore[return-value]
