"""Rank 0 has an array, and JAX's processes share it in pencils: cut by hand and sent as objects, and in one call.

    ivyrun -n 2 jax_pencils.py
    torchrun --nproc_per_node 2 jax_pencils.py
    mpirun -n 2 python3 jax_pencils.py

Every process has one device of the CPU. Without ivyrun, install the package first: pip install comm/python
"""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=1"

import ivycomm as ic
import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def start():
    """ivyrun tells JAX everything. The other launchers do not, so rank 0 says where it listens."""
    if ic.source().startswith("ivyrun"):
        jax.distributed.initialize()
        return
    import socket
    with socket.socket() as free:
        free.bind(("", 0))
        address = ic.broadcast_object(f"{socket.gethostname()}:{free.getsockname()[1]}")
    jax.distributed.initialize(address, ic.world_size(), ic.rank())


def split(array, rows, columns):
    """The blocks of a grid, row after row: the order of the mesh's devices."""
    return [block for band in np.split(array, rows) for block in np.split(band, columns, axis=1)]


def by_hand(whole, grid):
    """Each rank's block travels to it alone; `callback` is asked for that block by its place in the whole array."""
    blocks = split(whole, *grid) if ic.rank() == 0 else None
    block, shape = ic.scatter_object(blocks), ic.broadcast_object(whole.shape if blocks else None)
    sharding = NamedSharding(Mesh(np.array(jax.devices()).reshape(grid), ("a", "b")), PartitionSpec("a", "b"))
    return jax.make_array_from_callback(shape, sharding, lambda index: block)


def main():
    ic.init()
    start()
    grid = (ic.world_size(), 1)
    whole = np.random.default_rng(42).normal(size=(64, 32)).astype("f4")
    pencils = by_hand(whole if ic.rank() == 0 else None, grid)
    for spec, wanted in (("a", "b"), pencils), (("b", "a"), None):
        # The transposed pencils need other blocks, which scatter_to_sharding sends by itself.
        sharding = NamedSharding(Mesh(np.array(jax.devices()).reshape(grid), ("a", "b")), PartitionSpec(*spec))
        array = ic.scatter_to_sharding(whole if ic.rank() == 0 else None, sharding)
        for shard in array.addressable_shards:
            assert np.array_equal(shard.data, whole[shard.index])
            assert wanted is None or np.array_equal(shard.data, wanted.addressable_shards[0].data)
    rows = multihost_utils.host_local_array_to_global_array(np.full((1, 2), ic.rank()), pencils.sharding.mesh, PartitionSpec("a"))
    gathered = multihost_utils.process_allgather(rows, tiled=True)
    assert gathered[:, 0].tolist() == list(range(ic.world_size())) and not rows.is_fully_addressable
    multihost_utils.sync_global_devices("the end")
    if ic.rank() == 0:
        print(f"{ic.world_size()} processes share an array of {array.shape} in pencils of "
              f"{pencils.addressable_shards[0].data.shape} and {array.addressable_shards[0].data.shape}")


if __name__ == "__main__":
    main()
