"""torch's own DistributedTest suite in the ranks of a job: torch_suite.py BACKEND FOLDER [NAME ... | +NAME]

Each rank forks a process for each test, which joins the job, runs the test and leaves. Prints one line per test: its
name, ok, skipped or failed, and why. +NAME: the tests after that one. The suite is written for gloo; for another
backend its calls that name gloo are changed. Exits with 3 if a test hangs, because the later tests need a new job.
"""

import contextlib
import os
import signal
import sys
import time
import types
import unittest
from datetime import timedelta

BACKEND, FOLDER = sys.argv[1:3]
os.environ.update(BACKEND="gloo", TEMP_DIR=FOLDER, INIT_METHOD="env://")
# The suite's base class is from expecttest, whose features these tests do not use.
sys.modules["expecttest"] = types.SimpleNamespace(TestCase=unittest.TestCase, assert_expected_inline=None)

import torch.distributed as dist  # noqa: E402
from torch.testing._internal import common_distributed  # noqa: E402
from torch.testing._internal.distributed import distributed_test as suite  # noqa: E402

RANK = int(os.environ["RANK"])
TIMEOUT = float(os.environ.get("SUITE_TIMEOUT", "60"))
SKIPS = {skip.exit_code for skip in common_distributed.TEST_SKIPS.values()}


class Suite(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
    pass


def change_backend():
    def changed(function):
        def call(*arguments, **named):
            if named.get("backend") == "gloo":
                named["backend"] = BACKEND
            return function(*arguments, **named)
        return call

    dist.new_group, dist.init_process_group = changed(dist.new_group), changed(dist.init_process_group)


def outcome_of(name):
    """Runs a test in this process, which was forked for it."""
    folder = os.path.join(FOLDER, name)
    for part in "barrier", "test_dir", "init_dir":
        os.makedirs(os.path.join(folder, part), exist_ok=True)
    os.environ["TEMP_DIR"] = folder
    test = Suite(name)
    test.rank, test.file_name = RANK, os.path.join(folder, "init_dir", "file")
    seconds = suite.CUSTOM_PG_TIMEOUT.get(name, TIMEOUT)
    dist.init_process_group(BACKEND, timeout=timedelta(seconds=seconds))
    try:
        common_distributed.common_utils.set_rng_seed()
        getattr(test, name)()
        return "ok"
    except unittest.SkipTest:
        return "skipped"
    except SystemExit as end:
        return "skipped" if end.code in SKIPS else f"failed SystemExit {end.code}"
    except BaseException as error:  # noqa: BLE001 - each is an outcome.
        return f"failed {type(error).__name__}: {' '.join(str(error).split())[:600]}"
    finally:
        wait_for_others(folder)
        with contextlib.suppress(Exception):
            dist.destroy_process_group()


def wait_for_others(folder):
    """Waits for the other ranks, because a rank that leaves would break their operations."""
    open(os.path.join(folder, f"done.{RANK}"), "w").close()
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end:
        if all(os.path.exists(os.path.join(folder, f"done.{rank}")) for rank in range(int(os.environ["WORLD_SIZE"]))):
            return
        time.sleep(0.01)


def run(name):
    """Runs a test in a forked process. Returns False if it hangs."""
    child = os.fork()
    if child == 0:
        try:
            said = outcome_of(name)
        except BaseException as error:  # noqa: BLE001 - as above.
            said = f"failed {type(error).__name__}: {' '.join(str(error).split())[:600]}"
        print(name, said, flush=True)
        # ivycomm leaves the job as at the end of a program.
        sys.exit(0)
    end = time.monotonic() + 3 * TIMEOUT
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            if os.WIFSIGNALED(status):
                print(name, "failed by signal", os.WTERMSIG(status), flush=True)
                return False
            return True
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print(name, "failed: it hangs", flush=True)
    return False


def main():
    if BACKEND != "gloo":
        change_backend()
    every = sorted(name for name in dir(suite.DistributedTest._DistTestBase) if name.startswith("test_"))
    names = sys.argv[3:] or every
    if names[0].startswith("+"):
        names = [name for name in every if name > names[0][1:]]
    for name in names:
        if not run(name):
            sys.exit(3)


main()
