"""Files and folders that are there whole or not at all, whatever stops the writing of them.

A run that is killed or that fills the disk leaves at most the folder `partial` half written, which nothing reads and
`--resume` takes away. What is whole moves to its place in one step of the file system.
"""

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

__all__ = ["PARTIAL", "delete_folder", "errors_of_writing", "move_whole", "whole_files", "whole_folder"]

PARTIAL = "partial"
"""Name of the folder in a run's folder that holds what is not yet written to its end, or is being deleted."""


_PLACES_IN_TORCH = re.compile("inline_container|iostream|PytorchStream")


@contextmanager
def whole_files(folder: Path) -> Iterator[Path]:
    """A folder to write files into, in `folder`; when all are written each moves to its place there.

    A file of the same name that was there before is replaced, in one step, or stays as it was.
    """
    partial = folder / PARTIAL
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        files = [path for path in sorted(partial.rglob("*")) if path.is_file()]
        _to_disk(files)
        for path in files:
            place = folder / path.relative_to(partial)
            place.parent.mkdir(parents=True, exist_ok=True)
            path.replace(place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def whole_folder(place: Path) -> Iterator[Path]:
    """A folder to write files into, beside `place`, which it becomes when all are written.

    Args:
        place: where nothing stands yet, or an empty folder.
    """
    partial = place.with_name(f"{place.name}.{PARTIAL}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        _to_disk(path for path in partial.rglob("*") if path.is_file())
        partial.replace(place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def move_whole(partial: Path, place: Path) -> None:
    """Move a folder that is written to its end to its place; what is there already is replaced."""
    _to_disk(path for path in partial.rglob("*") if path.is_file())
    if place.exists():
        delete_folder(place)
    partial.replace(place)


def delete_folder(folder: Path) -> None:
    """Delete a folder in one step of the file system, so that what is interrupted leaves none that looks whole."""
    doomed = folder.parent / PARTIAL / f"old-{folder.name}"
    shutil.rmtree(doomed, ignore_errors=True)
    doomed.parent.mkdir(exist_ok=True)
    folder.replace(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


@contextmanager
def errors_of_writing(what: object, remedy: str) -> Iterator[None]:
    """Give what the libraries underneath make of a full disk as one sentence.

    Raises:
        OSError: for any of them.
    """
    try:
        yield
    except Exception as error:
        # torch.save says no more than where in its source; other RuntimeErrors are none of writing
        of_torch = isinstance(error, RuntimeError) and _PLACES_IN_TORCH.search(str(error))
        # safetensors has errors of its own, and tokenizers raises nothing more special than `Exception`
        if not (of_torch or isinstance(error, (OSError, SafetensorError)) or type(error) is Exception):
            raise
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0] or type(error).__name__
        if of_torch:
            reason = "not all of it could be written, as on a full disk"
        raise OSError(f"{what} could not be written: {reason}; {remedy}.") from error


def _to_disk(files: Iterable[Path]) -> None:
    """Have the system write out what it holds in memory, so that not even a power cut leaves a file without its content.

    Some file systems say only now that they are full.
    """
    for path in files:
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
