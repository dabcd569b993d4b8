"""JAX with several processes: devices, shardings, an array of all devices, and sums over the axes of a mesh.

    ivyrun -n 2 --cpu-devices 4 jax_global_arrays.py
    ivyrun --fake-hosts 2 --nproc_per_node 1 --cpu-devices 4 jax_global_arrays.py
"""

import importlib.util

import jax
import numpy as np
from jax.experimental import mesh_utils, multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def main():
    jax.distributed.initialize()  # ivyrun tells it everything.
    rank, devices = jax.process_index(), np.array(jax.devices())
    assert len(devices) == jax.process_count() * len(jax.local_devices())
    mesh = Mesh(mesh_utils.create_device_mesh((2, len(devices) // 2)), ("x", "y"))
    last = jax.local_devices()[-1]
    assert jax.device_put(np.ones(3), last).devices() == {last}  # On one device, which only this process has.
    sharding = NamedSharding(mesh, PartitionSpec("x", "y"))
    shape = (16, 8 * mesh.shape["y"])
    whole = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)

    # Every process makes the parts of its own devices.
    array = jax.make_array_from_callback(shape, sharding, lambda index: whole[index])
    assert not array.is_fully_addressable and sharding.device_set == set(devices)
    for shard in array.addressable_shards:
        assert np.array_equal(shard.data, whole[shard.index])
    assert len(array.global_shards) == len(devices) and set(sharding.addressable_devices) == set(jax.local_devices())

    if rank == 0 and importlib.util.find_spec("rich"):
        jax.debug.visualize_array_sharding(array, use_color=False)

    # The same, of parts that lie on their devices already.
    places = sharding.addressable_devices_indices_map(shape)
    parts = [jax.device_put(whole[index], device) for device, index in places.items()]
    assert np.array_equal(multihost_utils.process_allgather(
        jax.make_array_from_single_device_arrays(shape, sharding, parts), tiled=True), whole)

    assert np.allclose(jax.jit(lambda a: (a * 2).sum())(array), 2.0 * whole.sum(), rtol=1e-5)
    rows = jax.jit(lambda a: a.sum(axis=1), out_shardings=NamedSharding(mesh, PartitionSpec()))(array)
    assert rows.is_fully_replicated and np.allclose(rows, whole.sum(axis=1))
    gathered = multihost_utils.process_allgather(array, tiled=True)
    assert np.array_equal(gathered, whole)
    multihost_utils.sync_global_devices("the end")
    print(f"process {rank} of {jax.process_count()}: {len(array.addressable_shards)} shards of "
          f"{array.addressable_shards[0].data.shape}, an array of {array.shape}")


if __name__ == "__main__":
    main()
