# SPDX-License-Identifier: Apache-2.0
"""--spares: a spare host takes the node rank of a host that is lost, and the ranks stay where they are in the order."""

import json
import os
import re
import signal

import pytest

from launching import wait_until
from test_elastic import QUICKLY, SHORT, fake_supervisors, hosts_of, kill_supervisor, labelled, meeting, people
from test_ivyctl import ctl  # noqa: F401  (a fixture)
from test_repair_ivycomm import PYTHON

# node2 and node3 have the ranks; node4 and node5 are spares.
TWO_AND_TWO = ("-H", "node2,node3,node4,node5", "--spares", "2", "--nproc_per_node", "2")


def replaced(done):
    """Returns (spare, host, node rank) for each replacement, in their order."""
    return re.findall(r"ivyrun: spare (\S+) replaces (\S+) as node (\d+)\n", done.err_text)


def assert_no_processes(launcher, *hosts):
    for host in hosts:
        wait_until(lambda number=host: not launcher.processes(number, "ivy-supervisor"), 10,
                   f"node{host}'s supervisor has ended")
        assert not launcher.processes(host, "python3")


# ---- Lost hosts -------------------------------------------------------------------------------------

@pytest.mark.parametrize("how", ["supervisor", "cut"])
def test_a_spare_replaces_a_lost_host(anyone, how):
    with meeting(anyone, *TWO_AND_TWO, ranks=4) as run:
        if how == "cut":
            anyone.bed.cut(3)
        else:
            kill_supervisor(anyone, 3)
        run.wait_for(r"attempt 1 \(1\): rank", 40, count=4)
        anyone.file("go")
        done = run.finish()
    assert done.code == 0, done
    assert "2 hosts x 2 = 4 ranks (--nproc-per-node 2)" in done.err_text, done
    assert "2 spares: node[4-5]" in done.err_text and "1 spare: node5" in done.err_text, done
    lost = "host node3 was lost" if how == "cut" else "the supervisor on host node3 was lost"
    assert re.search(rf"ivyrun: attempt 1 of 3 failed: {lost}: .*; attempt 2 starts in", done.err_text), done
    assert replaced(done) == [("node4", "node3", "1")], done
    assert re.search(r"note: the job ended with 3 of 4 hosts \(--nnodes 2 --spares 2\), without node3 \(",
                     done.err_text), done
    assert hosts_of(done, 0) == {0: "node2", 1: "node2", 2: "node3", 3: "node3"}, done
    assert hosts_of(done, 1) == {0: "node2", 1: "node2", 2: "node4", 3: "node4"}, done
    met = people(done)
    assert {met[1, rank] for rank in range(4)} == {(4, 0, 0, 2, 4, "10.77.0.2"), (4, 1, 0, 2, 4, "10.77.0.2"),
                                                   (4, 0, 1, 2, 4, "10.77.0.2"), (4, 1, 1, 2, 4, "10.77.0.2")}, done
    assert_no_processes(anyone, 2, 4, 5)


def test_a_spare_replaces_the_first_host(hosts):
    """The store and MASTER_ADDR move to the spare, which becomes the host of rank 0."""
    with meeting(hosts, *TWO_AND_TWO, ranks=4) as run:
        hosts.bed.cut(2)
        run.wait_for(r"attempt 1 \(1\): rank", 40, count=4)
        hosts.file("go")
        done = run.finish()
    assert done.code == 0 and replaced(done) == [("node4", "node2", "0")], done
    assert hosts_of(done, 1) == {0: "node4", 1: "node4", 2: "node3", 3: "node3"}, done
    met = people(done)
    assert {met[1, rank][5] for rank in range(4)} == {"10.77.0.4"}, done


def test_two_hosts_are_lost_one_after_the_other(hosts):
    with meeting(hosts, *TWO_AND_TWO, ranks=4) as run:
        kill_supervisor(hosts, 3)
        run.wait_for(r"attempt 1 \(1\): rank", 40, count=4)
        kill_supervisor(hosts, 2)
        run.wait_for(r"attempt 2 \(2\): rank", 40, count=4)
        hosts.file("go")
        done = run.finish()
    assert done.code == 0 and "succeeded at attempt 3 of 3" in done.err_text, done
    assert replaced(done) == [("node4", "node3", "1"), ("node5", "node2", "0")], done
    assert hosts_of(done, 2) == {0: "node5", 1: "node5", 2: "node4", 3: "node4"}, done


def test_a_host_and_the_spare_for_it_are_lost_during_a_restart(hosts):
    """Both are lost in the pause before an attempt. The other spare takes over, and no restart is used up for it."""
    script = hosts.file("work.sh", "[ $IVY_GENERATION$RANK = 00 ] && sleep 1 && exit 3; "
                        "[ $IVY_GENERATION = 1 ] && echo up $RANK $WORLD_SIZE && exit 0; sleep 600\n")
    with hosts.start(*SHORT, *TWO_AND_TWO, "--max-restarts", "1", "sh", script) as run:
        run.wait_for(r"attempt 1 of 4 failed: rank 0 .* attempt 2 starts in 1 s")
        kill_supervisor(hosts, 3)
        kill_supervisor(hosts, 4)
        done = run.finish(40)
    assert done.code == 0, done
    assert sorted(re.findall(r"\] up (\d) 4", done.out.decode())) == ["0", "1", "2", "3"], done
    assert replaced(done)[-1] == ("node5", "node4", "1") or replaced(done) == [("node5", "node3", "1")], done
    hosts.wait_clean(7)


def test_a_spare_that_takes_over_is_lost(hosts):
    with meeting(hosts, *TWO_AND_TWO, ranks=4) as run:
        kill_supervisor(hosts, 3)
        run.wait_for(r"spare node4 replaces node3 as node 1", 40)
        kill_supervisor(hosts, 4)
        run.wait_for(r"met 4 at .*", 40, count=8)
        hosts.file("go")
        done = run.finish()
    assert done.code == 0, done
    assert replaced(done) == [("node4", "node3", "1"), ("node5", "node4", "1")], done


def test_no_spare_is_left(hosts):
    with meeting(hosts, "-H", "node2,node3,node4", "--spares", "1", ranks=2) as run:
        kill_supervisor(hosts, 3)
        run.wait_for(r"attempt 1 \(1\): rank", 40, count=2)
        kill_supervisor(hosts, 2)
        done = run.finish(40)
    assert done.code == 121, done
    assert "error[IVY-R007]: the supervisor on host node2 was lost" in done.err_text, done
    assert re.search(r"no spare is left: 1 of 3 hosts \(--nnodes 2 --spares 1\), without node", done.err_text), done


def test_a_range_of_hosts_first_uses_the_spare_and_then_shrinks(hosts):
    """With --nnodes MIN:MAX, the first loss leaves the world as it is, the second one makes it smaller, and the third one ends
    the job."""
    with meeting(hosts, "-H", "node2,node3,node4,node5", "--nnodes", "2:3", "--spares", "1", ranks=3) as run:
        kill_supervisor(hosts, 3)
        run.wait_for(r"attempt 1 \(1\): rank . of 3", 40, count=3)
        kill_supervisor(hosts, 2)
        run.wait_for(r"attempt 2 \(2\): rank . of 2", 40, count=2)
        kill_supervisor(hosts, 4)
        done = run.finish(40)
    assert done.code == 121, done
    assert "3 hosts x 1 = 3 ranks" in done.err_text and "1 spare: node5" in done.err_text, done
    assert replaced(done) == [("node5", "node3", "1")], done
    assert hosts_of(done, 1) == {0: "node2", 1: "node5", 2: "node4"}, done
    assert sorted(hosts_of(done, 2).values()) == ["node4", "node5"], done
    assert "error[IVY-R007]: the supervisor on host node4 was lost" in done.err_text, done


# ---- Spares that are not usable ---------------------------------------------------------------------

@pytest.mark.parametrize("how", ["supervisor", "cut"])
def test_a_spare_is_lost_while_it_waits(hosts, how):
    with meeting(hosts, *TWO_AND_TWO, ranks=4) as run:
        if how == "cut":
            hosts.bed.cut(4)
        else:
            kill_supervisor(hosts, 4)
        run.wait_for(r"ivyrun: spare node4 was lost: .*; the job continues with 1 spare", 40)
        kill_supervisor(hosts, 3)
        run.wait_for(r"attempt 1 \(1\): rank", 40, count=4)
        hosts.file("go")
        done = run.finish()
    assert done.code == 0 and replaced(done) == [("node5", "node3", "1")], done
    assert hosts_of(done, 1) == {0: "node2", 1: "node2", 2: "node5", 3: "node5"}, done


def test_hosts_that_do_not_come_up_are_replaced_at_the_start(hosts):
    """node3 has no sshd at this port, so a spare has its node rank from the start."""
    go = hosts.file("go")
    done = hosts.run("-H", "node2,node3:port=2299,node4", "--spares", "1", hosts.script("meet_peers.py"), go)
    assert done.code == 0 and replaced(done) == [("node4", "node3", "1")], done
    assert hosts_of(done, 0) == {0: "node2", 1: "node4"}, done
    assert re.search(r"warning: starting with 2 of 3 hosts \(--nnodes 2 --spares 1\), without node3 \(connecting: ",
                     done.err_text), done


def test_the_job_starts_without_a_missing_spare(hosts):
    go = hosts.file("go")
    done = hosts.run("-H", "node2,node3,node4:port=2299", "--spares", "1", hosts.script("meet_peers.py"), go)
    assert done.code == 0 and not replaced(done), done
    assert re.search(r"warning: starting with 2 of 3 hosts .* without node4 \(connecting: ", done.err_text), done


def test_the_hosts_that_come_up_first_are_picked(hosts):
    """node2 cannot be reached. Of the others the first two run ranks, and the third is a spare."""
    go = hosts.file("go")
    done = hosts.run("-H", "node2:port=2299,node3,node4,node5", "--nnodes", "2", "--pick", "healthiest",
                     hosts.script("meet_peers.py"), go)
    assert done.code == 0 and "without node2 (connecting: " in done.err_text, done
    assert hosts_of(done, 0) == {0: "node3", 1: "node4"} and "1 spare: node5" in done.err_text, done


def test_a_single_host_with_a_spare_is_planned_in_words(local):
    done = local.run("--fake-hosts", "2", "--spares", "1", "--nproc_per_node", "1", "true")
    assert done.code == 0 and "1 host x 1 = 1 rank (--nproc-per-node 1), 1 spare: fake1" in done.err_text, done


def test_a_spare_without_the_program_is_left_out(hosts):
    program = "/srv/only_here.sh"
    for host in (2, 3):
        hosts.run_on(host, "sh", "-c", f"printf '#!/bin/sh\\nexit 0\\n' > {program}; chmod 755 {program}")
    try:
        done = hosts.run("-H", "node2,node3,node4", "--spares", "1", program)
    finally:
        for host in (2, 3):
            hosts.run_on(host, "rm", "-f", program)
    assert done.code == 0, done
    assert re.search(r"without node4 \(cannot replace another host: .*only_here.sh", done.err_text), done


# ---- The other ranks keep their processes ------------------------------------------------------------

def started(done):
    """Returns (rank, rejoins, attempt) of every process of comm_lost_host.py."""
    return sorted(re.findall(r"up (\d) pid \d+ rejoin (\d) attempt (\d)", done.out.decode()))


def final(done):
    return {re.sub(r"rank \d, ", "", line) for line in re.findall(r"done: .*", done.out.decode())}


def lose(local, host, *flags):
    """Runs four ranks of ivycomm on two of the simulated hosts and kills the supervisor of one of them."""
    script, go = local.script("comm_lost_host.py"), os.path.join(local.directory, "go")
    with local.start("--fake-hosts", "4", "--spares", "2", "--nproc_per_node", "2", "--on-failure", "replace", *flags,
                     PYTHON, script, "60", go, env=QUICKLY) as run:
        run.wait_for(r"waits at step 20", 40)
        os.kill(fake_supervisors(local)[host].pid, signal.SIGKILL)
        run.wait_for(r"ivyrun: spare \S+ replaces", 40)
        local.file("go")
        return run.finish(60)


def test_only_the_ranks_of_the_lost_host_start_again(local):
    """The result equals that of a run without a loss."""
    go = local.file("go")
    quiet = local.run("--fake-hosts", "2", "--nproc_per_node", "2", PYTHON, local.script("comm_lost_host.py"), "60", go)
    os.unlink(os.path.join(local.directory, "go"))
    done = lose(local, 1)
    assert quiet.code == 0 and done.code == 0, (quiet, done)
    assert final(done) == final(quiet) == {"done: step 60, world 4, weight 150"}, (quiet, done)
    assert started(done) == [("0", "0", "0"), ("1", "0", "0"), ("2", "0", "0"), ("2", "1", "0"), ("3", "0", "0"),
                             ("3", "1", "0")], done
    assert "2 other workers continue (--on-failure replace)" in done.err_text, done
    assert "succeeded; 2 workers were replaced" in done.err_text, done
    spare = done.err_text.split("ivyrun: spare ")[1].split()[0]
    assert {host for rank, host, text in labelled(done) if "rejoin 1" in text} == {spare}, done


def test_all_ranks_start_again_if_the_first_host_is_lost(local):
    """The job's store ran there."""
    done = lose(local, 0)
    assert done.code == 0 and final(done) == {"done: step 60, world 4, weight 150"}, done
    assert "all workers start again, because the job's store ran on this host (--on-failure replace)" in done.err_text
    assert [entry for entry in started(done) if entry[2] == "1"] == [(str(rank), "0", "1") for rank in range(4)], done


# ---- On one machine ---------------------------------------------------------------------------------

def check_spare_is_shown(ivyctl, host):
    """Checks ps, top and status of the test's only job."""
    job = ivyctl.job()
    assert job["spares"] == [host], job
    row, = [line for line in ivyctl.run("ps").out_lines if line.startswith(job["job"][:12])]
    assert " +1 spare " in row, row
    assert ivyctl.run("top", job["job"], "--once").out_lines[0].endswith(f"; 1 spare: {host}")
    assert json.loads(ivyctl.run("top", job["job"], "--json").out)["spares"] == [host]
    assert re.search(rf"^spares +{host}$", ivyctl.run("status", job["job"]).out.decode(), re.MULTILINE)


def test_simulated_hosts(local, ctl):  # noqa: F811
    """Works with a fixed number of workers on each node, and programs read what has happened."""
    script, go = local.script("meet_peers.py"), os.path.join(local.directory, "go")
    with local.start("--fake-hosts", "3", "--spares", "1", "-n", "3", "--events", "events", "--summary", "json", script,
                     go, env=QUICKLY) as run:
        run.wait_for(r"attempt 0 ", count=3)
        check_spare_is_shown(ctl, "fake2")
        supervisors = fake_supervisors(local)
        assert len(supervisors) == 3, supervisors
        os.kill(supervisors[0].pid, signal.SIGKILL)
        run.wait_for(r"attempt 1 \(1\): rank", 40, count=3)
        local.file("go")
        done = run.finish()
    assert done.code == 0, done
    met = people(done)
    # -n 3 places two workers on the first node.
    assert [met[1, rank][:4] for rank in range(3)] == [met[0, rank][:4] for rank in range(3)], done
    events = [json.loads(line) for line in local.read("events").decode().splitlines()]
    first = events[[event["event"] for event in events].index("plan")]
    assert len(first["hosts"]) == 2 and len(first["spares"]) == 1, first
    used = [event for event in events if event["event"] == "spare_used"]
    assert [(event["node_rank"], event["spare"]) for event in used] == [(0, first["spares"][0])], used
    verdict = events[-1]
    assert [entry["host"] for entry in verdict["left_out"]] == [first["hosts"][0]["host"]], verdict


def test_dry_run_lists_the_spares(local):
    done = local.run("--fake-hosts", "4", "--spares", "2", "--dry-run", "true")
    assert done.code == 0, done
    assert re.search(r"plan: 2 hosts x 1 = 2 ranks .*, 2 spares: ", done.out.decode()), done
    assert re.search(r"spares: \S+ have no workers and take the ranks of lost hosts\n", done.out.decode()), done


@pytest.mark.parametrize("arguments, text", [
    (["--fake-hosts", "2", "--spares", "2"], "--spares 2 needs 3 hosts at least, but only 2 were given"),
    (["--spares", "1"], "--spares 1 needs 2 hosts at least, but only 1 was given"),
    (["--nnodes", "2:3"], "--nnodes needs 2 hosts at least, but 1 was given"),
    (["--fake-hosts", "3", "--nnodes", "2", "--spares", "2"], "needs 4 hosts, but only 3 were given"),
    (["--fake-hosts", "3", "--nnodes", "2:3", "--spares", "2"], "needs 4 hosts, but only 3 were given"),
    (["--nnodes", "2", "--node-rank", "0", "--spares", "1"], "--spares cannot be used with --node-rank"),
    (["--fake-hosts", "3", "--spares", "1", "--on-failure", "shrink"],
     "--spares cannot be used with --on-failure shrink"),
    (["--fake-hosts", "3", "--spares", "1", "--detach", "--lease", "9s"], "what the spare hosts have answered"),
    (["--fake-hosts", "3", "--pick", "healthiest"], "--pick healthiest needs --nnodes N"),
    (["--fake-hosts", "3", "--pick", "healthiest", "--nnodes", "2", "--spares", "1"], "cannot be used together"),
], ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_contradictions(local, arguments, text):
    done = local.run(*arguments, "true")
    assert done.code == 2 and text in done.err_text, done
