# SPDX-License-Identifier: Apache-2.0
"""Checks at every step for a preemption notice and exits after one, as in JAX's documentation."""
import time

import jax
from jax.experimental import multihost_utils

jax.distributed.initialize()
for step in range(600):
    if multihost_utils.reached_preemption_sync_point(step):
        print(f"process {jax.process_index()} saves at step {step}", flush=True)
        break
    if step == 0:
        print("stepping", flush=True)
    time.sleep(0.2)
