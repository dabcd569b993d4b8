"""The same ends of an allocation where Slurm finds a step's processes by cgroup: its signals go to the step's tasks
alone, not to the whole tree below them (test_slurm_ends.py)."""

import pytest

from slurm_jobs import Slurm, running_on
from test_slurm_ends import (test_ranks_are_told_and_the_job_is_put_back,  # noqa: F401
                             test_slurms_own_signal_is_a_notice, test_what_is_cancelled_is_not_put_back)


@pytest.fixture(scope="module")
def running_slurm(testbed):
    with running_on(testbed, "cgroup"):
        yield


@pytest.fixture
def slurm(hosts, running_slurm):
    with Slurm(hosts.as_user("ivyuser"), "cgroup") as made:
        yield made
