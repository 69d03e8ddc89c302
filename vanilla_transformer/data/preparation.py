"""From pairs of texts to token ids."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from transformers import PreTrainedTokenizerBase

from vanilla_transformer.data.report import DataReport
from vanilla_transformer.tokenization import LONGEST_WORD, LONGEST_WORDPIECE, without_long_words

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

__all__ = ["TokenizerTexts", "iterate_texts", "pair_lengths", "tokenize_pairs"]

AnyDataset = TypeVar("AnyDataset", "Dataset", "IterableDataset")


def iterate_texts(dataset: "Dataset | IterableDataset", *columns: str) -> Iterator[str]:
    """Yield the texts of the named columns, pair by pair, to train a tokenizer on; both sides when none is named."""
    columns = columns or ("source", "target")
    for batch in dataset.iter(batch_size=1000):
        for texts in zip(*(batch[column] for column in columns), strict=True):
            yield from texts


class TokenizerTexts:
    """The texts that a tokenizer is trained on: what training leaves out must not shape it.

    How many tokens a text has is not known yet, but each word is one at the least: a row with a text of more words than
    tokens are allowed is left out, as training will leave it out, and so are single words of absurd length.

    Args:
        dataset: the rows.
        columns: with the texts to yield.
        kind: of the tokenizer: "bpe", "wordpiece" or "characters".
        longest: for a column, the tokens that training allows its texts, without special tokens.
        join: makes a text of what stands in a column, such as a list of tokens.
    """

    def __init__(
        self,
        dataset: "Dataset",
        columns: tuple[str, ...],
        kind: str,
        longest: Mapping[str, int],
        join: Callable[[Any], str] = str,
    ):
        self.dataset, self.columns, self.kind, self.longest, self.join = dataset, columns, kind, longest, join
        self.long_rows = self.long_words = 0

    def __iter__(self) -> Iterator[str]:
        self.long_rows = self.long_words = 0
        names = list(dict.fromkeys((*self.columns, *self.longest)))
        for batch in self.dataset.select_columns(names).iter(batch_size=1000):
            for values in zip(*(batch[name] for name in names), strict=True):
                texts = dict(zip(names, map(self.join, values), strict=True))
                if any(self._is_longer(texts[name], most) for name, most in self.longest.items()):
                    self.long_rows += 1
                    continue
                for name in self.columns:
                    text, found = without_long_words(texts[name], self.kind)
                    self.long_words += found
                    yield text
        if self.long_rows == len(self.dataset):
            most = ", ".join(f"{name} of {most} words" for name, most in self.longest.items())
            raise ValueError(
                f"No row is short enough to train on (at most {most}): raise the lengths in the data section."
            )

    def _is_longer(self, text: str, most: int) -> bool:
        if len(text) <= most:
            return False
        return self.kind == "characters" or len(text.split()) > most

    def note(self) -> str | None:
        """Say what was left out, for the report; None for nothing."""
        most = LONGEST_WORDPIECE if self.kind == "wordpiece" else LONGEST_WORD
        parts = []
        if self.long_rows:
            parts.append(f"rows that are too long for training ({self.long_rows:,})")
        if self.long_words:
            parts.append(f"words of more than {most:,} characters ({self.long_words:,})")
        return f"left out of the training of the tokenizer: {' and '.join(parts)}" if parts else None


def tokenize_pairs(
    dataset: AnyDataset,
    tokenizer: PreTrainedTokenizerBase,
    target_tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    max_source_length: int,
    max_target_length: int,
    report: DataReport,
    num_proc: int | None = None,
) -> AnyDataset:
    """Turn the texts of `load_parallel` into token ids, and drop and report the pairs that are too long.

    Nothing is cut: half a sentence beside a whole translation would teach the model to invent or to leave out.

    Args:
        dataset: columns `id`, `source`, `target`.
        tokenizer: for the source, and for the target where `target_tokenizer` is None.
        target_tokenizer: for the target, where the two sides have separate vocabularies.
        max_source_length, max_target_length: in tokens, special tokens included.
        report: where dropped pairs are counted: that of the same data set.
        num_proc: processes to tokenise with; a fast tokenizer uses several threads without any. Not for streams.

    Returns:
        A data set with the columns `id`, `input_ids`, `labels` (lists of int), `source_length`, `target_length`.

    Raises:
        ValueError: every pair is too long.
    """
    import datasets

    limits = {"source_length": max_source_length, "target_length": max_target_length}
    streamed = isinstance(dataset, datasets.IterableDataset)
    # Another process would report to a copy of the report: then all lengths are looked at here, afterwards.
    drops_at_once = streamed or not num_proc

    def encode(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        sources = _encode(tokenizer, text=batch["source"])
        targets = _encode(target_tokenizer or tokenizer, text_target=batch["target"])
        encoded: dict[str, list[Any]] = {
            "id": batch["id"],
            "input_ids": sources,
            "labels": targets,
            "source_length": [len(ids) for ids in sources],
            "target_length": [len(ids) for ids in targets],
        }
        if drops_at_once:
            kept = _short_enough(encoded, limits, report)
            encoded = {name: [values[index] for index in kept] for name, values in encoded.items()}
        return encoded

    ids, number = datasets.List(datasets.Value("int32")), datasets.Value("int32")
    features = {"id": datasets.Value("int64"), "input_ids": ids, "labels": ids} | dict.fromkeys(limits, number)
    options = {"batched": True, "remove_columns": ["source", "target"], "features": datasets.Features(features)}
    if streamed:
        return dataset.map(encode, **options)

    # The texts are in memory as well; a file would be one more to clean up. Never an earlier result: the report must see
    # every pair.
    in_memory = {"keep_in_memory": True, "load_from_cache_file": False, "desc": "Tokenising"}
    encoded = dataset.map(encode, num_proc=num_proc, **options, **in_memory)
    if not drops_at_once:
        encoded = encoded.select(_short_enough(encoded.remove_columns(["input_ids", "labels"])[:], limits, report))
    if not len(encoded):
        raise ValueError(
            "No pair is short enough; raise data.max_source_length or data.max_target_length. "
            + "; ".join(line.strip() for line in report.lines())
        )
    return encoded


def _encode(tokenizer: PreTrainedTokenizerBase, **texts: list[str]) -> list[list[int]]:
    # Without `verbose=False` a single text longer than the tokenizer's own limit gives a warning that it will fail, which
    # it will not, being dropped. A special token spelled out in a text is text, so that no text can end itself early.
    return tokenizer(**texts, return_attention_mask=False, verbose=False, split_special_tokens=True)["input_ids"]


def _short_enough(encoded: Mapping[str, Any], limits: Mapping[str, int], report: DataReport) -> list[int]:
    """Return the indices of the pairs that are short enough; the others are reported."""
    kept = []
    lengths = (encoded[name] for name in limits)
    for index, (pair_id, *sides) in enumerate(zip(encoded["id"], *lengths, strict=True)):
        beyond = [name for name, length in zip(limits, sides, strict=True) if length > limits[name]]
        if beyond:
            report.drop(f"{beyond[0].removesuffix('_length')} longer than {limits[beyond[0]]} tokens", pair_id)
        else:
            kept.append(index)
    return kept


def pair_lengths(dataset: "Dataset") -> np.ndarray:
    """Return source and target lengths in tokens, shape (pairs, 2), as `TokenBudgetBatchSampler` takes them."""
    columns = dataset.select_columns(["source_length", "target_length"]).with_format("numpy")[:]
    return np.stack([columns["source_length"], columns["target_length"]], axis=1)
