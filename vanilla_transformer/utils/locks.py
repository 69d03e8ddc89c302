"""The lock on a run's folder: one process at a time writes to it, and a second is told which one does.

The system holds the lock (`flock`), so it ends with the process, however that ends. The lock file in the folder says who
holds it; a file that is left behind locks nothing. Where a file system has no locks, what the file says decides: the
process it names holds the folder as long as it runs.
"""

import contextlib
import errno
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import psutil
from filelock import lock_descriptor

LOCK = ".run.lock"
"""Name of the lock file in a run's folder."""

WAIT = 15.0
"""Seconds to wait for a lock whose holder is dead: until its workers, which have inherited it, notice that and end."""

# of `flock`, where a file system has no locks
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL}


class FolderInUse(ValueError):
    """A folder that another process writes to; the message names the process and the remedy."""


@dataclass(frozen=True)
class Holder:
    """The process that holds a folder.

    Attributes:
        pid: its number on its machine.
        host: name of the machine.
        started: when the process started, in seconds since 1970; tells it from a later one of the same number.
        command: its command line.
    """

    pid: int
    host: str
    started: float
    command: str

    @classmethod
    def this_process(cls) -> "Holder":
        return cls(os.getpid(), platform.node(), psutil.Process().create_time(), " ".join(sys.argv))

    def is_running(self) -> bool:
        """Return whether the process runs; True where it is one of another machine, which cannot be asked."""
        if self.host != platform.node():
            return True
        try:
            process = psutil.Process(self.pid)
            # the clock may have been set in between
            return process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - self.started) < 2
        except psutil.NoSuchProcess:
            return False
        except psutil.AccessDenied:
            return True

    def __str__(self) -> str:
        host = "" if self.host == platform.node() else f" on {self.host}"
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.started))
        command = self.command if len(self.command) <= 120 else f"{self.command[:117]}..."
        return f"process {self.pid}{host} ({command!r}, running since {since})"


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold a folder for this process; it is made where it is not there, and taken away again where it stays empty.

    Raises:
        FolderInUse: where another process holds it.
        OSError: where no file can be written there.
    """
    made = not folder.is_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise type(error)(f"{folder} cannot be made: {error.strerror}; name another folder.") from error
    try:
        descriptor = _acquire(folder)
    except OSError as error:
        _remove_empty(folder, made)
        raise type(error)(f"{folder} cannot be written to: {error.strerror}; name another folder.") from error
    try:
        yield
    finally:
        # while it is held: after that it may be another process's
        with contextlib.suppress(OSError):
            (folder / LOCK).unlink()
        os.close(descriptor)
        _remove_empty(folder, made)


def check_unlocked(folder: Path) -> None:
    """Refuse a folder that another process holds, or that lies in such a one, without holding it.

    Raises:
        FolderInUse: naming the process.
    """
    for place in (folder.absolute(), *folder.absolute().parents):
        with contextlib.suppress(OSError):
            descriptor = os.open(place / LOCK, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
            try:
                if not _try_lock(descriptor):
                    raise _in_use(place, _read_holder(descriptor))
            finally:
                os.close(descriptor)


def _acquire(folder: Path) -> int:
    """Return the open lock file, which this process holds."""
    path, end = folder / LOCK, time.monotonic() + WAIT
    while True:
        # a link that somebody laid there leads nowhere
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
        try:
            if _try_lock(descriptor):
                if _is_in_place(descriptor, path):
                    text = json.dumps(asdict(Holder.this_process())).encode()
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, text, 0)
                    return descriptor
            else:
                holder = _read_holder(descriptor)
                if holder is None or holder.is_running() or time.monotonic() > end:
                    # one that has just taken it has not yet written who it is
                    time.sleep(0.1)
                    raise _in_use(folder, holder or _read_holder(descriptor))
                time.sleep(0.1)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    """Return whether the lock is now held through this descriptor."""
    try:
        return bool(lock_descriptor(descriptor, blocking=False))
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        holder = _read_holder(descriptor)
        return holder is None or holder == Holder.this_process() or not holder.is_running()


def _is_in_place(descriptor: int, path: Path) -> bool:
    """Return whether the open file still has its name; its last holder may have deleted it in between."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _read_holder(descriptor: int) -> Holder | None:
    """Return who holds the folder by its lock file; None where that does not say."""
    try:
        values: Any = json.loads(os.pread(descriptor, 65536, 0))
        holder = Holder(**{field.name: field.type(values[field.name]) for field in fields(Holder)})  # type: ignore
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        return None
    return holder if holder.pid > 0 else None


def _in_use(folder: Path, holder: Holder | None) -> FolderInUse:
    remedy = "stop it"
    if holder is not None:
        here = holder.host == platform.node()
        remedy += f" (kill {holder.pid})" if here else f", or delete {folder / LOCK} where it is known to have ended"
    return FolderInUse(
        f"{folder} is in use by {holder or 'another process'}; wait until it has ended, {remedy}, or name another folder."
    )


def _remove_empty(folder: Path, made: bool) -> None:
    if made:
        with contextlib.suppress(OSError):
            folder.rmdir()
