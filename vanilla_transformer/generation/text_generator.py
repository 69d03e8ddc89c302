"""Batch inference: from lines of text to lines of text, in batches by length, order kept, as much as there is."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from vanilla_transformer.generation.sentences import texts_within
from vanilla_transformer.loading import (
    TARGET_TOKENIZER,
    check_device,
    has_target_tokenizer,
    load_config,
    load_model,
    load_tokenizer,
    locate,
    move_to_device,
)
from vanilla_transformer.utils.bounds import GENERATION
from vanilla_transformer.utils.log import Log

__all__ = ["Hypothesis", "TextGenerator", "check_generation_options", "check_vocabularies", "default_length"]
__all__ += ["encode_input", "filler_token", "input_limit", "join_parts", "longest_source", "pad_rows"]
__all__ += ["sequence_scores"]

logger = logging.get_logger(__name__)

NAMED = 10
"""How many lines a sentence names."""

MAX_NEW_TOKENS = 256
"""Tokens of an output where neither the call nor the model says how long it may be; generate() would stop after 20."""


@dataclass(frozen=True)
class Hypothesis:
    """One output: its text, and where asked for its log-probability, of beams under the length penalty."""

    text: str
    score: float | None


class TextGenerator:
    """Generate a target text for each source text with an encoder-decoder, or continue each text with a decoder.

    Args:
        model: any sequence-to-sequence or causal language model of transformers, in evaluation mode.
        tokenizer: of the source, and of the target where `target_tokenizer` is None.
        target_tokenizer: of the target, where vocabularies are separate.

    Raises:
        ValueError: for a model that writes no text, or where a tokenizer does not fit the model.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        target_tokenizer: PreTrainedTokenizerBase | None = None,
    ):
        if not model.can_generate():
            raise ValueError(f"a {type(model).__name__} writes no text; give an encoder-decoder or a decoder.")
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
    ) -> "TextGenerator":
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
        config = load_config(source, trust_remote_code=trust_remote_code)
        tokenizer = load_tokenizer(source, trust_remote_code=trust_remote_code)
        if getattr(config, "architecture", "") == "encoder-only":
            raise ValueError(f"{model} is an encoder, which writes no text; use transformers' pipelines with it.")
        target_tokenizer = None
        if getattr(config, "target_vocab_size", None):
            if not has_target_tokenizer(source):
                raise FileNotFoundError(f"{model} holds no {TARGET_TOKENIZER}, which separate vocabularies need.")
            target_tokenizer = load_tokenizer(source, TARGET_TOKENIZER, trust_remote_code=trust_remote_code)
        loaded = load_model(source, trust_remote_code=trust_remote_code, **model_options)
        return cls(move_to_device(loaded, device), tokenizer, target_tokenizer)

    def generate(
        self,
        texts: Iterable[str],
        *,
        n_best: int = 1,
        scores: bool = False,
        max_batch_tokens: int = 1024,
        read_ahead: int = 1024,
        log: Log = logger.warning,
        done: Callable[[int], object] | None = None,
        **generate_options: Any,
    ) -> Iterator[list[Hypothesis]]:
        """Yield the best outputs of every text, in the order of the texts.

        A text for an encoder-decoder that is longer than the model was trained with ([`input_limit`]) is split at
        sentences, as few parts as fit, and their outputs are joined again; a sentence that alone is longer is cut behind
        clauses or words.

        Args:
            texts: read as they are needed, `read_ahead` at a time. An empty text gives empty output.
            n_best: how many outputs of each.
            scores: also give their scores, for which `generate()` keeps the scores of all tokens at every step.
            max_batch_tokens: texts of like length go together, as many as fit padded; the default is fastest on one core
                of a CPU, where larger batches wait for their longest outputs and leave the processor's cache.
            read_ahead: texts among which batches are formed; 1 answers each text at once.
            log: gets a line that names the texts that are longer than the model was trained with.
            done: called with the number of texts, or parts of them, of every batch that is written, for a bar.
            generate_options: of `generate()`, such as `num_beams`.

        Raises:
            ValueError: where more outputs are asked for than there are beams, or a text is longer than the model's
                positions (`longest_source`).
        """
        # what no output could follow
        if isinstance(texts, str):
            raise TypeError("texts must be an iterable of texts, not one text: give [text].")
        if read_ahead < 1:
            raise ValueError(f"read_ahead={read_ahead} must be at least 1.")
        check_generation_options(generate_options)
        if (penalty := generate_options.get("length_penalty")) is not None:
            generate_options["length_penalty"] = float(penalty)  # of whose powers none is too large for a tensor
        if n_best < 1 or max_batch_tokens < 1:
            raise ValueError(f"n_best={n_best} and max_batch_tokens={max_batch_tokens} must be at least 1.")
        beams = generate_options.get("num_beams") or self.model.generation_config.num_beams or 1
        if n_best > beams and not generate_options.get("do_sample"):
            raise ValueError(f"{n_best} outputs of each text need at least as many beams, not {beams}.")
        # some texts at a time: their parts in batches, and the outputs of the parts in the order of the texts
        texts = iter(texts)
        read = 0
        while pool := list(islice(texts, read_ahead)):
            parts = self._parts_of(pool, read, may_split=n_best == 1, log=log)
            read += len(pool)
            rows = [ids for of_text in parts for _, ids in of_text]
            outputs: list[list[Hypothesis]] = [[] for _ in rows]
            for batch in _batches_by_length(rows, max_batch_tokens):
                found = self._generate_batch([rows[i] for i in batch], n_best, scores, generate_options)
                for index, hypotheses in zip(batch, found, strict=True):
                    outputs[index] = hypotheses
                if done is not None:
                    done(len(batch))
            of_parts = iter(outputs)
            for of_text in parts:
                found = [next(of_parts) for _ in of_text]
                yield _joined([gap for gap, _ in of_text], found) if found else [Hypothesis("", None)] * n_best

    def _parts_of(
        self, pool: Sequence[str], read: int, *, may_split: bool, log: Log
    ) -> list[list[tuple[str, list[int]]]]:
        """Return the parts that each text is read in, as the white space before the part and its ids.

        Args:
            read: number of texts before these, so that a sentence can name lines.
            may_split: False where the outputs of parts could not be joined again.

        Raises:
            ValueError: for a text that is longer than the model's positions and cannot be split.
        """
        # what can be read, and what the model was trained with
        limit = input_limit(self.model.config, self.tokenizer)
        longest = longest_source(self.model.config)
        may_split = may_split and bool(self.model.config.is_encoder_decoder)
        split: list[int] = []
        cut: list[int] = []
        beyond: list[int] = []
        found: list[list[tuple[str, list[int]]]] = []
        for number, text in enumerate(pool, start=read + 1):
            parts = [("", ids)] if text.strip() and (ids := self._encoded(text)) else []
            if parts and len(ids) > limit and may_split:
                too_long: list[str] = []
                texts = texts_within(text, lambda part: len(self._encoded(part)) <= limit, on_cut=too_long.append)
                parts = [(gap, self._encoded(part)) for gap, part in texts]
                (cut if too_long else split).append(number)
            length = max((len(ids) for _, ids in parts), default=0)
            if length > longest:
                raise ValueError(
                    f"line {number} of the input is a text of {length} tokens, more than the {longest} positions of the "
                    "model; cut it into shorter ones."
                )
            beyond += [number] if length > limit else []
            found.append(parts)
        # one line each for all texts of a kind
        if split:
            log(
                f"{_lines(split)} longer than the {limit} tokens that the model was trained with: split at sentences, and "
                "the outputs joined."
            )
        if cut:
            log(
                f"warning: {_lines(cut, 'has', 'have')} a sentence of more than the {limit} tokens that the model was trained "
                "with: cut within it, so its output may not be one sentence."
            )
        if beyond:
            remedy = "" if self.model.config.is_encoder_decoder else "; shorten what it continues"
            log(
                f"warning: {_lines(beyond)} read as a whole with more than the {limit} tokens that the model was trained "
                f"with, so the output may leave much out{remedy}."
            )
        return found

    def _encoded(self, text: str) -> list[int]:
        return encode_input(self.tokenizer, text, is_prompt=not self.model.config.is_encoder_decoder)

    @torch.inference_mode()
    def _generate_batch(
        self, rows: list[list[int]], n_best: int, scores: bool, options: dict[str, Any]
    ) -> list[list[Hypothesis]]:
        is_prompt = not self.model.config.is_encoder_decoder
        filler = filler_token(self.model, self.tokenizer)
        # a text that is continued must end at the end of its row
        input_ids, attention_mask = pad_rows(rows, filler, "left" if is_prompt else "right")
        options = default_length(self.model, options, input_ids.shape[1] if is_prompt else 1) | options
        if self.model.generation_config.pad_token_id is None:
            options = {"pad_token_id": filler, **options}
        output = self.model.generate(
            input_ids=input_ids.to(self.model.device),
            attention_mask=attention_mask.to(self.model.device),
            num_return_sequences=n_best,
            # fast decoding leaves ended rows out where nothing of them is asked for but their tokens
            return_dict_in_generate=scores,
            output_scores=scores,
            **options,
        )
        written = output.sequences if scores else output
        if is_prompt:
            written = written[:, input_ids.shape[1] :]
        texts = self.target_tokenizer.batch_decode(written, skip_special_tokens=True)
        values: Sequence[float | None] = [None] * len(texts)
        if scores:
            values = sequence_scores(self.model, output, filler).tolist()
        hypotheses = [Hypothesis(text, score) for text, score in zip(texts, values, strict=True)]
        return [hypotheses[i : i + n_best] for i in range(0, len(hypotheses), n_best)]


def encode_input(tokenizer: PreTrainedTokenizerBase, text: str, *, is_prompt: bool) -> list[int]:
    """Return the tokens of a text for a model to read; of a prompt, which the model continues, without an end token.

    A special token spelled out in a text is text, so that no text can end itself early.
    """
    ids = tokenizer(text, verbose=False, split_special_tokens=True)["input_ids"]
    return ids[:-1] if is_prompt and ids[-1:] == [tokenizer.eos_token_id] else ids


def filler_token(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the token that fills rows; any does under a mask, where neither tokenizer nor model has one for it."""
    ends = model.generation_config.eos_token_id
    candidates = (
        tokenizer.pad_token_id,
        model.generation_config.pad_token_id,
        tokenizer.eos_token_id,
        *(ends if isinstance(ends, list) else [ends]),
    )
    return next((token for token in candidates if token is not None), 0)


def check_generation_options(options: Mapping[str, Any]) -> None:
    """Refuse settings of generation that no output could follow, before anything is loaded or read.

    Raises:
        ValueError: naming the setting and its bounds.
    """
    for name in ("num_beams", "num_return_sequences", "max_new_tokens", "length_penalty", "temperature"):
        value = options.get(name)
        if value is not None and not GENERATION[name].admits(value):
            raise ValueError(f"{name}={value!r:.60} must be {GENERATION[name].describe()}.")


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


def input_limit(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> float:
    """Return the number of tokens of a text that a model is meant to read, special tokens included.

    That is the least of its positions, its tokenizer's `model_max_length`, which a run sets to what it trained with, and for
    a model of this package its `max_position_embeddings`, also where positions have no table.
    """
    meant_for = config.max_position_embeddings if config.model_type == "vanilla_transformer" else math.inf
    return min(tokenizer.model_max_length, longest_source(config), meant_for)


def longest_source(config: PreTrainedConfig) -> float:
    """Return the tokens that a model can read at once: as many as it has a table of positions for, otherwise any number.

    Models of transformers have such a table where they have `max_position_embeddings` and no rotary positions.
    """
    kind = getattr(config, "position_encoding", None if hasattr(config, "rope_parameters") else "learned")
    return (getattr(config, "max_position_embeddings", None) or math.inf) if kind == "learned" else math.inf


def sequence_scores(model: PreTrainedModel, output: Any, pad_token_id: int | None = None) -> torch.Tensor:
    """Return the scores (B,) of beam search, or without beams the sum over the tokens before the padding.

    Args:
        output: of `generate()` with `return_dict_in_generate` and `output_scores`.
        pad_token_id: what fills the output, where the model has no token for it.
    """
    if getattr(output, "sequences_scores", None) is not None:
        return output.sequences_scores
    of_tokens = model.compute_transition_scores(output.sequences, output.scores, normalize_logits=True)
    tokens = output.sequences[:, -of_tokens.shape[1] :]
    pad = model.generation_config.pad_token_id
    is_pad = tokens == (pad_token_id if pad is None else pad)
    after_text = is_pad.flip(1).long().cumprod(1).flip(1).bool()
    return of_tokens.masked_fill(after_text, 0.0).sum(1)


def default_length(model: PreTrainedModel, options: Mapping[str, Any], used: int) -> dict[str, int]:
    """Return an option for the length of outputs where neither a call nor the model's settings have one.

    Args:
        options: of the call of `generate()`.
        used: positions of the output that are taken before its first new token.
    """
    given = [
        options,
        *(vars(config) for config in (options.get("generation_config"), model.generation_config) if config),
    ]
    if any(setting.get(name) is not None for setting in given for name in LENGTHS):
        return {}
    return {"max_new_tokens": int(max(1, min(MAX_NEW_TOKENS, longest_source(model.config) - used)))}


LENGTHS = ("max_length", "max_new_tokens", "max_length_over_source")
"""Settings of generation that bound the length of an output; the last one by the tokens of its own source and so many new ones more
(fairseq's `max_len_b`)."""


def join_parts(gaps: Sequence[str], texts: Sequence[str]) -> str:
    """Return the output of a text from those of its parts, joined by the white space of the source, or by a space."""
    joined = ""
    for gap, text in zip(gaps, texts, strict=True):
        joined += text if not joined else (gap or " ") + text
    return joined


def _joined(gaps: Sequence[str], parts: Sequence[list[Hypothesis]]) -> list[Hypothesis]:
    """Return the outputs of a text from those of its parts; the score of several is their sum, and each has one output."""
    if len(parts) == 1:
        return parts[0]
    scores = [best.score for (best,) in parts]
    text = join_parts(gaps, [best.text for (best,) in parts])
    return [Hypothesis(text, None if None in scores else sum(scores))]  # type: ignore[arg-type]


def pad_rows(rows: Sequence[Sequence[int]], filler: int, side: str = "right") -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows of tokens as ids (B, T), filled on one side to the length of the longest, and their attention mask (B, T)."""
    tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
    masks = [torch.ones_like(row) for row in tensors]
    ids, mask = (
        torch.nn.utils.rnn.pad_sequence(each, batch_first=True, padding_value=value, padding_side=side)
        for each, value in ((tensors, filler), (masks, 0))
    )
    return ids, mask


def _lines(numbers: Sequence[int], one: str = "is", several: str = "are") -> str:
    named = ", ".join(map(str, numbers[:NAMED]))
    more = f" and {len(numbers) - NAMED} more" if len(numbers) > NAMED else ""
    return f"line {named} {one}" if len(numbers) == 1 else f"lines {named}{more} {several}"


def _batches_by_length(rows: Sequence[Sequence[int]], max_tokens: int) -> Iterator[list[int]]:
    """Yield the indices of non-empty rows, longest first, in batches whose padded size stays within `max_tokens`."""
    order = sorted((i for i in range(len(rows)) if rows[i]), key=lambda i: -len(rows[i]))
    start = 0
    while start < len(order):
        size = max(1, max_tokens // len(rows[order[start]]))
        yield order[start : start + size]
        start += size
