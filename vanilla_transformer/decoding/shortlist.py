"""Which target tokens a source may call for: the most frequent, and those that its tokens stood beside in training."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

SHORTLIST = "shortlist.safetensors"

FREQUENT = 2000
"""Target tokens that every source may call for: on Multi30k, with a vocabulary of 8,000, 99.5 % of the outputs stay the
same with 2,000 of them and `FOR_EACH`, 97.8 % with 1,000, 88 % with 500."""

FOR_EACH = 40
"""Further target tokens for each source token, in order of how many pairs of texts have both."""

MOST_PAIRS = 100_000
"""Pairs of texts that are counted; of more, so many at even distances."""

AT_ONCE = 10_000
"""Pairs of texts that are counted together, of 25 tokens in 50 MB."""


@dataclass(frozen=True)
class Shortlist:
    """Target tokens by source token, for output layers that are computed for them alone.

    Attributes:
        common: (n,) target tokens of every source, special tokens among them.
        starts: (V_source + 1,) where the tokens of each source token begin in `tokens`.
        tokens: (m,) target tokens, those of a source token one after the other.
        copies: whether the vocabulary is shared, so that a source token may also be copied.
    """

    common: np.ndarray
    starts: np.ndarray
    tokens: np.ndarray
    copies: bool

    @classmethod
    def count(
        cls,
        pairs: Iterable[tuple[Sequence[int], Sequence[int]]],
        *,
        source_vocab_size: int,
        target_vocab_size: int,
        special_tokens: Iterable[int],
        copies: bool,
    ) -> "Shortlist":
        """Return the shortlist of tokenized pairs of texts; for many, of those at [`chosen_pairs`].

        Args:
            special_tokens: of the target; they are in every list.
            copies: whether source and target share their vocabulary.
        """
        keys, counts = np.empty(0, np.int64), np.empty(0, np.int64)
        texts = np.zeros(target_vocab_size, np.int64)  # that a target token is in

        # pairs of a source and a target token, by the number of pairs of texts that have both
        pairs = iter(pairs)
        while texts_at_once := list(islice(pairs, AT_ONCE)):
            together = []
            for source_ids, target_ids in texts_at_once:
                source, target = np.unique(np.asarray(source_ids)), np.unique(np.asarray(target_ids))
                texts[target] += 1
                together.append((source[:, None] * target_vocab_size + target).ravel())
            new, of_new = np.unique(np.concatenate(together), return_counts=True)
            keys, places = np.unique(np.concatenate([keys, new]), return_inverse=True)
            counts = np.bincount(places, np.concatenate([counts, of_new])).astype(np.int64)

        # the most frequent for all, and of the others the most frequent of each source token
        is_common = np.zeros(target_vocab_size, bool)
        is_common[np.argsort(-texts, kind="stable")[:FREQUENT]] = True
        is_common[[token for token in special_tokens if 0 <= token < target_vocab_size]] = True
        source, target = np.divmod(keys, target_vocab_size)
        order = np.lexsort((-counts, source))
        order = order[~is_common[target[order]]]
        source, target = source[order], target[order]
        first = np.searchsorted(source, np.arange(source_vocab_size + 1))
        is_kept = np.arange(len(source)) - first[source] < FOR_EACH
        starts = np.searchsorted(source[is_kept], np.arange(source_vocab_size + 1))
        return cls(is_common.nonzero()[0], starts, target[is_kept], copies)

    @staticmethod
    def chosen_pairs(count: int) -> np.ndarray:
        """Return which of so many pairs are counted."""
        return np.unique(np.linspace(0, count - 1, min(count, MOST_PAIRS)).astype(int))

    def save(self, folder: str | Path) -> None:
        """Write `shortlist.safetensors` into a folder."""
        largest = max(self.common.max(initial=0), self.tokens.max(initial=0))
        kind = np.uint16 if largest < 2**16 else np.uint32
        tensors = {
            "common": self.common.astype(kind),
            "starts": self.starts.astype(np.uint32),
            "tokens": self.tokens.astype(kind),
            "copies": np.array([self.copies]),
        }
        save_file(tensors, Path(folder) / SHORTLIST)

    @classmethod
    def load(cls, path: str | Path) -> "Shortlist":
        """Read a file of [`Shortlist.save`].

        Raises:
            ValueError: for a damaged one.
        """
        try:
            tensors = load_file(path)
            common, starts, tokens = (tensors[name].astype(np.int64) for name in ("common", "starts", "tokens"))
            return cls(common, starts, tokens, bool(tensors["copies"][0]))
        except (SafetensorError, KeyError, IndexError) as error:
            raise ValueError(f"{path} is not a shortlist, or is damaged: {error}") from error

    def tokens_for(self, source: torch.Tensor) -> torch.Tensor:
        """Return the target tokens (n,), in order, that a batch of sources (B, S) may call for."""
        ids = source.unique().numpy()
        ids = ids[(ids >= 0) & (ids < len(self.starts) - 1)]
        lists = [self.tokens[self.starts[token] : self.starts[token + 1]] for token in ids]
        return torch.from_numpy(np.unique(np.concatenate([self.common, *lists, *([ids] if self.copies else [])])))
