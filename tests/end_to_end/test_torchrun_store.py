"""torchrun --rdzv-backend ivy: torch's own launcher meets in our store, found without installation."""

import contextlib
import os
import re
import secrets
import signal
import socket

import pytest

from launching import BIN, REPOSITORY, seconds, wait_until

TORCH = os.environ.get("IVY_TORCH_PYTHON") or os.path.join(REPOSITORY, "build/torch/bin/python3")
pytestmark = pytest.mark.skipif(not os.path.exists(TORCH), reason="no torch 2.10 or newer: scripts/setup torch")

PROGRAM = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
sum = torch.ones(1) * dist.get_rank()
dist.all_reduce(sum)
print("rank", dist.get_rank(), "of", dist.get_world_size(), "node", os.environ["GROUP_RANK"], "sum", int(sum), flush=True)
dist.destroy_process_group()
"""
WAITER = """
import os, time
print("up", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
while not os.path.exists("stop"):
    time.sleep(0.05)
"""
LIMIT = 60


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def family(pid):
    """A process and all below it, the youngest last."""
    found = [pid]
    for one in found:
        with contextlib.suppress(OSError), open(f"/proc/{one}/task/{one}/children") as file:
            found += map(int, file.read().split())
    return found


class Meeting:
    """One store, and torchruns that meet there."""

    def __init__(self, local):
        self.local, self.port = local, free_port()
        token = local.file("token", secrets.token_bytes(32), 0o400)
        self.store = local.start_program(os.path.join(BIN, "ivy-rendezvous"), "serve", "--job", "ab" * 16,
                                         "--token-file", token, "--listen", "127.0.0.1:0",
                                         "--torch", f"127.0.0.1:{self.port}")
        self.store.wait_for("ready")

    def start(self, *words, endpoint=None):
        package = os.path.join(os.path.dirname(BIN), "lib/ivyrun/python")
        return self.local.start_program(TORCH, "-m", "torch.distributed.run", "--rdzv-backend", "ivy",
                                        "--rdzv-endpoint", endpoint or f"127.0.0.1:{self.port}",
                                        "--local-addr", "127.0.0.1", "--log-dir", "logs", *words, env={"PYTHONPATH": package})


@pytest.fixture
def meeting(local):
    made = Meeting(local)
    with made.store:
        yield made
        made.store.process.send_signal(signal.SIGTERM)
        made.store.process.wait(seconds(10))


def test_two_nodes_meet(local, meeting):
    words = ("--nnodes", "2", "--nproc-per-node", "2", "--rdzv-id", "one", local.file("t.py", PROGRAM))
    with meeting.start(*words) as one, meeting.start(*words) as other:
        done = [one.finish(LIMIT), other.finish(LIMIT)]
    assert [run.code for run in done] == [0, 0], done
    assert len(re.findall(rb"of 4 node \d sum 6", done[0].out + done[1].out)) == 4, done
    again = meeting.start(*words)
    with again:
        late = again.finish(LIMIT)
        assert late.code != 0 and "the job of this --rdzv-id is over" in late.err_text, late


def test_ranks_by_number(local, meeting):
    words = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-id", "two"]
    script = local.file("t.py", PROGRAM)
    with meeting.start(*words, "--rdzv-conf", "rank=1", script) as second:
        wait_until(lambda: second.process.poll() is None, 1, "it runs")
        with meeting.start(*words, "--rdzv-conf", "rank=0", script) as first:
            done = [first.finish(LIMIT), second.finish(LIMIT)]
    assert b"rank 0 of 2 node 0" in done[0].out and b"rank 1 of 2 node 1" in done[1].out, done


def test_one_dies_and_one_comes(local, meeting):
    words = ("--nnodes", "1:2", "--nproc-per-node", "1", "--rdzv-id", "three", "--max-restarts", "3", "--rdzv-conf",
             "last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=3", local.file("w.py", WAITER))
    with contextlib.ExitStack() as stack:
        stays, dies = (stack.enter_context(meeting.start(*words)) for _ in range(2))
        stays.wait_for("of 2", LIMIT)
        dies.wait_for("of 2", LIMIT)
        # With its worker, as when its host is lost.
        for pid in family(dies.process.pid):
            os.kill(pid, signal.SIGKILL)
        stays.wait_for("up 0 of 1", LIMIT)
        comes = stack.enter_context(meeting.start(*words))
        comes.wait_for("of 2", LIMIT)
        stays.wait_for("of 2", LIMIT, count=2)
        local.file("stop")
        assert stays.finish(LIMIT).code == 0 and comes.finish(LIMIT).code == 0


@pytest.mark.parametrize("words, endpoint, said", [
    (("--rdzv-conf", "join_timeout=2"), None, "1 of 2 nodes came in 2 s"),
    (("--rdzv-conf", "read_timeout=2"), "127.0.0.1:1", "no store at 127.0.0.1:1 after 2 s"),
    ((), "nowhere", 'rdzv-endpoint "nowhere": HOST:PORT'),
], ids=["too_few", "no_store", "no_port"])
def test_what_goes_wrong_is_said(local, meeting, words, endpoint, said):
    with meeting.start("--nnodes", "2", *words, "--rdzv-id", "four", local.file("t.py", PROGRAM),
                       endpoint=endpoint) as run:
        done = run.finish(LIMIT)
    assert done.code != 0 and said in done.err_text, done
