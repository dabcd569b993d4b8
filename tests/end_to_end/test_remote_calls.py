# SPDX-License-Identifier: Apache-2.0
"""Errors of remote calls. test_originals.py has the tests of successful calls."""

import time

import pytest

from launching import seconds
from test_comm_deaths import heard
from test_ivycomm import CALM, LIMIT, ONE_HOST, TWO_HOSTS, check_all_equal, needs_numpy, needs_torch, ranks_of

EACH = ("--fake-hosts", "2", "--nproc_per_node", "1")
two_places = pytest.mark.parametrize("flags", [ONE_HOST["two"], TWO_HOSTS["hosts"]], ids=["two", "hosts"])


def faults(local, flags, mebibytes):
    check_all_equal(local.run(*flags, *CALM, local.script("comm_rpc_faults.py"), str(mebibytes),
                              "hosts" if "--fake-hosts" in flags else "one", limit=LIMIT),
                    2 if flags == EACH else ranks_of(flags))


@needs_numpy
@two_places
def test_faults(local, flags):
    faults(local, flags, 8)


@needs_numpy
@pytest.mark.parametrize("flags, mebibytes", [(ONE_HOST["two"], 1024), (EACH, 1024), (TWO_HOSTS["hosts"], 128)],
                         ids=["two", "each", "hosts"])
@pytest.mark.long
def test_faults_with_large_payloads(local, flags, mebibytes):
    faults(local, flags, mebibytes)  # Four ranks hold several payloads each, so theirs are smaller.


SMALL_SECONDS = 60e-6
LARGE_TO_MESSAGE = 1.2  # Time of a call with 1 GiB relative to a message of the same size.


@needs_torch
@pytest.mark.long
def test_calls_are_about_as_fast_as_messages(local):
    done = local.run("-n", "2", *CALM, local.script("comm_rpc_times.py"), limit=LIMIT)
    times = heard(done)[0][-1]
    print(times)
    assert times["number"] <= seconds(SMALL_SECONDS) and times["tensor"] <= seconds(SMALL_SECONDS), times
    assert min(times["calls"]) <= LARGE_TO_MESSAGE * min(times["messages"]), times


# ---- deaths ------------------------------------------------------------------------------------------

def check_deaths(done, victim, ranks, check):
    """Checks the error of every survivor's call, and that its next call also fails immediately."""
    said = heard(done)
    for rank in set(range(ranks)) - {victim}:
        told, after = said[rank][-2:]
        check(told)
        assert after["next"]["kind"] in ("RankDied", "HostLost", "NotInitialized"), (rank, done)
        assert after["next"].get("took", 0) < seconds(1), (rank, done)


@pytest.mark.parametrize("flags", [("-n", "3"), TWO_HOSTS["hosts"]], ids=["one", "hosts"])
@pytest.mark.parametrize("way", ["kill", "exit"])
def test_calls_to_a_rank_that_dies_fail_immediately(local, flags, way):
    """These are the call during which the rank dies, and pending calls of other ranks on both hosts."""
    ranks = 4 if flags == TWO_HOSTS["hosts"] else 3
    done = local.run(*flags, local.script("comm_rpc_deaths.py"), way, limit=LIMIT)
    died, = (words for words in heard(done)[ranks - 1] if "dies" in words)

    def check(told):
        assert told["kind"] == "RankDied" and told["rank"] == ranks - 1 and told["pid"] == died["dies"], done
        assert told["signal" if way == "kill" else "exit_code"] == {"kill": 9, "exit": 7}[way], done
        assert told["at_ns"] - died["at_ns"] < seconds(1) * 1e9, (told, died)

    check_deaths(done, ranks - 1, ranks, check)


def test_calls_of_a_host_that_is_cut_off_end_within_the_lease(hosts):
    with hosts.start("-H", "node1,node2,node3", "--nproc_per_node", "1", "--lease", "3", "/usr/bin/python3", "-B",
                     hosts.script("comm_rpc_deaths.py"), "cut") as job:
        job.wait_for(rb"ready", limit=LIMIT)
        hosts.bed.cut(3)
        cut_at = time.monotonic_ns()
        done = job.finish(LIMIT)
        hosts.bed.join(3)

    def check(told):
        assert told["kind"] == "HostLost" and told["rank"] == 2 and told["host"] == "node3", done
        assert told["at_ns"] - cut_at < seconds(5) * 1e9, done

    assert done.code == 121, done
    check_deaths(done, 2, 3, check)
