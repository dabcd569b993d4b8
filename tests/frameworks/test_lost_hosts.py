# SPDX-License-Identifier: Apache-2.0
"""--spares with --on-failure replace and real frameworks: a host is lost, its ranks start on the spare, the others keep their
processes, and the training ends with the result of an undisturbed run."""

import os
import re
import signal

import pytest

from environments import on_hosts, python_of, script
from launching import wait_until

SHORT = ("--lease", "5s", "--shutdown-timeout", "1")
# The ranks of the second node move to the spare.
TWO_AND_ONE = ("--spares", "1", "--nproc_per_node", "2", "--on-failure", "replace")
STEPS = "60"
# A loaded machine needs a minute to import torch in four processes.
LIMIT = 120
SCRIPTS = {"jax": ("jax_lost_host.py", ("-B", "jax")), "torch": ("torch_lost_host.py", ("-x", "OMP_NUM_THREADS=1"))}


def started(done):
    """Returns {(rank, rejoin): pid}. All belong to the first attempt."""
    found = re.findall(r"up (\d) .*pid (\d+) rejoin (\d) attempt 0", done.out.decode())
    return {(int(rank), int(rejoin)): int(pid) for rank, pid, rejoin in found}


def final(done):
    """Returns the result, which all ranks share, and {rank: pid} at the end."""
    found = re.findall(r"done: rank (\d), (.*), pid (\d+)", done.out.decode())
    results = {result for _, result, _ in found}
    assert len(found) == 4 and len(results) == 1, done
    return results.pop(), {int(rank): int(pid) for rank, _, pid in found}


def check(done, quiet):
    assert quiet.code == 0 and done.code == 0, (quiet, done)
    result, pids = final(done)
    assert result == final(quiet)[0] and result.startswith(f"step {STEPS}, world 4, weight "), (quiet, done)
    processes = started(done)
    assert sorted(processes) == [(0, 0), (1, 0), (2, 0), (2, 1), (3, 0), (3, 1)], done
    assert pids == {0: processes[0, 0], 1: processes[1, 0], 2: processes[2, 1], 3: processes[3, 1]}, done
    assert "2 other workers continue (--on-failure replace)" in done.err_text, done
    assert "succeeded; 2 workers were replaced" in done.err_text, done


@pytest.mark.long
@pytest.mark.parametrize("framework", SCRIPTS)
def test_ranks_of_a_killed_supervisor_move_to_the_spare(local, framework):
    name, flags = SCRIPTS[framework]
    program = ("--python", python_of(framework), script(local, name), STEPS)
    quiet = local.run("--fake-hosts", "2", "--nproc_per_node", "2", *flags, *program, local.file("quiet"), limit=LIMIT)
    with local.start("--fake-hosts", "3", *TWO_AND_ONE, *flags, *program, os.path.join(local.directory, "go")) as run:
        run.wait_for(r"waits at step 20", LIMIT)
        worker = int(re.search(rb"up 2 .*pid (\d+)", run.said())[1])
        with open(f"/proc/{worker}/stat") as file:
            os.kill(int(file.read().rpartition(")")[2].split()[1]), signal.SIGKILL)
        local.file("go")
        check(run.finish(LIMIT), quiet)


@pytest.mark.long
@pytest.mark.parametrize("framework", SCRIPTS)
def test_ranks_of_a_silent_host_move_to_the_spare(hosts, framework):
    """torch notices the silent ranks when the timeout of its group expires."""
    name, flags = SCRIPTS[framework]
    with on_hosts(framework) as python:
        program = ("--python", python, script(hosts, name), STEPS)
        quiet = hosts.run("-H", "node2,node3", "--nproc_per_node", "2", *flags, *program, hosts.file("quiet"), limit=LIMIT)
        with hosts.start(*SHORT, "-H", "node2,node3,node4", *TWO_AND_ONE, *flags, *program, f"{hosts.directory}/go") as run:
            run.wait_for(r"waits at step 20", LIMIT)
            hosts.bed.cut(3)
            hosts.file("go")
            check(run.finish(LIMIT), quiet)
        wait_until(lambda: not hosts.processes(3, "python3"), 20, "node3's workers have ended")
