"""SIGINT (Ctrl-C), SIGTERM (a scheduler, a spot machine) and SIGHUP end a run in order: a checkpoint, and what to type next."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch

from vanilla_transformer.utils.errors import Terminated

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]

GRACE = 30
"""Seconds for which a worker that loads data lives on after SIGTERM, for the update that needs its batches."""


class Interruption:
    """A request to stop, as signals make it.

    Outside of `deferred()` a signal raises [`Terminated`] at once. Within it, the first is remembered until whoever trains
    asks for it with `requested`, so that an update is made to its end, and the second raises.

    Args:
        log: receives a line when a signal is remembered.
        outer: which is told as well.

    Attributes:
        number: of the signal that was remembered; 0 for none.
        when: what the run does outside of training, for a sentence.
    """

    def __init__(self, log: Callable[[str], None] = lambda line: None, outer: "Interruption | None" = None):
        self.log = log
        self.outer = outer
        self.number = 0
        self.when = "before training"
        self._process = os.getpid()
        self._deferred = False
        self._group: torch.distributed.ProcessGroup | None = None

    def handle(self, number: int, frame: FrameType | None = None) -> None:
        """Take in a signal."""
        if os.getpid() != self._process:
            self._handle_in_worker(number)
            return
        at_once = not self._deferred or bool(self.number)
        # what is raised while Python frees objects is lost; see `check`
        self.number = number
        if self.outer is not None:
            self.outer.number = number
        if at_once:
            raise Terminated(number)
        self.log(f"{signal.Signals(number).name}: saving a checkpoint after this update; once more to stop at once")

    def _handle_in_worker(self, number: int) -> None:
        """Take in a signal that a whole group of processes was sent, in one that was forked to load data."""
        if not self._deferred:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif number != signal.SIGINT:
            signal.alarm(GRACE)  # whose signal ends it, unless it is told to end before

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Remember signals within the block."""
        self.check()
        before, self._deferred = self._deferred, True
        try:
            yield
        finally:
            self._deferred = before
        # it may have come after the last update
        if number := self.requested():
            raise Terminated(number)

    def check(self) -> None:
        """Raise for a signal that came before and was lost: Python only prints what is raised in a destructor.

        Raises:
            Terminated: where there was one.
        """
        if self.number:
            raise Terminated(self.number)

    def requested(self) -> int:
        """Return the number of the signal that any process has received, 0 for none; all processes must call this.

        They compare notes through gloo, on processors, so that no accelerator waits for it.
        """
        if not torch.distributed.is_available() or not torch.distributed.is_initialized():
            return self.number
        if torch.distributed.get_world_size() == 1:
            return self.number
        if self._group is None:
            self._group = torch.distributed.new_group(backend="gloo")
        number = torch.tensor(self.number)
        torch.distributed.all_reduce(number, torch.distributed.ReduceOp.MAX, group=self._group)
        return int(number)


@contextmanager
def catch_signals(log: Callable[[str], None] = lambda line: None) -> Iterator[Interruption]:
    """Give SIGINT, SIGTERM and SIGHUP to an [`Interruption`] within the block.

    A signal that this process ignores, as a shell makes programs in the background ignore SIGINT, stays ignored. In a thread
    other than the first, where Python takes no handlers, signals do what they did. Within another `catch_signals` the
    outer one's handlers come back at the end.
    """
    current = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    interruption = Interruption(log, current if isinstance(current, Interruption) else None)
    before: dict[int, Any] = {}
    shown = sys.unraisablehook

    def hide_signals(error: Any) -> None:
        # one that comes while Python frees an object is looked at later; see `check`
        if not isinstance(error.exc_value, Terminated):
            shown(error)

    sys.unraisablehook = hide_signals
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, interruption.handle)
    try:
        yield interruption
    finally:
        sys.unraisablehook = shown
        for number, handler in before.items():
            signal.signal(number, handler)
