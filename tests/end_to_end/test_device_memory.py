# SPDX-License-Identifier: Apache-2.0
"""Collectives on device memory under ivyrun, with stand-ins for CUDA and NCCL, so that no GPU is needed."""

import json
import os
import re

import pytest

from launching import BIN, REPOSITORY, SLOW, wait_until
from test_stack import IVYCTL, PYTHON, end, job_of, stack

DOUBLES = os.path.join(os.path.dirname(BIN), "lib", "doubles")
CUDA, NCCL = os.path.join(DOUBLES, "libcuda_double.so"), os.path.join(DOUBLES, "libnccl_double.so")
pytestmark = pytest.mark.skipif(not os.path.exists(NCCL), reason="the stand-ins are not built: ninja ivy_nccl_test")
WITH_DOUBLES = ("-x", f"IVY_CUDA_LIB={CUDA}", "-x", f"IVY_NCCL_LIB={NCCL}")
PLACES = pytest.mark.parametrize("flags", [("-n", "3"), ("--fake-hosts", "2", "--nproc_per_node", "2")],
                                 ids=["one", "hosts"])
LIMIT = 90


def run(local, flags, *arguments):
    return local.run(*flags, *WITH_DOUBLES, local.script("comm_device.py"), *arguments, limit=LIMIT)


def said(done):
    return {rank: json.loads(line) for rank, lines in done.texts_by_rank().items() for line in lines
            if line.startswith("{")}


@PLACES
def test_collectives_groups_and_work(local, flags):
    done = run(local, flags, "collectives")
    assert done.code == 0, done
    words = said(done)
    assert len(words) == (3 if "-n" in flags else 4), done
    assert all(word["says"] == "all equal" for word in words.values()), done


def test_memory_of_the_library_is_shared_with_nccl(local):
    done = run(local, ("-n", "2"), "registered")
    assert done.code == 0 and all(word["says"] == "all equal" for word in said(done).values()), done


@PLACES
def test_arrays_with_only_dlpack_are_used_and_released(local, flags):
    pytest.importorskip("numpy")
    done = run(local, flags, "lent")
    words = said(done)
    assert done.code == 0 and len(words) == (3 if "-n" in flags else 4), done
    assert all(word["says"] == "all equal" for word in words.values()), done


def test_a_killed_rank_is_named_and_frees_the_device(local):
    done = run(local, ("-n", "3"), "killed")
    assert done.code == 128 + 9, done
    words = said(done)
    assert sorted(words) == [0, 1], done
    for word in words.values():
        assert word["kind"] == "RankDied" and word["rank"] == 2, done
        assert word["seconds"] < 1 * SLOW, done


@PLACES
def test_survivors_continue_with_nccl_in_a_smaller_world(local, flags):
    done = run(local, ("--on-failure", "shrink", *flags), "shrunk")
    words = said(done)
    assert len(words) == (2 if "-n" in flags else 3), done
    assert all(word["says"] == "all equal" for word in words.values()), done


# A communicator of NCCL that broke and was kept for a world of survivors cannot be used by a world that grows.
@pytest.mark.parametrize("is_kept", ["0", "1"], ids=["new", "kept"])
@PLACES
def test_a_restarted_rank_uses_nccl_with_the_others(local, flags, is_kept):
    done = run(local, ("--on-failure", "replace", "-x", f"IVY_NCCL_SHRINK={is_kept}", *flags), "grown")
    words, last = said(done), 2 if "-n" in flags else 3
    assert len(words) == last + 1, done
    assert all(word["says"] == "all equal" for word in words.values()), done
    assert [words[rank]["lives"] for rank in range(last + 1)] == [0] * last + [2], done


@PLACES
def test_mixed_host_and_device_arrays_fail_on_every_rank(local, flags):
    done = run(local, flags, "mixed")
    words, last = said(done), 2 if "-n" in flags else 3
    assert len(words) == last + 1, done
    for word in words.values():
        assert word["kind"] == "Mismatch" and word["seconds"] < 10, done
        assert f"rank {last} calls all_reduce(sum) of 10 f32 in host memory" in word["says"], done


@PLACES
@pytest.mark.parametrize("change", ["IVY_NCCL_LIB=/no/libnccl.so.2", "NCCL_DOUBLE=version=21304"], ids=["none", "old"])
def test_an_array_on_a_device_without_nccl_is_rejected_on_all_ranks(local, flags, change):
    done = run(local, flags, "without", change)
    words = said(done)
    assert done.code == 0 and len(words) == (3 if "-n" in flags else 4), done
    for word in words.values():
        assert word["kind"] == "FailedPrecondition" and "rank 1 (" in word["says"] and word["seconds"] < 30, done


@PLACES
@pytest.mark.parametrize("change, parts", [
    ("IVY_CUDA_LIB=/no/libcuda.so.1", ("rank 1 (", "/no/libcuda.so.1", "nvidia-smi")),
    ("CUDA_DOUBLE=no_device", ("rank 1 (", "no CUDA-capable device", "--gpus")),
    (f"IVY_NCCL_LIB={CUDA}", ("rank 1 (", "is not NCCL", "IVY_NCCL_LIB")),
    (f"IVY_NCCL_LIB={NCCL.replace('.so', '_broken.so')}", ("rank 1 (", "lacks the function ncclCommAbort")),
    ("NCCL_DOUBLE=version=21304", ("rank 1 (", "older than 2.14", "pip install")),
    ("NCCL_SOCKET_IFNAME=nosuch0", ("rank 1 (", "NCCL_SOCKET_IFNAME=nosuch0", "set NCCL_SOCKET_IFNAME")),
], ids=["no_driver", "no_device", "wrong_library", "symbols", "old", "interface"])
def test_nccl_problems_are_reported_on_all_ranks(local, flags, change, parts):
    done = run(local, flags, "prepare", change)
    words = said(done)
    assert len(words) == (3 if "-n" in flags else 4), done
    for word in words.values():
        assert word["code"] == "FailedPrecondition" and word["seconds"] < 30, done
        assert all(part in word["says"] for part in parts) and "\n" not in word["says"], done


@PLACES
def test_a_problem_after_the_barrier_is_reported_on_all_ranks(local, flags):
    done = run(local, flags, "prepare", "NCCL_DOUBLE=fail_id", "0")
    words = said(done)
    assert len(words) == (3 if "-n" in flags else 4), done
    for word in words.values():
        assert word["code"] == "Internal" and word["seconds"] < 10, done
        assert "make the unique id: unhandled system error" in word["says"], done


def test_nccl_that_pip_installed_is_found(local):
    folder = os.path.join(local.directory, "packages", "nvidia", "nccl", "lib")
    os.makedirs(folder)
    library = os.path.join(folder, "libnccl.so.2")
    os.symlink(NCCL, library)
    done = local.run("-n", "2", "-x", f"IVY_CUDA_LIB={CUDA}", "-x", f"EXTRA_PATH={local.directory}/packages",
                     local.script("comm_device.py"), "prepare", limit=LIMIT)
    words = said(done)
    assert len(words) == 2 and all(word["nccl"] == [NCCL] for word in words.values()), done


TORCH = os.environ.get("IVY_TORCH_PYTHON") or os.path.join(REPOSITORY, "build/torch/bin/python3")


@pytest.mark.long
@pytest.mark.skipif(not os.path.exists(TORCH), reason="no torch 2.14 or newer: scripts/setup torch")
def test_messages_that_torch_batches_are_one_nccl_group(local):
    done = local.run("-n", "3", *WITH_DOUBLES, "--python", TORCH, local.script("torch_device_messages.py"), limit=LIMIT)
    assert done.code == 0 and {lines[-1] for lines in done.texts_by_rank().values()} == {"all equal"}, done


def test_ranks_that_hang_in_the_init_of_nccl_are_shown(local):
    # The files that a killed stand-in leaves are removed with the test's directory.
    folder = ("-x", f"NCCL_DOUBLE_DIR={local.directory}")
    with local.start("--stall-timeout", "1", "-n", "2", *WITH_DOUBLES, "-x", "NCCL_DOUBLE=hang_init", *folder, PYTHON,
                     local.script("comm_device.py"), "hangs") as job:
        job_id = job_of(job, 2)
        job.wait_for(rb"takes longer than --stall-timeout", limit=20)
        # Both ranks poll in short turns, so one of them may be seen between two turns.
        one = re.compile(r"ranks 0-1: NCCL says: the stand-in hangs\nNCCL's health service says: #0-0 .* Rank \d has status INIT .*\n"
                         r"ranks 0-1 \(host \S+\): main thread: .*\n"
                         r"(    .*\n)*    prepare_device \(")
        wait_until(lambda: one.match(stack(local, job_id, pattern="prepare_device")), 20, "the stacks are one")
        why = local.run_program(IVYCTL, "why", job_id).out.decode()
        assert re.search(r'^ranks 0-1 \(host \S+\): in init #1 of "world"', why, re.MULTILINE), why
        end(job)


def test_ranks_that_have_not_called_a_device_operation_are_named(local):
    absent = (r'rank 2 did not enter all_reduce #3 of "world \(devices\)" \(last entered all_reduce #2\); '
              r"ranks 0-1 wait in it \(1000 f32, sum\) for \d+ s")
    late = (PYTHON, local.script("comm_device.py"), "late")
    with local.start("--stall-timeout", "2", "-n", "3", *WITH_DOUBLES, *late) as job:
        job_id = job_of(job, 3)
        wait_until(lambda: re.search(absent, local.run_program(IVYCTL, "why", job_id).out.decode()), 20, "ivyctl why names the rank")
        job.wait_for(rb"rank 2 did not enter all_reduce #3", limit=20)
        end(job)


@PLACES
def test_an_nccl_timeout_includes_its_health_service(local, flags):
    done = run(local, (*flags, "-x", "NCCL_DOUBLE=hang_init", "-x", f"NCCL_DOUBLE_DIR={local.directory}",
                       "-x", "PREPARE_TIMEOUT=2"), "prepare")
    words = said(done)
    assert len(words) == (3 if "-n" in flags else 4), done
    for word in words.values():
        assert word["code"] == "DeadlineExceeded" and word["seconds"] < 2 + 3 * SLOW, done
        assert re.search(r"init timed out: not finished after .*; NCCL says: the stand-in hangs; also not finished: rank .*; NCCL's health "
                         r"service says: #0-0 \(\w+\) MISMATCH: .* has status INIT", word["says"]), done
    # The service is queried once for all ranks, at the address that the launcher chose.
    assert done.err_text.count("NCCL's health service (RAS) says:\n") + \
        done.out.decode().count("NCCL's health service (RAS) says:\n") == 1, done


# Each host's other interface, which the other hosts cannot reach.
OTHER = "prb0"


def prepare_on_hosts(hosts, *flags):
    doubles = []
    for path in (CUDA, NCCL):
        with open(path, "rb") as file:
            doubles.append(hosts.file(os.path.basename(path), file.read(), mode=0o755))
    done = hosts.run("-H", "node2,node3", "-x", f"IVY_CUDA_LIB={doubles[0]}", "-x", f"IVY_NCCL_LIB={doubles[1]}",
                     *flags, "/usr/bin/python3", "-B", hosts.script("comm_device.py"), "prepare", limit=LIMIT)
    words = said(done)
    assert len(words) == 2, done
    return done, words


@pytest.mark.parametrize("route, why", [
    ((), "Network is unreachable"),
    # The gateway does not exist, so there is no answer, as behind a firewall.
    (("via", "10.77.0.99"), "no answer within 2500 ms"),
], ids=["no_way", "silence"])
def test_an_unreachable_interface_is_named(hosts, route, why):
    try:
        for host in (2, 3):
            assert hosts.run_on(host, "ip", "link", "add", OTHER, "type", "veth", "peer", "name", "prb1").code == 0
            assert hosts.run_on(host, "ip", "address", "add", f"10.99.{host}.1/24", "dev", OTHER).code == 0
            assert hosts.run_on(host, "ip", "link", "set", "prb1", "up").code == 0
            assert hosts.run_on(host, "ip", "link", "set", OTHER, "up").code == 0
            if route:
                assert hosts.run_on(host, "ip", "route", "add", f"10.99.{5 - host}.0/24", *route).code == 0
        done, words = prepare_on_hosts(hosts, "-x", f"NCCL_SOCKET_IFNAME={OTHER}")
        for word in words.values():
            assert word["code"] == "FailedPrecondition" and word["seconds"] < 30, done
            assert ("rank 0 (node2, pid " in word["says"] and f"cannot reach 10.99.3.1 ({OTHER})" in word["says"]
                    and "rank 1 (node3, pid " in word["says"] and why in word["says"]
                    and re.search(r"set NCCL_SOCKET_IFNAME=\w+ \(10\.77\.0\.0/\d+\), in which all hosts", word["says"])), done
    finally:
        for host in (2, 3):
            hosts.run_on(host, "ip", "link", "del", OTHER)
            if route:
                hosts.run_on(host, "ip", "route", "del", f"10.99.{5 - host}.0/24")


def test_reachable_interfaces_are_accepted(hosts):
    done, words = prepare_on_hosts(hosts)
    # The job gets as far as NCCL's own init, which the stand-in does not support without shared memory.
    assert all(": init: " in word["says"] and "cannot reach" not in word["says"] for word in words.values()), done
