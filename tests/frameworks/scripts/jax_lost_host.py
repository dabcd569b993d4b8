# SPDX-License-Identifier: Apache-2.0
"""Trains in a job that loses a host. The gradients pass through JAX's coordination service, because JAX's own collectives on
the CPU do not survive the death of a process.

    jax_lost_host.py STEPS FILE     rank 0 continues after step 20 only when FILE exists
"""

import json
import os
import sys
import time

import jax
import jax.numpy as jnp
from jax._src import distributed

steps, go = int(sys.argv[1]), sys.argv[2]
LIMIT_MS = 180_000

jax.distributed.initialize()
rank, world, devices = jax.process_index(), jax.process_count(), jax.device_count()
service = distributed.global_state.client
rejoin = int(os.environ.get("IVY_REJOIN", 0))
print(f"up {rank} of {world}, {devices} devices, pid {os.getpid()} rejoin {rejoin} attempt {os.environ['IVY_GENERATION']}",
      flush=True)


@jax.jit
def gradient_of(weights, inputs):
    return jax.grad(lambda w: jnp.mean((inputs @ w - inputs.sum(1)) ** 2))(weights)


def mean_of_all_ranks(step, value):
    service.key_value_set(f"gradient/{step}/{rank}", json.dumps(value.tolist()), allow_overwrite=True)
    parts = [json.loads(service.blocking_key_value_get(f"gradient/{step}/{each}", LIMIT_MS)) for each in range(world)]
    return jnp.mean(jnp.array(parts), 0)


# A process that was started again continues from the state that rank 0 has published.
step, weights = (0, [0.0] * 8) if not rejoin else json.loads(service.blocking_key_value_get("state", LIMIT_MS))
weights = jnp.array(weights)
while step < steps:
    inputs = jax.random.normal(jax.random.key(1000 * step + rank), (16, 8))
    weights = weights - 0.01 * mean_of_all_ranks(step, gradient_of(weights, inputs))
    step += 1
    if rank == 0:
        service.key_value_set("state", json.dumps([step, weights.tolist()]), allow_overwrite=True)
        if step == 20:
            print("waits at step 20", flush=True)
            while not os.path.exists(go):
                time.sleep(0.02)
print(f"done: rank {rank}, step {step}, world {world}, weight {float(weights.sum()):.6f}, pid {os.getpid()}", flush=True)
