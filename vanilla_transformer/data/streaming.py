"""Batches by token budget from a stream: text that is read as it comes, without knowing how much there is.

    rows = datasets.load_dataset("json", data_files="huge.jsonl", split="train", streaming=True).map(tokenize)
    batches = TokenBudgetStream(rows, max_tokens=4096, pool_size=20_000, seed=1)
    loader = DataLoader(batches, batch_size=None, collate_fn=collator)  # not through accelerator.prepare

The stream shards its batches among processes and workers itself; `accelerator.prepare` would do so once more.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count as counted
from itertools import cycle, islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils import worker as worker_module

from vanilla_transformer.data.batching import (
    POOL_SIZE,
    check_budget,
    check_options,
    cut_by_budget,
    order_by_cost,
    pair_costs,
)

__all__ = ["TokenBudgetStream", "row_lengths"]

Row = dict[str, Any]
_END = object()


def row_lengths(row: Row) -> tuple[int, int]:
    """Return the tokens of `input_ids` and, where there are several, of `labels`; else 0."""
    labels = row.get("labels")
    return len(row["input_ids"]), 0 if labels is None or np.ndim(labels) == 0 else len(labels)


class TokenBudgetStream(IterableDataset[list[Row]]):
    """Yield lists of rows whose padded size stays within `max_tokens`, every row exactly once per epoch.

    `TokenBudgetBatchSampler` for rows that are not at hand. Rows are read into a pool. Those of a full pool are sorted by
    cost as there, and cut into batches, which come in random order; what does not fill a batch goes back into the pool.
    So a row moves by about `pool_size` rows at most: a source that is sorted should be shuffled once beforehand.

    All processes and all workers of a `DataLoader` read the same rows and make the same batches; each keeps its own.
    So every process gets equally many batches and the same batches come in the same order with any number of workers;
    only reading is done more than once, and should be quick.

    The batches depend on rows, options and epoch alone. `state_dict` says how far a process is; after
    `load_state_dict` the next iteration resumes at the following batch. It reads the rows before again, without
    collating them. With workers a `DataLoader` reads ahead: then count the batches of the loop, and give the count to
    `load_state_dict({"epoch": epoch, "batches": count})`.

    Args:
        rows: can be read again each epoch, as a list or a `datasets.IterableDataset`; where it has `set_epoch`, it is told
            the epoch. The same ones in the same order in every process: a data set that is shuffled needs a seed, and one
            that was divided among processes (`split_dataset_by_node`) is refused.
        max_tokens, max_sentences, count: as for `TokenBudgetBatchSampler`.
        lengths: source and target tokens of a row, special tokens included.
        pool_size: rows in the pool. Larger pools mean less padding and more memory.
        shuffle: new batches in a new order each epoch. Without it: the same ones, longest rows of a pool first.
        seed: together with the epoch fixes all that is random.
        repeat: continue with the next epoch, without end. For `Trainer`, which counts updates (`max_steps`) where it
            cannot know the number of batches.
        drop_last: leave out the last batches of an epoch where they cannot give one to each process, instead of
            repeating the epoch's first ones. One process always sees every row.
        num_processes, process_index: whose batches these are; by default those of `torch.distributed`, where it is
            initialised by the time of the first iteration, else of one process.

    Raises:
        ValueError: an option is out of range; in iteration, one row alone exceeds the budget (named by its number from
            0), or there are no rows.
    """

    def __init__(
        self,
        rows: Iterable[Row],
        max_tokens: int,
        *,
        max_sentences: int | None = None,
        lengths: Callable[[Row], tuple[int, int]] = row_lengths,
        pool_size: int = 10_000,
        shuffle: bool = True,
        seed: int = 0,
        repeat: bool = False,
        drop_last: bool = False,
        count: str = "longer",
        num_processes: int | None = None,
        process_index: int | None = None,
    ) -> None:
        check_options(
            max_tokens=max_tokens, max_sentences=max_sentences, pool_size=pool_size, num_processes=num_processes
        )
        if (num_processes is None) != (process_index is None):
            raise ValueError("num_processes and process_index belong together: give both, or neither.")
        if num_processes is not None and process_index not in range(num_processes):
            raise ValueError(f"process_index must be 0 to {num_processes - 1}, but is {process_index}.")
        if getattr(rows, "_distributed", None) is not None:
            raise ValueError(
                "the rows are divided among processes already (split_dataset_by_node), and a TokenBudgetStream divides its "
                "batches itself; give it all rows."
            )
        pair_costs(np.zeros((0, 2), dtype=np.int64), count)
        self.rows = rows
        self.max_tokens = max_tokens
        self.max_sentences = max_sentences
        self.lengths = lengths
        self.pool_size = pool_size
        self.shuffle = shuffle
        self.seed = seed
        self.repeat = repeat
        self.drop_last = drop_last
        self.count = count
        self.num_processes = num_processes
        self.process_index = process_index
        self.epoch = 0
        self._given = 0  # batches of the epoch that this process was given
        self._resumed = False

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose batches the next iteration yields, from its first."""
        if epoch != self.epoch:
            self.epoch, self._given, self._resumed = epoch, 0, False

    def state_dict(self) -> dict[str, int]:
        """Return how far this process is: the epoch and how many of its batches were given, the same on every process."""
        return {"epoch": self.epoch, "batches": self._given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Let the next iteration resume after a `state_dict`."""
        self.epoch, self._given, self._resumed = state["epoch"], state["batches"], True

    def __getstate__(self) -> dict[str, Any]:
        # a worker that is started again knows no torch.distributed
        processes, index = self._place()
        return {**self.__dict__, "num_processes": processes, "process_index": index}

    def _place(self) -> tuple[int, int]:
        if self.num_processes is not None and self.process_index is not None:
            return self.num_processes, self.process_index
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_world_size(), torch.distributed.get_rank()
        return 1, 0

    def __iter__(self) -> Iterator[list[Row]]:
        worker = get_worker_info()
        workers, index = (worker.num_workers, worker.id) if worker else (1, 0)
        if not self._resumed:
            self._given = 0
        self._resumed = False
        # A DataLoader takes batches from its workers in turn, the first from worker 0. Behind the batches that are
        # skipped and over the ends of epochs the turns go on.
        turn = counted()
        while True:
            epoch_has_batches = self._given > 0
            for batch in islice(self._rank_batches(), self._given, None):
                epoch_has_batches = True
                self._given += 1
                if next(turn) % workers == index:
                    yield batch
            if not self.repeat:
                return
            if not epoch_has_batches:  # nor will any other: this would go on without end
                raise ValueError(
                    "an epoch has fewer batches than there are processes; give more rows or fewer processes, lower "
                    "max_tokens, or leave out drop_last."
                )
            self.epoch, self._given = self.epoch + 1, 0

    def _rank_batches(self) -> Iterator[list[Row]]:
        """Yield the batches of this process."""
        processes, index = self._place()
        first: list[list[Row]] = []
        group: list[list[Row]] = []
        for batch in self._batches():
            if len(first) < processes:
                first.append(batch)
            group.append(batch)
            if len(group) == processes:
                yield group[index]
                group = []
        if group and (not self.drop_last or processes == 1):
            yield [*group, *islice(cycle(first), processes)][index]

    def _batches(self) -> Iterator[list[Row]]:
        """Yield the batches of all processes."""
        if hasattr(self.rows, "set_epoch"):
            self.rows.set_epoch(self.epoch)
        generator = np.random.default_rng([self.seed, self.epoch])
        pool: list[Row] = []
        lengths: list[tuple[int, int]] = []
        number = -1
        for number, row in enumerate(_every_row(self.rows)):
            length = self.lengths(row)
            check_budget(f"Row {number}", length, int(pair_costs(np.array([length]), self.count)[0]), self.max_tokens)
            pool.append(row)
            lengths.append(length)
            if len(pool) >= self.pool_size:
                batches, rest = self._cut(lengths, generator, is_last=False)
                yield from ([pool[i] for i in batch] for batch in batches)
                pool, lengths = [pool[i] for i in rest], [lengths[i] for i in rest]
        if number < 0:
            raise ValueError(
                f"there are no rows in epoch {self.epoch}: the source is empty, or a generator that can be read only "
                "once; give a list or a data set (datasets.IterableDataset.from_generator makes one of a function)."
            )
        batches, _ = self._cut(lengths, generator, is_last=True)
        yield from ([pool[i] for i in batch] for batch in batches)

    def _cut(
        self, lengths: list[tuple[int, int]], generator: np.random.Generator, is_last: bool
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """Return the batches of a pool as indices, and what stays in it: the shortest rows, where they do not fill a batch."""
        sides = np.asarray(lengths, dtype=np.int64).reshape(-1, 2)
        costs = pair_costs(sides, self.count)
        order = order_by_cost(sides, costs, generator if self.shuffle else None, POOL_SIZE)
        bounds = cut_by_budget(costs[order], self.max_tokens, self.max_sentences)
        batches = np.split(order, bounds[1:-1]) if len(order) else []
        rest = batches.pop() if len(batches) > 1 and not is_last else order[:0]
        if self.shuffle:
            batches = [batches[i] for i in generator.permutation(len(batches))]
        return batches, rest


def _every_row(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield all rows, also in a worker, where a `datasets.IterableDataset` would keep to its share of the files."""
    if get_worker_info() is None:
        yield from rows
        return
    if "fsspec" in sys.modules:
        import fsspec.asyn

        fsspec.asyn.reset_lock()  # which `datasets` does itself where it knows of the worker
    iterator: Iterator[Row] | None = None
    while True:
        with _outside_of_workers():
            if iterator is None:
                iterator = iter(rows)
            row: Any = next(iterator, _END)
        if row is _END:
            return
        yield row


@contextmanager
def _outside_of_workers() -> Iterator[None]:
    """Hide from data sets that they are read in a worker; torch has no public way to."""
    info, worker_module._worker_info = worker_module._worker_info, None
    try:
        yield
    finally:
        worker_module._worker_info = info
