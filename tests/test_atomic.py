"""Atomic writes: complete or not at all, under no name that anybody could lay a trap at, and never in the place of a device."""

import io
import os
import stat
import threading
from pathlib import Path

import pytest

from vanilla_transformer.utils.atomic import (
    atomic_dir,
    atomic_file,
    atomic_files,
    check_output_dir,
    check_output_file,
    delete_dir,
    is_temporary,
    remove_temporaries,
    replace_dir,
    translate_io_errors,
)


def content(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def write(path, text="new\n"):
    with atomic_file(path) as stream:
        stream.write(text)


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


# One file ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
def test_a_file_is_replaced_at_the_end_or_stays(tmp_path, error):
    path = tmp_path / "out.txt"
    path.write_text("old\n")
    with pytest.raises(error), atomic_file(path) as stream:
        stream.write("half")
        stream.flush()
        assert path.read_text() == "old\n"
        raise error
    assert content(tmp_path) == {"out.txt": "old\n"}
    write(path)
    with atomic_file(tmp_path / "bytes", "wb") as stream:
        stream.write(b"a\r\n")
    assert content(tmp_path) == {"out.txt": "new\n", "bytes": "a\n"}
    assert (tmp_path / "bytes").read_bytes() == b"a\r\n"


def test_what_is_called_partial_belongs_to_somebody_else(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "a.partial").symlink_to(victim)
    (tmp_path / "b.partial").mkdir()
    (tmp_path / "b.partial" / "mine").write_text("mine")
    (tmp_path / "run.partial").write_text("mine")
    for name in "ab":
        write(tmp_path / name)
    with atomic_dir(tmp_path / "run") as temporary:
        (temporary / "f").write_text("f")
    with atomic_files(tmp_path / "b.partial") as temporary:
        (temporary / "f").write_text("f")
    assert victim.read_text() == "precious" and (tmp_path / "a.partial").is_symlink()
    assert content(tmp_path / "b.partial") == {"mine": "mine", "f": "f"}
    assert (tmp_path / "run.partial").read_text() == "mine" and content(tmp_path / "run") == {"f": "f"}


def test_temporary_names_are_drawn_at_random_and_never_reused(tmp_path, monkeypatch):
    seen = []
    for _ in range(2):
        with atomic_file(tmp_path / "x"):
            seen.append(next(path.name for path in tmp_path.iterdir() if is_temporary(path)))
    assert seen[0] != seen[1]
    # even where somebody guessed a name: a link there is not followed, and another name is drawn
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / ".tmp-0000000000000000-x").symlink_to(victim)
    drawn = iter(["0" * 16, "1" * 16])
    monkeypatch.setattr("secrets.token_hex", lambda count: next(drawn))
    write(tmp_path / "x")
    assert victim.read_text() == "precious" and (tmp_path / "x").read_text() == "new\n"
    assert not (tmp_path / "x").is_symlink()


def test_links_stay_and_what_they_point_at_is_replaced(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "target").write_text("old")
    (tmp_path / "link").symlink_to("inner/target")
    (tmp_path / "second").symlink_to(tmp_path / "link")
    (tmp_path / "folder").symlink_to(tmp_path / "inner")
    before = (tmp_path / "inner" / "target").stat().st_ino
    write(tmp_path / "second")
    assert (tmp_path / "second").is_symlink() and (tmp_path / "link").is_symlink()
    assert (tmp_path / "inner" / "target").read_text() == "new\n"
    assert (tmp_path / "inner" / "target").stat().st_ino != before
    (tmp_path / "dangling").symlink_to(tmp_path / "inner" / "later")
    write(tmp_path / "dangling")
    assert (tmp_path / "inner" / "later").read_text() == "new\n"
    write(tmp_path / "folder" / "third")
    assert (tmp_path / "inner" / "third").read_text() == "new\n"
    with atomic_dir(tmp_path / "inner" / "empty") as temporary:
        (temporary / "f").write_text("f")
    (tmp_path / "to-folder").symlink_to(tmp_path / "run")
    with atomic_dir(tmp_path / "to-folder") as temporary:
        (temporary / "f").write_text("f")
    assert (tmp_path / "to-folder").is_symlink() and content(tmp_path / "run") == {"f": "f"}
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    with pytest.raises(OSError, match="leads in a circle"):
        write(tmp_path / "circle")


def test_devices_and_fifos_are_written_to(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "link").symlink_to(fifo)
    read = []
    for path in (fifo, tmp_path / "link"):
        check_output_file(path)
        reader = threading.Thread(target=lambda: read.append(fifo.read_text()))
        reader.start()
        write(path)
        reader.join(10)
    assert read == ["new\n"] * 2 and stat.S_ISFIFO(fifo.stat().st_mode)
    before = os.stat("/dev/null")
    write("/dev/null")
    (tmp_path / "null").symlink_to("/dev/null")
    write(tmp_path / "null")
    assert os.stat("/dev/null")[:3] == before[:3] and (tmp_path / "null").is_symlink()
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        write("/dev/full")


@pytest.mark.parametrize("name", ["/dev/fd/{}", "/proc/self/fd/{}", "link"])
def test_open_files_of_the_process_are_appended_to_and_never_replaced(tmp_path, name):
    log = tmp_path / "log"
    log.write_text("before\n")
    with log.open("a") as stream:
        path = name.format(stream.fileno())
        if name == "link":
            path = tmp_path / "link"
            path.symlink_to(f"/dev/fd/{stream.fileno()}")
        inode = log.stat().st_ino
        check_output_file(path)
        write(path)
        os.fstat(stream.fileno())  # still open
    assert log.read_text() == "before\nnew\n" and log.stat().st_ino == inode
    with log.open() as stream, pytest.raises(OSError, match="cannot be written: bad file descriptor"):
        check_output_file(f"/dev/fd/{stream.fileno()}")


def test_permissions_follow_the_umask_or_what_is_replaced(tmp_path):
    for mask in (0o022, 0o077, 0o002):
        before = os.umask(mask)
        try:
            write(tmp_path / f"file{mask}")
            with atomic_dir(tmp_path / f"folder{mask}") as temporary:
                (temporary / "f").write_text("f")
        finally:
            os.umask(before)
        assert mode_of(tmp_path / f"file{mask}") == 0o666 & ~mask
        assert mode_of(tmp_path / f"folder{mask}") == 0o777 & ~mask
    kept = tmp_path / "kept"
    kept.write_text("old")
    kept.chmod(0o640)
    write(kept)
    assert mode_of(kept) == 0o640
    (tmp_path / "empty").mkdir(mode=0o700)
    with atomic_dir(tmp_path / "empty") as temporary:
        (temporary / "f").write_text("f")
    assert mode_of(tmp_path / "empty") == 0o700


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("", "is empty"),
        ("a\0b", "NUL character"),
        (".", "is a folder; name a file"),
        ("gone/", "is a folder; name a file"),
        ("gone/x", "there is no folder"),
        ("file/x", "there is no folder|not a directory"),
        ("n" * 300, "file name too long"),
        ("/proc/x", "cannot be written: "),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_work(tmp_path, monkeypatch, name, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    for attempt in (check_output_file, write):
        with pytest.raises((OSError, ValueError), match=sentence) as error:
            attempt(name)
        assert "\n" not in str(error.value)
    assert content(tmp_path) == {"file": "x"}


def test_a_file_that_may_not_be_written_is_not_replaced_either(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    monkeypatch.setattr("os.access", lambda *arguments, **options: False)  # root may write everywhere
    with pytest.raises(PermissionError, match="file cannot be written: permission denied; name another file"):
        check_output_file(tmp_path / "file")
    with pytest.raises(OSError, match="/proc/new cannot be written: .*; name another folder"):
        check_output_dir("/proc/new")


# Folders -------------------------------------------------------------------------------------------------------------


def test_files_take_their_places_together_or_not_at_all(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(ZeroDivisionError), atomic_files(tmp_path) as temporary:
        (temporary / "a.txt").write_text("new")
        raise ZeroDivisionError
    assert content(tmp_path) == {"a.txt": "old"}
    with atomic_files(tmp_path) as temporary:
        (temporary / "a.txt").write_text("new")
        (temporary / "inner").mkdir()
        (temporary / "inner" / "b.txt").write_text("b")
    assert content(tmp_path) == {"a.txt": "new", "inner/b.txt": "b"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "inner"]


def test_links_inside_a_folder_lead_nowhere_else(tmp_path):
    """A run's folder may be somebody else's."""
    outside, folder = tmp_path / "outside", tmp_path / "run"
    outside.mkdir()
    (outside / "precious").write_text("precious")
    folder.mkdir()
    (folder / "metrics.json").symlink_to(outside / "precious")
    (folder / "target_tokenizer").symlink_to(outside)
    with atomic_files(folder) as temporary:
        (temporary / "metrics.json").write_text("{}")
    assert not (folder / "metrics.json").is_symlink()
    with pytest.raises(OSError, match="target_tokenizer is a link"), atomic_files(folder) as temporary:
        (temporary / "target_tokenizer").mkdir()
        (temporary / "target_tokenizer" / "precious").write_text("lost")
    (folder / "checkpoint-1").symlink_to(outside)
    delete_dir(folder / "checkpoint-1")
    assert content(outside) == {"precious": "precious"}


def test_a_folder_appears_complete_or_not_at_all(tmp_path, monkeypatch):
    with pytest.raises(ZeroDivisionError), atomic_dir(tmp_path / "a" / "b") as temporary:
        (temporary / "f").write_text("f")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with atomic_dir(".") as temporary:
        (temporary / "f").write_text("f")
    assert content(tmp_path) == {"here/f": "f"} and Path.cwd().samefile(tmp_path / "here")
    for place, sentence in (
        (".", "is not empty"),
        ("f", "is not a folder"),
        ("f/x", "cannot be written"),
        ("", "is empty"),
        ("a\0", "NUL"),
    ):
        with pytest.raises((OSError, ValueError), match=sentence), atomic_dir(place):
            raise AssertionError("refused too late")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "g").write_text("g")
    replace_dir(tmp_path / "new", tmp_path / "here")
    assert content(tmp_path) == {"here/g": "g"} and len(list(tmp_path.iterdir())) == 1


def test_what_a_killed_process_left_is_recognised(tmp_path):
    for name in (".tmp-0123456789abcdef", ".tmp-0123456789abcdef-x.txt"):
        (tmp_path / name).write_text("")
        (tmp_path / f"{name}-folder").mkdir()
    kept = ["partial", ".tmp-mine", "tmp-0123456789abcdef", ".tmp-0123456789abcdefg"]
    for name in kept:
        (tmp_path / name).write_text("")
    remove_temporaries(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)
    remove_temporaries(tmp_path / "gone")


def test_errors_of_writing_become_one_sentence():
    from safetensors import SafetensorError

    for error, reason in (
        (OSError(28, "No space left on device"), "No space left on device"),
        (SafetensorError("I/O error\nmore"), "I/O error"),
        (Exception("tokenizers: full."), "tokenizers: full"),
        (
            RuntimeError("[enforce fail at inline_container.cc:672]"),
            "not all of it could be written, as on a full disk",
        ),
    ):
        with pytest.raises(OSError) as translated, translate_io_errors("out", "make room"):
            raise error
        assert str(translated.value) == f"out could not be written: {reason}; make room."
    with pytest.raises(RuntimeError, match="^shapes$"), translate_io_errors("out", "make room"):
        raise RuntimeError("shapes")
    assert isinstance(translated.value.__cause__, RuntimeError) and not isinstance(
        translated.value, io.UnsupportedOperation
    )
