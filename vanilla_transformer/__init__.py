# Copyright 2026 The vanilla_transformer authors. Licensed under the Apache License, Version 2.0.
"""Transformers trained from scratch in the Hugging Face world.

Importing the package makes its model type known to transformers' Auto classes, the pipelines that transformers 5 dropped
to `transformers.pipeline`, and, where it is installed, the layers that adapters go into to PEFT.
"""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)
from transformers.models.auto import modeling_auto as _names

from .adapters import register as _register_adapters
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
from .pipelines import register as _register_pipelines

__version__ = "0.1.0"

AutoConfig.register(VanillaTransformerConfig.model_type, VanillaTransformerConfig, exist_ok=True)
for _auto_class, _model_class, _table in (
    (AutoModel, VanillaTransformerModel, _names.MODEL_MAPPING_NAMES),
    (AutoModelForCausalLM, VanillaTransformerForCausalLM, _names.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
    (AutoModelForMaskedLM, VanillaTransformerForMaskedLM, _names.MODEL_FOR_MASKED_LM_MAPPING_NAMES),
    (
        AutoModelForSeq2SeqLM,
        VanillaTransformerForConditionalGeneration,
        _names.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    ),
    (
        AutoModelForSequenceClassification,
        VanillaTransformerForSequenceClassification,
        _names.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    ),
    (
        AutoModelForTokenClassification,
        VanillaTransformerForTokenClassification,
        _names.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    ),
    (
        AutoModelForQuestionAnswering,
        VanillaTransformerForQuestionAnswering,
        _names.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
    ),
):
    _auto_class.register(VanillaTransformerConfig, _model_class, exist_ok=True)
    # Trainer decides by this table of names whether its label smoothing shifts labels, and pipelines whether they know
    # the model; `register` leaves it alone.
    _table[VanillaTransformerConfig.model_type] = _model_class.__name__

_register_pipelines()
_register_adapters()

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
