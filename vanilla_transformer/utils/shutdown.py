"""Process-group teardown: a process of several ends only when torch's threads have released what they hold.

The threads that compute sums over processes (gloo's, in torch 2.13) wake the caller first and let go of the tensors after
that, for which they need Python's lock. Two things go wrong where the processors are busy, in about one run in a hundred:

- the interpreter has begun to end by then: the thread is made to exit in the middle of a destructor, and the process dies
  of "terminate called without an active exception", so that the launcher calls a run that has all been saved a failure;
- the group has been destroyed before a model in DistributedDataParallel is freed: freeing it waits for these threads and
  keeps the lock, and the process hangs.

So nothing in this package destroys the group as long as a model may need it; it is destroyed here, at the very end.
"""

import atexit
import os
import time
from pathlib import Path

import torch

_THREADS = Path("/proc/self/task")


def tear_down_at_exit() -> None:
    """Wait, when this process ends, until its other threads are idle, ten seconds at most; then destroy the group."""
    atexit.unregister(_tear_down)
    atexit.register(_tear_down)


def _tear_down(seconds: float = 10.0, pause: float = 0.01) -> None:
    end, quiet = time.monotonic() + seconds, 0
    # a thread that waits for Python's lock looks idle, but gets it in the pause: hence twice
    while quiet < 2 and time.monotonic() < end:
        time.sleep(pause)
        quiet = quiet + 1 if _others_are_idle() else 0
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _others_are_idle() -> bool:
    """Tell whether no thread but the first computes or is due to; True where the system does not say (other than Linux)."""
    if not _THREADS.is_dir():
        return True
    for thread in _THREADS.iterdir():
        try:
            # "number (name) state ...", where a name may hold brackets
            state = (thread / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:  # it has ended meanwhile
            continue
        if state in "RD" and int(thread.name) != os.getpid():
            return False
    return True
