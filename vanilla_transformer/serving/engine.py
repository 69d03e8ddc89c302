"""Dynamic batching: one thread computes the items that wait, those of like length and equal options together."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = ["BusyError", "Engine", "Item", "Model", "StoppedError"]

logger = logging.getLogger(__name__)


class BusyError(Exception):
    """More items would wait than are allowed to."""


class StoppedError(Exception):
    """The server is stopping, or its model has failed."""


@dataclass(eq=False)
class Item:
    """One row for the model.

    Attributes:
        payload: what the model computes from.
        size: number of its tokens.
        options: items are computed together only where these are equal.
        deliver: is called once, in the thread of the model, with the result or an exception.
        cancelled: nobody waits for the result any longer.
    """

    payload: Any
    size: int
    options: Hashable
    deliver: Callable[[Any], None] = lambda result: None
    cancelled: bool = False
    delivered: bool = field(default=False, init=False)

    def finish(self, result: Any) -> None:
        """Hand the result over, unless there is one already."""
        if not self.delivered:
            self.delivered = True
            self.deliver(result)


class Model(Protocol):
    """What an engine computes with."""

    def run(self, items: Sequence[Item], tick: Callable[[], None]) -> None:
        """Compute a batch: `finish` every item, as soon as it is ready, and leave off those that are cancelled.

        Args:
            tick: is called after each step, to show that the model is alive.
        """


class Engine:
    """A queue of items, and the thread that computes them with a model.

    Args:
        model: is used in that thread alone.
        max_waiting, max_batch_tokens, max_batch_items, batch_wait, stall_after: as in `ServerSettings`.
        on_batch: is called with the number of items of each batch.
    """

    def __init__(
        self,
        model: Model,
        *,
        max_waiting: int = 1024,
        max_batch_tokens: int = 1024,
        max_batch_items: int = 64,
        batch_wait: float = 0.005,
        stall_after: float = 30.0,
        on_batch: Callable[[int], None] = lambda count: None,
    ):
        self.model = model
        self.max_waiting = max_waiting
        self.max_batch_tokens = max_batch_tokens
        self.max_batch_items = max_batch_items
        self.batch_wait = batch_wait
        self.stall_after = stall_after
        self.on_batch = on_batch
        self._waiting: deque[Item] = deque()
        self._running: Sequence[Item] = ()
        self._changed = threading.Condition()
        self._stopping = False
        self._last_step = time.monotonic()
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, seconds: float = 3.0) -> None:
        """Let what is in progress end, for at most so long, then cancel it."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(seconds)
        self.cancel_all()
        self._thread.join(seconds)

    def cancel_all(self) -> None:
        """Give up all items, also those in progress, at the model's next step."""
        with self._changed:
            items = [*self._waiting, *self._running]
            self._waiting.clear()
        for item in items:
            item.cancelled = True
            item.finish(StoppedError("the server is stopping."))

    @property
    def waiting(self) -> int:
        """Return the number of items that wait."""
        return sum(not item.cancelled for item in tuple(self._waiting))

    def submit(self, items: Sequence[Item]) -> None:
        """Queue items, all or none.

        Raises:
            BusyError: where too many wait.
            StoppedError: where the server is stopping or its thread has ended.
        """
        with self._changed:
            if self._stopping or not self._thread.is_alive():
                raise StoppedError("the server is stopping.")
            for cancelled in [item for item in self._waiting if item.cancelled]:
                self._waiting.remove(cancelled)
            if len(self._waiting) + len(items) > self.max_waiting:
                raise BusyError(f"{len(self._waiting)} texts wait for the model already; try again later.")
            self._waiting.extend(items)
            self._changed.notify_all()

    def problem(self) -> str | None:
        """Return what keeps the model from answering, or None."""
        if not self._thread.is_alive():
            return "the thread of the model has ended."
        since = time.monotonic() - self._last_step
        if self._running and since > self.stall_after:
            return f"the model has not answered for {since:.0f} seconds."
        return None

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._stopping:
                    self._changed.wait()
                if self._stopping and not self._waiting:
                    return
                if self.batch_wait and len(self._waiting) < self.max_batch_items and not self._stopping:
                    self._wait_for_more()
                batch = self._running = self._next_batch()
            if batch:
                self.on_batch(len(batch))
                self._compute(batch)
            self._running = ()

    def _wait_for_more(self) -> None:
        """Wait a moment, in which requests that come together are queued together."""
        until = time.monotonic() + self.batch_wait
        while (left := until - time.monotonic()) > 0 and len(self._waiting) < self.max_batch_items:
            self._changed.wait(left)

    def _next_batch(self) -> list[Item]:
        """Take the item that has waited longest, and those nearest to its length that may go with it."""
        while self._waiting and self._waiting[0].cancelled:
            self._waiting.popleft()
        if not self._waiting:
            return []
        first = self._waiting[0]
        alike = [item for item in self._waiting if item.options == first.options and not item.cancelled]
        alike.sort(key=lambda item: (item is not first, abs(item.size - first.size)))
        batch: list[Item] = []
        widest = 0
        for item in alike[: self.max_batch_items]:
            wider = max(widest, item.size)
            if batch and wider * (len(batch) + 1) > self.max_batch_tokens:
                break
            batch.append(item)
            widest = wider
        taken = set(map(id, batch))
        self._waiting = deque(item for item in self._waiting if id(item) not in taken)
        return batch

    def _compute(self, batch: Sequence[Item]) -> None:
        self._tick()
        try:
            self.model.run(batch, self._tick)
        except Exception as error:
            left = [item for item in batch if not item.delivered]
            if len(batch) == 1:
                logger.exception("the model failed")
                left[0].finish(error) if left else None
                return
            # one item may be the cause, so that the others get another chance, each alone
            for item in left:
                self._compute([item])
            return
        for item in batch:
            item.finish(StoppedError("the request was given up."))

    def _tick(self) -> None:
        self._last_step = time.monotonic()
