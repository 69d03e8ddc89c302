"""Atomic writes: a file or folder appears under its name complete or not at all, whatever stops the writing.

What is being written stands beside its target under an unguessable name (`.tmp-...`), which is created exclusively: neither
a link that somebody laid there nor a file of that name is ever opened. Once complete and on the disk, it is moved to its
place in one step of the file system. Only a process that is killed outright leaves its temporary file behind.
"""

import errno
import io
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

_TEMPORARY = re.compile(r"\.tmp-[0-9a-f]{16}(-.*)?", re.DOTALL)
_OPEN_FILE = re.compile(r"(/proc/(?P<process>\d+)(/task/\d+)?|/dev)/fd/(?P<descriptor>\d+)")
_PLACES_IN_TORCH = re.compile("inline_container|iostream|PytorchStream")


# One file ------------------------------------------------------------------------------------------------------------


@contextmanager
def atomic_file(path: str | Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a file that replaces what `path` names once the block has ended without an error.

    Links are followed and stay: what they point at is replaced. Devices, FIFOs and the process's own open files (such as
    `/dev/stdout`) are never replaced but written to at once. A new file gets its permissions from the umask, a replaced
    file passes its own on.

    Args:
        path: where the file goes; its folder is there.
        mode: `"w"` for UTF-8 text with line feeds, `"wb"` for bytes.

    Raises:
        OSError: where it cannot be written; the error names `path`.
        ValueError: for what cannot be the name of a file.
    """
    if mode not in ("w", "wb"):
        raise ValueError(f"mode is 'w' or 'wb', not {mode!r}.")
    target, descriptor = _follow_links(path)
    before = None if descriptor is not None else _status(target, path)
    # what cannot be replaced is written to: an open file, a device, a FIFO
    if descriptor is not None or (before is not None and not stat.S_ISREG(before.st_mode)):
        with _stream(_open_directly(target, descriptor, path), path, mode) as stream:
            yield stream
        return
    temporary, handle = _create_beside(target, before, path)
    try:
        with _stream(handle, path, mode) as stream:
            yield stream
            stream.flush()
            os.fsync(handle)
        _replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_dir(target.parent)


def check_output_file(path: str | Path) -> None:
    """Refuse, before long work, a file that could not be written after it.

    Raises:
        OSError, ValueError: in one sentence that names it.
    """
    target, descriptor = _follow_links(path)
    if descriptor is not None:
        os.close(_open_directly(target, descriptor, path))
        return
    before = _status(target, path)
    if before is not None and not stat.S_ISREG(before.st_mode):
        # not opened: a FIFO waits for its reader
        if not os.access(target, os.W_OK):
            raise _unwritable(PermissionError(errno.EACCES, os.strerror(errno.EACCES)), path)
        return
    # the permissions of a folder say less than trying it
    temporary, handle = _create_beside(target, before, path)
    os.close(handle)
    temporary.unlink()


def _follow_links(path: str | Path) -> tuple[Path, int | None]:
    """Return what a name leads to, and the number of the open file of this process that it stands for, if any."""
    name = _checked_name(path, "file")
    for _ in range(40):  # as many as Linux follows
        folder, base = os.path.split(os.path.join(os.getcwd(), name))
        if base in ("", ".", ".."):
            raise IsADirectoryError(f"{path} is a folder; name a file.")
        name = os.path.join(os.path.realpath(folder), base)
        if (match := _OPEN_FILE.fullmatch(name)) and match["process"] in (None, str(os.getpid())):
            return Path(name), int(match["descriptor"])
        if match or not os.path.islink(name):
            return Path(name), None
        name = os.path.join(os.path.dirname(name), os.readlink(name))
    raise OSError(f"{path} is a link that leads in a circle; name another file.")


def _checked_name(path: str | Path, kind: str) -> str:
    """Return a path with the home folder for `~`; refuse what no file or folder can be called."""
    name = os.path.expanduser(os.fspath(path))
    if not name:
        raise ValueError(f"the name of a {kind} to write is empty; give one.")
    if "\0" in name:
        raise ValueError(f"{name!r} contains a NUL character, which a file name cannot; name another {kind}.")
    return name


def _status(target: Path, path: str | Path) -> os.stat_result | None:
    """Return what stands at a target; None for nothing yet."""
    try:
        found = os.stat(target)
    except FileNotFoundError:
        if not target.parent.is_dir():
            raise FileNotFoundError(f"{path} cannot be written: there is no folder {target.parent}.") from None
        return None
    except OSError as error:
        raise _unwritable(error, path) from error
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(f"{path} is a folder; name a file.")
    return found


def _open_directly(target: Path, descriptor: int | None, path: str | Path) -> int:
    try:
        if descriptor is None:
            return os.open(target, os.O_WRONLY | os.O_NOCTTY)
        # opening its name again would begin at its start, and cut a log that the shell appends to
        handle = os.dup(descriptor)
        try:
            os.write(handle, b"")
        except OSError:
            os.close(handle)
            raise
        return handle
    except OSError as error:
        raise _unwritable(error, path) from error


def _create_beside(target: Path, before: os.stat_result | None, path: str | Path) -> tuple[Path, int]:
    """Create the temporary file of a target, with the permissions that the target is to have."""
    try:
        if before is not None and not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        while True:
            temporary = target.with_name(_temporary_name(target.name))
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
            with suppress(FileExistsError):
                handle = os.open(temporary, flags, 0o666)
                break
    except OSError as error:
        raise _unwritable(error, path) from error
    if before is not None:
        with suppress(OSError, AttributeError):  # another owner's file stays theirs where the system lets us
            os.fchown(handle, before.st_uid, before.st_gid)
        with suppress(OSError, AttributeError):
            os.fchmod(handle, stat.S_IMODE(before.st_mode) & 0o777)
    return temporary, handle


def _replace(temporary: Path, target: Path) -> None:
    try:
        temporary.replace(target)
    except OSError as error:
        if error.errno not in (errno.EBUSY, errno.EXDEV) or target.is_dir():
            raise
        # a file that is mounted by itself, as into a container, cannot be replaced, but written
        with temporary.open("rb") as source, target.open("r+b") as sink:
            shutil.copyfileobj(source, sink)
            sink.truncate()
            sink.flush()
            os.fsync(sink.fileno())


class _NamingErrors(io.FileIO):
    """A raw file whose errors name it; those of the system do not."""

    shown = ""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.shown) from error


@contextmanager
def _stream(handle: int, path: str | Path, mode: str) -> Iterator[IO[Any]]:
    raw = _NamingErrors(handle, "w")
    raw.shown = os.fspath(path)
    buffered = io.BufferedWriter(raw)
    stream: Any = buffered if mode == "wb" else io.TextIOWrapper(buffered, encoding="utf-8", newline="\n")
    try:
        yield stream
        stream.flush()
    except BaseException:
        # what is still in the buffer cannot be written either, and would raise once more
        with suppress(OSError):
            raw.close()
        with suppress(OSError, ValueError):
            stream.close()
        raise
    stream.close()


# Folders -------------------------------------------------------------------------------------------------------------


@contextmanager
def atomic_files(folder: str | Path) -> Iterator[Path]:
    """Give a temporary folder inside `folder`; when the block ends without an error each file in it moves to its place.

    Files of the same name are replaced, each in one step, or stay as they were. Links inside `folder` are replaced, never
    followed: the files of a folder, which may be somebody else's, lead nowhere else.
    """
    folder = Path(folder)
    made = _make_dirs(folder)
    temporary = None
    try:
        temporary = new_temporary_dir(folder)
        yield temporary
        files = [path for path in sorted(temporary.rglob("*")) if path.is_file()]
        _sync(files)
        for path in files:
            place = folder / path.relative_to(temporary)
            for above in reversed(place.relative_to(folder).parents[:-1]):
                if (folder / above).is_symlink():
                    raise OSError(f"{folder / above} is a link, which is not followed; delete it.")
            place.parent.mkdir(parents=True, exist_ok=True)
            path.replace(place)
        _sync_dir(folder)
        made = []
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        _unmake_dirs(made)


@contextmanager
def atomic_dir(place: str | Path) -> Iterator[Path]:
    """Give a temporary folder beside `place`, which it becomes when the block ends without an error.

    Args:
        place: where nothing stands yet, or an empty folder, or a link to either.

    Raises:
        OSError: for anything else.
    """
    place = check_output_dir(place)
    if place.is_dir() and (os.path.ismount(place) or place.samefile(Path.cwd())):
        # such a folder cannot be replaced
        with atomic_files(place) as temporary:
            yield temporary
        return
    made = _make_dirs(place.parent)
    folder = None
    try:
        folder = new_temporary_dir(place.parent, place.name)
        yield folder
        _sync(path for path in folder.rglob("*") if path.is_file())
        if place.is_dir():
            folder.chmod(stat.S_IMODE(place.stat().st_mode))
        folder.replace(place)
        _sync_dir(place.parent)
        made = []
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        _unmake_dirs(made)


def check_output_dir(place: str | Path, *, empty: bool = True) -> Path:
    """Refuse, before long work, a folder that could not be written after it; return it without links.

    Args:
        place: the folder; it need not exist.
        empty: also refuse one that holds something.

    Raises:
        OSError, ValueError: in one sentence that names it.
    """
    folder = Path(os.path.realpath(_checked_name(place, "folder")))
    try:
        if os.path.lexists(folder) and not folder.is_dir():
            raise NotADirectoryError(f"{place} is not a folder; name another folder.")
        if empty and folder.is_dir() and any(folder.iterdir()):
            raise FileExistsError(f"{place} is not empty; name another folder.")
        above = folder
        while not os.path.lexists(above):
            above = above.parent
        new_temporary_dir(above).rmdir()
    except OSError as error:
        if error.errno is None:
            raise
        raise _unwritable(error, place, "folder") from error
    return folder


def replace_dir(source: Path, place: Path) -> None:
    """Move a complete folder to its place; what is there already is replaced."""
    _sync(path for path in source.rglob("*") if path.is_file())
    if os.path.lexists(place):
        delete_dir(place)
    source.replace(place)
    _sync_dir(place.parent)


def delete_dir(folder: Path) -> None:
    """Delete a folder in one step of the file system, so that an interruption leaves none that looks complete."""
    if folder.is_symlink():
        folder.unlink()
        return
    doomed = folder.with_name(_temporary_name(f"old-{folder.name}"))
    try:
        folder.replace(doomed)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EBUSY):  # of an overlay's lower layer; a mounted folder
            raise
        doomed = folder
    shutil.rmtree(doomed, ignore_errors=True)


def new_temporary_dir(folder: str | Path, label: str = "") -> Path:
    """Make a folder of unguessable name in another, with the permissions that the umask gives."""
    while True:
        temporary = Path(folder) / _temporary_name(label)
        with suppress(FileExistsError):
            temporary.mkdir()
            return temporary


def is_temporary(path: str | Path) -> bool:
    """Tell whether this is a name that a temporary file or folder of this module has."""
    return _TEMPORARY.fullmatch(Path(path).name) is not None


def remove_temporaries(folder: Path) -> None:
    """Delete what processes that were killed have left in a folder that nobody else is writing to."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if not is_temporary(path):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _temporary_name(label: str = "") -> str:
    # with the ending of the name, as some writers go by it; no name is longer than 255 bytes
    return f".tmp-{secrets.token_hex(8)}" + (f"-{label[-40:]}" if label else "")


def _make_dirs(folder: Path) -> list[Path]:
    """Make a folder and those above it; return the ones that were not there, the lowest first."""
    missing: list[Path] = []
    above = folder
    while not above.exists() and above != above.parent:
        missing.append(above)
        above = above.parent
    folder.mkdir(parents=True, exist_ok=True)
    return missing


def _unmake_dirs(made: Iterable[Path]) -> None:
    for folder in made:
        with suppress(OSError):  # somebody has put something there
            folder.rmdir()


# What the system says ------------------------------------------------------------------------------------------------


@contextmanager
def translate_io_errors(what: object, remedy: str) -> Iterator[None]:
    """Translate what the libraries underneath raise on a full disk into one sentence.

    Raises:
        OSError: for any of them.
    """
    try:
        yield
    except Exception as error:
        from safetensors import SafetensorError  # not before: the command line is to start at once

        # torch.save says no more than where in its source; other RuntimeErrors have nothing to do with writing
        of_torch = isinstance(error, RuntimeError) and _PLACES_IN_TORCH.search(str(error))
        # safetensors has errors of its own, and tokenizers raises nothing more special than `Exception`
        if not (of_torch or isinstance(error, (OSError, SafetensorError)) or type(error) is Exception):
            raise
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0] or type(error).__name__
        if of_torch:
            reason = "not all of it could be written, as on a full disk"
        raise OSError(f"{what} could not be written: {reason.rstrip('.')}; {remedy}.") from error


def _unwritable(error: OSError, path: str | Path, kind: str = "file") -> OSError:
    """Return an error of the system as one sentence."""
    name, reason = os.fspath(path), (error.strerror or str(error)).lower()
    shown = name if len(name) <= 200 else f"{name[:100]}... ({len(name)} characters)"
    return type(error)(f"{shown} cannot be written: {reason}; name another {kind}.")


def _sync(files: Iterable[Path]) -> None:
    """Have the system write out what it holds in memory, so that not even a power cut leaves a file without its content.

    Some file systems say only now that they are full.
    """
    for path in files:
        with path.open("rb") as stream:
            os.fsync(stream.fileno())


def _sync_dir(folder: Path) -> None:
    """Have the system write out the names in a folder, where it can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
