# SPDX-License-Identifier: Apache-2.0
"""Rank 0, the usual host of JAX's coordinator, is killed and restarted. The others continue and are notified."""
import os
import signal

import jax
from jax._src import distributed

jax.distributed.initialize()
rank, devices = jax.process_index(), jax.device_count()
service = distributed.global_state.client
service.wait_at_barrier("all", 60_000) if "IVY_REJOIN" not in os.environ else None
if rank == 0 and "IVY_REJOIN" not in os.environ:
    os.kill(os.getpid(), signal.SIGKILL)
if rank == 0:
    service.key_value_set("back", os.environ["IVY_REJOIN"])
print(f"rank {rank} of {devices}: back {service.blocking_key_value_get('back', 60_000)}", flush=True)
