# Copyright 2026 The vanilla_transformer authors. Licensed under the Apache License, Version 2.0.
"""Decoding choices of the paper that transformers' `generate()` lacks.

A checkpoint carries this file to the Hub beside the modeling file, so it imports only transformers and torch.
"""

from typing import Any

import torch
from transformers import GenerationConfig, GenerationMixin, StoppingCriteria, StoppingCriteriaList


class SourceLengthCriteria(StoppingCriteria):
    """Ends each row when it has as many new tokens as its own source has tokens, plus a margin (section 6.1).

    Args:
        limits: (B,), largest number of new tokens of every source.
        prompt_length: number of decoder tokens that were given.
    """

    def __init__(self, limits: torch.Tensor, prompt_length: int):
        self.limits = limits
        self.prompt_length = prompt_length

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **kwargs: Any) -> torch.BoolTensor:
        # rows are sources, times beams or returned sequences
        limits = self.limits.to(input_ids.device).repeat_interleave(input_ids.shape[0] // len(self.limits))
        return input_ids.shape[1] - self.prompt_length >= limits


class VanillaTransformerGenerationMixin(GenerationMixin):
    """`generate()` with one more setting: `max_length_over_source`.

    With `generation_config.max_length_over_source = n`, or given to the call, no output of an encoder-decoder has more
    tokens than its own source plus n, whatever else stands in the batch; the paper has n = 50 (section 6.1). A
    `max_length` or `max_new_tokens` in the call replaces it.
    """

    def generate(
        self,
        inputs: torch.Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        **kwargs: Any,
    ) -> Any:
        """As [`transformers.GenerationMixin.generate`]; see the class for what it adds."""
        settings = self.generation_config if generation_config is None else generation_config
        margin = kwargs.pop("max_length_over_source", getattr(settings, "max_length_over_source", None))
        caller_sets_length = any(kwargs.get(name) is not None for name in ("max_length", "max_new_tokens"))
        if margin is not None and self.config.is_encoder_decoder and not caller_sets_length:
            limits = self._source_lengths(inputs, kwargs) + margin
            prompt = kwargs.get("decoder_input_ids")
            prompt_length = 1 if prompt is None else prompt.shape[1]
            criteria = SourceLengthCriteria(limits, prompt_length)
            stopping_criteria = StoppingCriteriaList([*(stopping_criteria or []), criteria])
            kwargs["max_new_tokens"] = int(limits.max())
        return super().generate(inputs, generation_config, stopping_criteria=stopping_criteria, **kwargs)

    def _source_lengths(self, inputs: torch.Tensor | None, kwargs: dict[str, Any]) -> torch.Tensor:
        """(B,), number of source tokens without padding."""
        mask = kwargs.get("attention_mask")
        if mask is not None:
            return mask.sum(-1)
        tokens = kwargs.get("input_ids") if inputs is None else inputs
        if tokens is not None:
            pad = self.generation_config.pad_token_id
            # generate() infers the same mask where padding is present
            return (tokens != pad).sum(-1) if pad is not None else torch.full((len(tokens),), tokens.shape[1])
        states = kwargs.get("inputs_embeds")
        if states is None:
            states = kwargs["encoder_outputs"][0]
        return torch.full((states.shape[0],), states.shape[1], device=states.device)


__all__ = ["SourceLengthCriteria", "VanillaTransformerGenerationMixin"]
