# SPDX-License-Identifier: Apache-2.0
"""The main job: an unmodified PyTorch script, on simulated hosts and on hosts reached by SSH."""

import os
import re

import pytest

from launching import REPOSITORY

# Importing torch takes seconds, and the workers share the machine's cores.
TRAIN_LIMIT = 120
# One thread each, because eight workers with as many threads as cores would slow each other down.
CALM = ("-x", "OMP_NUM_THREADS=1")


def check_training(done, world, epochs):
    assert done.code == 0, done
    text = done.out.decode()
    losses = [float(loss) for loss in re.findall(r"epoch \d+/\d+: loss ([\d.]+)", text)]
    assert len(losses) == epochs, done
    assert losses[-1] < losses[0], f"the loss did not fall: {losses}"
    finals = re.findall(r"rank (\d+) of (\d+): weights equal on all ranks, checksum (-?[\d.]+)",
                        text)
    assert sorted(int(rank) for rank, _, _ in finals) == list(range(world)), done
    assert {int(size) for _, size, _ in finals} == {world}
    assert len({checksum for _, _, checksum in finals}) == 1, f"weights differ: {finals}"


@pytest.fixture(scope="module", autouse=True)
def torch_is_there():
    if not os.path.isdir("/usr/lib/python3/dist-packages/torch"):
        pytest.skip("python3-torch is not installed")


def test_training_on_two_simulated_hosts(local):
    script = os.path.join(REPOSITORY, "scripts/examples/train_ddp.py")
    done = local.run("--fake-hosts", "2", "--nproc_per_node", "2", *CALM, script, "--epochs", "3",
                     limit=TRAIN_LIMIT)
    check_training(done, world=4, epochs=3)
    placed = {(rank, host) for rank, host, _ in done.labelled()}
    assert placed == {(0, "fake0"), (1, "fake0"), (2, "fake1"), (3, "fake1")}


def test_training_on_four_hosts_by_ssh(hosts):
    done = hosts.run("-H", "node[1-4]", "--nproc_per_node", "2", *CALM,
                     "/srv/ivyshared/examples/train_ddp.py", "--epochs", "3", limit=TRAIN_LIMIT)
    check_training(done, world=8, epochs=3)
    placed = {(rank, host) for rank, host, _ in done.labelled()}
    assert placed == {(rank, f"node{rank // 2 + 1}") for rank in range(8)}


def test_training_on_hosts_with_unusual_configurations(hosts):
    """An ordinary user on hosts with a .bashrc that prints, fish, a host name that resolves to 127.0.1.1, and a noexec home."""
    user = hosts.as_user("ivyuser")
    done = user.run("-H", "node4,node3,node2,node5", "--nproc_per_node", "1", *CALM,
                    "/srv/ivyshared/examples/train_ddp.py", "--epochs", "2", limit=TRAIN_LIMIT)
    check_training(done, world=4, epochs=2)


def test_a_short_job_starts_and_ends_quickly(local):
    """ivyrun has no fixed delays: two workers that do nothing take a fraction of a second."""
    times = [local.run("-n", "2", "/bin/true").took for _ in range(5)]
    assert min(times) < 0.5, times
