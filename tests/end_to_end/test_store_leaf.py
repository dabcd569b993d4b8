"""The store's leaf on each host: who gets one, what workers see, restarts, and its death."""

import os
import re
import signal

import pytest

from launching import wait_until
from test_store import TORCH_LIMIT, store_of

WITH_TORCH = pytest.mark.skipif(not os.path.isdir("/usr/lib/python3/dist-packages/torch"),
                                reason="python3-torch is not installed")
SAY = ["bash", "-c", 'echo "at $MASTER_ADDR:$MASTER_PORT $IVY_STORE"']


def leaves_of(job_id):
    """Every leaf of that job on this machine: pid to command line."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read().decode(errors="replace").split("\0")
        except OSError:
            continue
        if words[:2] == ["ivy-rendezvous", "leaf"] and job_id in words:
            found[int(name)] = words
    return found


def places(done):
    return {rank: re.fullmatch(r"at (\S+):(\d+) (\S+)", text).groups()
            for rank, _, text in done.labelled()}


@pytest.mark.parametrize("flags, torch_at_home, native_at_home", [
    (["--fake-hosts", "2", "--nproc_per_node", "2"], False, True),
    (["--fake-hosts", "2", "--nproc_per_node", "2", "--store-proxy"], True, True),
    (["--fake-hosts", "2", "--nproc_per_node", "1", "--store-proxy"], False, False),
    (["-n", "2", "--store-proxy"], False, False),
])
def test_who_gets_a_leaf(local, flags, torch_at_home, native_at_home):
    done = local.run(*flags, *SAY)
    assert done.code == 0, done
    at = places(done)
    ports = {port for _, port, _ in at.values()}
    assert len(ports) == (2 if torch_at_home else 1), done
    for address, _, native in at.values():
        assert address == "127.0.0.1", done
        assert native.startswith("unix:/") == native_at_home, done


def test_the_flag_contradicts_no_store(local):
    done = local.run("--store-proxy", "--no-store", "-n", "2", "true")
    assert done.code == 2 and "contradict" in done.err_text, done


def test_dry_run_lists_what_listens(local):
    done = local.run("--fake-hosts", "2", "--nproc_per_node", "2", "--store-proxy", "--dry-run", "true")
    text = done.out.decode() + done.err_text
    assert len(re.findall(r"listens: a Unix socket .* on fake\d and 127\.0\.0\.1:\d+", text)) == 2, done


@WITH_TORCH
def test_the_first_host_may_be_done_early(local):
    """Its store serves the other hosts to their end, with leaves and without."""
    for more in ([], ["--store-proxy"]):
        done = local.run("--fake-hosts", "2", "--nproc_per_node", "1" if not more else "2", *more,
                         local.script("torch_store.py"), "first_leaves", limit=TORCH_LIMIT)
        assert done.code == 0, done
        assert "still there x" in done.out.decode(), done


@WITH_TORCH
def test_ddp_through_the_proxy(local):
    done = local.run("--fake-hosts", "2", "--nproc_per_node", "2", "--store-proxy",
                     local.script("../../../scripts/examples/train_ddp.py"), limit=2 * TORCH_LIMIT)
    assert done.code == 0, done
    assert len(set(re.findall(r"weights equal on all ranks, checksum (\S+)", done.out.decode()))) == 1


@WITH_TORCH
def test_on_real_hosts(hosts):
    user = hosts.as_user("ivyuser")
    done = user.run("-H", "node2,node3", "--nproc_per_node", "2", "--store-proxy",
                    user.script("torch_store.py"), "first_leaves", limit=TORCH_LIMIT)
    assert done.code == 0, done
    lines = done.texts_by_rank()
    assert all("squares [0, 1, 4, 9]" in "\n".join(lines[rank]) for rank in range(4)), done


@WITH_TORCH
def test_a_killed_leaf_ends_the_job_with_the_stores_reason(local):
    with local.start("--fake-hosts", "2", "--nproc_per_node", "2", "--store-proxy", "bash", "-c",
                     'echo job $IVY_JOB_ID; exec "$@"', "-", "/usr/bin/python3",
                     local.script("torch_store.py"), "stay") as job:
        job.wait_for(rb"squares", limit=TORCH_LIMIT, count=4)
        job_id = re.search(rb"job ([0-9a-f]{32})", job.said())[1].decode()
        leaves = leaves_of(job_id)
        assert len(leaves) == 2 and len(store_of(job_id)) == 1, leaves
        os.kill(next(iter(leaves)), signal.SIGKILL)
        done = job.finish()
    assert done.code == 121, done
    assert "IVY-R008" in done.err_text and "leaf" in done.err_text, done
    wait_until(lambda: not leaves_of(job_id) and not store_of(job_id), 10, "the store's end")


def test_a_new_generation_through_the_proxy(local):
    """Old keys are gone, and the same leaf serves the new workers."""
    done = local.run("--fake-hosts", "2", "--nproc_per_node", "2", "--store-proxy", "--max-restarts", "1",
                     local.script("leaf_generations.py"), limit=60,
                     env={"IVY_TEST_RESTART_PAUSE": "100ms"})
    assert done.code == 0, done
    assert done.out.decode().count("attempt 1: 4 met, nothing was left") == 4, done
