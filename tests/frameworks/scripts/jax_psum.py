# SPDX-License-Identifier: Apache-2.0
"""As in JAX's documentation of multiple processes: initialize() without arguments, and a sum over all processes."""
import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

jax.distributed.initialize()

rank, size = jax.process_index(), jax.process_count()
gathered = multihost_utils.process_allgather(jnp.array([float(rank + 1)]))
total = float(gathered.sum())
print(f"process {rank} of {size}: {jax.local_device_count()} of {jax.device_count()} devices, sum {total}", flush=True)
assert total == size * (size + 1) / 2
