"""The configuration of a recipe's model: of a preset, or of the model to start from, with the recipe's own fields."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedConfig

from vanilla_transformer.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.errors import RecipeError
from vanilla_transformer.loading import LoadingError, RemoteCodeError, load_config, locate
from vanilla_transformer.tasks import Task

__all__ = ["build_config"]

_FREE_AT_START = {
    *("dropout", "attention_dropout", "activation_dropout", "label_smoothing", "label_smoothing_form"),
    *("init_scheme", "initializer_range", "tie_word_embeddings", "use_cache"),
    *("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"),
    *("sliding_window", "max_position_embeddings"),
}
"""Fields of the model that may differ from those of the model to start from."""


def build_config(model: Mapping[str, Any], task: type[Task], start_from: str | None) -> VanillaTransformerConfig:
    """Return the configuration of a model.

    Args:
        model: its section, and before it what the tokenizers say.
        task: whose head it gets.
        start_from: a model whose weights it starts with, if any.

    Raises:
        RecipeError: for a model that cannot be, does not fit the task, or is another than the one to start from.
    """
    # what the recipe says, over what it starts from
    fields = dict(model)
    attention = fields.pop("attn_implementation", None)
    start = {} if start_from is None else _pretrained_fields(start_from)
    if start:
        fields = {"architecture": start["architecture"], **fields}
        fields |= {name: start[name] for name in ("vocab_size", "target_vocab_size")}
    try:
        if start and "preset" not in fields:
            config = VanillaTransformerConfig(**{**start, **fields})
        else:
            preset = fields.pop("preset")
            if not isinstance(preset, str):
                raise RecipeError(f"model.preset={preset!r} is of the wrong type: it must be str.")
            config = VanillaTransformerConfig.from_preset(preset, **fields)
    except RecipeError:
        raise
    except ValueError as error:
        raise RecipeError(f"model: {error}") from error
    # what the model to start from, and the task, do not admit
    if start and start["target_vocab_size"] is not None and task.architecture != "encoder-decoder":
        raise RecipeError(
            f"start_from: {start_from} has separate vocabularies, of which task {task.name} could use one only; "
            "start from a model with one."
        )
    if changed := [name for name in start if name not in _FREE_AT_START and getattr(config, name) != start[name]]:
        differences = ", ".join(f"{n}={start[n]!r} and not {getattr(config, n)!r}" for n in changed)
        raise RecipeError(
            f"start_from: {start_from} has {differences}; set the model section to what it is, or leave out start_from."
        )
    served = task.head.supported_architectures
    if config.architecture not in served:
        raise RecipeError(
            f"task {task.name} needs model.architecture={' or '.join(served)}, not {config.architecture}."
        )
    if attention is not None:
        config._attn_implementation = attention
    return config


def _pretrained_fields(start: str) -> dict[str, Any]:
    """Return the fields of the configuration of the model to start from."""
    try:
        config = load_config(locate(start))
    except RemoteCodeError as error:
        raise RecipeError(
            f"start_from: {error.what}, and training starts from models of this package only, which need none; make it one "
            f"with vanilla-transformer convert {start} FOLDER, if it can be."
        ) from error
    except (LoadingError, OSError) as error:
        raise RecipeError(f"start_from: {error}") from error
    if not isinstance(config, VanillaTransformerConfig):
        raise RecipeError(
            f"start_from: {start} is a {config.model_type} model, not one of this package; make it one with "
            f"vanilla-transformer convert {start} FOLDER, if it can be, and start from that."
        )
    inherited = {f.name for f in dataclasses.fields(PreTrainedConfig)} | {"is_decoder"}
    names = [f.name for f in dataclasses.fields(config) if f.name not in inherited]
    return {name: getattr(config, name) for name in names}
