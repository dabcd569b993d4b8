# SPDX-License-Identifier: Apache-2.0
"""mpi4py: the ranks of a job are one world. `abort`: rank 1 ends it with 7. `alone`: rank 1 never joins."""

import os
import sys
import time

if "alone" in sys.argv and os.environ["RANK"] == "1":
    time.sleep(float(sys.argv[2]))
    sys.exit(0)

from mpi4py import MPI  # noqa: E402

world = MPI.COMM_WORLD
near = world.Split_type(MPI.COMM_TYPE_SHARED).size
print(f"rank {world.rank} of {world.size}: sum {world.allreduce(world.rank + 1)}, near {near}", flush=True)
if "abort" in sys.argv and world.rank == 1:
    world.Abort(7)
