"""What `generate()` asks: run a call fast, or say why the ordinary path has to."""

import logging
from dataclasses import dataclass
from typing import Any

import torch
from transformers import LogitsProcessorList, StoppingCriteriaList
from transformers.modeling_outputs import BaseModelOutput

from .beam_search import BeamSearch
from .eligibility import reason_against_call, reason_against_model
from .engine import Engine, run_whole
from .products import check_dtype
from .sampling import sample
from .weights import PreparedWeights, free_prepared_weights, prepared_weights

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


class FastDecoding:
    """The decoding backend of `VanillaTransformerGenerationMixin`."""

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
        if reason_against_model(model) is not None:
            return None
        stack = prepared_weights(model, model.decoding_dtype).encoder
        assert stack is not None
        model.model.encoder.check_token_ids(ids)
        positions = torch.arange(ids.shape[1]).expand_as(ids)
        if mask is not None and bool(mask.all()):
            mask = None
        if mask is not None:
            positions = (mask.long().cumsum(-1) - 1).clamp(min=0)
        return BaseModelOutput(run_whole(stack, ids, positions, mask, model.config.sliding_window))

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
        reason = "processes wait for one another" if synced_gpus else reason_against_model(model)
        reason = reason or reason_against_call(model, generation_config, inputs)
        if reason:
            cls.report(model, reason)
            return None
        weights = prepared_weights(model, model.decoding_dtype)
        beams = generation_config.num_beams
        steps = generation_config.max_length - input_ids.shape[1]
        engine = Engine(weights, model.config, beams, steps)
        mask, prompts = inputs.get("attention_mask"), input_ids[::beams]
        mask = None if mask is None else mask[::beams]
        if model.config.is_encoder_decoder:
            engine.read_source(inputs["encoder_outputs"][0][::beams], mask)
            mask = inputs.get("decoder_attention_mask")
            mask = None if mask is None else mask[::beams]
        model.model.decoder.check_token_ids(prompts)
        logits = engine.read_prompt(prompts, mask)
        if beams > 1:
            search = BeamSearch(model, engine, input_ids, logits_processor, stopping_criteria, generation_config)
            output = search.run(logits)
        else:
            output = sample(
                model, engine, logits, input_ids, logits_processor, stopping_criteria, generation_config, streamer
            )
        cls.report(model, "", weights)
        return output
