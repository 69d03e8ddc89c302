"""Load and check config.json and generation_config.json."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoConfig, GenerationConfig, PreTrainedConfig

from vanilla_transformer.loading.sources import LoadingError, RemoteCodeError, Source, damaged, friendly_loading_errors
from vanilla_transformer.utils.quiet import quiet

__all__ = ["check_config", "check_generation_config", "load_config"]

MOST_LAYERS = 10_000
"""More layers than this in a config.json are refused before a model of so many is built."""

LAYER_COUNTS = ("num_hidden_layers", "encoder_layers", "decoder_layers", "num_layers", "num_decoder_layers", "n_layer")


def load_config(source: Source | str | os.PathLike, *, trust_remote_code: bool = False) -> PreTrainedConfig:
    """Load the configuration of a model.

    Raises:
        LoadingError: for a config.json that is damaged or names code of its own, unless `trust_remote_code`.
        FileNotFoundError: where there is none.
    """
    source = Source.of(source)
    if (values := source.read_json("config.json")) is not None:
        check_config(values, source, trust_remote_code=trust_remote_code)
    with friendly_loading_errors(source, "config.json"):
        return AutoConfig.from_pretrained(
            source.name, revision=source.revision, trust_remote_code=bool(trust_remote_code)
        )


def check_config(values: Mapping[str, Any], source: Source, *, trust_remote_code: bool = False) -> None:
    """Refuse a config.json that needs code of its own, or that transformers would stumble over.

    Raises:
        LoadingError: naming the field.
    """
    config = f"the config.json of {source}"
    # what it is, by a class of transformers or by code of its own
    model_type, code = values.get("model_type"), values.get("auto_map")
    code = {} if code is None else code
    if not isinstance(code, dict):
        raise LoadingError(f"{config} is damaged: auto_map={code!r:.60} is not an object.")
    known = isinstance(model_type, str) and model_type in CONFIG_MAPPING
    if "AutoConfig" in code and not known and not trust_remote_code:
        raise RemoteCodeError(f"{config} names code of its own ({str(code['AutoConfig']):.100})")
    if not known and "AutoConfig" not in code:
        kind = "names no model_type" if model_type is None else f"has the model_type {model_type!r:.60}"
        raise LoadingError(
            f"{config} {kind}, so transformers does not know what it is; give another folder, or update transformers where "
            "the model is newer."
        )
    # names of files and of code from elsewhere
    backend = values.get("attn_implementation", values.get("_attn_implementation"))
    if isinstance(backend, str) and "/" in backend and not trust_remote_code:
        raise RemoteCodeError(f"{config} names attention code of the Hub ({backend:.60})")
    others = values.get("configuration_files", [])
    if not isinstance(others, list) or not all(isinstance(x, str) and Path(x).name == x for x in others):
        raise LoadingError(f"{config} names configuration_files outside its folder; remove the field.")
    # values that no model can be built of
    for name in ("dtype", "torch_dtype"):
        dtype = values.get(name)
        if dtype is not None and not (
            isinstance(dtype, str) and isinstance(getattr(torch, dtype.removeprefix("torch."), None), torch.dtype)
        ):
            raise LoadingError(f"{config} has {name}={dtype!r:.60}, which is not a type of torch; set it to float32.")
    for name in LAYER_COUNTS:
        if isinstance(count := values.get(name), int | float) and count > MOST_LAYERS:
            raise LoadingError(f"{config} has {name}={count}, more than {MOST_LAYERS}; copy it again.")


# ---------------------------------------------------------------------------------------------- settings of generation

LEAST = {"num_beams": 1, "num_return_sequences": 1, "max_length": 0, "max_new_tokens": 1, "min_length": 0}
LEAST |= {"min_new_tokens": 0, "top_k": 0, "no_repeat_ngram_size": 0, "num_beam_groups": 1}
"""The least values of settings that are whole numbers."""

MOST_BEAMS = 1000
BEAMS = ("num_beams", "num_return_sequences", "num_beam_groups")
TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "forced_bos_token_id")
NUMBERS = ("length_penalty", "temperature", "top_p", "typical_p", "repetition_penalty", "diversity_penalty")
SWITCHES = ("do_sample", "use_cache", "renormalize_logits")


def check_generation_config(source: Source | str | os.PathLike) -> None:
    """Refuse a generation_config.json that is damaged, which transformers would leave out without a word.

    Raises:
        LoadingError: naming the field.
    """
    source = Source.of(source)
    if (values := source.read_json("generation_config.json")) is None:
        return
    for name, value in values.items():
        if value is not None and (must_be := _requirement(name, value)):
            raise damaged(
                f"the generation_config.json of {source}",
                f": {name}={value!r:.60} must be {must_be}",
                "correct it, or delete the file for the defaults",
            )
    with friendly_loading_errors(source, "generation_config.json"), quiet():
        GenerationConfig.from_dict(values)


def _requirement(name: str, value: Any) -> str | None:
    """Return what a setting of generation must be, or None where it is that."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_whole = is_number and isinstance(value, int)
    if name in LEAST and not (is_whole and value >= LEAST[name]):
        return f"a whole number from {LEAST[name]} on"
    if name in BEAMS and value > MOST_BEAMS:
        return f"at most {MOST_BEAMS}, as each takes memory"
    if name == "max_length_over_source" and not is_whole:
        return "a whole number"
    if name in TOKENS:
        ids = value if isinstance(value, list) else [value]
        if not all(isinstance(each, int) and not isinstance(each, bool) for each in ids):
            return "the number of a token"
    if name in NUMBERS and not (is_number and math.isfinite(value)):
        return "a finite number"
    if name in SWITCHES and not isinstance(value, bool):
        return "true or false"
    return None
