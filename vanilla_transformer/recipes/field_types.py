"""The types of all fields that a recipe can have, by which values without quotes are read and others are checked."""

from typing import Any, get_type_hints

from transformers import GenerationConfig, Seq2SeqTrainingArguments

from vanilla_transformer.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.data.config import ParallelData, TextData

__all__ = ["GENERATION_TYPES", "OWN_GENERATION_FIELDS", "SECTION_TYPES", "SPLIT_TYPES"]

OWN_GENERATION_FIELDS = {"max_length_over_source": 50, "length_penalty_form": "power"}
"""Settings of generation that this package adds to transformers', with their defaults."""

GENERATION_TYPES: dict[str, Any] = {
    **dict.fromkeys(("pad_token_id", "bos_token_id", "forced_bos_token_id"), int),
    **dict.fromkeys(("eos_token_id", "forced_eos_token_id", "decoder_start_token_id"), int | list),
    **dict.fromkeys(("bad_words_ids", "force_words_ids", "suppress_tokens", "begin_suppress_tokens"), list),
    **dict.fromkeys(("renormalize_logits", "token_healing", "disable_compile"), bool),
    **dict.fromkeys(("cache_config", "watermarking_config"), dict),
    "exponential_decay_length_penalty": list,
    "sequence_bias": dict | list,
    "stop_strings": str | list,
}
"""Of the settings of generation without a default to tell their type by."""


def _model_types() -> dict[str, Any]:
    """Return the types of the fields of a model, by their own names and by those of transformers."""
    types = {
        name: hint
        for parent in reversed(VanillaTransformerConfig.__mro__)
        for name, hint in getattr(parent, "__annotations__", {}).items()
        if not isinstance(hint, str)
    }
    aliases = {alias: types.get(name) for alias, name in VanillaTransformerConfig.attribute_map.items()}
    return {**types, **aliases, "preset": str, "attn_implementation": str}


SPLIT_TYPES = {**get_type_hints(TextData), **get_type_hints(ParallelData)}
"""Of the fields of a split."""

SECTION_TYPES: dict[str, dict[str, Any]] = {
    "model": _model_types(),
    "training": {**get_type_hints(Seq2SeqTrainingArguments), "learning_rate": float | str},
    "generation": {
        name: bool if isinstance(default, bool) else type(default) | None
        for name, default in {**GenerationConfig._get_default_generation_params(), **OWN_GENERATION_FIELDS}.items()
        if isinstance(default, (bool, int, float, str)) and name != "early_stopping"
    },
}
"""Of the fields of sections that are other classes' fields."""
