# SPDX-License-Identifier: Apache-2.0
"""Common layouts in a real Slurm: a worker for each GPU, a worker for each host with all of its GPUs, several hosts.

Slurm allocates GPUs that do not exist (tests/testbed/slurm) and sets CUDA_VISIBLE_DEVICES. Directory trees replace the
hosts with GPUs.
"""

import os
import re

import pytest

import device_trees as trees
from slurm_jobs import Slurm, running_on

SAY = ('echo "$RANK $LOCAL_RANK $IVY_LOCAL_RANK/$IVY_LOCAL_WORLD_SIZE on $IVY_NODE_RANK: '
       '$IVY_DEVICE_ORDINAL of ${CUDA_VISIBLE_DEVICES-all}"')

ALL = "0,1,2,3,4,5,6,7"


@pytest.fixture(scope="module")
def running_slurm(testbed):
    with running_on(testbed, "linuxproc"):
        yield


@pytest.fixture
def slurm(hosts, running_slurm):
    with Slurm(hosts.as_user("ivyuser"), "linuxproc") as made:
        yield made


@pytest.fixture
def tree(slurm):
    """Lines for a batch script that give every host of the job eight GPUs."""
    inside = f"{slurm.launcher.directory}/root"
    outside = slurm.launcher.outside(inside)
    trees.eight_gpus(outside)
    for name in os.listdir(f"{outside}/dev"):
        os.chmod(f"{outside}/dev/{name}", 0o666)  # The driver uses the same mode.
    return f"export IVY_DEVICE_ROOT={inside}\n"


def said(job):
    """Returns the line of each rank, in rank order."""
    done = job.finish()
    assert done.code == 0, done
    texts = done.texts_by_rank()
    assert all(len(lines) == 1 for lines in texts.values()), done
    return [texts[rank][0] for rank in sorted(texts)]


def test_a_worker_for_each_gpu(slurm, tree):
    script = slurm.launcher.file("say.sh", f"#!/bin/sh\n{SAY}\n", 0o755)
    job = slurm.batch(["-N", "1", "--gpus-per-node=8"], f"{tree}IVYRUN {script}")
    assert said(job) == [f"{n} {n} {n}/8 on 0: {n} of {ALL}" for n in range(8)]


def test_each_worker_sees_its_own_gpu(slurm, tree):
    script = slurm.launcher.file("say.sh", f"#!/bin/sh\n{SAY}\n", 0o755)
    job = slurm.batch(["-N", "1", "--gpus-per-node=8"], f"{tree}IVYRUN --visible own {script}")
    assert said(job) == [f"{n} 0 {n}/8 on 0: 0 of {n}" for n in range(8)]


def test_one_worker_for_each_host_with_all(slurm, tree):
    script = slurm.launcher.file("say.sh", f"#!/bin/sh\n{SAY}\n", 0o755)
    job = slurm.batch(["-N", "3", "--ntasks-per-node=1", "--gpus-per-node=8"],
                      f"{tree}IVYRUN --gpus_per_proc 8 {script}")
    assert said(job) == [f"{n} 0 0/1 on {n}: {ALL} of {ALL}" for n in range(3)]


def test_several_hosts(slurm, tree):
    """The devices that the batch script's own host sees do not apply to the other hosts."""
    script = slurm.launcher.file("say.sh", f"#!/bin/sh\n{SAY}\n", 0o755)
    job = slurm.batch(["-N", "2", "--gpus-per-node=8"], f"{tree}export CUDA_VISIBLE_DEVICES=2,3\nIVYRUN {script}")
    assert said(job) == [f"{n} {n % 8} {n % 8}/8 on {n // 8}: {n % 8} of {ALL}" for n in range(16)]


def test_gpus_per_task_hide_the_other_gpus(slurm, tree):
    """Slurm gives the step's single task one GPU."""
    job = slurm.batch(["-N", "1", "-n", "4", "--gpus-per-task=1"], f"{tree}IVYRUN --nproc_per_node 4 /bin/true")
    done = job.finish()
    assert done.code == 122, done
    assert "--gpus-per-task" in done.err_text and "--gpus-per-node" in done.err_text, done
    assert "--ntasks-per-node" in done.err_text, done


def test_idle_gpus_are_reported(slurm, tree):
    """The default is one worker, for the only GPU that Slurm shows."""
    script = slurm.launcher.file("say.sh", f"#!/bin/sh\n{SAY}\n", 0o755)
    options = ["-N", "1", "-n", "4", "--gpus-per-task=1"]
    done = slurm.batch(options, f"{tree}IVYRUN --label rank {script}").finish()
    assert done.code == 0 and "--gpus-per-task leaves 1 of 4 devices visible" in done.err_text, done
    assert done.texts_by_rank() == {0: ["0 0 0/1 on 0: 0 of 0"]}, done
    # The shell of salloc has fewer of Slurm's variables.
    root = re.search("IVY_DEVICE_ROOT=(.*)", tree)[1]
    done = slurm.run(options, "/bin/true", env={"IVY_DEVICE_ROOT": root})
    assert done.code == 0 and "--gpus-per-task leaves 1 of 4 devices visible" in done.err_text, done


def test_workers_share_devices_that_are_not_hidden(slurm, tree):
    """torch scripts with more workers than GPUs."""
    job = slurm.batch(["-N", "1", "-n", "1", "--gpus-per-task=2"], f"{tree}IVYRUN --nproc_per_node 4 /bin/true")
    done = job.finish()
    assert done.code == 0 and "4 workers share 2 accelerators" in done.err_text, done
    assert "--gpus-per-task leaves" not in done.err_text, done


def test_the_launchers_mask_is_not_used_on_another_host(slurm):
    """The launcher's mask does not apply to a step on another host."""
    # A variable that Slurm does not set itself.
    words = ["/bin/sh", "-c", "echo $(hostname) mask=$HIP_VISIBLE_DEVICES"]
    for host, mask in ("node2", ""), ("node1", "3"):
        done = slurm.run(["-w", host], "--label", "rank", *words, env={"HIP_VISIBLE_DEVICES": "3"})
        assert done.code == 0 and done.texts_by_rank()[0] == [f"{host} mask={mask}"], done


def test_more_workers_than_gpus(slurm, tree):
    job = slurm.batch(["-N", "1", "--gpus-per-node=8"], f"{tree}IVYRUN --visible own --nproc_per_node 9 /bin/true")
    done = job.finish()
    assert done.code == 122 and "9 workers" in done.err_text and "8 are visible" in done.err_text, done


def test_more_workers_than_allocated_gpus(slurm, tree):
    """The host's other GPUs belong to other jobs, so the fix must not suggest unsetting a variable."""
    job = slurm.batch(["-N", "1", "--gpus-per-node=2"], f"{tree}IVYRUN --visible own --nproc_per_node 4 /bin/true")
    done = job.finish()
    assert done.code == 122 and "4 workers" in done.err_text and "2 are visible" in done.err_text, done
    assert "--gpus-per-node=4, or --gres=gpu:4" in done.err_text and "unset" not in done.err_text, done
