# SPDX-License-Identifier: Apache-2.0
"""Records torch's flight records of a hang, for the tests beside it:

    ivyrun -n 3 python record.py CASE DIRECTORY       absent, differ, sizes or well

Needs torch 2.10 or newer.
"""
import datetime
import os
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

case, directory = sys.argv[1:]
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank = dist.get_rank()
pair = dist.new_group([0, 1])
for _ in range(3):
    dist.all_reduce(torch.ones(16))
if rank < 2:
    dist.broadcast(torch.ones(4), 0, group=pair)


def dump():
    time.sleep(2)
    # What torch's worker server answers with.
    with open(os.path.join(directory, f"{case}-{rank}.json"), "wb") as file:
        file.write(c10d._dump_fr_trace_json(True, True, "gloo") + b"\n")
    time.sleep(1)
    os._exit(0)


threading.Thread(target=dump, daemon=True).start()
if case == "absent" and rank == 2:
    time.sleep(10)
elif case == "differ" and rank == 2:
    dist.broadcast(torch.ones(1000), 0)
elif case == "sizes":
    # All_reduce fails at once, and a broadcast whose root does not come waits.
    if rank < 2:
        dist.broadcast(torch.ones(1000 - rank), 2)
elif case != "well":
    dist.all_reduce(torch.ones(1000))
time.sleep(10)
