"""Text files: found, opened, unpacked, divided into lines and decoded in one way, for data, commands and scores.

Files are UTF-8 unless told otherwise and may be gzipped. No line may be longer than `LONGEST_LINE` bytes, and a gzipped
file that unpacks to more than `LARGEST_SURPRISE` bytes may not be larger than `LARGEST_RATIO` times its own size.
"""

import gzip
import io
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any

from vanilla_transformer.utils.errors import ClosedStreamError, first_line
from vanilla_transformer.utils.names import nearest_name

__all__ = [
    "LONGEST_LINE",
    "carriage_returns",
    "count_lines",
    "decode_lines",
    "existing_file",
    "missing_file",
    "open_input",
    "text_lines",
]

LONGEST_LINE = 16 << 20
"""Bytes of the longest line, and characters of the longest text, that is read."""

LARGEST_RATIO, LARGEST_SURPRISE = 200, 64 << 20
"""Text is packed to a tenth or a twentieth; what is packed to a thousandth is made to fill the memory."""


def existing_file(path: str | Path) -> Path:
    """Return the path of a file, `~` expanded.

    Raises:
        FileNotFoundError: where there is none, with the nearest name that there is.
    """
    path = Path(os.path.expanduser(path))
    if not path.is_file():
        raise missing_file(path)
    return path


def missing_file(path: Path) -> FileNotFoundError:
    """Return the error for a file that is not there, with the nearest name that is."""
    if path.is_dir():
        return FileNotFoundError(f"{path} is a folder, not a file.")
    folder = path.parent
    if not folder.is_dir():
        return FileNotFoundError(f"There is no file {path}: the folder {folder} does not exist.")
    near = nearest_name(path.name, [entry.name for entry in folder.iterdir()])
    hint = f" Did you mean {folder / near}?" if near else ""
    return FileNotFoundError(f"There is no file {path}.{hint}")


@contextmanager
def open_input(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a file, a pipe or, for `-`, standard input to read bytes; what gzip has packed is unpacked.

    Gzipped files are known by the end of their names (`.gz`) or by how they begin; a terminal is not looked at before it is
    read.

    Raises:
        FileNotFoundError: where there is no such file.
        ClosedStreamError: for standard input that is closed.
        ValueError: where a gzipped file cannot be unpacked, or unpacks to far more than texts do.
    """
    name, path = str(path), Path(path)
    if name == "-" and sys.stdin is None:
        raise ClosedStreamError("standard input is closed; give a file.")
    if name != "-" and (path.is_dir() or not path.exists()):
        raise missing_file(path)
    with nullcontext(sys.stdin.buffer) if name == "-" else path.open("rb") as stream:
        begins_as_gzip = hasattr(stream, "peek") and not stream.isatty() and stream.peek(2)[:2] == b"\x1f\x8b"
        if path.suffix != ".gz" and not begins_as_gzip:
            yield stream
            return
        try:
            with gzip.GzipFile(fileobj=stream) as unpacked:
                yield io.BufferedReader(_Unpacked(unpacked, path))
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(
                f"{path} cannot be unpacked ({first_line(error)}): it is cut short, damaged or not gzipped; get it again, "
                "or take .gz off its name."
            ) from error


class _Unpacked(io.RawIOBase):
    """The bytes of a gzipped file, while they are not out of all proportion to it."""

    def __init__(self, stream: gzip.GzipFile, path: Path):
        self.stream, self.path = stream, path
        size = path.stat().st_size if path.is_file() else float("inf")
        self.largest = max(LARGEST_RATIO * size, LARGEST_SURPRISE)
        self.given = self.lines = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        block = self.stream.read1(len(buffer))
        self.given += len(block)
        if self.given > self.largest:
            raise ValueError(
                f"{self.path} unpacks to more than {LARGEST_RATIO} times its size, which no text does (at line "
                f"{self.lines + 1}): unpack it and look at it, and give the file that comes of it."
            )
        self.lines += block.count(b"\n")
        buffer[: len(block)] = block
        return len(block)


def decode_lines(
    stream: IO[bytes], path: str | Path, encoding: str = "utf-8", notes: list[str] | None = None
) -> Iterator[str | None]:
    """Yield the lines of an open file as they are read, None for one that cannot be decoded.

    Lines end at a line feed and nowhere else: `str.splitlines` and text mode also split at form feeds, U+2028 and the
    like, after which every later line would stand beside the wrong translation. They are divided before they are decoded,
    so that one that cannot be decoded does not spoil the others. A byte order mark and the carriage returns of Windows are
    left out.

    Args:
        path: names the file in sentences.
        notes: receives what was left out.

    Raises:
        ValueError: for UTF-16, a line of more than `LONGEST_LINE` bytes, and a single line that holds carriage returns.
    """
    windows = inner = number = 0
    file = Path(path).name
    notes = [] if notes is None else notes
    while line := stream.readline(LONGEST_LINE + 2):
        number += 1
        raw = line.removesuffix(b"\n")
        if len(raw) > LONGEST_LINE:
            raise long_line(path, number)
        if number == 1:
            if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
                raise ValueError(f"{path} is in UTF-16, not {encoding}: convert it to UTF-8 first.")
            if raw.startswith(b"\xef\xbb\xbf"):
                raw = raw[3:]
                notes.append(f"byte order mark of {file} left out")
        if b"\r" in raw:
            windows += raw.endswith(b"\r")
            raw = raw.removesuffix(b"\r")
            inner += b"\r" in raw
            if inner and number == 1 and not line.endswith(b"\n"):
                raise carriage_returns(path)
        try:
            yield raw.decode(encoding)
        except UnicodeDecodeError:
            yield None
    if windows:
        notes.append(f"Windows line ends of {file} left out on {windows:,} lines")
    if inner:
        notes.append(f"carriage returns inside {inner:,} lines of {file} do not end them")


def text_lines(stream: IO[bytes], path: str | Path) -> Iterator[str]:
    """Yield the lines of an open UTF-8 file as they are read, also empty ones.

    Raises:
        ValueError: for a line that is not UTF-8, and as `decode_lines`.
    """
    for number, text in enumerate(decode_lines(stream, path), start=1):
        if text is None:
            raise ValueError(f"{path}, line {number}: not valid UTF-8; convert the text to UTF-8 first.")
        yield text


def count_lines(path: Path) -> int:
    """Count the lines of a file, having seen all of it, so that what cannot be read is refused before anything is.

    Raises:
        ValueError: for a file that is empty, whose lines end in carriage returns alone, or that has a line longer than
            `LONGEST_LINE`.
    """
    lines = returns = 0
    unfinished = 0  # bytes since the last line feed
    last = b"\n"
    with open_input(path) as stream:
        while block := stream.read(1 << 20):
            feeds = block.count(b"\n")
            returns += block.count(b"\r") - block.count(b"\r\n") - (last == b"\r" and block.startswith(b"\n"))
            if unfinished + (block.find(b"\n") if feeds else len(block)) > LONGEST_LINE:
                raise long_line(path, lines + 1)
            unfinished = len(block) - block.rfind(b"\n") - 1 if feeds else unfinished + len(block)
            lines += feeds
            last = block[-1:]
    if returns > lines:
        raise carriage_returns(path)
    # A last line without a line feed counts as well.
    lines += last != b"\n"
    if not lines:
        raise ValueError(f"{path} is empty.")
    return lines


def long_line(path: str | Path, number: int) -> ValueError:
    """Return the error for a line that is too long."""
    return ValueError(
        f"{path} has a line of more than {LONGEST_LINE >> 20} MiB, line {number}: divide it into texts, or leave it out."
    )


def carriage_returns(path: str | Path) -> ValueError:
    """Return the error for a file whose lines end in carriage returns alone, as on very old Macs."""
    return ValueError(
        f"{path} ends its lines in carriage returns without line feeds: convert it first, as with "
        "`tr '\\r' '\\n' < OLD > NEW`."
    )
