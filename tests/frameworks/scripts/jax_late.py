# SPDX-License-Identifier: Apache-2.0
"""The ranks on the command line never initialize JAX."""
import os
import sys
import time

if os.environ["RANK"] in sys.argv[1:]:
    print("elsewhere", flush=True)
    time.sleep(120)

import jax

jax.distributed.initialize()
