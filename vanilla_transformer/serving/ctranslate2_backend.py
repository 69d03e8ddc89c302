"""A text generator whose batches CTranslate2 computes, of the same tokens as torch's in greedy search."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import torch
from transformers import GenerationConfig

from vanilla_transformer.export import to_ctranslate2
from vanilla_transformer.export.ctranslate2_model import vocabularies
from vanilla_transformer.generation.text_generator import TextGenerator
from vanilla_transformer.modeling_vanilla_transformer import VanillaTransformerPreTrainedModel
from vanilla_transformer.serving.engine import Item
from vanilla_transformer.serving.models import Generation, Passage, ServedGenerator

__all__ = ["CTranslate2Generator"]

logger = logging.getLogger(__name__)

PASSED_ON = {"length_penalty", "repetition_penalty", "no_repeat_ngram_size"}
"""Settings of generation that CTranslate2 has by the same names."""

OTHERWISE_MET = {
    *("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "use_cache", "cache_implementation"),
    *("num_beams", "early_stopping", "length_penalty_form", "do_sample", "temperature", "top_k", "top_p"),
    *("max_length", "max_new_tokens", "max_length_over_source", "decoding_dtype", "transformers_version"),
}
"""Settings that are in the exported model, in the request, or of torch alone."""


class CTranslate2Generator(ServedGenerator):
    """An encoder-decoder that translates, or a decoder that continues texts, exported to CTranslate2 when it is loaded.

    Beam search is CTranslate2's: it ends when as many hypotheses have ended as there are beams, and a length penalty is always a
    power of the length.

    Args:
        generator: with model and tokenizers; the model is not kept.
        quantization: of the weights, one of `export.ctranslate2_model.QUANTIZATIONS`.
        device: `"cpu"` or `"cuda"`, also `"cuda:1"`; None for the CPU.

    Raises:
        ValueError: for a model or a setting of generation that CTranslate2 does not have.
    """

    takes_seed: ClassVar[bool] = False

    def __init__(self, generator: TextGenerator, quantization: str = "float32", device: str | None = None):
        super().__init__(generator)
        model = generator.model
        if not isinstance(model, VanillaTransformerPreTrainedModel):
            raise ValueError(
                f"--backend ctranslate2 runs models of this package, not {type(model).__name__}; use --backend torch."
            )
        self.options = _options(model.generation_config)
        self.tokens, _ = vocabularies(model, generator.tokenizer, generator.target_tokenizer)  # type: ignore[arg-type]
        self.runtime = _load(generator, quantization, device)
        del self.model

    def run(self, items: Sequence[Item], tick: Callable[[], None]) -> None:
        items = [item for item in items if not item.cancelled]
        if not items:
            return
        options: Generation = items[0].options  # type: ignore[assignment]
        beams = options.num_beams or self.generation_config.num_beams or 1
        given = self.options | {
            "beam_size": beams,
            "num_hypotheses": options.n_best,
            "return_end_token": True,
            "end_token": sorted(self.eos_ids),
            # of all tokens, or the best one
            "sampling_topk": 0 if options.temperature else 1,
        }
        if options.temperature:
            given |= {"sampling_temperature": options.temperature, "sampling_topp": options.top_p}
        limits = [self._limit(item.payload) for item in items]
        found = self._write(items, limits, given, tick)
        # a search that went on beyond a row's own limit, as others in the batch may, would have ended otherwise
        for number, outputs in enumerate(found):
            if beams > 1 and max(map(len, outputs)) > limits[number]:
                (found[number],) = self._write([items[number]], [limits[number]], given, tick)
        for item, limit, outputs in zip(items, limits, found, strict=True):
            if not item.delivered and not item.cancelled:
                item.finish(self.output(item.payload, [tokens[:limit] for tokens in outputs]))

    def _write(
        self, items: Sequence[Item], limits: Sequence[int], options: dict[str, Any], tick: Callable[[], None]
    ) -> list[list[list[int]]]:
        """Return for each item the tokens of its outputs, best first."""
        rows = [[self.tokens[token] for token in item.payload.ids] for item in items]
        # CTranslate2 writes the prompts out again where it cannot read a beginning of all of them at once
        is_prompt_written = self.kind == "text-generation" and min(map(len, rows)) == 1
        skipped = [len(row) - 1 if is_prompt_written else 0 for row in rows]
        if options["beam_size"] == options["num_hypotheses"] == 1:
            options = options | {"callback": _Steps(self, items, limits, skipped, tick)}
        longest = max(limit + skip for limit, skip in zip(limits, skipped, strict=True))
        if self.kind == "translation":
            results = self.runtime.translate_batch(rows, max_decoding_length=longest, max_input_length=0, **options)
            ids = self.target_tokenizer.convert_tokens_to_ids
            found = [[ids(tokens) for tokens in result.hypotheses] for result in results]
        else:
            results = self.runtime.generate_batch(
                rows, max_length=longest, include_prompt_in_result=is_prompt_written, **options
            )
            starts = [skip + 1 if is_prompt_written else 0 for skip in skipped]
            found = [
                [tokens[start:] for tokens in result.sequences_ids]
                for start, result in zip(starts, results, strict=True)
            ]
        tick()
        return found

    def _limit(self, passage: Passage) -> int:
        """Return the largest number of tokens of an output, by the request and the settings of the model."""
        settings, most = self.generation_config, passage.max_new_tokens
        if self.kind == "text-generation":
            return most
        margin = getattr(settings, "max_length_over_source", None)
        if margin is not None:
            return max(1, min(most, len(passage.ids) + margin))
        if settings.max_new_tokens is not None:
            return min(most, settings.max_new_tokens)
        return most if settings.max_length is None else max(1, min(most, settings.max_length - 1))


class _Steps:
    """Gets each token of a batch in greedy search or sampling; returns whether its row ends there."""

    def __init__(
        self,
        generator: CTranslate2Generator,
        items: Sequence[Item],
        limits: Sequence[int],
        skipped: Sequence[int],
        tick: Callable[[], None],
    ):
        self.generator, self.items, self.limits, self.tick = generator, items, limits, tick
        self.left = list(skipped)
        self.written: list[list[int]] = [[] for _ in items]

    def __call__(self, step: Any) -> bool:
        self.tick()
        number = step.batch_id
        item, tokens = self.items[number], self.written[number]
        if item.cancelled or item.delivered:
            return True
        if self.left[number]:
            self.left[number] -= 1
            return False
        tokens.append(step.token_id)
        ends = step.token_id in self.generator.eos_ids or len(tokens) >= self.limits[number]
        return self.generator.advance(item, tokens, ends)


def _options(settings: GenerationConfig) -> dict[str, Any]:
    """Return the settings of a model as CTranslate2's.

    Raises:
        ValueError: for one that it does not have.
    """
    # false and none ask for nothing
    given = {name: value for name, value in settings.to_diff_dict().items() if value and not name.startswith("_")}
    if unknown := sorted(set(given) - PASSED_ON - OTHERWISE_MET):
        raise ValueError(
            f"CTranslate2 does not have the model's settings of generation {', '.join(unknown)}; use --backend torch."
        )
    if given.get("length_penalty_form") == "gnmt" and (given.get("num_beams") or 1) > 1:
        logger.warning("length_penalty_form='gnmt' is CTranslate2's power of the length here")
    return {name: value for name, value in given.items() if name in PASSED_ON}


def _load(generator: TextGenerator, quantization: str, device: str | None) -> Any:
    """Return the Translator or Generator of CTranslate2 for a model, compared with it on the way."""
    import ctranslate2

    model: Any = generator.model
    kind, _, index = (device or "cpu").partition(":")
    opened = ctranslate2.Translator if model.config.is_encoder_decoder else ctranslate2.Generator
    with TemporaryDirectory() as place:
        folder = Path(place) / "model"
        target = generator.target_tokenizer
        parity = to_ctranslate2(model, generator.tokenizer, folder, quantization, target_tokenizer=target)
        logger.info("%s", parity)
        return opened(
            str(folder),
            device=kind,
            device_index=int(index or 0),
            compute_type="float32" if quantization == "float32" else "default",
            inter_threads=1,
            intra_threads=torch.get_num_threads(),
        )
