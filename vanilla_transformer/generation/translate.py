"""From lines of text to lines of text: batches by length, order kept, as much as there is."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.loading import (
    TARGET_TOKENIZER,
    check_device,
    has_target_tokenizer,
    load_config,
    load_model,
    load_tokenizer,
    locate,
)

__all__ = [
    "Hypothesis",
    "Translator",
    "check_vocabularies",
    "longest_source",
    "sequence_scores",
]


@dataclass(frozen=True)
class Hypothesis:
    """One output: its text, and where asked for its log-probability, of beams under the length penalty."""

    text: str
    score: float | None


class Translator:
    """Generates a target text for each source text with an encoder-decoder, or goes on with each text with a decoder.

    Args:
        model: any sequence-to-sequence or causal language model of transformers, in evaluation mode.
        tokenizer: of the source, and of the target where `target_tokenizer` is None.
        target_tokenizer: of the target, where vocabularies are separate.

    Raises:
        ValueError: where a tokenizer does not fit the model.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        target_tokenizer: PreTrainedTokenizerBase | None = None,
    ):
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.target_tokenizer = tokenizer if target_tokenizer is None else target_tokenizer
        check_vocabularies(model.config, self.tokenizer, self.target_tokenizer)

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path,
        device: str | None = None,
        *,
        revision: str | None = None,
        trust_remote_code: bool = False,
        **model_options: Any,
    ) -> "Translator":
        """Load a run's folder or a Hub id.

        Args:
            model: the folder or id.
            device: such as "cpu" or "cuda:1"; by default the accelerator where there is one.
            revision: a branch, tag or commit of a Hub id.
            trust_remote_code: run code that comes with the model, where it cannot be loaded without.
            model_options: of [`load_model`] and the model's `from_pretrained`.

        Raises:
            FileNotFoundError: for a path that looks local and is not there, or holds no model.
            ValueError, OSError: where what is there cannot be loaded, in one sentence.
        """
        check_device(device)
        source = locate(model, revision=revision)
        tokenizer = load_tokenizer(source, trust_remote_code=trust_remote_code)
        config = load_config(source, trust_remote_code=trust_remote_code)
        if getattr(config, "architecture", "") == "encoder-only":
            raise ValueError(f"{model} is an encoder, which writes no text; use transformers' pipelines with it.")
        target_tokenizer = None
        if getattr(config, "target_vocab_size", None):
            if not has_target_tokenizer(source):
                raise FileNotFoundError(f"{model} holds no {TARGET_TOKENIZER}, which separate vocabularies need.")
            target_tokenizer = load_tokenizer(source, TARGET_TOKENIZER, trust_remote_code=trust_remote_code)
        loaded = load_model(source, trust_remote_code=trust_remote_code, **model_options)
        if device is None and torch.accelerator.is_available():
            device = str(torch.accelerator.current_accelerator())
        if device is not None:
            try:
                loaded.to(device)
            except RuntimeError as error:
                raise ValueError(f"the model cannot be moved to the device {device!r}: {error}") from error
        return cls(loaded, tokenizer, target_tokenizer)

    def translate(
        self,
        texts: Iterable[str],
        *,
        n_best: int = 1,
        scores: bool = False,
        max_batch_tokens: int = 1024,
        read_ahead: int = 1024,
        **generate_options: Any,
    ) -> Iterator[list[Hypothesis]]:
        """Yield the best outputs of every text, in the order of the texts.

        Args:
            texts: read as they are needed, `read_ahead` at a time. An empty text gives empty output.
            n_best: how many outputs of each.
            scores: also give their scores, for which `generate()` keeps the scores of all tokens at every step.
            max_batch_tokens: texts of like length go together, as many as fit padded; the default is fastest on one core
                of a CPU, where larger batches wait for their longest outputs and leave the processor's cache.
            read_ahead: texts among which batches are formed; 1 answers each text at once.
            generate_options: of `generate()`, such as `num_beams`.

        Raises:
            ValueError: where more outputs are asked for than there are beams, or a text is longer than the model's
                positions (`longest_source`).
        """
        if read_ahead < 1:
            raise ValueError(f"read_ahead={read_ahead} must be at least 1.")
        beams = generate_options.get("num_beams") or self.model.generation_config.num_beams or 1
        if n_best > beams and not generate_options.get("do_sample"):
            raise ValueError(f"{n_best} outputs of each text need at least as many beams, not {beams}.")
        texts = iter(texts)
        longest = longest_source(self.model.config)
        read = 0
        while pool := list(islice(texts, read_ahead)):
            encoded = [self._encoded(text) if text.strip() else [] for text in pool]
            for number, ids in enumerate(encoded, start=read + 1):
                if len(ids) > longest:
                    raise ValueError(
                        f"line {number} of the input has {len(ids)} tokens, more than the {longest} "
                        "positions of the model; cut it into shorter ones."
                    )
            read += len(pool)
            results: list[list[Hypothesis]] = [[Hypothesis("", None)] * n_best for _ in pool]
            for batch in _batches_by_length(encoded, max_batch_tokens):
                outputs = self._generate([encoded[i] for i in batch], n_best, scores, generate_options)
                for index, hypotheses in zip(batch, outputs, strict=True):
                    results[index] = hypotheses
            yield from results

    def _encoded(self, text: str) -> list[int]:
        ids = self.tokenizer(text, verbose=False)["input_ids"]
        ends = not self.model.config.is_encoder_decoder and ids[-1:] == [self.tokenizer.eos_token_id]
        return ids[:-1] if ends else ids  # what has ended cannot be gone on with

    @torch.inference_mode()
    def _generate(
        self, rows: list[list[int]], n_best: int, scores: bool, options: dict[str, Any]
    ) -> list[list[Hypothesis]]:
        # a text that is gone on with must end at the end of its row
        side = "right" if self.model.config.is_encoder_decoder else "left"
        inputs = self.tokenizer.pad({"input_ids": rows}, padding_side=side, return_tensors="pt").to(self.model.device)
        output = self.model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            num_return_sequences=n_best,
            return_dict_in_generate=True,
            output_scores=scores,
            **options,
        )
        written = output.sequences
        if not self.model.config.is_encoder_decoder:
            written = written[:, inputs["input_ids"].shape[1] :]
        texts = self.target_tokenizer.batch_decode(written, skip_special_tokens=True)
        values: Sequence[float | None] = [None] * len(texts)
        if scores:
            values = sequence_scores(self.model, output).tolist()
        hypotheses = [Hypothesis(text, score) for text, score in zip(texts, values, strict=True)]
        return [hypotheses[i : i + n_best] for i in range(0, len(hypotheses), n_best)]


def check_vocabularies(
    config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, target_tokenizer: PreTrainedTokenizerBase
) -> None:
    """Refuse, with a ValueError, a tokenizer that has tokens which the model lacks."""
    sizes = {"source": config.vocab_size}
    sizes["target"] = getattr(config, "target_vocab_size", None) or sizes["source"]
    for side, used in (("source", tokenizer), ("target", target_tokenizer)):
        if len(used) > sizes[side]:
            raise ValueError(
                f"the {side} tokenizer has {len(used)} tokens but the model {sizes[side]}, so they do not belong "
                "together; take the tokenizer that was saved with the model, or resize the model's embeddings."
            )


def longest_source(config: PreTrainedConfig) -> float:
    """Tokens that a model can read at once: as many as it has a table of positions for, otherwise any number.

    Encoder-decoders of transformers have such a table where they have `max_position_embeddings`.
    """
    kind = getattr(config, "position_encoding", "learned" if config.is_encoder_decoder else None)
    return (getattr(config, "max_position_embeddings", None) or math.inf) if kind == "learned" else math.inf


def sequence_scores(model: PreTrainedModel, output: Any) -> torch.Tensor:
    """(B,), as beam search gives them; without beams the sum over the tokens before the padding.

    `output` is that of `generate()` with `return_dict_in_generate` and `output_scores`.
    """
    if getattr(output, "sequences_scores", None) is not None:
        return output.sequences_scores
    of_tokens = model.compute_transition_scores(output.sequences, output.scores, normalize_logits=True)
    tokens = output.sequences[:, -of_tokens.shape[1] :]
    is_pad = tokens == model.generation_config.pad_token_id
    after_text = is_pad.flip(1).long().cumprod(1).flip(1).bool()
    return of_tokens.masked_fill(after_text, 0.0).sum(1)


def _batches_by_length(rows: Sequence[Sequence[int]], max_tokens: int) -> Iterator[list[int]]:
    """Indices of non-empty rows, longest first, in batches whose padded size stays within `max_tokens`."""
    order = sorted((i for i in range(len(rows)) if rows[i]), key=lambda i: -len(rows[i]))
    start = 0
    while start < len(order):
        size = max(1, max_tokens // len(rows[order[start]]))
        yield order[start : start + size]
        start += size
