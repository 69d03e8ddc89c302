"""Let a process of a run on several processes end only when torch's threads have put down what they hold.

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

__all__ = ["leave_in_order"]

_THREADS = Path("/proc/self/task")


def leave_in_order() -> None:
    """From here on, when this process ends, it first waits until its other threads rest, but for ten seconds at most."""
    atexit.unregister(_leave)
    atexit.register(_leave)


def _leave(seconds: float = 10.0, pause: float = 0.01) -> None:
    end, quiet = time.monotonic() + seconds, 0
    # a thread that waits for Python's lock looks as if it rested, but gets it in the pause: hence twice
    while quiet < 2 and time.monotonic() < end:
        time.sleep(pause)
        quiet = quiet + 1 if _others_rest() else 0
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _others_rest() -> bool:
    """Whether no thread but the first computes or is due to; True where the system does not tell (other than Linux)."""
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
