"""Batches by token budget: pairs of like length together, as many as fit.

A batch of n pairs is padded to its longest source and its longest target. Its cost is n times the longer of the two,
which is what fairseq's `--max-tokens` counts, and stays within the budget.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from torch.utils.data import Sampler

__all__ = ["TokenBudgetBatchSampler"]


class TokenBudgetBatchSampler(Sampler[list[int]]):
    """Yield lists of indices whose padded size stays within `max_tokens`, every index exactly once per epoch.

    Batches are cut from the pairs ordered by their longer side. Pairs equal in that respect are put in a new random
    order each epoch, so each epoch has other batches while their number and sizes never change. That the number is
    constant lets a run that was interrupted count its way back to the very batch it stopped at.

    Give it to a `DataLoader` as `batch_sampler`. It has no fixed `batch_size`: with several processes, accelerate
    deals out whole batches in turn.

    Args:
        lengths: shape (n, 2): source and target length of each pair, in tokens, special tokens included.
        max_tokens: budget of a batch: number of pairs times the longest source or target, whichever is longer.
        max_sentences: no batch has more pairs than this; None for no limit.
        shuffle: new batches in a new order each epoch. Without it: always the same batches, longest pairs first.
        seed: together with the epoch fixes all that is random.
        pool_size: pairs whose longer sides are equal are sorted by their other side in random pools of at most this
            many. Larger pools mean less padding and less variety.
        drop_last: with several processes, leave out the last batches where they cannot give one to each process,
            instead of repeating the first ones. One process always sees every pair.

    Raises:
        ValueError: there is no pair, an option is out of range, or one pair alone exceeds the budget.
    """

    # Read by accelerate: None stands for batches of varying size.
    batch_size: int | None = None

    def __init__(
        self,
        lengths: Sequence[tuple[int, int]] | np.ndarray,
        max_tokens: int,
        *,
        max_sentences: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        pool_size: int = 1024,
        drop_last: bool = False,
    ) -> None:
        self.lengths = np.asarray(lengths, dtype=np.int64)
        if self.lengths.ndim != 2 or self.lengths.shape[1] != 2:
            raise ValueError(f"lengths must have shape (pairs, 2), but has {self.lengths.shape}.")
        if len(self.lengths) == 0:
            raise ValueError("There are no pairs to make batches of.")
        for name, value in (("max_tokens", max_tokens), ("max_sentences", max_sentences), ("pool_size", pool_size)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, but is {value}.")
        self.max_tokens = max_tokens
        self.max_sentences = max_sentences
        self.shuffle = shuffle
        self.seed = seed
        self.pool_size = pool_size
        self.drop_last = drop_last
        self.epoch = 0

        self._longer = self.lengths.max(axis=1)
        longest = int(self._longer.argmax())
        if self._longer[longest] > max_tokens:
            source, target = self.lengths[longest]
            what = f"Pair {longest} ({source} source and {target} target tokens)"
            if not self.lengths[:, 1].any():
                what = f"Row {longest} ({source} tokens)"
            raise ValueError(
                f"{what} exceeds the budget of max_tokens={max_tokens} on its own: raise max_tokens to at least "
                f"{self._longer[longest]} or lower the maximum lengths of the data."
            )
        self._bounds = self._cut(np.sort(self._longer)[::-1])

    def _cut(self, longer: np.ndarray) -> np.ndarray:
        """Bounds of the batches in pairs ordered by falling length. The first pair of a batch is its longest."""
        bounds = [0]
        while bounds[-1] < len(longer):
            # A pair of two empty sides costs nothing; count it as one token.
            size = self.max_tokens // max(int(longer[bounds[-1]]), 1)
            if self.max_sentences is not None:
                size = min(size, self.max_sentences)
            bounds.append(min(bounds[-1] + size, len(longer)))
        return np.asarray(bounds)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose batches the next iteration yields."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __iter__(self) -> Iterator[list[int]]:
        generator = self._generator()
        batches = self._batches(generator)
        order = generator.permutation(len(batches)) if self.shuffle else range(len(batches))
        for index in order:
            yield batches[index].tolist()

    def padding_share(self) -> float:
        """Share of the positions in this epoch's batches, sources and targets together, that hold padding: 0 to 1."""
        padded = sum(
            len(batch) * int(self.lengths[batch].max(axis=0).sum()) for batch in self._batches(self._generator())
        )
        return 1.0 - float(self.lengths.sum()) / padded if padded else 0.0

    def _generator(self) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.epoch])

    def _batches(self, generator: np.random.Generator) -> list[np.ndarray]:
        """The epoch's batches, longest pairs first."""
        source, target = self.lengths[:, 0], self.lengths[:, 1]
        count = len(self.lengths)
        if self.shuffle:
            tie = generator.permutation(count)
            # Pairs with an equal longer side, in random order, are dealt into pools: at least two, as pairs that are
            # all in one pool would come out sorted the same way in every epoch.
            shuffled = np.lexsort((tie, -self._longer))
            keys = -self._longer[shuffled]
            start, end = (np.searchsorted(keys, keys, side=side) for side in ("left", "right"))
            pool = np.empty(count, dtype=np.int64)
            pool[shuffled] = (np.arange(count) - start) // np.minimum(self.pool_size, (end - start + 1) // 2)
        else:
            tie = np.arange(count)
            pool = np.zeros(count, dtype=np.int64)
        # The last key is the first to sort by.
        order = np.lexsort((tie, -target, -source, pool, -self._longer))
        return np.split(order, self._bounds[1:-1])
