# SPDX-License-Identifier: Apache-2.0
"""Passes KEY=VALUE... to initialize(), like scripts that were written for another launcher."""
import os
import sys

import jax

arguments = dict(word.split("=", 1) for word in sys.argv[1:])
numbers = {key: int(os.path.expandvars(value)) for key, value in arguments.items() if key != "address"}
if "address" in arguments:
    numbers["coordinator_address"] = os.path.expandvars(arguments["address"])
jax.distributed.initialize(**numbers)
print(f"process {jax.process_index()} of {jax.process_count()}: {jax.local_device_count()} of "
      f"{jax.device_count()} devices", flush=True)
