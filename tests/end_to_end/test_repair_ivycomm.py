# SPDX-License-Identifier: Apache-2.0
"""A rank dies, and the survivors repair their ivycomm world in place: without ivyrun (plain processes), under a simulated
launcher that restarts lost ranks, and under ivyrun --on-failure."""

import contextlib
import glob
import json
import os
import re
import signal
import socket
import subprocess

import pytest

from launching import BIN, REPOSITORY, wait_until

PYTHON = "/usr/bin/python3"
ENVIRONMENT = {"PYTHONPATH": os.path.join(REPOSITORY, "comm/python"), "PYTHONDONTWRITEBYTECODE": "1",
               "IVY_LIBRARY": os.path.join(os.path.dirname(BIN), "lib/libivycomm.so.1"), "OMP_NUM_THREADS": "1"}
EXAMPLE = os.path.join(REPOSITORY, "scripts/examples/repair.py")
LIMIT = 60
KILLED = -signal.SIGKILL


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(autouse=True)
def no_memory_is_left():
    before = set(glob.glob("/dev/shm/ivycomm-*"))
    yield
    assert set(glob.glob("/dev/shm/ivycomm-*")) == before


def told(done):
    return [json.loads(line) for line in done.out_lines if line.startswith("{")]


# ---- plain processes ---------------------------------------------------------------------------------

def run_plain(local, size, *arguments):
    """Runs plain processes as ranks and returns the output and exit code of each."""
    method = f"tcp://127.0.0.1:{free_port()}"
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(local.start_program(
            PYTHON, local.script("comm_repair.py"), *arguments, "--method", method, "--rank", str(rank), "--size",
            str(size), env=ENVIRONMENT)) for rank in range(size)]
        done = [run.finish(LIMIT) for run in running]
    return done


@pytest.mark.parametrize("victims", [[3, 1], [0, 2]], ids=["others", "the_store_s_rank"])
def test_survivors_continue_after_each_death(local, victims):
    """This includes the death of rank 0, which serves the store. The store continues until the last rank has left."""
    done = run_plain(local, 4, "lose", "--victims", ",".join(map(str, victims)))
    assert [one.code for one in done] == [KILLED if rank in victims else 0 for rank in range(4)], done
    left = [0, 1, 2, 3]
    for turn, victim in enumerate(victims):
        left = [rank for rank in left if rank != victim]
        said = [told(done[rank])[turn] for rank in left]
        assert [one["members"] for one in said] == [left] * len(left), done
        assert [one["new"] for one in said] == list(range(len(left))), done
        assert all(one["ranks"] == list(range(len(left))) for one in said), done
        assert {one["error"] for one in said} <= {"RankDied", "Aborted"}, done


def test_groups_works_and_memory_of_a_broken_world_fail(local):
    done = run_plain(local, 3, "old_things")
    assert [one.code for one in done] == [0, 0, KILLED], done
    for rank in (0, 1):
        said, = told(done[rank])
        assert said.pop("pending") in ("RankDied", "Aborted"), done
        assert said.pop("inside") == ["Aborted"], done
        assert said == {"rank": rank, "size": 2, "group": "NotInitialized", "mesh": "NotInitialized",
                        "registered": 3.0, "fresh": 2}, done


def test_errors_are_the_same_on_every_rank(local):
    done = run_plain(local, 2, "errors")
    assert [one.code for one in done] == [0, 0], done
    said = [told(one)[0] for one in done]
    assert [one.pop("interrupted") for one in said] == [
        "KeyboardInterrupt", "rank 0 interrupted the repair of the world"], done
    for one in said:
        assert "rank 1 has not called shrink" in one["timeout"], done
        assert "call shrink or grow again" in one["between"], done
        assert (one["size"], one["child"], one["after"]) == (2, 0, "NotInitialized"), done


# ---- a job whose lost ranks are started again ----------------------------------------------------------

class Job:
    """Simulates a launcher: starts a store and the ranks with their variables, and restarts ranks that were killed."""

    def __init__(self, local, size, hosts, *program):
        self.local, self.size, self.hosts, self.program = local, size, hosts, program
        self.stack = contextlib.ExitStack()
        self.starts = [0] * size
        self.running, self.ended = {}, []

    def __enter__(self):
        job, port = os.urandom(16).hex(), free_port()
        token = os.path.join(self.local.directory, f"token-{job[:8]}")
        with open(token, "wb", opener=lambda path, flags: os.open(path, flags, 0o400)) as file:
            file.write(os.urandom(16).hex().encode())
        store = subprocess.Popen([os.path.join(BIN, "ivy-rendezvous"), "serve", "--job", job, "--token-file", token,
                                  "--listen", f"127.0.0.1:{port}"], stderr=subprocess.DEVNULL)
        self.stack.callback(lambda: (store.kill(), store.wait(), os.unlink(token)))
        wait_until(lambda: not socket.socket().connect_ex(("127.0.0.1", port)), 10, "the store serves")
        self.env = {**ENVIRONMENT, "IVY_WORLD_SIZE": str(self.size), "IVY_NUM_NODES": str(self.hosts), "IVY_JOB_ID": job,
                    "IVY_STORE": f"127.0.0.1:{port}", "IVY_TOKEN_FILE": token, "IVY_GENERATION": "0"}
        for rank in range(self.size):
            self.start(rank)
        return self

    def __exit__(self, *_):
        self.stack.close()

    def start(self, rank):
        again = {"IVY_REJOIN": str(self.starts[rank])} if self.starts[rank] else {}
        self.starts[rank] += 1
        node = rank * self.hosts // self.size
        self.running[rank] = self.stack.enter_context(self.local.start_program(
            PYTHON, *self.program, env={**self.env, "IVY_RANK": str(rank), "IVY_NODE_RANK": str(node), **again}))

    def finish(self, is_to_replace):
        """Waits for all processes and returns (rank, Finished) of each in the order of their exits."""
        def next_end():
            return [rank for rank, run in self.running.items() if run.process.poll() is not None]

        while self.running:
            rank = wait_until(next_end, LIMIT, "a rank ends")[0]
            done = self.running.pop(rank).finish(LIMIT)
            self.ended.append((rank, done))
            if done.code == KILLED and is_to_replace:
                self.start(rank)
        return self.ended


def check_example(ended, size, lost, is_replaced):
    last = {rank: done for rank, done in ended}
    left = [rank for rank in range(size) if is_replaced or rank != lost]
    for rank in left:
        assert last[rank].code == 0, ended
    final = {last[rank].out_lines[-1] for rank in left}
    assert len(final) == 1, ended  # All ranks have the same state.
    assert re.match(rf"done: step 40, world {len(left)}, ", final.pop()), ended


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("lost", [0, 3])
def test_a_lost_rank_is_restarted_and_accepted(local, hosts, lost):
    with Job(local, 4, hosts, EXAMPLE, "--steps", "40", "--lose", f"{lost}:20") as job:
        ended = job.finish(is_to_replace=True)
    assert sorted(rank for rank, _ in ended) == sorted([0, 1, 2, 3, lost]), ended
    check_example(ended, 4, lost, True)


def test_a_newcomer_that_no_rank_accepts_gets_an_error(local):
    with Job(local, 2, 1, "-c", "import ivycomm as ic, os, time\n"
             "late = 'IVY_REJOIN' in os.environ\n"
             "ic.init(timeout=1 if late else 60)\n"
             "if ic.rank() == 1: os.kill(os.getpid(), 9)\n"
             "time.sleep(4)\n") as job:
        ended = job.finish(is_to_replace=True)
    late = ended[1][1]
    assert late.code == 1 and "every survivor must call grow" in late.err_text, ended
    assert "rank 1 was restarted (IVY_REJOIN=1)" in late.err_text, ended


# ---- under ivyrun ---------------------------------------------------------------------------------------

@pytest.mark.parametrize("flags", [("-n", "4"), ("--fake-hosts", "2", "--nproc_per_node", "2")],
                         ids=["one_host", "two_hosts"])
def test_ranks_that_have_finalized_are_left_out(local, flags):
    """The supervisor's status page lists these ranks, and its shared memory serves the new worlds."""
    done = local.run(*flags, PYTHON, local.script("comm_repair.py"), "leave", "--victims", "2,0", limit=LIMIT)
    assert done.code == 0, done
    said = {rank: [json.loads(text) for text in texts if text.startswith("{")]
            for rank, texts in done.texts_by_rank().items()}
    for rank in (1, 3):
        assert [one["members"] for one in said[rank]] == [[0, 1, 3], [1, 3]], done
        assert [one["new"] for one in said[rank]] == ([1, 0] if rank == 1 else [2, 1]), done
    assert [one["members"] for one in said[0]] == [[0, 1, 3]], done


@pytest.mark.parametrize("hosts", [(), ("--fake-hosts", "2")], ids=["one_host", "two_hosts"])
@pytest.mark.parametrize("mode", ["shrink", "replace"])
def test_under_ivyrun(local, mode, hosts):
    """The supervisor reports the dead rank."""
    flags = (*hosts, "--nproc_per_node", "2") if hosts else ("-n", "4")
    done = local.run(*flags, "--on-failure", mode, PYTHON, EXAMPLE, "--steps", "40", "--lose", "2:20",
                     *(["--shrink"] if mode == "shrink" else []), limit=LIMIT)
    assert done.code == 0, done
    texts = done.texts_by_rank()
    final = {lines[-1] for rank, lines in texts.items() if mode == "replace" or rank != 2}
    world = 4 if mode == "replace" else 3
    assert len(final) == 1 and final.pop().startswith(f"done: step 40, world {world}, "), done


def test_a_death_is_seen_after_the_rank_was_restarted(local):
    done = local.run("-n", "3", "--on-failure", "replace", PYTHON, local.script("comm_repair.py"), "asleep", limit=LIMIT)
    assert done.code == 0, done
    said = {rank: json.loads(texts[-1]) for rank, texts in done.texts_by_rank().items()}
    assert said[0] == {"rank": 0, "size": 3, "restarts": 0, "died": 1}, done
    assert said[1] == {"rank": 1, "size": 3, "restarts": 1}, done
    assert said[2] == {"rank": 2, "size": 3, "restarts": 0, "died": 1}, done
