# SPDX-License-Identifier: Apache-2.0
"""Frameworks that find their world by variables: TensorFlow, MLX, LightGBM, XGBoost, Horovod (also a stand-in). Also the
messages if each process would be a separate world."""

import os
import re
import shutil
import signal

import pytest

from environments import example, python_of, script
from launching import REPOSITORY, seconds

TWO_BY_TWO = ("--fake-hosts", "2", "--nproc_per_node", "2")
PYTHON = "/usr/bin/python3"
TORCH = os.environ.get("IVY_TORCH_PYTHON") or os.path.join(REPOSITORY, "build/torch/bin/python3")


def run(local, python, path, *flags):
    return local.run(*flags, "--python", python, path, limit=120)


def test_mlx(local):
    done = run(local, python_of("tensorflow"), example("mlx_sum.py"), "-B", "mlx", *TWO_BY_TWO)
    assert done.code == 0 and done.out.count(b"of 4 sum 10.0") == 4, done
    done = run(local, python_of("tensorflow"), example("mlx_train.py"), "-B", "mlx", *TWO_BY_TWO)
    assert done.code == 0 and done.out.count(b"of 4 has learnt") == 4, done


def test_horovods_rendezvous(local):
    done = run(local, PYTHON, script(local, "horovod_client.py"), "-B", "horovod", *TWO_BY_TWO)
    assert done.code == 0, done
    ends = sorted(re.findall(r"rank (\d) of 4 local (\[.*\]) cross (\[.*\])", done.out.decode()))
    assert ends == [("0", "[0, 1]", "[0, 2]"), ("1", "[0, 1]", "[1, 3]"), ("2", "[2, 3]", "[0, 2]"),
                    ("3", "[2, 3]", "[1, 3]")], done


@pytest.mark.long
def test_horovod(local):
    """The real Horovod, built by `scripts/setup apps`."""
    done = run(local, python_of("horovod"), script(local, "horovod_train.py"), "-B", "horovod", *TWO_BY_TWO)
    ends = sorted(re.findall(r"rank (\d) of 4 local (\d) of 2 model (\S+) sum 10", done.out.decode()))
    assert done.code == 0 and [end[:2] for end in ends] == [("0", "0"), ("1", "1"), ("2", "0"), ("3", "1")], done
    assert len({model for _, _, model in ends}) == 1, done


@pytest.mark.long
def test_tensorflow(local):
    done = run(local, python_of("tensorflow"), example("tf_workers.py"), "-B", "tensorflow", "--fake-hosts", "2")
    # Each worker's rows contain its number, so the mean gradient is (1 + 2) / 2 in each step: 1 - 0.1 x 1.5 x 2.
    ends = re.findall(r"replicas 2 losses (\[.*\]) weight (\S+)", done.out.decode())
    assert done.code == 0 and len(ends) == 2 and ends[0] == ends[1], done


@pytest.mark.long
def test_parameter_servers_of_tensorflow(local):
    """The servers and the workers never exit. The job ends when the chief exits."""
    done = run(local, python_of("tensorflow"), example("tf_parameter_servers.py"), "--app", "tf-ps", "--fake-hosts", "2")
    assert done.code == 0 and b"workers 2 steps 10 weight 45.0" in done.out, done


@pytest.mark.long
def test_paddle(local):
    # Paddle's store writes http.log into the working directory.
    done = run(local, python_of("paddle"), script(local, "paddle_sum.py"), "-B", "paddle", "--wdir", local.directory,
               *TWO_BY_TWO)
    assert done.code == 0 and done.out.count(b"of 4 sum 10.0") == 4, done


def test_cupyxs_store(local):
    """Uses a stand-in for cupyx's NCCLBackend, which needs a GPU."""
    done = run(local, PYTHON, script(local, "cupyx_client.py"), *TWO_BY_TWO)
    assert done.code == 0 and done.out.count(b"of 4 has what rank 0 gave") == 4, done


@pytest.mark.long
def test_separate_tensorflow_worlds_are_reported(local):
    done = run(local, python_of("tensorflow"), example("tf_workers.py"), "-n", "2")
    assert done.code == 0 and done.err.count(b"IVY-P036") == 1 and b"-B tensorflow" in done.err, done


@pytest.mark.long
def test_lightgbm(local):
    done = run(local, python_of("apps"), example("lightgbm_train.py"), "-B", "lightgbm", "-n", "2")
    assert done.code == 0 and len(set(re.findall(rb"trees.*", done.out))) == 1, done


@pytest.mark.long
def test_xgboost(local):
    done = run(local, python_of("apps"), example("xgboost_train.py"), "--app", "xgboost", *TWO_BY_TWO)
    assert done.code == 0 and len(re.findall(rb"rank \d of 4", done.out)) == 4, done
    assert len(set(re.findall(rb"model (\d+)", done.out))) == 1, done


def test_tasks_of_tensorflow(local):
    show = "import json, os; c = json.loads(os.environ['TF_CONFIG']); print(c['task']['type'], c['task']['index'], " \
           "[len(c['cluster'].get(k, [])) for k in ('chief', 'ps', 'worker')])"
    done = local.run("-B", "tf", "--tf-roles", "chief,ps:1,worker", "-n", "4", PYTHON, "-c", show)
    assert done.code == 0, done
    assert sorted(line.split("] ", 1)[-1] for line in done.out_lines) == [
        "chief 0 [1, 1, 2]", "ps 0 [1, 1, 2]", "worker 0 [1, 1, 2]", "worker 1 [1, 1, 2]"], done
    few = local.run("-B", "tf", "--tf-roles", "chief,ps:2,worker", "-n", "2", PYTHON, "-c", show)
    assert few.code == 2 and b"--tf-roles lists 4 tasks" in few.err, few
    wrong = local.run("--tf-roles", "ps:1", "-n", "2", PYTHON, "-c", show)
    assert wrong.code == 2 and b"--tf-roles needs -B tensorflow" in wrong.err, wrong


# Packages that replace the real ones, with the functions that the import hook checks.
STAND_INS = {
    "distributed": ("class Client:\n    def __init__(self):\n        self.cluster = object()\n", "client",
                    "from distributed.client import Client; Client()", b"--app dask"),
    "accelerate": ("class PartialState:\n    num_processes = 1\n    def __init__(self):\n        pass\n", "state",
                   "from accelerate.state import PartialState; PartialState()", b"ACCELERATE_USE_CPU"),
}


@pytest.mark.parametrize("name", STAND_INS)
def test_a_process_without_a_world_gets_an_explanation(local, name):
    text, module, call, fix = STAND_INS[name]
    os.makedirs(os.path.join(local.directory, name))
    local.file(f"{name}/__init__.py", "")
    local.file(f"{name}/{module}.py", text)
    path = local.file("alone.py", call + "\nprint('went on')\n")
    done = local.run("-n", "3", "--python", PYTHON, path)
    assert done.code == 0 and done.out.count(b"went on") == 3, done
    assert done.err.count(b"IVY-P036") == 1 and b"each of the 3 workers runs" in done.err and fix in done.err, done
    assert b"IVY-P036" not in local.run("-n", "1", "--python", PYTHON, path).err


# ---- torch: messages if its ranks are not one world -----------------------------------------------

@pytest.fixture
def torch():
    if not os.path.exists(TORCH):
        pytest.skip(f"{TORCH} is not there: scripts/setup torch")
    return ["--python", TORCH]


def test_torch_of_another_version_is_named(local, torch):
    done = local.run("--fake-hosts", "2", *torch, script(local, "torch_world.py"), "old", limit=120)
    assert done.code == 0 and done.out.count(b"of 2: 2") == 2, done
    said = re.findall(r"IVY-P031\]: torch is 1.13.1\S* on rank 1 \(fake1\) and \S+ on rank 0 \(fake0\)", done.err_text)
    assert len(said) == 1 and "pip install torch==" in done.err_text, done


@pytest.mark.parametrize("late", [pytest.param("0", marks=pytest.mark.long), "1"])
def test_a_rank_that_never_calls_torchs_init_is_named(local, torch, late):
    with local.start("--fake-hosts", "2", "--start-timeout", f"{seconds(3):g}s", *torch,
                     script(local, "torch_world.py"), "late", late) as job:
        job.wait_for(rf"IVY-P033\]: rank {late} \(fake{late}\) has not called torch.distributed.init_process_group", 120)
        job.signal(signal.SIGTERM)
        assert job.finish(20).err.count(b"IVY-P033") == 1


@pytest.mark.long
def test_a_rank_passed_to_torch_that_differs_is_noted(local, torch):
    done = local.run("--fake-hosts", "2", *torch, script(local, "torch_world.py"), "other",
                     os.path.join(local.directory, "meeting"), limit=120)
    assert done.code == 0 and done.err.count(b"was called with rank=0, world_size=1, but this is rank") == 1, done


@pytest.mark.long
def test_torch_and_mpi4py_that_disagree_are_named(local, torch):
    """A worker starts mpirun. mpi4py gets mpirun's ranks, and torch the worker's variables."""
    theirs = "/usr/lib/python3/dist-packages/mpi4py"
    if not os.path.isdir(theirs) or shutil.which("mpiexec.openmpi") is None:
        pytest.skip("python3-mpi4py or mpiexec.openmpi is not installed")
    os.symlink(theirs, os.path.join(local.directory, "mpi4py"))
    inner = ["mpiexec.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "3"]
    with local.start("-n", "2", "-x", f"PYTHONPATH={local.directory}", *inner, TORCH, script(local, "torch_world.py"),
                     "both") as job:
        job.wait_for(r"IVY-P037\]: this process is rank \d of 3 in mpi4py, but rank \d of 2 in torch", 120)
        job.signal(signal.SIGTERM)
        assert job.finish(60).err.count(b"IVY-P037") == 1
