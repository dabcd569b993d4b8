# SPDX-License-Identifier: Apache-2.0
"""The job's store: torch's use of it, access to it, and the effect of its exit."""

import os
import re
import resource
import signal

import pytest

from launching import wait_until

TORCH_LIMIT = 90


@pytest.fixture(autouse=True)
def torch_is_there():
    if not os.path.isdir("/usr/lib/python3/dist-packages/torch"):
        pytest.skip("python3-torch is not installed")


def store_processes():
    """Returns {pid: command line} of every store on this machine, including those of test hosts."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if words[:2] == [b"ivy-rendezvous", b"serve"]:
            found[int(name)] = [word.decode() for word in words]
    return found


def store_of(job_id):
    return [pid for pid, words in store_processes().items() if job_id in words]


def test_every_rank_is_a_client_and_rank_0_may_leave(local):
    done = local.run("-n", "3", local.script("torch_store.py"), "first_leaves", limit=TORCH_LIMIT)
    assert done.code == 0, done
    lines = done.texts_by_rank()
    assert all("squares [0, 1, 4]" in "\n".join(lines[rank]) for rank in range(3)), done
    assert all("still there x" in "\n".join(lines[rank]) for rank in (1, 2)), done


def test_on_two_hosts(hosts):
    user = hosts.as_user("ivyuser")
    done = user.run("-H", "node3,node2", "--nproc_per_node", "2", user.script("torch_store.py"),
                    "first_leaves", limit=TORCH_LIMIT)
    assert done.code == 0, done


def test_a_job_that_does_not_use_the_store_does_not_start_it(local):
    before = set(store_processes())
    done = local.run("-n", "2", "bash", "-c", "sleep 0.5; echo $IVY_STORE")
    assert done.code == 0, done
    assert set(store_processes()) <= before
    assert all(text.startswith("127.0.0.1:") for _, _, text in done.labelled()), done


def test_killed_store_ends_the_job_with_its_own_reason(local):
    job = local.start("-n", "2", "bash", "-c", 'echo job $IVY_JOB_ID; exec "$@"', "-",
                      "/usr/bin/python3", local.script("torch_store.py"), "stay")
    with job:
        job.wait_for(rb"squares", limit=TORCH_LIMIT, count=2)
        job_id = next(line for line in job.said().decode().split() if len(line) == 32)
        stores = store_of(job_id)
        assert len(stores) == 1, stores
        os.kill(stores[0], signal.SIGKILL)
        done = job.finish()
    assert done.code == 121, done
    assert "IVY-R008" in done.err_text and "signal 9" in done.err_text, done
    wait_until(lambda: not store_of(job_id), 10, "the store's end")


def test_a_lost_store_is_replaced_for_the_next_attempt(local):
    """The attempt ends with its store. With --max-restarts another attempt starts, with a new store on the same ports."""
    script = ('echo job $IVY_JOB_ID attempt $IVY_GENERATION at $MASTER_PORT; '
              'if [ $IVY_GENERATION = 1 ]; then set -- "$1" "$2" first_leaves; fi; exec "$@"')
    job = local.start("-n", "2", "--max-restarts", "1", "bash", "-c", script, "-",
                      "/usr/bin/python3", local.script("torch_store.py"), "stay")
    with job:
        job.wait_for(rb"squares", limit=TORCH_LIMIT, count=2)
        job_id = next(line for line in job.said().decode().split() if len(line) == 32)
        [store] = store_of(job_id)
        os.kill(store, signal.SIGKILL)
        done = job.finish()
    assert done.code == 0, done
    assert "attempt 1 of 2 failed: the job's store on host" in done.err_text and "signal 9" in done.err_text, done
    assert len(set(re.findall(r"attempt \d at (\d+)", done.out.decode()))) == 1, done
    wait_until(lambda: not store_of(job_id), 10, "the store's end")


FILL = """
import os, time, ivycomm as ic
ic.init()
store = ic.store()
store.set("first", "value")
print("job", os.environ["IVY_JOB_ID"], flush=True)
while not os.path.exists("go"): time.sleep(0.05)
if ic.rank() == 0:
    for number in range(1000):
        store.set(f"key {number}", bytes(4 << 20))
time.sleep(600)
"""


def test_a_store_without_memory_says_so(local):
    """The limit is that of its process, not the store's own, which is larger."""
    with local.start("-n", "2", "/usr/bin/python3", "-B", "-c", FILL) as job:
        job.wait_for(rb"job \w+", count=2)
        job_id = next(line for line in job.said().decode().split() if len(line) == 32)
        [store] = store_of(job_id)
        with open(f"/proc/{store}/status") as file:
            used = 1024 * int(re.search(r"VmSize:\s+(\d+) kB", file.read())[1])
        resource.prlimit(store, resource.RLIMIT_AS, (used + (64 << 20), used + (64 << 20)))
        local.file("go")
        done = job.finish()
    assert done.code == 121 and "IVY-R008" in done.err_text, done
    assert "it has run out of memory (ulimit -v, or the memory limit of its cgroup)" in done.err_text, done


TRAIN_THEN_EVALUATE = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.full((1,), float(dist.get_rank() + 1))
dist.all_reduce(x)
print(sys.argv[1], x.item(), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("ranks", [("-n", "3"), ("--fake-hosts", "2")], ids=["local", "hosts"])
def test_two_programs_of_a_rank_use_gloo_one_after_the_other(local, tmp_path, ranks):
    script = tmp_path / "step.py"
    script.write_text(TRAIN_THEN_EVALUATE)
    done = local.run(*ranks, "bash", "-c",
                     f"for step in train evaluate again; do /usr/bin/python3 {script} $step || exit; done",
                     limit=3 * TORCH_LIMIT)
    assert done.code == 0, done
    total = "6.0" if ranks[0] == "-n" else "3.0"
    for step in ("train", "evaluate", "again"):
        assert done.out.decode().count(f"{step} {total}") == (3 if ranks[0] == "-n" else 2), done


def test_without_a_store_rank_0_serves(local):
    done = local.run("--no-store", "-n", "2", "bash", "-c",
                     "echo [$TORCHELASTIC_USE_AGENT_STORE] [$IVY_STORE]")
    assert done.code == 0, done
    assert [text for _, _, text in done.labelled()] == ["[False] []"] * 2, done


ASK = """
import os, socket, struct, sys, time
where = sys.argv[1:] or [os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]]
store = socket.create_connection((where[0], int(where[1])), timeout=10)
try:
    store.sendall(b"\\0" + struct.pack("<I", 0x3C85F7CE) + b"\\x0dping")
    answer = store.recv(4)
except ConnectionError:
    answer = b""
print("store", *where, "answers" if answer == b"ping" else "hangs up", flush=True)
if len(sys.argv) == 1:
    time.sleep(60)
"""


def test_a_remote_host_serves_no_other_job(hosts):
    """A job on a single host may serve torch's unauthenticated protocol on the network. Clients of another job are disconnected."""
    user = hosts.as_user("ivyuser")
    with user.start("-H", "node2", "-n", "1", "python3", "-c", ASK) as job:
        line = r"store (\S+) (\d+) answers"
        job.wait_for(line)
        address, port = re.search(line, job.said().decode()).groups()
        assert not address.startswith("127."), address
        stranger = user.run("-H", "node3", "-n", "1", "python3", "-c", ASK, address, port)
        assert f"store {address} {port} hangs up" in stranger.out.decode(), stranger
        job.signal(signal.SIGINT)
        job.finish()
