# SPDX-License-Identifier: Apache-2.0
"""Scripts that set MASTER_PORT themselves or start their own ranks, as they would without a launcher: rank 0 serves, and
the job's store does not interfere. With Debian's torch (1.13) and a current one if it is installed."""

import os
import re
import socket

import pytest

from launching import REPOSITORY

PYTHONS = {"debian": "/usr/bin/python3",
           "current": os.environ.get("IVY_TORCH_PYTHON") or os.path.join(REPOSITORY, "build/torch/bin/python3")}


@pytest.fixture(params=list(PYTHONS))
def python(request):
    path = PYTHONS[request.param]
    there = (os.path.isdir("/usr/lib/python3/dist-packages/torch") if request.param == "debian"
             else os.path.exists(path))
    if not there:
        pytest.skip(f"no torch for {path}")
    return path


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def meet(local, python, kind, *flags, ranks=2):
    done = local.run(*flags, python, local.script("own_rendezvous.py"), kind, free_port(), limit=60)
    assert done.code == 0, done
    met = re.findall(r"met (\d) (\d) (\d+) (\w+)", done.out.decode())
    total = ranks * (ranks + 1) // 2
    assert sorted(met) == [(str(rank), str(ranks), str(total), "True") for rank in range(ranks)], done


@pytest.mark.parametrize("kind", ["given", "port", "address", "tcp"])
def test_rank_0_serves_at_the_address_of_the_script(local, python, kind):
    meet(local, python, kind, "--fake-hosts", "2")


@pytest.mark.parametrize("kind", ["spawn", "fork"])
def test_a_worker_may_start_its_own_ranks(local, python, kind):
    meet(local, python, kind, "-n", "1")


def test_a_launcher_in_a_worker_uses_its_own_store(local, python):
    meet(local, python, "launched", "-n", "1", ranks=1)


def test_a_server_on_the_stores_port_gets_advice(local):
    script = "echo \"listen tcp :$MASTER_PORT: bind: address already in use\" >&2; exit 1"
    done = local.run("-n", "1", "sh", "-c", script)
    assert done.code == 1 and "IVY-R020" in done.err_text and "where the job's store listens" in done.err_text, done
    without = local.run("-n", "1", "--no-store", "sh", "-c", script)
    assert without.code == 1 and "IVY-R020" not in without.err_text, without
