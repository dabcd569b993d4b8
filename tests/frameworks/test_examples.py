"""The programs of scripts/examples that need a framework's own environment, and each call of DaskCluster."""

import os
import subprocess
import textwrap

import pytest

from environments import python_of
from launching import REPOSITORY
from test_without_ivyrun import ENVIRONMENT, TORCHRUN

EXAMPLES = os.path.join(REPOSITORY, "scripts", "examples")
PACKAGE = os.path.join(REPOSITORY, "comm", "python")


@pytest.mark.parametrize("name, says", [("jax_global_arrays.py", "an array of (16, 16)"),
                                        ("scatter_to_sharding.py", "an array of (128, 128)")])
def test_of_jax(local, name, says):
    done = local.run("-n", "2", "--cpu-devices", "2", "--python", python_of("jax"), os.path.join(EXAMPLES, name), limit=120)
    assert done.code == 0 and done.out.decode().count(says) == 2, done


@pytest.mark.parametrize("launcher", ["ivyrun", "torchrun", pytest.param("openmpi", marks=pytest.mark.long)])
def test_of_jax_under_each_launcher(local, launcher):
    words = [python_of("jax"), os.path.join(EXAMPLES, "jax_pencils.py")]
    if launcher == "ivyrun":
        done = local.run("-n", "2", *words, limit=120)
    elif launcher == "torchrun":
        done = local.run_program(*TORCHRUN, "--nproc_per_node", "2", "--no_python", *words, env=ENVIRONMENT, limit=120)
    else:
        done = local.run_program("mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "2", *words,
                                 env=ENVIRONMENT, limit=120)
    assert done.code == 0 and b"2 processes share an array of (64, 32) in pencils of (32, 32) and (64, 16)" in done.out, done


def test_of_ivy(local):
    done = local.run("-n", "2", "--python", python_of("tensorflow"), os.path.join(EXAMPLES, "ivy_gelu.py"), "numpy", limit=120)
    assert done.code == 0 and b"gelu of (24, 5) on 2 ranks: gather and pmap agree" in done.out, done


def run(*argv):
    done = subprocess.run([python_of("apps"), *argv], capture_output=True, text=True, timeout=120, check=False,
                          env={**os.environ, "PYTHONPATH": PACKAGE})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_of_dask():
    assert "4000 rows, normalized in blocks by 2 workers" in run(os.path.join(EXAMPLES, "dask_normalize.py"))


@pytest.mark.long
def test_each_call_of_a_dask_cluster(tmp_path):
    script = tmp_path / "cluster.py"
    script.write_text(textwrap.dedent("""
        import numpy as np
        from ivycomm import DaskCluster, dask_to_tensor, tensor_to_dask

        def square(x, offset=0):
            return x * x + offset

        def refuses(kind, call):
            try:
                call()
            except kind as error:
                return str(error)
            raise AssertionError(kind)

        def main():
            refuses(ValueError, lambda: DaskCluster(n_workers=0))
            cluster = DaskCluster(n_workers=2, threads_per_worker=1, memory_limit="500MB")
            refuses(RuntimeError, lambda: cluster.submit(square, 1))
            assert not cluster.is_running and cluster.start() is cluster and cluster.start() is cluster and cluster.is_running
            assert cluster.gather(cluster.map(square, range(10))) == [each * each for each in range(10)]
            assert cluster.gather(cluster.map(square, range(3), offset=1)) == [1, 2, 5]
            assert cluster.gather(cluster.submit(square, 7, offset=1)) == 50
            whole = np.arange(12.0)
            spread = cluster.scatter(whole, broadcast=True)
            assert cluster.gather(cluster.submit(np.sum, spread)) == whole.sum()
            cluster.replicate(spread)
            information = cluster.get_worker_info()
            assert len(information) == 2, information
            dask_array = tensor_to_dask(whole, chunks=3)
            assert dask_array.numblocks == (4,) and np.array_equal(dask_to_tensor(dask_array + 1), whole + 1)
            with DaskCluster(scheduler_address=cluster.client.scheduler.address) as other:
                assert other.gather(other.submit(square, 3)) == 9
            assert cluster.is_running
            cluster.stop()
            cluster.stop()
            assert not cluster.is_running
            refuses(RuntimeError, lambda: cluster.map(square, [1]))
            print("right")

        if __name__ == "__main__":
            main()
        """))
    assert run(str(script)) == "right\n"
