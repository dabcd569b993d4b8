# SPDX-License-Identifier: Apache-2.0
"""torch's process group as in any script. torch_world.py [WHAT]: late N: rank N does not join; old: rank 1 pretends to have
another version; other: each rank is a separate world; both: with mpi4py."""

import os
import sys
import time

import torch
import torch.distributed as dist

what = sys.argv[1] if len(sys.argv) > 1 else ""
rank = os.environ["RANK"]
if what == "late" and rank == sys.argv[2]:
    time.sleep(600)
if what == "old" and rank == "1":
    torch.__version__ = "1.13.1+cpu"
if what == "both":
    from mpi4py import MPI
    print(f"mpi4py: {MPI.COMM_WORLD.rank} of {MPI.COMM_WORLD.size}", flush=True)
if what == "other":
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}-{rank}", rank=0, world_size=1)
else:
    dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(f"process {dist.get_rank()} of {dist.get_world_size()}: {total.item():g}", flush=True)
dist.destroy_process_group()
