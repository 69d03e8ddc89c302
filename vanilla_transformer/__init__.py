# Copyright 2026 The vanilla_transformer authors. Licensed under the Apache License, Version 2.0.
"""Transformers trained from scratch in the Hugging Face world.

Importing the package makes its model type known to transformers' Auto classes.
"""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
)

from .configuration_vanilla_transformer import VanillaTransformerConfig
from .modeling_vanilla_transformer import (
    VanillaTransformerForCausalLM,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerForMaskedLM,
    VanillaTransformerModel,
    VanillaTransformerPreTrainedModel,
)


__version__ = "0.1.0"

AutoConfig.register(VanillaTransformerConfig.model_type, VanillaTransformerConfig, exist_ok=True)
for _auto_class, _model_class in {
    AutoModel: VanillaTransformerModel,
    AutoModelForCausalLM: VanillaTransformerForCausalLM,
    AutoModelForMaskedLM: VanillaTransformerForMaskedLM,
    AutoModelForSeq2SeqLM: VanillaTransformerForConditionalGeneration,
}.items():
    _auto_class.register(VanillaTransformerConfig, _model_class, exist_ok=True)

__all__ = [
    "VanillaTransformerConfig",
    "VanillaTransformerForCausalLM",
    "VanillaTransformerForConditionalGeneration",
    "VanillaTransformerForMaskedLM",
    "VanillaTransformerModel",
    "VanillaTransformerPreTrainedModel",
]
