"""Data sets of tokens, as a trainer reads them: for language models, masked or causal, and for classifiers.

Pairs stay in the `datasets` data set that `tokenize_pairs` makes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from vanilla_transformer.losses_vanilla_transformer import IGNORED

__all__ = ["CausalLMDataset", "LabelledDataset", "MaskedLMDataset", "TokenDataset"]


class TokenDataset(torch.utils.data.Dataset):
    """Rows of tokens whose lengths are known beforehand.

    Args:
        lengths: number of tokens of each row.
        ids: of each text in the data; by default their numbers from 1.
    """

    def __init__(self, lengths: Sequence[int], ids: Sequence[int] | None = None):
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.ids = ids

    def ids_of(self, index: int) -> list[int]:
        """Return the ids of the texts that a row comes from."""
        return self._ids(index, index + 1)

    def _ids(self, first: int, end: int) -> list[int]:
        return list(range(first + 1, end + 1)) if self.ids is None else list(self.ids[first:end])

    def __len__(self) -> int:
        return len(self.lengths)


class LabelledDataset(TokenDataset):
    """Rows with the names of their labels.

    Args:
        rows: `input_ids` and `labels` of each; a label that the model does not have is -100.
        names: the label of each row, or those of its tokens, as in the data.
        ids: of each row in the data.
    """

    def __init__(self, rows: list[dict[str, Any]], names: list[Any], ids: list[int]):
        super().__init__([len(row["input_ids"]) for row in rows], ids)
        self.rows, self.names = rows, names

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]


class _PlainTextDataset(TokenDataset):
    """Texts by themselves, or blocks of one length cut from all texts one after another.

    In training the cuts are at other places in each epoch and every block is full, so a few tokens at the ends are left
    over; in evaluations the cuts begin at the first token and the last block may be short.

    Args:
        texts: the tokens of each text, special tokens included.
        block_size: number of tokens of a block; None for texts by themselves.
        seed: together with the epoch fixes all that is random; None in evaluations.
        overlap: tokens that a row shares with what follows it.
        ids: of each text in the data.

    Raises:
        ValueError: where there are too few tokens for a block.
    """

    def __init__(
        self,
        texts: list[np.ndarray],
        block_size: int | None,
        seed: int | None,
        overlap: int = 0,
        ids: list[int] | None = None,
    ):
        self.block_size, self.seed, self.overlap, self.epoch = block_size, seed, overlap, 0
        self.stream = np.concatenate(texts).astype(np.int32)
        self.ends = np.cumsum([len(text) for text in texts])
        if block_size is None:
            self.starts = self.ends - [len(text) for text in texts]
            super().__init__([len(text) - overlap for text in texts], ids)
            return
        room = len(self.stream) - overlap
        if room < (1 if seed is None else 2 * block_size - 1):
            raise ValueError(
                f"{len(self.stream)} tokens are too few for blocks of data.block_size={block_size}; lower it, or give "
                "more text."
            )
        if seed is None:
            lengths = [min(block_size, room - start) for start in range(0, room, block_size)]
        else:
            # with room for the first cut anywhere within a block, so that the number of blocks never changes
            lengths = [block_size] * ((room - block_size + 1) // block_size)
        self.starts = np.arange(len(lengths)) * block_size
        super().__init__(lengths, ids)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose cuts and draws are made."""
        self.epoch = epoch

    def random(self, *more: int) -> np.random.Generator:
        """Return the same draws for the same seed, epoch and numbers, whichever process asks and in whatever order."""
        return np.random.default_rng([self.seed or 0, self.epoch, *more])

    def tokens(self, index: int) -> np.ndarray:
        """Return the (T,) tokens of a row, with the overlap."""
        start, end = self._span(index)
        return self.stream[start:end].astype(np.int64)

    def ids_of(self, index: int) -> list[int]:
        start, end = self._span(index)
        first, last = np.searchsorted(self.ends, [start, end - 1], side="right").tolist()
        return self._ids(first, last + 1)

    def _span(self, index: int) -> tuple[int, int]:
        """Return where a row begins and ends in the stream of all texts, with the overlap."""
        moved = 0 if self.seed is None or self.block_size is None else int(self.random().integers(self.block_size))
        start = int(self.starts[index]) + moved
        return start, start + int(self.lengths[index]) + self.overlap


class CausalLMDataset(_PlainTextDataset):
    """Rows for a causal language model: `input_ids`, and in `shift_labels` the token that follows each.

    A block of T tokens is compared with T following tokens, so every token of the text is predicted once an epoch.

    Args:
        bos_token_id: begins a text and is not predicted: after the end of a text nothing else could come.
    """

    def __init__(
        self,
        texts: list[np.ndarray],
        block_size: int | None = None,
        seed: int | None = None,
        bos_token_id: int | None = None,
        ids: list[int] | None = None,
    ):
        super().__init__(texts, block_size, seed, overlap=1, ids=ids)
        self.bos_token_id = bos_token_id

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        tokens = self.tokens(index)
        following = tokens[1:].copy()
        following[following == self.bos_token_id] = IGNORED
        # Trainer counts what the loss is shared by only where there are `labels`; the model then reads `shift_labels`
        return {"input_ids": tokens[:-1], "labels": tokens[:-1], "shift_labels": following}


class MaskedLMDataset(_PlainTextDataset):
    """Rows for a masked language model (Devlin et al. 2019, section 3.1): a share of the tokens is to be predicted.

    Of these, 80 % are replaced by the mask token, 10 % by a random token and 10 % by nothing. In training the choice is
    another in each epoch; it depends on seed, epoch and row alone, so that a resumed run makes the same one.

    Args:
        tokenizer: whose special tokens are never chosen and never put in a token's place.
        share: of the tokens of a row; at least one.
    """

    def __init__(
        self,
        texts: list[np.ndarray],
        tokenizer: PreTrainedTokenizerBase,
        share: float = 0.15,
        block_size: int | None = None,
        seed: int | None = None,
        ids: list[int] | None = None,
    ):
        super().__init__(texts, block_size, seed, ids=ids)
        special = set(tokenizer.all_special_ids)
        self.ordinary = np.asarray([token for token in range(len(tokenizer)) if token not in special])
        self.special = np.asarray(sorted(special))
        self.mask_token_id = tokenizer.mask_token_id
        self.share = share

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        tokens = self.tokens(index)
        draw = self.random(index)
        eligible = np.flatnonzero(~np.isin(tokens, self.special))
        chosen = draw.permutation(eligible)[: max(1, round(self.share * len(eligible)))]
        labels = np.full_like(tokens, IGNORED)
        labels[chosen] = tokens[chosen]
        inputs = tokens.copy()
        kind = draw.random(len(chosen))
        inputs[chosen[kind < 0.8]] = self.mask_token_id
        replaced = chosen[kind >= 0.9]
        inputs[replaced] = draw.choice(self.ordinary, size=len(replaced))
        return {"input_ids": inputs, "labels": labels}
