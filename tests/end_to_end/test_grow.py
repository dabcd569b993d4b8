# SPDX-License-Identifier: Apache-2.0
"""--nnodes MIN:MAX --grow TIME: hosts that come later, or come back, take part again."""

import os
import signal

import pytest

from launching import seconds, wait_until
from test_elastic import QUICKLY, SHORT, fake_supervisors, hosts_of, kill_supervisor, meeting, people

TWO = ("-H", "node2,node3", "--nnodes", "1:2")


def test_a_host_whose_supervisor_was_killed_comes_back(hosts):
    """The workers restart without it, and once more with it."""
    with meeting(hosts, *TWO, "--grow", "1s", ranks=2) as run:
        kill_supervisor(hosts, 3)
        run.wait_for(r"attempt 1 \(1\): rank 0 of 1", 40)
        run.wait_for(r"ivyrun: node3 is ready and joins at the next restart", 40)
        run.wait_for(r"attempt 2 \(2\): rank . of 2", 40, count=2)
        hosts.file("go")
        done = run.finish()
    assert done.code == 0, done
    assert "restarting the workers with node3 (--grow)" in done.err_text, done
    assert "attempt 2 of 4 was stopped for node3 (--grow); attempt 3 starts in" in done.err_text, done
    assert "continuing with 2 of 2 hosts (--nnodes 1:2)" in done.err_text, done
    assert hosts_of(done, 2) == {0: "node2", 1: "node3"}, done


def test_the_first_host_comes_back_as_the_last_one(hosts):
    """Its network was cut and works again. The store stays where it is."""
    with meeting(hosts, "-H", "node3,node2", "--nnodes", "1:2", "--grow", "1s", ranks=2) as run:
        hosts.bed.cut(3)
        run.wait_for(r"attempt 1 \(1\): rank 0 of 1", 40)
        hosts.bed.join(3)
        run.wait_for(r"attempt 2 \(2\): rank . of 2", 90, count=2)
        hosts.file("go")
        done = run.finish()
    assert done.code == 0, done
    assert hosts_of(done, 2) == {0: "node2", 1: "node3"}, done
    assert {people(done)[2, rank][5] for rank in range(2)} == {"10.77.0.2"}, done


def test_a_host_that_was_off_at_the_start_joins_at_the_next_failure(hosts):
    """No worker is stopped for it. node3's address was unknown when the store started."""
    meet = f"/usr/bin/python3 {hosts.script('meet_peers.py')} {hosts.directory}/go"
    script = hosts.file("work.sh", f"[ $IVY_GENERATION = 1 ] && exec {meet}\n"
                        f"while ! test -e {hosts.directory}/fail; do sleep 0.05; done; exit 3\n")
    hosts.bed.power_off(3)
    with hosts.start(*SHORT, *TWO, "--grow", "1h", "--max-restarts", "1", "--start-timeout", f"{seconds(4):g}s", "sh", script,
                     env=QUICKLY) as run:
        run.wait_for(r"starting with 1 of 2 hosts", 40)
        hosts.bed.power_on(3)
        run.wait_for(r"node3 is ready and joins at the next restart", 90)
        hosts.file("fail")
        run.wait_for(r"rank . of 2", 40, count=2)
        hosts.file("go")
        done = run.finish()
    assert done.code == 0, done
    assert {rank for _, rank in people(done)} == {0, 1}, done


def test_ranks_get_a_notice_before_they_are_stopped(local):
    script = local.file("work.sh", "trap 'echo saved $RANK; exit 0' USR1; echo up $IVY_GENERATION of $WORLD_SIZE\n"
                        "while ! [ -e go ]; do sleep 0.05; done\n")
    with local.start("--fake-hosts", "2", "--nnodes", "1:2", "--grow", "1s", "--preempt-signal", "USR1", "bash", script,
                     env=QUICKLY) as run:
        run.wait_for(r"up 0 of 2", count=2)
        os.kill(fake_supervisors(local)[1].pid, signal.SIGKILL)
        run.wait_for(r"up 1 of 1", 40)
        run.wait_for(r"SIGUSR1 to 1 ranks, which restart with \S+ in 30 s", 40)
        run.wait_for(r"saved 0", 40)
        run.wait_for(r"up 2 of 2", 40, count=2)
        local.file("go")
        done = run.finish()
    assert done.code == 0, done


def test_a_host_is_not_asked_back_while_others_are_being_stopped(local):
    """A worker outlives TERM for longer than the pause before the lost host is dialled again."""
    script = local.file("work.sh", "trap '' TERM; echo up $IVY_GENERATION of $WORLD_SIZE\n"
                        "while ! [ -e go ]; do sleep 0.05; done\n")
    with local.start("--fake-hosts", "2", "--nnodes", "1:2", "--grow", "1s", "--shutdown-timeout", "9s", "bash", script,
                     env=QUICKLY) as run:
        run.wait_for(r"up 0 of 2", count=2)
        os.kill(fake_supervisors(local)[1].pid, signal.SIGKILL)
        run.wait_for(r"up 1 of \d", 40)
        local.file("go")
        done = run.finish()
    assert done.code == 0, done


@pytest.mark.parametrize("arguments, text", [
    (["--fake-hosts", "2", "--grow", "1m"], "--grow needs --nnodes MIN:MAX"),
    (["--fake-hosts", "2", "-n", "2", "--grow", "1m"], "--grow needs --nnodes MIN:MAX"),
    (["--fake-hosts", "2", "--nnodes", "1:2", "--grow", "0"], "--grow needs a time"),
    (["--fake-hosts", "2", "--nnodes", "1:2", "--grow", "1m", "--stage"], "--grow cannot be used with --stage"),
    (["--nnodes", "1:2", "--node-rank", "0", "--grow", "1m"], "--grow cannot be used with --node-rank"),
], ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_contradictions(local, arguments, text):
    done = local.run(*arguments, "true")
    assert done.code == 2 and text in done.err_text, done


def test_nothing_is_left_if_the_job_ends_while_a_host_is_dialled(hosts):
    with meeting(hosts, *TWO, "--grow", "1h", ranks=2) as run:
        kill_supervisor(hosts, 3)
        run.wait_for(r"attempt 1 \(1\): rank 0 of 1", 40)
        run.wait_for(r"node3 is ready", 40)
        hosts.file("go")
        done = run.finish()
    assert done.code == 0, done
    wait_until(lambda: not hosts.processes(3, "ivy-supervisor"), 10, "node3's supervisor has ended")
