# SPDX-License-Identifier: Apache-2.0
"""Ranks that use ivycomm die, stop, or are cut off: every survivor gets the rank, its host, the cause and the operation."""

import json
import os
import re
import signal
import time

import pytest

from aborts import TURNS, aborts_told, in_every_operation, median_of_ranks, show
from launching import BIN, WORKERS, seconds, wait_until

IVYCTL = os.path.join(BIN, "ivyctl")
has_numpy = os.path.isdir("/usr/lib/python3/dist-packages/numpy")
pytestmark = pytest.mark.skipif(not has_numpy, reason="python3-numpy is not installed")

ONE = ("-n", "3")
HOSTS = ("--fake-hosts", "2", "--nproc_per_node", "2")
EACH = ("--fake-hosts", "3", "--nproc_per_node", "1")
CALM = ("-x", "OMP_NUM_THREADS=1", "-x", "OPENBLAS_NUM_THREADS=1", "-x", f"A_SECOND={seconds(1):g}")
LIMIT = 90


def heard(done):
    """Returns {rank: [its lines of JSON]}."""
    return {rank: [json.loads(text) for text in lines if text.startswith("{")]
            for rank, lines in done.texts_by_rank().items()}


def check_told(told, died, victim, way, done):
    assert told.get("kind") == "RankDied", (told, done)
    assert told["rank"] == victim and told["pid"] == died["dies"] and told["host"], done
    assert told["signal" if way != "exit" else "exit_code"] == {"kill": 9, "abort": 6, "exit": 7}[way], done
    assert told["operation"], done
    late_ms = (told["at_ns"] - died["at_ns"]) / 1e6
    assert late_ms < seconds(1) * 1e3, (told, late_ms, done)


def check_named(done, victim, ranks, way, where):
    said = heard(done)
    died = [words for words in said[victim] if "dies" in words][0]
    for rank in range(ranks):
        if rank == victim:
            continue
        told = said[rank][-1]
        check_told(told, died, victim, way, done)
        assert where == "init" or told["sequence"] > 0, done


@pytest.mark.parametrize("flags", [ONE, HOSTS, EACH], ids=["one", "hosts", "each"])
@pytest.mark.parametrize("where, way", [
    ("init", "kill"), ("init", "exit"), ("all_reduce", "kill"), ("all_reduce_large", "exit"),
    ("broadcast", "abort"), ("barrier", "exit"), ("split", "kill"), ("ring", "abort"), ("work", "kill")])
def test_a_death_is_named_to_every_survivor(local, flags, where, way):
    done = local.run(*flags, *CALM, local.script("comm_deaths.py"), where, way, limit=LIMIT)
    check_named(done, {ONE: 2, HOSTS: 3, EACH: 2}[flags], {ONE: 3, HOSTS: 4, EACH: 3}[flags], way, where)


# The operation that the error names if a rank waits for the victim. scatter broadcasts the sizes first.
WAITED_IN = {
    "all_reduce": "all_reduce", "all_reduce_large": "all_reduce", "all_reduce_coalesced": "all_reduce",
    "reduce": "reduce", "broadcast": "broadcast", "all_gather": "all_gather", "gather": "gather",
    "scatter": "broadcast", "reduce_scatter": "reduce_scatter", "reduce_scatter_v": "reduce_scatterv",
    "all_to_all": "all_to_all", "all_to_all_v": "all_to_allv", "scan": "scan", "barrier": "barrier",
    "work": "all_gather", "split": "split", "group": "group", "recv": "recv", "recv_from_any": "recv",
    "irecv": "recv", "sendrecv": "recv"}


@pytest.mark.parametrize("flags, way", [(ONE, "kill"), (HOSTS, "exit"), (EACH, "abort")], ids=["one", "hosts", "each"])
def test_a_death_is_named_in_every_operation(local, flags, way):
    done = local.run(*flags, *CALM, local.script("comm_waiting_deaths.py"), way, limit=LIMIT)
    said = heard(done)
    victim = max(said)
    died = [words for words in said[victim] if "dies" in words][0]
    for rank in range(victim):
        assert sorted(told["where"] for told in said[rank]) == sorted(WAITED_IN), (rank, done)
        for told in said[rank]:
            check_told(told, died, victim, way, done)
            # All ranks report the operation of the rank that saw the death first. It may have left reduce or gather and wait
            # in a barrier.
            may_be_further = told["where"] in ("reduce", "gather") and told["operation"] == "barrier"
            assert may_be_further or told["operation"] == WAITED_IN[told["where"]], (rank, told, done)


# Far more than the measured time (tests/bench/deaths.py --abort), because the machine may be busy.
ABORT_SECONDS = 0.1


@pytest.mark.parametrize("flags", [ONE, HOSTS, EACH], ids=["one", "hosts", "each"])
def test_an_abort_wakes_every_rank_immediately(local, flags):
    turns = 9
    done = local.run(*flags, *CALM, local.script("comm_aborts.py"), str(turns), limit=LIMIT)
    said = [words for texts in heard(done).values() for words in texts]
    late_ms = aborts_told(said, done, turns)
    assert max(median_of_ranks(late_ms)) < seconds(ABORT_SECONDS) * 1e3, (late_ms, done)


@pytest.mark.parametrize("flags", [ONE, EACH], ids=["one", "each"])
def test_many_aborts_in_a_row_are_all_reported(local, flags):
    # More than the supervisor forwards in one batch.
    done = local.run(*flags, *CALM, local.script("comm_many_groups.py"), "150", limit=LIMIT)
    assert done.code == 0, done
    assert done.texts_by_rank() == {0: ["0 aborted"], 1: ["150 aborted"], 2: ["150 aborted"]}, done


@pytest.mark.parametrize("flags", [ONE, HOSTS], ids=["one", "hosts"])
def test_a_death_below_a_shell_is_named(local, flags):
    script = os.path.join(WORKERS, "comm_deaths.py")
    done = local.run(*flags, *CALM, "sh", "-c", f"/usr/bin/python3 -B {script} all_reduce kill; exit $?",
                     limit=LIMIT)
    check_named(done, {ONE: 2, HOSTS: 3}[flags], {ONE: 3, HOSTS: 4}[flags], "kill", "all_reduce")


@pytest.mark.parametrize("flags", [ONE, HOSTS, EACH], ids=["one", "hosts", "each"])
def test_a_stopped_rank_is_shown_and_named_at_the_timeout(local, flags):
    victim = {ONE: 2, HOSTS: 3, EACH: 2}[flags]
    ranks = {ONE: 3, HOSTS: 4, EACH: 3}[flags]
    with local.start(*flags, *CALM, local.script("comm_deaths.py"), "barrier", "stop") as job:
        job.wait_for(rb"dies", limit=LIMIT)
        job.wait_for(rb'"kind"', count=ranks - 1, limit=LIMIT)
        job.signal(signal.SIGINT)
        done = job.finish(LIMIT)
    said = heard(done)
    for rank in range(ranks):
        if rank == victim:
            continue
        told = said[rank][-1]
        assert told["kind"] == "Timeout" and told["rank"] == victim, (rank, done)
        assert f"rank {victim}" in told["text"], done


WAITING = """
import os, signal, time, ivycomm as ic
import numpy
print("job " + os.environ["IVY_JOB_ID"], flush=True)
ic.init()
r = ic.rank()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(f"rank {r} is pid {os.getpid()}", flush=True)
try:
    if r == 0:
        ic.recv_(numpy.zeros(6, dtype=numpy.float32), 1, tag=7)
    elif r == 2:
        ic.all_reduce(numpy.ones(10))
except ic.RankDied:
    pass
time.sleep(60)
"""


def test_why_shows_messages_and_collectives_also_after_death(local):
    script = local.file("waiting.py", WAITING)
    with local.start("-n", "3", *CALM, "--shutdown-timeout", "60", script) as job:
        job.wait_for(rb"rank \d is pid", count=3, limit=LIMIT)
        job_id = re.search(rb"job ([0-9a-f]{32})", job.said())[1].decode()
        done = None

        def said(*words):
            nonlocal done
            done = local.run_program(IVYCTL, "why", job_id)
            return all(word in done.out for word in words)
        wait_until(lambda: said(b"recv", b"all_reduce"), 30, "ivyctl why names both")
        text = done.out.decode()
        assert re.search(r'rank 0 \(.*\): in recv #1 of "world" \(6 f32, from rank 1, tag 7\), '
                         r'waiting for the other side, for \d+ s', text), done
        assert re.search(r'rank 2 \(.*\): in all_reduce #1 of "world" \(10 f64, sum\)', text), done
        assert re.search(r'rank 1 \(.*\): no operation yet', text), done
        pids = {int(rank): int(pid) for rank, pid in re.findall(rb"rank (\d) is pid (\d+)", job.said())}
        os.kill(pids[2], signal.SIGKILL)
        wait_until(lambda: said(b"was in", b"failed in"), 30, "ivyctl why knows of the death")
        text = done.out.decode()
        assert re.search(r'rank 2 \(.*SIGKILL\): was in all_reduce #1 of "world" \(10 f64, sum\)', text), done
        assert re.search(r'rank 0 \(.*\): between operations: failed in recv #1 of "world"', text), done
        for rank in (0, 1):
            os.kill(pids[rank], signal.SIGKILL)
        job.finish(LIMIT)


AHEAD = """
import os, time, numpy, ivycomm as ic
print("job " + os.environ["IVY_JOB_ID"], flush=True)
ic.init()
data = numpy.zeros(5)
if ic.rank() == 0:
    for _ in range(2):
        ic.broadcast_(data, 0)
print("waits", flush=True)
time.sleep(120)
"""


# A root may leave a broadcast that no other rank has entered. It then waits in the next one.
def test_why_shows_an_operation_that_waits_for_the_one_before(local):
    with local.start("-n", "2", *CALM, local.file("ahead.py", AHEAD)) as job:
        job.wait_for(rb"waits", limit=LIMIT)
        job_id = re.search(rb"job ([0-9a-f]{32})", job.said())[1].decode()
        wait_until(lambda: re.search(rb'rank 0 \(.*\): in broadcast #2 of "world"',
                                     local.run_program(IVYCTL, "why", job_id).out),
                   30, "ivyctl why shows the second")
        job.signal(signal.SIGINT)
        job.finish(LIMIT)


LEAVING = """
import sys, time, numpy, ivycomm as ic
ic.init(timeout=60)
rank, size, store = ic.rank(), ic.world_size(), ic.store()
ic.barrier()
if rank > 0:
    if rank == size - 1:
        ic.send(numpy.ones(3), 0)
    ic.finalize()
    print(f"left {time.monotonic_ns()}", flush=True)
else:
    print("got", ic.recv_(numpy.zeros(3)).sum(), flush=True)
    try:
        ic.recv_(numpy.zeros(3))
    except ic.RankDied as error:
        print(f"told {time.monotonic_ns()} {error}", flush=True)
"""


@pytest.mark.parametrize("flags", [ONE, HOSTS, EACH], ids=["one", "hosts", "each"])
def test_a_receive_from_any_rank_fails_once_all_have_left(local, flags):
    done = local.run(*flags, *CALM, local.file("leaving.py", LEAVING), limit=LIMIT)
    said = done.texts_by_rank()
    assert said[0][0] == "got 3.0", done
    word, told_ns, text = said[0][1].split(" ", 2)
    assert word == "told" and "every other rank of communicator world has left" in text, done
    left_ns = max(int(texts[-1].split()[1]) for rank, texts in said.items() if rank > 0)
    assert int(told_ns) - left_ns < seconds(1) * 1e9, done


# ---- real hosts ------------------------------------------------------------------------------------

# The limit holds for every operation that a rank waits in, on every host.
WAKES_MS = 10


@in_every_operation
def test_an_abort_wakes_every_rank_on_every_host_within_10_ms(hosts, operations):
    done = hosts.run("-H", "node1,node2", "--nproc_per_node", "2", *CALM, "/usr/bin/python3", "-B",
                     hosts.script("comm_aborts.py"), str(TURNS), *operations, limit=LIMIT)
    said = [words for texts in heard(done).values() for words in texts]
    late_ms = aborts_told(said, done)
    show("under ivyrun, two hosts with two ranks each", late_ms)
    assert max(median_of_ranks(late_ms)) < seconds(WAKES_MS), (late_ms, done)


# Three ranks. The large operation uses several connections for each pair.
CUTS = [("all_reduce", ()), ("all_reduce_large", ("-x", "IVY_TCP_STREAMS=3"))]


def on_hosts(hosts, where, *flags):
    return hosts.start("-H", "node1,node2,node3", "--nproc_per_node", "1", *flags, *CALM, "/usr/bin/python3",
                       "-B", hosts.script("comm_deaths.py"), where, "cut")


@pytest.mark.parametrize("where, streams", CUTS)
def test_a_host_that_is_cut_off_is_named_within_the_lease(hosts, where, streams):
    with on_hosts(hosts, where, "--lease", "3", *streams) as job:
        job.wait_for(rb"ready", count=3, limit=LIMIT)
        hosts.bed.cut(2)
        cut_at = time.monotonic_ns()
        done = job.finish(LIMIT)
        hosts.bed.join(2)
    assert done.code == 121, done
    said = heard(done)
    for rank in (0, 2):
        told = said[rank][-1]
        assert told["kind"] == "HostLost" and told["rank"] == 1 and told["host"] == "node2", done
        assert told["at_ns"] - cut_at < seconds(5) * 1e9, done


@pytest.mark.parametrize("where, streams", CUTS)
def test_a_cut_shorter_than_the_lease_is_not_reported(hosts, where, streams):
    with on_hosts(hosts, where, "--lease", "20", *streams) as job:
        job.wait_for(rb"ready", count=3, limit=LIMIT)
        hosts.bed.cut(3)
        time.sleep(2)
        hosts.bed.join(3)
        time.sleep(3)
        assert b"kind" not in job.said(), job.said()
        job.signal(signal.SIGINT)
        job.finish(LIMIT)
