# SPDX-License-Identifier: Apache-2.0
"""Rank 0, which has JAX's coordinator, is killed in the first attempt. In the second one all ranks connect again."""
import os
import signal

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

jax.distributed.initialize()
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
total = float(multihost_utils.process_allgather(jnp.array([jax.process_index() + 1.0])).sum())
if attempt == "0" and jax.process_index() == 0:
    os.kill(os.getpid(), signal.SIGKILL)
print(f"attempt {attempt}: sum {total}", flush=True)
