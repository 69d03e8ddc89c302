"""The models that a server can hold: what they read, and how a batch of items is computed with torch."""

import copy
import itertools
import math
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from transformers import StoppingCriteria, StoppingCriteriaList, pipeline

from vanilla_transformer.generation.sentences import texts_within
from vanilla_transformer.generation.text_generator import (
    TextGenerator,
    encode_input,
    filler_token,
    input_limit,
    pad_rows,
)
from vanilla_transformer.serving.engine import Item

__all__ = ["Generation", "Output", "Passage", "Predictor", "ServedGenerator", "TooLongError"]

_numbers = itertools.count()


class TooLongError(ValueError):
    """A text has more tokens than the model can read."""


@dataclass(frozen=True)
class Generation:
    """How an output is generated; items are computed together where these are equal.

    Attributes:
        num_beams: None for the model's own setting.
        n_best: outputs of each item.
        temperature: 0 for the most likely token, None for the model's own way.
        seed: such items are computed alone, since the random numbers of a batch depend on who else is in it.
    """

    num_beams: int | None = None
    n_best: int = 1
    temperature: float | None = None
    top_p: float = 1.0
    seed: int | None = None
    alone: int | None = None

    @classmethod
    def sampled(cls, temperature: float, top_p: float, seed: int | None) -> "Generation":
        """Return the options of a language model: one output, without beams."""
        alone = None if seed is None or not temperature else next(_numbers)
        return cls(1, 1, temperature, top_p, seed if temperature else None, alone)

    def to_generate(self) -> dict[str, Any]:
        """Return the options of `generate()`."""
        options: dict[str, Any] = {"num_return_sequences": self.n_best}
        if self.num_beams is not None:
            options["num_beams"] = self.num_beams
        if self.temperature is not None:
            options["do_sample"] = self.temperature > 0
        if self.temperature:
            # no setting of the model's own beside those that were asked for
            options |= {"temperature": self.temperature, "top_p": self.top_p, "top_k": 0}
        return options


@dataclass(frozen=True)
class Passage:
    """The payload of an item that text is generated for.

    Attributes:
        ids: tokens of the source or prompt.
        max_new_tokens: the output ends there.
        stop: texts at which the output ends; they do not belong to it.
        on_text: is called with the output so far after each step, of items with one output.
    """

    ids: list[int]
    max_new_tokens: int
    stop: tuple[str, ...] = ()
    on_text: Callable[[str], None] | None = None


@dataclass(frozen=True)
class Output:
    """Texts of an item, best first, the number of tokens of the first, and whether it ended by itself ("stop")."""

    texts: list[str]
    tokens: int
    finish_reason: str


class ServedGenerator:
    """An encoder-decoder that translates, or a decoder that continues texts.

    Args:
        generator: with model and tokenizers.

    Attributes:
        takes_seed: whether outputs that are drawn can be drawn again.
    """

    takes_seed: ClassVar[bool] = True

    def __init__(self, generator: TextGenerator):
        self.model = generator.model
        self.target_tokenizer = generator.target_tokenizer
        self.config, self.generation_config = self.model.config, self.model.generation_config
        self.kind = "translation" if self.config.is_encoder_decoder else "text-generation"
        # of their own, as tokenizers are not meant to be used in two threads, one of which changes their settings
        self._tokenizer = copy.deepcopy(generator.tokenizer)
        self._lock = threading.Lock()
        eos = self.generation_config.eos_token_id
        self.eos_ids = set(eos if isinstance(eos, list) else [] if eos is None else [eos])
        self.filler = filler_token(self.model, generator.tokenizer)
        self.limit = input_limit(self.config, generator.tokenizer)

    # What is read ----------------------------------------------------------------------------------------------------

    @property
    def has_chat_template(self) -> bool:
        return bool(self._tokenizer.chat_template)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, in which special tokens are text; of a prompt without an end."""
        with self._lock:
            return encode_input(self._tokenizer, text, is_prompt=self.kind == "text-generation")

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Return the tokens of a conversation by the tokenizer's template.

        Raises:
            ValueError: for a message that spells out a special token, or that the template refuses.
        """
        for message in messages:
            for token in self._tokenizer.all_special_tokens:
                if token in message["content"]:
                    raise ValueError(f"a message spells out the special token {token!r}; leave it out.")
        with self._lock:
            try:
                text = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            except Exception as error:  # whatever the template raises or runs into
                raise ValueError(f"the chat template refuses these messages: {error}.") from error
            options = {"add_special_tokens": False, "split_special_tokens": False}
            return self._tokenizer(text, verbose=False, **options)["input_ids"]

    def split(self, text: str) -> tuple[list[tuple[str, list[int]]], str]:
        """Return the parts of a text that are translated each by itself, and the white space at its end.

        A line is a part, or where it is longer than the model can read as few parts as whole sentences give; blank lines and
        white space around lines are kept.

        Returns:
            For each part the white space before it and its tokens.

        Raises:
            TooLongError: for a sentence that alone is too long.
        """
        parts: list[tuple[str, list[int]]] = []
        gap = ""
        for piece in re.split(r"(\r\n|\r|\n)", text):
            line = piece.strip()
            if not line:
                gap += piece
                continue
            gap += piece[: len(piece) - len(piece.lstrip())]
            sentences = [("", line)]
            if len(ids := self.encode(line)) > self.limit:
                try:
                    sentences = texts_within(line, lambda part: len(self.encode(part)) <= self.limit)
                except ValueError as error:
                    raise TooLongError(
                        f"the sentence that begins {str(error)[:40]!r} has {len(self.encode(str(error)))} tokens, more "
                        f"than the {self.limit} that the model can read; divide it."
                    ) from None
            for number, (before, sentence) in enumerate(sentences):
                # where words do not stand apart there is no space between sentences, but in the output there may be
                between = gap if number == 0 else before or " "
                parts.append((between, ids if len(sentences) == 1 else self.encode(sentence)))
            gap = piece[len(piece.rstrip()) :]
        return parts, gap

    # What is computed ------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def run(self, items: Sequence[Item], tick: Callable[[], None]) -> None:
        items = [item for item in items if not item.cancelled]
        if not items:
            return
        options: Generation = items[0].options  # type: ignore[assignment]
        rows = [item.payload.ids for item in items]
        # a text that is continued must end at the end of its row
        ids, mask = pad_rows(rows, self.filler, "right" if self.kind == "translation" else "left")
        progress = _Progress(self, items, options.n_best == 1, tick)
        given = options.to_generate()
        lengths = ("max_length", "max_new_tokens", "max_length_over_source")
        settings = self.generation_config
        if settings.pad_token_id is None:
            given["pad_token_id"] = self.filler
        if self.kind == "text-generation" or all(getattr(settings, name, None) is None for name in lengths):
            given["max_new_tokens"] = max(item.payload.max_new_tokens for item in items)
        with _seeded(options.seed, self.model.device):
            written = self.model.generate(
                input_ids=ids.to(self.model.device),
                attention_mask=mask.to(self.model.device),
                stopping_criteria=StoppingCriteriaList([progress]),
                **given,
            )
        start = ids.shape[1] if self.kind == "text-generation" else 1
        for item, outputs in zip(items, written[:, start:].view(len(items), options.n_best, -1).tolist(), strict=True):
            if not item.delivered and not item.cancelled:
                item.finish(self.output(item.payload, outputs))

    def advance(self, item: Item, tokens: list[int], ends: bool) -> bool:
        """Deliver an output that ends here, or show what there is of it; return whether it ends."""
        passage: Passage = item.payload
        if not (ends or passage.stop or passage.on_text):
            return False
        output = self.output(passage, [tokens])
        ends = ends or output.finish_reason == "stop"
        if passage.on_text is not None:
            passage.on_text(output.texts[0] if ends else _certain(output.texts[0], passage.stop))
        if ends:
            item.finish(output)
        return ends

    def output(self, passage: Passage, rows: Sequence[Sequence[int]]) -> Output:
        """Return the texts of rows of tokens, each up to its end."""
        kept = [self._until_end(row)[: passage.max_new_tokens] for row in rows]
        texts = [self.decode(row) for row in kept]
        cuts = [place for stop in passage.stop if (place := texts[0].find(stop)) >= 0]
        if cuts:
            texts[0] = texts[0][: min(cuts)]
        ended = bool(cuts) or (bool(kept[0]) and kept[0][-1] in self.eos_ids)
        return Output(texts, len(kept[0]), "stop" if ended else "length")

    def decode(self, ids: Sequence[int]) -> str:
        return self.target_tokenizer.decode(ids, skip_special_tokens=True)

    def _until_end(self, row: Sequence[int]) -> Sequence[int]:
        end = next((place + 1 for place, token in enumerate(row) if token in self.eos_ids), len(row))
        return row[:end]


class _Progress(StoppingCriteria):
    """Ends rows at their own limits, and those that nobody waits for; hands outputs over as soon as they are ready.

    Args:
        generator: whose outputs they are.
        items: of the batch, each of which has as many rows as there are beams.
        is_single: whether an item has one output.
        tick: is called at each step.
    """

    def __init__(self, generator: ServedGenerator, items: Sequence[Item], is_single: bool, tick: Callable[[], None]):
        self.generator, self.items, self.is_single, self.tick = generator, items, is_single, tick
        self.start: int | None = None

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.tick()
        if self.start is None:
            self.start = input_ids.shape[1] - 1
        rows_of_item = input_ids.shape[0] // len(self.items)
        length = input_ids.shape[1] - self.start
        last = input_ids[:, -1].tolist()
        done = []
        for number, item in enumerate(self.items):
            passage: Passage = item.payload
            ends = item.cancelled or item.delivered or length >= passage.max_new_tokens
            if rows_of_item == 1 and self.is_single and not item.delivered and not item.cancelled:
                ends = ends or last[number] in self.generator.eos_ids
                if ends or passage.stop or passage.on_text:  # else the tokens need not leave the device
                    ends = self.generator.advance(item, input_ids[number, self.start :].tolist(), ends)
            done.append(ends)
        return torch.tensor(done, device=input_ids.device).repeat_interleave(rows_of_item)


def _certain(text: str, stop: Sequence[str]) -> str:
    """Return a text without what may yet become another one: half a character, or the beginning of a stop text."""
    text = text.rstrip("\ufffd")
    for sequence in stop:
        for length in range(min(len(sequence) - 1, len(text)), 0, -1):
            if text.endswith(sequence[:length]):
                return text[:-length]
    return text


@contextmanager
def _seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    """Draw from a seed within the block, and afterwards continue as if nothing had been drawn; None changes nothing."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
        torch.manual_seed(seed)
        yield


class Predictor:
    """A classifier, tagger, reader or encoder, as the pipeline of transformers for it computes.

    Args:
        kind: the pipeline's task.
        model, tokenizer: of it.
    """

    takes_top_k: ClassVar[tuple[str, ...]] = ("text-classification", "fill-mask", "question-answering")

    def __init__(self, kind: str, model: Any, tokenizer: Any):
        self.kind, self.model = kind, model.eval()
        self.pipeline = pipeline(kind, model=self.model, tokenizer=tokenizer)
        self._tokenizer = copy.deepcopy(tokenizer)
        self._lock = threading.Lock()
        self.limit = min(
            tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", None) or math.inf
        )

    def size(self, text: str) -> int:
        """Return the number of tokens of a text.

        Raises:
            TooLongError: where it is longer than the model can read.
            ValueError: for a text without the mask that is to be filled.
        """
        with self._lock:
            length = len(self._tokenizer(text, verbose=False)["input_ids"])
        if self.kind == "fill-mask" and text.count(self._tokenizer.mask_token) != 1:
            raise ValueError(f"a text must hold {self._tokenizer.mask_token} once, which is what the model fills in.")
        if length > self.limit and self.kind != "question-answering":  # which reads in windows
            raise TooLongError(f"a text has {length} tokens, more than the {self.limit} that the model can read.")
        return length

    @torch.inference_mode()
    def run(self, items: Sequence[Item], tick: Callable[[], None]) -> None:
        items = [item for item in items if not item.cancelled]
        if not items:
            return
        inputs = [item.payload for item in items]
        found = self.pipeline(inputs, batch_size=len(inputs), **dict(items[0].options))  # type: ignore[call-overload]
        tick()
        if self.kind == "fill-mask" and len(inputs) == 1:  # of one text, the pipeline leaves the list out
            found = [found]
        if self.kind == "feature-extraction":  # which gives vectors of the padding, too
            found = [result[0][: item.size] for item, result in zip(items, found, strict=True)]
        for item, result in zip(items, found, strict=True):
            item.finish(_plain(result))


def _plain(value: Any) -> Any:
    """Return a pipeline's result as JSON has it: numbers of numpy and torch as plain ones."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value.item() if hasattr(value, "item") else value
