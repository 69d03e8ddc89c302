"""One random moment of each signal and command; `python tests/kill_moments.py FOLDER 10` tries ten."""

import os
import subprocess
from pathlib import Path

import pytest

from warm_python import warm_python

TESTS = Path(__file__).parent


@pytest.mark.slow
def test_a_command_that_is_ended_at_a_random_moment_leaves_nothing_half_written_and_can_be_repeated(tmp_path):
    """And a run that is resumed ends with the weights of the unbroken one."""
    path = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": path}
    done = subprocess.run(
        [warm_python(), TESTS / "kill_moments.py", tmp_path / "moments", "1"],
        capture_output=True, text=True, timeout=1200, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ") and "| SIG" in line]
    assert len(rows) == 15 and all(row.endswith("| 0 |") for row in rows), done.stdout
