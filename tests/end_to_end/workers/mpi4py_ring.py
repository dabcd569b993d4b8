"""The same as mpi_ring.c with mpi4py: mpi4py_ring.py [abort CODE]."""

import sys
import time

from mpi4py import MPI

world = MPI.COMM_WORLD
print(f"rank {world.rank} of {world.size}: sum {world.allreduce(world.rank + 1)}", flush=True)
if sys.argv[1:]:
    if world.rank == 1:
        world.Abort(int(sys.argv[2]))
    time.sleep(600)
