# Copyright 2026 The vanilla_transformer authors. Licensed under the Apache License, Version 2.0.
"""Transformers trained from scratch in the Hugging Face world.

Importing the package makes its model type known to transformers' Auto classes, the pipelines that transformers 5 dropped
to `transformers.pipeline`, and, where it is installed, the layers that adapters go into to PEFT. It is quick: classes are
imported when they are asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

from .registration import register as _register

if TYPE_CHECKING:
    from .configuration_vanilla_transformer import VanillaTransformerConfig
    from .modeling_vanilla_transformer import (
        VanillaTransformerForCausalLM,
        VanillaTransformerForConditionalGeneration,
        VanillaTransformerForMaskedLM,
        VanillaTransformerForQuestionAnswering,
        VanillaTransformerForSequenceClassification,
        VanillaTransformerForTokenClassification,
        VanillaTransformerModel,
        VanillaTransformerPreTrainedModel,
    )

__version__ = "0.1.0"

__all__ = [
    "VanillaTransformerConfig",
    "VanillaTransformerForCausalLM",
    "VanillaTransformerForConditionalGeneration",
    "VanillaTransformerForMaskedLM",
    "VanillaTransformerForQuestionAnswering",
    "VanillaTransformerForSequenceClassification",
    "VanillaTransformerForTokenClassification",
    "VanillaTransformerModel",
    "VanillaTransformerPreTrainedModel",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    kind = "configuration" if name.endswith("Config") else "modeling"
    value = getattr(importlib.import_module(f".{kind}_vanilla_transformer", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


_register()
