# SPDX-License-Identifier: Apache-2.0
"""The programs of scripts/examples that need the environment of a framework, and each call of DaskCluster."""

import glob
import os
import subprocess
import textwrap

import pytest

from environments import FRAMEWORKS, python_of
from launching import REPOSITORY, seconds
from test_without_ivyrun import ENVIRONMENT, TORCHRUN, installed_environment

EXAMPLES = os.path.join(REPOSITORY, "scripts", "examples")
PACKAGE = os.path.join(REPOSITORY, "comm", "python")


@pytest.mark.parametrize("name, says", [("jax_global_arrays.py", "an array of (16, 16)"),
                                        ("scatter_to_sharding.py", "an array of (128, 128)")])
def test_the_examples_with_jax(local, name, says):
    done = local.run("-n", "2", "--cpu-devices", "2", "--python", python_of("jax"), os.path.join(EXAMPLES, name), limit=120)
    assert done.code == 0 and done.out.decode().count(says) == 2, done
    if name == "jax_global_arrays.py" and glob.glob(os.path.join(FRAMEWORKS, "jax/lib/python3*/site-packages/rich")):
        assert "CPU 0" in done.out.decode() and "CPU 1" in done.out.decode(), done


@pytest.mark.parametrize("launcher", ["ivyrun", "torchrun", pytest.param("openmpi", marks=pytest.mark.long)])
def test_the_example_with_jax_under_each_launcher(local, launcher):
    words = [python_of("jax"), os.path.join(EXAMPLES, "jax_pencils.py")]
    if launcher == "ivyrun":
        done = local.run("-n", "2", *words, limit=120)
    elif launcher == "torchrun":
        done = local.run_program(*TORCHRUN, "--nproc_per_node", "2", "--no_python", *words, env=ENVIRONMENT, limit=120)
    else:
        done = local.run_program("mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "2", *words,
                                 env=ENVIRONMENT, limit=120)
    assert done.code == 0 and b"2 processes share an array of (64, 32) in pencils of (32, 32) and (64, 16)" in done.out, done


@pytest.mark.parametrize("backend", ["numpy", "tensorflow"])
def test_the_example_with_ivy(local, backend):
    """Uses the real Ivy with arrays of that backend. Without Ivy the example would use torch or NumPy."""
    done = local.run("--fake-hosts", "2", "--nproc_per_node", "2", "--python", python_of("tensorflow"),
                     os.path.join(EXAMPLES, "ivy_gelu.py"), backend, limit=120)
    wanted = f"gelu of (24, 5) on 4 ranks: gather and pmap agree on all of them, by Ivy over {backend}"
    assert done.code == 0 and wanted in done.out.decode(), done


def run(*argv):
    done = subprocess.run([python_of("dask"), *argv], capture_output=True, text=True, timeout=seconds(60), check=False,
                          env={**os.environ, "PYTHONPATH": PACKAGE})
    assert done.returncode == 0, done.stderr
    return done.stdout


# The example of Neurenix's documentation, after the import that a program without ivyrun needs. It has no `if __name__`
# guard against being run by the workers.
NEURENIX_WITH_DASK = """
import ivycomm
import neurenix
from neurenix.distributed import DaskCluster, tensor_to_dask, dask_to_tensor

# Create Dask cluster
with DaskCluster(n_workers=4, threads_per_worker=2) as cluster:
    # Load data
    data = neurenix.tensor.load("large_dataset.npy")

    # Convert to Dask array
    dask_data = tensor_to_dask(data, chunks=(1000, -1))

    # Define processing function
    def process_chunk(chunk):
        # Convert to Neurenix tensor
        tensor = neurenix.tensor.Tensor(chunk)

        # Process tensor
        processed = tensor - tensor.mean(dim=0)
        processed = processed / tensor.std(dim=0)

        return processed.numpy()

    # Process data in parallel
    processed_dask = dask_data.map_blocks(process_chunk)

    # Compute result
    processed_data = dask_to_tensor(processed_dask)

    # Save result
    processed_data.save("processed_dataset.npy")
"""
WRITE = "import ivycomm, neurenix; (neurenix.tensor.randn(4000, 8) * 2 + 3).save('large_dataset.npy')"
COMPARE = """
import numpy
before, after = numpy.load("large_dataset.npy"), numpy.load("processed_dataset.npy")
for first in range(0, 4000, 1000):
    part = before[first:first + 1000]
    assert numpy.allclose(after[first:first + 1000], (part - part.mean(0)) / part.std(0, ddof=1), atol=1e-4)
print("right")
"""


def test_neurenix_program_with_dask_runs_as_documented(tmp_path):
    packages = glob.glob(os.path.join(os.path.dirname(os.path.dirname(python_of("dask"))), "lib/python3*/site-packages"))
    (tmp_path / "program.py").write_text(NEURENIX_WITH_DASK)
    with installed_environment(tmp_path / "venv", *packages) as python:
        said = [subprocess.run([python, *words], cwd=tmp_path, capture_output=True, text=True, timeout=seconds(100), check=False)
                for words in (("-c", WRITE), ("program.py",), ("-c", COMPARE))]
    assert [done.returncode for done in said] == [0, 0, 0] and said[2].stdout == "right\n", said
    assert "Error" not in said[1].stderr, said[1]


def test_the_example_with_dask():
    assert "4000 rows, normalized in blocks by 2 workers" in run(os.path.join(EXAMPLES, "dask_normalize.py"))


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
