"""Rank 0 has an array, and JAX's processes get a sharded one: without MPI, and for shardings of any number of axes.

    ivyrun -n 2 --cpu-devices 4 scatter_to_sharding.py
    ivyrun --fake-hosts 2 --nproc_per_node 1 --cpu-devices 4 scatter_to_sharding.py
"""

import ivycomm as ic
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def main():
    jax.distributed.initialize()  # ivyrun tells it everything.
    ic.init()
    devices = np.array(jax.devices()).reshape(2, -1)
    sharding = NamedSharding(Mesh(devices, ("a", "b")), PartitionSpec("a", "b"))
    whole = np.random.default_rng(42).normal(size=(128, 64 * devices.shape[1])) if ic.rank() == 0 else None
    array = ic.scatter_to_sharding(whole, sharding)
    shapes = {shard.data.shape for shard in array.addressable_shards}
    print(f"rank {ic.rank()}: {len(array.addressable_shards)} shards of {shapes.pop()} of an array of {array.shape}")
    # Until it is there on all devices: a process that ends before takes the others' last sum with it.
    total = jax.block_until_ready(jax.jit(lambda x: x.sum())(array))
    if ic.rank() == 0:
        assert np.allclose(total, whole.sum(), rtol=1e-4), (total, whole.sum())


if __name__ == "__main__":
    main()
