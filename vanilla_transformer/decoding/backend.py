"""What `generate()` asks: run a call fast, or say why the ordinary path has to."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from transformers import LogitsProcessorList, StoppingCriteriaList
from transformers.modeling_outputs import BaseModelOutput

from vanilla_transformer.decoding.beam_search import BeamSearch
from vanilla_transformer.decoding.eligibility import examine_model, reason_against_call
from vanilla_transformer.decoding.engine import Engine, encode
from vanilla_transformer.decoding.products import check_dtype
from vanilla_transformer.decoding.sampling import sample
from vanilla_transformer.decoding.weights import PreparedWeights, free_prepared_weights, prepared_weights

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DecodingReport:
    """How the last call of `generate()` was decoded.

    Attributes:
        path: `"fast"` or `"ordinary"`.
        reason: why the ordinary path ran; empty for the fast one.
        copied_bytes: memory of the prepared copies of the model's weights, after the call.
    """

    path: str
    reason: str = ""
    copied_bytes: int = 0


class _Call(NamedTuple):
    """A call of `generate()`, and what was found about its model: why it cannot be served, or its weights."""

    model: Any
    reason: str | None
    weights: PreparedWeights | None
    shortlist: torch.Tensor | None = None


class _Calls(threading.local):
    """The calls of `generate()` that run in a thread, the innermost last."""

    def __init__(self) -> None:
        self.stack: list[_Call] = []


_CALLS = _Calls()


def _current_call(model: Any) -> _Call:
    """Return the call that runs, whose model is examined once for the encoder and the decoder."""
    if _CALLS.stack and _CALLS.stack[-1].model is model:
        return _CALLS.stack[-1]
    reason, tensors = examine_model(model)
    return _Call(model, reason, None if reason else prepared_weights(model, tensors, model.decoding_dtype))


class FastDecoding:
    """The decoding backend of `VanillaTransformerGenerationMixin`."""

    @classmethod
    @contextmanager
    def call(cls, model: Any, shortlist: torch.Tensor | None = None) -> Iterator[None]:
        """Hold what is known of a model while `generate()` runs, and say in the end how it decoded.

        Args:
            shortlist: (n,) the tokens that can be written, in order, or `None` for all.

        Raises:
            ValueError: for a `decoding_dtype` that there is not here.
        """
        check_dtype(model.decoding_dtype)
        model.last_decoding = None
        _CALLS.stack.append(_current_call(model)._replace(shortlist=shortlist))
        try:
            yield
        finally:
            _CALLS.stack.pop()
        if model.last_decoding is None:
            cls.report(model, "this method of generation is transformers' own")

    @staticmethod
    def report(model: Any, reason: str, weights: PreparedWeights | None = None) -> None:
        """Set `model.last_decoding` and write it to the log at debug level."""
        copied = 0 if weights is None else weights.copied_bytes()
        model.last_decoding = DecodingReport("ordinary" if reason else "fast", reason, copied)
        logger.debug("decoding: %s path%s", model.last_decoding.path, f", since {reason}" if reason else "")

    @staticmethod
    def check_dtype(dtype: str) -> None:
        """Refuse a dtype of products that there is not here, with a `ValueError`."""
        check_dtype(dtype)

    @staticmethod
    def free(model: Any) -> int:
        """Forget the prepared copies of a model's weights; return the bytes that they took."""
        return free_prepared_weights(model)

    @staticmethod
    def encode(model: Any, ids: torch.Tensor, inputs: dict[str, Any], config: Any) -> BaseModelOutput | None:
        """Return the states of the source `ids` (B, S); `None` where the encoder has to be called."""
        mask = inputs.get("attention_mask")
        others = {name for name, value in inputs.items() if value is not None} - {
            "attention_mask",
            "decoder_input_ids",
            "decoder_attention_mask",
            "cache",
            "use_cache",
        }
        plain = ids.dim() == 2 and ids.numel() > 0 and not ids.is_floating_point() and ids.device.type == "cpu"
        plain = plain and (mask is None or (mask.shape == ids.shape and bool((mask != 0).any(-1).all())))
        if others or not plain or config.output_attentions or config.output_hidden_states:
            return None
        weights = _current_call(model).weights
        if weights is None:
            return None
        assert weights.encoder is not None
        model.model.encoder.check_token_ids(ids)
        return BaseModelOutput(encode(weights.encoder, ids, mask))

    @classmethod
    def decode(
        cls,
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: Any,
        synced_gpus: bool = False,
        streamer: Any = None,
        tokenizer: Any = None,
        **inputs: Any,
    ) -> Any:
        """Return what transformers' `_sample` or `_beam_search` would; `None` where they have to be called.

        `tokenizer` comes with stop strings, whose criteria hold what they need of it.
        """
        _, reason, weights, shortlist = _current_call(model)
        reason = "processes wait for one another" if synced_gpus else reason
        reason = reason or reason_against_call(model, generation_config, inputs)
        if reason or weights is None:
            cls.report(model, reason or "")
            return None
        beams = generation_config.num_beams
        steps = generation_config.max_length - input_ids.shape[1]
        engine = Engine(weights, beams, steps, shortlist)
        mask, prompts = inputs.get("attention_mask"), input_ids[::beams]
        mask = None if mask is None else mask[::beams]
        if model.config.is_encoder_decoder:
            engine.read_source(inputs["encoder_outputs"][0][::beams], mask)
            mask = inputs.get("decoder_attention_mask")
            mask = None if mask is None else mask[::beams]
        model.model.decoder.check_token_ids(prompts)
        states = engine.read_prompt(prompts, mask)
        if beams > 1:
            search = BeamSearch(model, engine, input_ids, logits_processor, stopping_criteria, generation_config)
            output = search.run(states)
        else:
            output = sample(
                model, engine, states, input_ids, logits_processor, stopping_criteria, generation_config, streamer
            )
        cls.report(model, "", weights)
        return output
