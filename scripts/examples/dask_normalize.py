"""Normalizes the columns of an array in parallel: a DaskCluster for as long as it is needed, arrays there and back.

    python3 dask_normalize.py [FILE.npy [RESULT.npy]]      needs dask and distributed
"""

import sys

import numpy as np
from ivycomm import DaskCluster, dask_to_tensor, tensor_to_dask


def normalize(chunk):
    return (chunk - chunk.mean(axis=0)) / chunk.std(axis=0)


def main():
    data = np.load(sys.argv[1]) if len(sys.argv) > 1 else np.random.default_rng(1).normal(3, 2, (4000, 8))
    with DaskCluster(n_workers=2, threads_per_worker=1, memory_limit="1GB") as cluster:
        chunks = tensor_to_dask(data, chunks=(1000, -1))
        result = dask_to_tensor(chunks.map_blocks(normalize))
        workers = len(cluster.get_worker_info())
    for first in range(0, len(data), 1000):
        part = np.asarray(result[first:first + 1000])
        assert np.allclose(part.mean(axis=0), 0, atol=1e-6) and np.allclose(part.std(axis=0), 1)
    if len(sys.argv) > 2:
        np.save(sys.argv[2], np.asarray(result))
    print(f"{len(data)} rows, normalized in blocks by {workers} workers")


if __name__ == "__main__":
    main()
