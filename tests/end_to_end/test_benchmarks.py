# SPDX-License-Identifier: Apache-2.0
"""Failed runs in tests/bench: the programs report the reason, count the failure and continue with the other runs."""

import os
import shutil
import subprocess
import sys

import pytest

BENCH = os.path.realpath(os.path.join(os.path.dirname(__file__), "../bench"))
WHY = "ivyrun: error[IVY-X099]: this is why"


@pytest.fixture
def bench(tmp_path):
    """bench(WORDS...) runs launch.py without other launchers and with an ivyrun that exits with 122."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "yes", "head", "env"):
        (tools / name).symlink_to(shutil.which(name))
    refuses = tmp_path / "ivyrun"
    refuses.write_text(f"#!/bin/sh\necho 'a first line'\necho '{WHY}' >&2\nexit 122\n")
    refuses.chmod(0o755)

    def run(*words):
        return subprocess.run(
            [sys.executable, "-B", os.path.join(BENCH, "launch.py"), *words, "--ivyrun", str(refuses)],
            env={"PATH": str(tools), "LC_ALL": "C.UTF-8"}, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=120, check=False)
    return run


def rows_of(done, command):
    return [line for line in done.stdout.splitlines() if line.startswith(f"| {command}")]


def test_a_failed_run_reports_why_and_others_are_measured(bench):
    done = bench("output", "--runs", "2", "--mib", "1")
    assert done.returncode == 1, done
    assert f"    | {WHY}\n" in done.stderr, done.stderr
    assert "exit code 122" in done.stderr and "--label rank" in done.stderr, done.stderr
    for row in rows_of(done, "ivyrun --label"):
        assert "2 failed (exit code 122)" in row and "| – | – | 0 |" in row, row
    (alone,) = rows_of(done, "one rank, no launcher")
    assert "| 2 |" in alone and "failed" not in alone, alone


def test_measured_starts_without_output_report_why(bench):
    done = bench("local", "--rounds", "2")
    assert f"    | {WHY}\n" in done.stderr, done.stderr
    assert "exit code 122" in done.stderr, done.stderr
    # Once for each of the two tables.
    assert done.stderr.count(WHY) == 2, done.stderr
    assert all("failed (a run failed)" in row for row in rows_of(done, "ivyrun ")), done.stdout


def test_other_parts_are_measured_after_a_part_fails():
    script = "import launch; print(launch.run_part('first', lambda options: 1 / 0, None)); print('second')"
    done = subprocess.run([sys.executable, "-B", "-c", script], env={**os.environ, "PYTHONPATH": BENCH},
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines()[-2:] == ["True", "second"], done
    assert "FAILED: see standard error for the reason" in done.stdout, done
    assert "ZeroDivisionError: division by zero" in done.stderr, done
