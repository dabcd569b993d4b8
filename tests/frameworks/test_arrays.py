# SPDX-License-Identifier: Apache-2.0
"""Arrays of every framework in ivycomm: results belong to the input's framework, one world may have several frameworks, and
invalid arrays are rejected."""

import os
import subprocess

import pytest

from environments import python_of, script
from launching import REPOSITORY, seconds

CALM = ("-x", "OMP_NUM_THREADS=1", "-x", "XLA_FLAGS=--xla_force_host_platform_device_count=2")
# Runs the script with the interpreter whose position among the arguments is the rank.
CHOOSE = 'script=$1 names=$2; shift "$((2 + IVY_RANK))"; exec "$1" -B "$script" "$names"'


REDUCTIONS = """
import tensorflow
from ivycomm.i_dist import OpHandler
assert OpHandler("sum").tensorflow_op is tensorflow.distribute.ReduceOp.SUM
assert OpHandler("MEAN").tensorflow_op is tensorflow.distribute.ReduceOp.MEAN
try:
    OpHandler("max").tensorflow_op
except ValueError as error:
    assert "TensorFlow has no reduction MAX" in str(error)
    print("right")
"""


def python_of_torch():
    path = os.path.join(REPOSITORY, "build/torch/bin/python3")
    if not os.path.exists(path):
        pytest.skip(f"{path} is not there: scripts/setup torch")
    return path


def run(local, pythons, names, *flags):
    done = local.run(*flags, *CALM, "sh", "-c", CHOOSE, "x", script(local, "arrays_of_many.py"), names, *pythons,
                     limit=120)
    assert done.code == 0 and done.out.count(b": all equal") == len(pythons), done
    return done


@pytest.mark.parametrize("environment,name", [("jax", "jax"), ("jax-old", "jax"), ("tensorflow", "tensorflow"),
                                              ("tensorflow", "mlx"), ("tensorflow", "ivy"), ("paddle", "paddle")],
                         ids=["jax", "jax-old", "tensorflow", "mlx", "ivy", "paddle"])
def test_results_have_the_framework_of_the_input(local, environment, name):
    run(local, [python_of(environment)] * 2, name, "-n", "2")


def test_reductions_have_names_of_tensorflow():
    said = subprocess.run([python_of("tensorflow"), "-c", REDUCTIONS], capture_output=True, text=True, timeout=seconds(60),
                          check=False, env={**os.environ, "PYTHONPATH": os.path.join(REPOSITORY, "comm", "python")})
    assert said.stdout == "right\n", said


def test_pmap_by_tensorflows_own_vmap(local):
    done = local.run("--fake-hosts", "2", "--nproc_per_node", "2", *CALM, "--python", python_of("tensorflow"),
                     script(local, "tensorflow_originals.py"), limit=120)
    assert done.code == 0 and done.out.count(b": agree") == 4, done


def test_a_current_torch(local):
    run(local, [python_of_torch()] * 2, "torch", "-n", "2")


def test_one_world_of_many_frameworks(local):
    pythons = [python_of("jax"), python_of_torch(), python_of("jax"), python_of("tensorflow")]
    done = run(local, pythons, "numpy,torch,jax,tensorflow", "--fake-hosts", "2", "--nproc_per_node", "2")
    for rank, module in enumerate((b"numpy", b"torch", b"jax", b"tensorflow")):
        assert b"rank %d has %s" % (rank, module) in done.out, done
