# SPDX-License-Identifier: Apache-2.0
"""Interfaces of the original systems: remote calls, DataParallel, SyncBatchNorm, a simulated world, spawn, and modules."""

import glob
import os
import re
import subprocess
import sys
import textwrap

import pytest

from launching import REPOSITORY, WORKERS, seconds
from test_ivycomm import (CALM, LIMIT, ONE_HOST, TWO_HOSTS, check_all_equal, has_torch, needs_numpy, needs_torch,
                          ranks_of)
from test_ivycomm_gradients import TODAY, needs_todays

PACKAGE = os.path.join(REPOSITORY, "comm", "python")
two_places = pytest.mark.parametrize("flags", [ONE_HOST["two"], TWO_HOSTS["hosts"]], ids=["two", "hosts"])


def python(text, *arguments, **environment):
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(text), *arguments], capture_output=True, timeout=LIMIT,
                          env={**os.environ, "PYTHONPATH": PACKAGE, **environment}, check=False, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@two_places
def test_remote_calls(local, flags):
    check_all_equal(local.run(*flags, *CALM, local.script("comm_rpc.py"), "200", limit=LIMIT), ranks_of(flags))


@pytest.mark.parametrize("flags", [ONE_HOST["four"], TWO_HOSTS["hosts"]], ids=["four", "hosts"])
@pytest.mark.long
def test_ten_thousand_concurrent_remote_calls_of_four_ranks(local, flags):
    check_all_equal(local.run(*flags, *CALM, local.script("comm_rpc.py"), "10000", limit=LIMIT), 4)


def test_a_call_to_a_rank_that_dies_fails_immediately(local):
    done = local.run("-n", "2", local.script("comm_rpc.py"), "dies", limit=LIMIT)
    assert done.code == 3 and b"died: 1 3" in done.out, done


@needs_torch
@pytest.mark.parametrize("python, flags", [
    ("/usr/bin/python3", TWO_HOSTS["hosts"]), ("/usr/bin/python3", ("-n", "3")),
    pytest.param(TODAY, TWO_HOSTS["hosts"], marks=needs_todays)], ids=["debian-hosts", "debian-three", "today-hosts"])
def test_gradients_and_statistics_match_one_process(local, python, flags):
    done = local.run(*flags, *CALM, "--python", python, local.script("comm_parallel.py"), limit=LIMIT)
    check_all_equal(done, ranks_of(flags))


@needs_torch
@pytest.mark.parametrize("python", ["/usr/bin/python3", pytest.param(TODAY, marks=needs_todays)], ids=["debian", "today"])
def test_groups_and_maps_of_torch(local, python):
    flags = TWO_HOSTS["hosts"]
    done = local.run(*flags, *CALM, "--python", python, local.script("comm_torch_originals.py"), limit=LIMIT)
    check_all_equal(done, ranks_of(flags))


@needs_torch
@two_places
def test_a_program_of_neurenix_runs_unchanged(local, flags):
    check_all_equal(local.run(*flags, *CALM, local.script("neurenix_program.py"), limit=LIMIT), ranks_of(flags))


@needs_numpy
def test_a_simulated_world():
    said = python("""
        import numpy as np
        from ivycomm import sim

        def step(comm):
            comm.send([comm.rank], (comm.rank + 1) % comm.size)
            return (comm.all_reduce([comm.rank]).item(), comm.scan([1]).item(), comm.recv((comm.rank - 1) % comm.size).item(),
                    comm.all_to_all(np.arange(3) + 10 * comm.rank).tolist(), comm.reduce_scatter(np.ones(3)).tolist(),
                    comm.all_reduce([comm.rank - 1], "avg").item())

        print(sim.World(3).run(step))
        sim.World(2, show=True).run(lambda comm: comm.all_reduce(np.full(2, comm.rank)))

        def disagree(comm):
            comm.barrier() if comm.rank else comm.all_reduce([1])

        def fail(comm):
            if comm.rank:
                raise KeyError("mine")
            comm.barrier()

        for function, kind in ((disagree, sim.SimulationError), (fail, KeyError)):
            try:
                sim.World(2).run(function)
            except kind as error:
                print(error)
        """, IVY_LIBRARY="")
    lines = said.splitlines()
    assert lines[0] == ("[(3, 1, 2, [0, 10, 20], [3.0], 0), (3, 2, 0, [1, 11, 21], [3.0], 0), "
                        "(3, 3, 1, [2, 12, 22], [3.0], 0)]")
    assert lines[1:4] == ["rank  before  after all_reduce", "0     [0, 0]  [1, 1]", "1     [1, 1]  [1, 1]"]
    assert "rank 0: ('all_reduce'" in lines[4] and "rank 1: ('barrier',)" in lines[4] and "mine" in lines[5]


def test_shards_are_disjoint_and_differ_by_epoch():
    said = python("""
        from ivycomm import shard_indices
        whole = [shard_indices(10, world_size=4, rank=r, epoch=1) for r in range(4)]
        assert [len(part) for part in whole] == [3] * 4 and set(sum(whole, [])) == set(range(10))
        assert whole[0] == shard_indices(10, world_size=4, rank=0, epoch=1) != shard_indices(10, world_size=4, rank=0, epoch=2)
        cut = [shard_indices(10, world_size=4, rank=r, drop_last=True) for r in range(4)]
        assert [len(part) for part in cut] == [2] * 4 and len(set(sum(cut, []))) == 8
        uneven = [shard_indices(10, world_size=4, rank=r, pad=False, shuffle=False) for r in range(4)]
        assert uneven == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]
        assert shard_indices(3) and shard_indices(0) == []
        assert [len(shard_indices(1, world_size=4, rank=r)) for r in range(4)] == [1] * 4
        for wrong in ({"rank": 4, "world_size": 4}, {"rank": 0}, {"drop_last": True, "pad": True}):
            try:
                shard_indices(10, **wrong)
            except ValueError:
                continue
            raise AssertionError(wrong)
        print("right")
        """)
    assert said == "right\n"


def test_spawn(local, tmp_path):
    script = tmp_path / "spawning.py"
    script.write_text(textwrap.dedent("""
        import os, pickle, time
        from ivycomm import spawn
        from ivycomm.compat.spawning import SpawnError

        def add(number):
            import ivycomm as ic
            ic.init()
            return sum(ic.all_gather_object(ic.rank() * number))

        def fail():
            if os.environ["IVY_RANK"] == "1":
                raise ValueError("not me")
            import ivycomm as ic
            ic.init()
            ic.barrier()

        def die():
            os.kill(os.getpid(), 9)

        if __name__ == "__main__":
            assert spawn(add, 3, args=(10,)) == [30, 30, 30]
            for function, kind, text in ((fail, ValueError, "not me"), (die, SpawnError, "SIGKILL"),
                                         (lambda: 1, pickle.PicklingError, "def at the top")):
                try:
                    spawn(function, 2)
                except kind as error:
                    assert text in str(error), error
                    continue
                raise AssertionError(function)
            try:
                spawn(time.sleep, 2, args=(100,), timeout=1)
            except SpawnError as error:
                assert error.exit_code == 124, error
            print("right")
        """))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, timeout=LIMIT, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": PACKAGE, "IVY_RUN": local.ivyrun()})
    assert done.stdout == "right\n", done.stderr


def test_spawn_sends_functions_with_cloudpickle(local):
    """Functions of a notebook or of `python3 -c` are not in a file."""
    packages = glob.glob(os.path.join(REPOSITORY, "build/frameworks/dask/lib/python3*/site-packages/cloudpickle"))
    if not packages:
        pytest.skip("cloudpickle is not installed: scripts/setup torch frameworks")
    folder = local.outside_directory()
    os.symlink(packages[0], os.path.join(folder, "cloudpickle"))
    said = python("""
        from ivycomm import spawn

        def program():
            factor = 10

            def add(number):
                import ivycomm as ic
                ic.init()
                return sum(ic.all_gather_object(ic.rank() * number * factor))

            return spawn(add, 2, args=(3,)), spawn(lambda: factor, 2)

        print(program())
        """, PYTHONPATH=os.pathsep.join((PACKAGE, folder)), IVY_RUN=local.ivyrun())
    assert said == "([30, 30], [10, 10])\n"


@needs_numpy
@pytest.mark.parametrize("flags", [ONE_HOST["alone"], TWO_HOSTS["hosts"]], ids=["alone", "hosts"])
def test_every_documented_name(local, flags):
    check_all_equal(local.run(*flags, *CALM, local.script("comm_original_names.py"), limit=LIMIT), ranks_of(flags))


@needs_numpy
def test_documented_names_and_signatures():
    said = python("import ivycomm, documented_names; documented_names.main()", *(["torch"] if has_torch else []),
                  PYTHONPATH=os.pathsep.join((PACKAGE, WORKERS)))
    assert re.fullmatch(r"2\d\d names\n", said), said


@needs_numpy
@pytest.mark.parametrize("name, instead", [("mpi", "pip install mpi4py mpich"), ("mpi4jax", "ivycomm.jax"),
                                           ("torchdist", "torch.distributed")])
def test_a_removed_module_names_its_replacement(name, instead):
    said = python(f"""
        try:
            from ivycomm.compat import {name}
        except ImportError as error:
            print(error)
        """, PYTHONPATH=PACKAGE)
    assert f"ivycomm.compat.{name} has been removed" in said and instead in said, said


EXAMPLES = os.path.join(REPOSITORY, "scripts", "examples")


@needs_numpy
@pytest.mark.parametrize("name, ranks, says", [("parameter_server.py", "3", b"learnt by 2 workers"),
                                               ("zero1.py", "4", b"4 ranks with 64 bytes")])
def test_examples(local, name, ranks, says):
    done = local.run("-n", ranks, *CALM, os.path.join(EXAMPLES, name), limit=LIMIT)
    assert done.code == 0 and says in done.out, done


@needs_torch
@pytest.mark.parametrize("name, says", [("neurenix_training.py", b"Epoch: 3"),
                                        ("torch_process_groups.py", b"3 ranks of backend gloo agree")])
def test_examples_with_torch(local, name, says):
    done = local.run("-n", "3", *CALM, os.path.join(EXAMPLES, name), limit=LIMIT)
    assert done.code == 0 and says in done.out, done


@needs_torch
@pytest.mark.parametrize("python", ["/usr/bin/python3", pytest.param(TODAY, marks=needs_todays)], ids=["debian", "today"])
def test_the_example_of_init_methods_runs(python):
    done = subprocess.run([python, os.path.join(EXAMPLES, "torch_init_methods.py")], capture_output=True, timeout=seconds(60),
                          check=False, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    for words in "tcp://: 2 ranks have met", "file://: 2 ranks have met", "TCPStore: 2 ranks have met", "mixed precision: loss":
        assert words in done.stdout, done


@needs_todays
def test_the_example_of_torch_with_backend_ivy(local):
    """The backend supports reduce_scatter of a list, unlike Gloo."""
    done = local.run(*TWO_HOSTS["hosts"], *CALM, "--python", TODAY, os.path.join(EXAMPLES, "torch_process_groups.py"),
                     "--backend", "ivy", limit=LIMIT)
    assert done.code == 0 and b"4 ranks of backend ivy agree" in done.out, done


@needs_numpy
def test_the_example_that_needs_no_launcher():
    done = subprocess.run([sys.executable, os.path.join(EXAMPLES, "simulated_ranks.py")], capture_output=True, timeout=LIMIT,
                          env={**os.environ, "PYTHONPATH": PACKAGE}, check=False, text=True)
    assert done.returncode == 0 and "learnt by 4 simulated ranks" in done.stdout, done.stderr
