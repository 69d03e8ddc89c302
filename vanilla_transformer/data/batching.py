"""Batches by token budget: pairs of like length together, as many as fit.

A batch of n pairs is padded to its longest source and its longest target. Its cost is n times the longer of the two,
which is what fairseq's `--max-tokens` counts, and stays within the budget. With `count="both"` a pair costs its source
and its target together, so that a batch never has more tokens than the budget, both sides taken together.

In a loop of your own, with accelerate (which deals out the batches to its processes) or without:

    sampler = TokenBudgetBatchSampler(lengths, max_tokens=4096)
    loader = accelerator.prepare(DataLoader(rows, batch_sampler=sampler, collate_fn=collator))
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        sampler.set_epoch(epoch)  # which accelerate's loader does on one process only
        for batch in loader: ...

`accelerate.skip_first_batches(loader, n)` continues after n batches of an epoch. In a `Trainer` of your own,
`vanilla_transformer.trainer.token_batches.TokenBudgetMixin` does all of it. For text that does not fit in memory or has
no known end there is `vanilla_transformer.data.streaming.TokenBudgetStream`.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from torch.utils.data import Sampler

__all__ = ["COUNTS", "TokenBudgetBatchSampler", "pair_costs"]

COUNTS = ("longer", "both")

POOL_SIZE = 1024
"""Pairs of equal cost are sorted by their sides in random pools of this many."""


def pair_costs(lengths: np.ndarray, count: str) -> np.ndarray:
    """Return what each pair takes of a budget, (n,), by its source and target lengths (n, 2); see `TokenBudgetBatchSampler`.

    Raises:
        ValueError: for a `count` that is unknown.
    """
    if count not in COUNTS:
        raise ValueError(f"count must be {' or '.join(map(repr, COUNTS))}, but is {count!r}.")
    source, target = lengths[:, 0], lengths[:, 1]
    return np.maximum(source, target) if count == "longer" else source + target


def cut_by_budget(costs: np.ndarray, max_tokens: int, max_sentences: int | None) -> np.ndarray:
    """Return the bounds of the batches in rows ordered by falling cost, where the first row of a batch is its most costly."""
    bounds = [0]
    while bounds[-1] < len(costs):
        # A pair of two empty sides costs nothing; count it as one token.
        size = max_tokens // max(int(costs[bounds[-1]]), 1)
        if max_sentences is not None:
            size = min(size, max_sentences)
        bounds.append(min(bounds[-1] + size, len(costs)))
    return np.asarray(bounds)


def cut_by_sum(costs: np.ndarray, max_tokens: int, max_sentences: int | None) -> np.ndarray:
    """Return the bounds of the batches in rows of any order, where the costs of a batch sum up to at most the budget."""
    sums = np.concatenate([[0], np.cumsum(costs)])
    bounds = [0]
    while bounds[-1] < len(costs):
        start = bounds[-1]
        end = int(np.searchsorted(sums, sums[start] + max_tokens, side="right")) - 1
        bounds.append(end if max_sentences is None else min(end, start + max_sentences))
    return np.asarray(bounds)


def order_by_cost(
    lengths: np.ndarray, costs: np.ndarray, generator: np.random.Generator | None, pool_size: int
) -> np.ndarray:
    """Return indices of pairs by falling cost, pairs of equal cost by their sides; with a generator, in random pools of these."""
    everything = np.arange(len(lengths))
    source, target = -lengths[:, 0], -lengths[:, 1]
    if generator is None:
        return order_by((-costs, source, target), everything)
    # pairs of equal cost, in random order
    shuffled = order_by((-costs,), generator.permutation(len(lengths)))
    ordered = costs[shuffled]
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))
    sizes = np.diff(starts, append=len(ordered))
    # are dealt into pools: at least two, as pairs that are all in one pool would come out sorted the same way in every
    # epoch
    pool_sizes = np.minimum(pool_size, (sizes + 1) // 2)
    counts = -(-sizes // pool_sizes)
    number = np.arange(counts.sum()) - np.repeat(
        np.cumsum(counts) - counts, counts
    )  # of each pool among those of its cost
    is_first = np.zeros(len(lengths), dtype=np.int64)
    is_first[np.repeat(starts, counts) + number * np.repeat(pool_sizes, counts)] = 1
    pools = np.cumsum(is_first)
    return shuffled[order_by((pools, source[shuffled], target[shuffled]), everything)]


def order_by(keys: tuple[np.ndarray, ...], tie: np.ndarray) -> np.ndarray:
    """Return indices by rising keys, the first key first, and by rising `tie`, which is a permutation, where all keys are equal.

    As `np.lexsort` with the keys turned round, in a fraction of the time where all fit into 63 bits: sorting one column of
    numbers is quick, and sorting the places of several is not.
    """
    bits_of_tie = len(tie).bit_length()
    spans = [int(key.max()) - int(key.min()) for key in keys] if len(tie) else []
    if sum(span.bit_length() for span in spans) + bits_of_tie > 63:
        return np.lexsort((tie, *reversed(keys)))
    packed = np.zeros(len(tie), dtype=np.int64)
    for key, span in zip(keys, spans, strict=False):
        packed <<= span.bit_length()
        packed |= key - key.min()
    packed <<= bits_of_tie
    packed |= tie
    packed.sort()
    packed &= (1 << bits_of_tie) - 1
    # the tie of each place, and from it the index
    index_of = np.empty_like(tie)
    index_of[tie] = np.arange(len(tie))
    return index_of[packed]


def check_budget(name: str, length: Sequence[int] | np.ndarray, cost: int, max_tokens: int) -> None:
    """Refuse a row that no batch can hold.

    Raises:
        ValueError: naming the row, its lengths and the budget it needs.
    """
    if cost > max_tokens:
        source, target = length
        what = f"{name} ({source} source and {target} target tokens)" if target else f"{name} ({source} tokens)"
        raise ValueError(
            f"{what} exceeds the budget of max_tokens={max_tokens} on its own: raise max_tokens to at least "
            f"{cost} or lower the maximum lengths of the data."
        )


def check_options(**options: int | None) -> None:
    """Refuse numbers below 1.

    Raises:
        ValueError: naming the option.
    """
    for name, value in options.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, but is {value}.")


class TokenBudgetBatchSampler(Sampler[list[int]]):
    """Yield lists of indices whose padded size stays within `max_tokens`, every index exactly once per epoch.

    Batches are cut from the pairs ordered by their cost. Pairs equal in that respect are put in a new random
    order each epoch, so each epoch has other batches while their number and sizes never change. That the number is
    constant lets a run that was interrupted count its way back to the very batch it stopped at.

    Give it to a `DataLoader` as `batch_sampler`. It has no fixed `batch_size`: with several processes, accelerate
    deals out whole batches in turn.

    Args:
        lengths: shape (n, 2): source and target length of each pair, in tokens, special tokens included.
        max_tokens: budget of a batch: number of pairs times the cost of its most costly pair.
        max_sentences: no batch has more pairs than this; None for no limit.
        shuffle: new batches in a new order each epoch. Without it: always the same batches, longest pairs first.
        seed: together with the epoch fixes all that is random.
        pool_size: pairs of equal cost are sorted by their sides in random pools of at most this many. Larger pools
            mean less padding and less variety.
        drop_last: with several processes, leave out the last batches where they cannot give one to each process,
            instead of repeating the first ones. One process always sees every pair.
        count: a pair costs the longer of its two sides ("longer"), or both together ("both").
        packed: for batches without padding (`vanilla_transformer.data.packing`): the budget holds for the sum of the
            costs, and pairs of all lengths are mixed.

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
        pool_size: int = POOL_SIZE,
        drop_last: bool = False,
        count: str = "longer",
        packed: bool = False,
    ) -> None:
        # what may be refused
        self.lengths = np.asarray(lengths, dtype=np.int64)
        if self.lengths.ndim != 2 or self.lengths.shape[1] != 2:
            raise ValueError(f"lengths must have shape (pairs, 2), but has {self.lengths.shape}.")
        if len(self.lengths) == 0:
            raise ValueError("There are no pairs to make batches of.")
        check_options(max_tokens=max_tokens, max_sentences=max_sentences, pool_size=pool_size)
        self.max_tokens = max_tokens
        self.max_sentences = max_sentences
        self.shuffle = shuffle
        self.seed = seed
        self.pool_size = pool_size
        self.drop_last = drop_last
        self.epoch = 0

        # costs, of which none may exceed the budget
        self._kept: tuple[tuple[int, int, bool], np.ndarray, np.ndarray] | None = None
        self._costs = pair_costs(self.lengths, count)
        largest = int(self._costs.argmax())
        name = f"{'Pair' if self.lengths[:, 1].any() else 'Row'} {largest}"
        check_budget(name, self.lengths[largest], int(self._costs[largest]), max_tokens)
        # bounds of the batches, the same in every epoch
        self.packed = packed
        falling = np.sort(self._costs)[::-1]
        if packed:
            # which cost stands where is the same in every epoch, and so are the number of batches and their bounds; which
            # pair of this cost it is, is drawn again
            self._places = (
                np.random.default_rng(seed).permutation(len(falling)) if shuffle else np.arange(len(falling))
            )
            self._bounds = cut_by_sum(falling[self._places], max_tokens, max_sentences)
        else:
            self._bounds = cut_by_budget(falling, max_tokens, max_sentences)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose batches the next iteration yields."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __iter__(self) -> Iterator[list[int]]:
        order, places = self._drawn()
        self._kept = None
        for index in places.tolist():
            yield order[self._bounds[index] : self._bounds[index + 1]].tolist()

    def padding_share(self) -> float:
        """Return the share of the positions in this epoch's batches, both sides together, that hold padding: 0 to 1."""
        if self.packed:
            return 0.0
        order, _ = self._drawn()
        longest = sum(np.maximum.reduceat(self.lengths[:, side][order], self._bounds[:-1]) for side in (0, 1))
        padded = int((longest * np.diff(self._bounds)).sum())
        return 1.0 - float(self.lengths.sum()) / padded if padded else 0.0

    def _drawn(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the epoch's pairs in the order that batches are cut from, and the order of the batches.

        Pairs that are not packed come longest first; both are kept until they are iterated over.
        """
        drawn_by = (self.seed, self.epoch, self.shuffle)
        if self._kept is not None and self._kept[0] == drawn_by:
            return self._kept[1:]
        generator = np.random.default_rng([self.seed, self.epoch])
        order = order_by_cost(self.lengths, self._costs, generator if self.shuffle else None, self.pool_size)
        if self.packed:
            order = order[self._places]
        places = generator.permutation(len(self)) if self.shuffle else np.arange(len(self))
        self._kept = (drawn_by, order, places)
        return order, places
