# SPDX-License-Identifier: Apache-2.0
"""Initializes JAX and then waits, or fails if its argument is its rank."""
import sys
import time

import jax

jax.distributed.initialize()
print("up", jax.process_index(), flush=True)
if sys.argv[1:] == [str(jax.process_index())]:
    time.sleep(1)
    sys.exit(3)
time.sleep(120)
