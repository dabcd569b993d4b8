# SPDX-License-Identifier: Apache-2.0
"""Every kind of collective that XLA supports on the CPU."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

try:
    from jax import shard_map
except ImportError:  # Older JAX, whose checks do not support every collective.
    from jax.experimental import shard_map as older
    shard_map = partial(older.shard_map, check_rep=False)

jax.distributed.initialize()
rank, size = jax.process_index(), jax.process_count()
line = Mesh(jax.devices(), "i")
square = Mesh(np.array(jax.devices()).reshape(-1, 2), ("j", "i"))  # A communicator is made for each pair of ranks.


def over_ranks(function, own, mesh=line):
    """Returns this rank's result if each rank passes its own value."""
    parts = PartitionSpec(mesh.axis_names)
    whole = jax.make_array_from_process_local_data(NamedSharding(mesh, parts), np.asarray(own[None]))
    run = jax.jit(shard_map(lambda x: function(x[0])[None], mesh=mesh, in_specs=parts, out_specs=parts))
    return run(whole).addressable_data(0)[0]


own = jnp.arange(size, dtype=jnp.float32) + 10 * rank
ranks = jnp.arange(size, dtype=jnp.float32)
total = size * ranks + 10 * sum(range(size))
assert (over_ranks(lambda x: jax.lax.psum(x, "i"), own) == total).all()
assert (over_ranks(lambda x: jax.lax.pmax(x, "i"), own) == ranks + 10 * (size - 1)).all()
assert (over_ranks(lambda x: jax.lax.psum(x, "i"), own.astype(jnp.int32)) == total).all()
assert (over_ranks(lambda x: jax.lax.psum(x, "i"), own + 1j) == total + 1j * size).all()
assert (over_ranks(lambda x: jax.lax.all_gather(x, "i"), own)[:, 0] == 10 * ranks).all()
assert (over_ranks(lambda x: jax.lax.psum_scatter(x, "i"), own) == total[rank]).all()
assert (over_ranks(lambda x: jax.lax.all_to_all(x, "i", 0, 0), own) == 10 * ranks + rank).all()
turn = partial(jax.lax.ppermute, axis_name="i", perm=[(r, (r + 1) % size) for r in range(size)])
assert (over_ranks(turn, own)[0] == 10 * ((rank - 1) % size)).all()
assert over_ranks(lambda x: jax.lax.psum(x, "i"), own, square)[0] == 10 * sum(r for r in range(size) if r // 2 == rank // 2)
multihost_utils.sync_global_devices("end")
print(f"process {rank} of {size}", flush=True)
