# SPDX-License-Identifier: Apache-2.0
"""Signals and ends with a Slurm that finds a step's processes by cgroup. It sends signals only to the step's tasks and not
to the processes below them (test_slurm.py, test_slurm_ends.py)."""

import time

import pytest

from slurm_jobs import Slurm, running_on
from launching import seconds
from test_slurm import (test_a_signal_of_slurm_reaches_ranks_once, test_a_task_of_the_step_is_killed,  # noqa: F401
                        test_launcher_is_killed, test_scancel_gives_ranks_time_to_exit, test_scancel_leaves_nothing,
                        test_workers_live_in_the_step)
from test_slurm_ends import (test_slurms_own_signal_is_a_notice, test_slurms_term_arrives_after_ivyruns,  # noqa: F401
                             test_cancelled_work_is_not_requeued)
import test_slurm_ends as ends


@pytest.fixture(scope="module")
def running_slurm(testbed):
    with running_on(testbed, "cgroup"):
        yield


@pytest.fixture
def slurm(hosts, running_slurm):
    with Slurm(hosts.as_user("ivyuser"), "cgroup") as made:
        yield made


@pytest.mark.long
def test_ranks_are_notified_and_the_job_is_requeued(slurm):
    ends.test_ranks_are_notified_and_the_job_is_requeued(slurm)


def test_a_notice_goes_only_to_ranks(slurm):
    """Child processes of ranks do not get it: if a data loader died of it, the rank would fail."""
    worker = slurm.launcher.file("parent.py", f"""
import os, signal, subprocess, sys, time
signal.signal(signal.SIGUSR1, lambda *_: print("the rank has heard", flush=True))
child = subprocess.Popen([sys.executable, "{slurm.launcher.script("signals.py")}"])
while not os.path.exists("go"): time.sleep(0.05)
child.kill()
""")
    job = slurm.batch(["-N", "2"], f"exec IVYRUN --preempt-signal USR1 {worker}")
    job.wait_for("ready", count=2)
    assert slurm.command("scancel", "--signal=USR1", str(job.number)).code == 0
    job.wait_for("the rank has heard", count=2)
    time.sleep(seconds(0.5))
    slurm.launcher.file("go")
    done = job.finish()
    assert done.code == 75 and "got SIGUSR1" not in done.err_text, done
    assert done.err_text.count("the rank has heard") == 2, done
