"""Errors for people: whatever ends a command is said in one line, and a fault of the package's own is told from a mistake.

| what ended the command | status | on stderr |
|---|---|---|
| input, files, options or packages that are not in order | 2 | `error: ` and one sentence |
| a fault of this package | 1 | one sentence that says so and names the file with the traceback |
| training that diverged | 1 | one sentence |
| Ctrl-C | 130 | `interrupted`, or what is kept |
| the end of another process of the same run | 1 | one sentence |
| SIGTERM, SIGHUP | 143, 129 | the same |
| the reader of the output has gone, as after `head -1` | 1 | nothing |
"""

import contextlib
import errno
import os
import platform
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from typing import Any

EXPECTED = (ValueError, OSError, ImportError, EOFError)
"""Kinds of errors that input, files and the machine give rise to; all others are faults of the package."""

_SECRET_OPTION = re.compile(r"(?s)(--(?:token|api-key)(?:=|\s+))\S+")
_TOKEN = re.compile(r"\b(hf|api_org)_[A-Za-z0-9]{8,}")
# in what gloo and NCCL say
_LOST = ("connection closed", "connection reset", "broken pipe", "connection refused", "remote peer")
_REMEDIES = {errno.ENOSPC: "make room", errno.EACCES: "change its permissions, or name another"}
_REMEDIES |= {getattr(errno, "EDQUOT", errno.ENOSPC): "make room"}  # not on every system


_received: list[int] = []
"""Signals that have ended what was running."""


class Terminated(KeyboardInterrupt):
    """The process was asked to end (SIGTERM, SIGHUP); like Ctrl-C, so that whatever keeps work then keeps it now."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


class ClosedStreamError(OSError):
    """Standard input or output is closed."""


def exit_status(error: BaseException) -> int:
    """Return the exit status of a command that ended in this error; see the table above."""
    if isinstance(error, Terminated):
        return 128 + error.number
    if isinstance(error, KeyboardInterrupt):
        return 130
    if isinstance(error, BrokenPipeError):
        return 1
    return 2 if _is_expected(error) else 1


def describe(error: BaseException) -> str:
    """Return what an error says as one line, for people; access tokens in it are hidden."""
    if isinstance(error, OSError) and error.errno is not None and error.strerror:
        # "[Errno 13] Permission denied: 'x'"
        names = [
            os.fsdecode(name)
            for name in (error.filename, error.filename2)
            if isinstance(name, (str, bytes, os.PathLike))
        ]
        said = f"{' and '.join(names)}: {error.strerror.lower()}" if names else error.strerror
        remedy = _REMEDIES.get(error.errno)
        said += f"; {remedy}." if remedy else "."
    else:
        said = str(error)
    if type(error).__name__ == "OutOfMemoryError":
        said = f"the accelerator has too little memory; make batches smaller ({said.partition('.')[0]})."
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return hide_tokens(printable(" ".join(lines))) or type(error).__name__


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message without a full stop at its end, or the name of its class."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".")


@contextlib.contextmanager
def best_effort(what: str, instead: str, log: Callable[[str], None]) -> Iterator[None]:
    """Let an error in the block cost no more than what is made there, a picture or a card: the model is worth more.

    Args:
        what: was not made, as a sentence that goes on with the error.
        instead: what there is all the same.
        log: receives the line.

    Raises:
        OSError: of the block, as what is left to write cannot be written either.
    """
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        log(f"{what} ({type(error).__name__}: {first_line(error)}); {instead}.")


def printable(text: str) -> str:
    """Return a line without control characters, which could rewrite what the terminal shows."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def hide_tokens(text: str) -> str:
    """Return a text without the access tokens of the Hub in it."""
    return _TOKEN.sub(r"\1_***", text)


def report_bug(error: BaseException, arguments: list[str]) -> str:
    """Write the traceback of a fault of the package to a new file that only this user can read; return what to say.

    Args:
        error: as caught.
        arguments: of the command.
    """
    versions = [f"Python {platform.python_version()}", platform.platform()]
    for name in ("vanilla_transformer", "torch", "transformers"):
        if version := getattr(sys.modules.get(name), "__version__", None):
            versions.append(f"{name} {version}")
    lines = [
        f"vanilla-transformer {' '.join(arguments)}",
        ", ".join(versions),
        "".join(traceback.format_exception(error)),
    ]
    where = "no file for its traceback could be written"
    with contextlib.suppress(OSError):
        handle, path = tempfile.mkstemp(prefix="vanilla-transformer-", suffix=".log", text=True)
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(hide_tokens(_SECRET_OPTION.sub(r"\1***", "\n".join(lines))))
        where = f"the traceback is in {path}; please report it with that file"
    kind = type(error).__name__
    said = describe(error)
    return f"this is a bug in vanilla-transformer ({kind}{'' if said == kind else f': {said}'}); {where}."


@contextlib.contextmanager
def friendly_errors(arguments: list[str]) -> Iterator[None]:
    """End the process with one line on stderr and a status that tells its kind, instead of a traceback.

    Args:
        arguments: of the command, for the report of a bug.

    Raises:
        SystemExit: for every error, also those of the streams that are flushed here.
    """
    try:
        with raise_on_signals():
            yield
            _flush()
    except SystemExit:
        raise
    except BaseException as error:
        if isinstance(error, BrokenPipeError):
            _forget_output()
        elif isinstance(error, KeyboardInterrupt):
            _print_error("terminated." if isinstance(error, Terminated) else "interrupted.")
        elif is_lost_connection(error):
            _print_error(f"process {os.environ.get('RANK')} ends because another one of the run has ended")
        elif _is_expected(error):
            if not _is_said_elsewhere():
                _print_error(f"error: {describe(error)}")
        else:
            _print_error(f"error: {report_bug(error, arguments)}")
        sys.exit(exit_status(error))


def interruption() -> KeyboardInterrupt:
    """Return what ended a command where only that it was a signal is still known, as typer tells."""
    return Terminated(_received[-1]) if _received else KeyboardInterrupt()


@contextlib.contextmanager
def raise_on_signals() -> Iterator[None]:
    """Raise [`Terminated`] on SIGTERM and SIGHUP, so that what is half done is cleaned up before the process ends.

    Signals that are ignored, as SIGHUP under nohup, or handled otherwise stay so.
    """

    def handle(number: int, frame: Any) -> None:
        signal.signal(number, signal.SIG_IGN)  # once is enough: cleaning up is not to be interrupted
        _received.append(number)
        raise Terminated(number)

    before = {}
    _received.clear()
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        # only the main thread may, and only what would end the process without a word
        with contextlib.suppress(ValueError):
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_said_elsewhere() -> bool:
    """Tell whether another process of a run has met the same error: before they are connected, all do the same."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    connected = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return os.environ.get("LOCAL_RANK", "0") != "0" and not connected


def is_lost_connection(error: BaseException) -> bool:
    """Tell whether an error only says that another process of a run has ended, which says why itself."""
    return (
        int(os.environ.get("WORLD_SIZE", 1)) > 1
        and isinstance(error, RuntimeError)
        and any(words in str(error).lower() for words in _LOST)
    )


def _is_expected(error: BaseException) -> bool:
    """Tell whether an error comes from what the user gave, or from the machine."""
    return isinstance(error, (*EXPECTED, MemoryError)) or type(error).__name__ == "OutOfMemoryError"


def _flush() -> None:
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _forget_output()
        raise OSError(error.errno, error.strerror, "standard output") from error


def _forget_output() -> None:
    """Keep the interpreter from a second attempt at writing what could not be written, with a traceback, at its end."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_error(line: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(line, file=sys.stderr, flush=True)
