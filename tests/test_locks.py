"""The lock on a run's folder: a second process is refused and told who holds it; what is left behind locks nothing."""

import errno
import json
import os
import platform
import subprocess
import sys
import time

import psutil
import pytest

from runs import every_update, run, weights
from vanilla_transformer.cli import main
from vanilla_transformer.utils import locks
from vanilla_transformer.utils.locks import LOCK, FolderInUse, Holder, check_unlocked, lock_folder

HOLD = """
import os, sys
sys.argv[0] = "somebody's run"
from pathlib import Path
from vanilla_transformer.utils.locks import lock_folder
with lock_folder(Path({folder!r})):
    print("held", flush=True)
    {then}
"""


@pytest.fixture
def hold(tmp_path):
    """Start a process that holds the folder until its stdin ends, or does something else."""
    started = []

    def start(then="sys.stdin.read()", folder=tmp_path / "run"):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD.format(folder=str(folder), then=then)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_a_second_process_is_refused_by_every_command_and_told_who_holds_the_folder(tmp_path, hold, capsys):
    values = every_update(tmp_path, max_steps=2)
    run(values)
    folder = tmp_path / "run"
    recipe, before = folder / "recipe.yaml", {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    holder = hold(folder=folder)
    for arguments in (
        ["train", recipe, "--resume"],
        ["train", recipe, "--overwrite"],
        ["average", folder, "-o", folder / "checkpoint-1"],
        ["average", folder, "-o", folder / "mean"],
        ["average", folder, "-o", folder],
    ):
        with pytest.raises(SystemExit) as ended:
            main(list(map(str, arguments)))
        said = capsys.readouterr().err.splitlines()[-1]
        assert ended.value.code == 2
        assert said.startswith(
            f'error: {folder} is in use by process {holder.pid} ("somebody\'s run", running since 20'
        )
        assert said.endswith(f"; wait until it has ended, stop it (kill {holder.pid}), or name another folder."), said
    left = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != LOCK}
    left.pop(folder, None), before.pop(folder, None)
    assert left == {path: time for path, time in before.items() if path != folder}
    holder.communicate()
    run(values, resume=True)
    assert not (folder / LOCK).exists()


def test_a_lock_ends_with_its_process_also_one_that_is_killed_whose_workers_live_on(tmp_path, hold):
    killed = hold("os.kill(os.getpid(), 9)")
    killed.wait()
    assert json.loads((tmp_path / "run" / LOCK).read_text())["pid"] == killed.pid
    with lock_folder(tmp_path / "run"):
        assert json.loads((tmp_path / "run" / LOCK).read_text())["pid"] == os.getpid()
    assert not (tmp_path / "run" / LOCK).exists()

    parent = hold("import time; os.fork() or (time.sleep(1), os._exit(0)); os.kill(os.getpid(), 9)")
    parent.wait()
    with pytest.raises(FolderInUse):
        check_unlocked(tmp_path / "run")
    begun = time.monotonic()
    with lock_folder(tmp_path / "run"):
        assert time.monotonic() - begun < 10


def test_a_folder_that_stays_empty_is_taken_away_and_another_is_left(tmp_path):
    with lock_folder(tmp_path / "deep" / "new"):
        with pytest.raises(FolderInUse, match=f"process {os.getpid()} "), lock_folder(tmp_path / "deep" / "new"):
            pass
        check_unlocked(tmp_path / "elsewhere")
    assert not (tmp_path / "deep" / "new").exists()
    (tmp_path / "old").mkdir()
    with lock_folder(tmp_path / "old"):
        pass
    assert list((tmp_path / "old").iterdir()) == []


def test_a_lock_file_of_another_kind_leads_nowhere_and_locks_nothing(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "run" / LOCK).symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="cannot be written to"), lock_folder(tmp_path / "run"):
        pass
    assert (tmp_path / "precious").read_text() == "kept"
    for text in ("", "[]", "3", '{"pid": "x"}', '{"pid": -1, "host": "", "started": 0, "command": ""}', "\0" * 100):
        (tmp_path / "run" / LOCK).unlink(missing_ok=True)
        (tmp_path / "run" / LOCK).write_text(text)
        with lock_folder(tmp_path / "run"):
            assert json.loads((tmp_path / "run" / LOCK).read_text())["pid"] == os.getpid()


@pytest.mark.parametrize("stale", ["dead", "reused", "zombie", None, "elsewhere"])
def test_where_a_file_system_has_no_locks_the_process_that_the_file_names_decides(tmp_path, monkeypatch, stale):
    def no_locks(descriptor, blocking):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(locks, "lock_descriptor", no_locks)
    monkeypatch.setattr(locks, "WAIT", 0.0)
    other = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    started = psutil.Process(other.pid).create_time()
    if stale in ("dead", "zombie"):
        other.communicate() if stale == "dead" else (other.stdin.close(), time.sleep(0.5))
    host = "elsewhere" if stale == "elsewhere" else platform.node()
    holder = Holder(other.pid, host, started - (100 if stale == "reused" else 0), "train")
    (tmp_path / LOCK).write_text(json.dumps(vars(holder)))
    if stale in (None, "elsewhere"):
        remedy = f"delete {tmp_path / LOCK} where" if stale else rf"stop it \(kill {other.pid}\)"
        with pytest.raises(FolderInUse, match=remedy), lock_folder(tmp_path):
            pass
    else:
        with lock_folder(tmp_path):
            assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
    if stale != "dead":
        other.kill()
        other.communicate()


def test_two_runs_that_start_at_once_do_not_both_train(tmp_path, hold):
    values = every_update(tmp_path, max_steps=2)
    holder = hold()
    with pytest.raises(FolderInUse, match="is in use by process"):
        run(values)
    holder.communicate()
    assert weights(run(values).folder)
