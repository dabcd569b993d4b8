"""Frameworks that find their world by variables: TensorFlow, MLX, LightGBM, XGBoost, Horovod (a stand-in), and what
is said where one would be alone."""

import os
import re

import pytest

from environments import example, python_of, script

TWO_BY_TWO = ("--fake-hosts", "2", "--nproc_per_node", "2")
PYTHON = "/usr/bin/python3"


def run(local, python, path, *flags):
    return local.run(*flags, "--python", python, path, limit=120)


def test_mlx(local):
    done = run(local, python_of("tensorflow"), example("mlx_sum.py"), "-B", "mlx", *TWO_BY_TWO)
    assert done.code == 0 and done.out.count(b"of 4 sum 10.0") == 4, done


def test_horovods_rendezvous(local):
    done = run(local, PYTHON, script(local, "horovod_client.py"), "-B", "horovod", *TWO_BY_TWO)
    assert done.code == 0, done
    ends = sorted(re.findall(r"rank (\d) of 4 local (\[.*\]) cross (\[.*\])", done.out.decode()))
    assert ends == [("0", "[0, 1]", "[0, 2]"), ("1", "[0, 1]", "[1, 3]"), ("2", "[2, 3]", "[0, 2]"),
                    ("3", "[2, 3]", "[1, 3]")], done


@pytest.mark.long
def test_tensorflow(local):
    done = run(local, python_of("tensorflow"), example("tf_workers.py"), "-B", "tensorflow", "--fake-hosts", "2")
    # Each worker's rows hold its number, so the gradients' sum is (1 + 2) / 2 each time: 1 - 0.1 x 1.5 x 2.
    ends = re.findall(r"replicas 2 losses (\[.*\]) weight (\S+)", done.out.decode())
    assert done.code == 0 and len(ends) == 2 and ends[0] == ends[1], done


@pytest.mark.long
def test_parameter_servers_of_tensorflow(local):
    """They and the workers wait for ever: the chief's end is the job's."""
    done = run(local, python_of("tensorflow"), example("tf_parameter_servers.py"), "--app", "tf-ps", "--fake-hosts", "2")
    assert done.code == 0 and b"workers 2 steps 10 weight 45.0" in done.out, done


@pytest.mark.long
def test_tensorflow_alone_is_said(local):
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
    assert few.code == 2 and b"--tf-roles names 4 tasks" in few.err, few
    wrong = local.run("--tf-roles", "ps:1", "-n", "2", PYTHON, "-c", show)
    assert wrong.code == 2 and b"--tf-roles needs -B tensorflow" in wrong.err, wrong


# Packages in the place of the real ones, whose functions are those that the hook looks at.
STAND_INS = {
    "distributed": ("class Client:\n    def __init__(self):\n        self.cluster = object()\n", "client",
                    "from distributed.client import Client; Client()", b"--app dask"),
    "accelerate": ("class PartialState:\n    num_processes = 1\n    def __init__(self):\n        pass\n", "state",
                   "from accelerate.state import PartialState; PartialState()", b"ACCELERATE_USE_CPU"),
}


@pytest.mark.parametrize("name", STAND_INS)
def test_who_is_alone_is_told_so(local, name):
    text, module, call, fix = STAND_INS[name]
    os.makedirs(os.path.join(local.directory, name))
    local.file(f"{name}/__init__.py", "")
    local.file(f"{name}/{module}.py", text)
    path = local.file("alone.py", call + "\nprint('went on')\n")
    done = local.run("-n", "3", "--python", PYTHON, path)
    assert done.code == 0 and done.out.count(b"went on") == 3, done
    assert done.err.count(b"IVY-P036") == 1 and b"in each of the 3 workers" in done.err and fix in done.err, done
    assert b"IVY-P036" not in local.run("-n", "1", "--python", PYTHON, path).err
