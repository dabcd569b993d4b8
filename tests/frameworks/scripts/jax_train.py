# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training as in JAX's documentation: a mesh of all devices, a batch sharded over it, jit. Does not depend on
the launcher."""
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

jax.distributed.initialize()

mesh = Mesh(np.array(jax.devices()), ("data",))
sharded, replicated = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
total = 8 * jax.device_count()
features = np.random.default_rng(0).normal(size=(total, 4)).astype(np.float32)
targets = features @ np.array([1.0, -2.0, 3.0, 0.5], np.float32)
x = jax.make_array_from_callback(features.shape, sharded, lambda index: features[index])
y = jax.make_array_from_callback(targets.shape, sharded, lambda index: targets[index])
weights = jax.make_array_from_callback((4,), replicated, lambda index: np.zeros(4, np.float32)[index])


@jax.jit
def step(weights, x, y):
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(weights)
    return weights - 0.2 * gradient, loss


for _ in range(60):
    weights, loss = jax.block_until_ready(step(weights, x, y))
same = multihost_utils.process_allgather(weights.addressable_data(0))
assert np.allclose(same, np.asarray(same)[0]), same
print(f"process {jax.process_index()} of {jax.process_count()}: {jax.local_device_count()} of "
      f"{jax.device_count()} devices, loss {float(loss.addressable_data(0)):.4f}", flush=True)
