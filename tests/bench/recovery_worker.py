# SPDX-License-Identifier: Apache-2.0
"""Adds numbers of all ranks in a loop, as training does; writes a line when the first step of a process is done.

recovery_worker.py DIRECTORY BACKEND
"""

import os
import sys
import time

import torch
import torch.distributed as dist

directory, backend = sys.argv[1:]
dist.init_process_group(backend)
rank, world = dist.get_rank(), dist.get_world_size()
step = 0
while True:
    value = torch.ones(1000)
    dist.all_reduce(value)
    if step == 0:
        with open(os.path.join(directory, f"{rank}.{os.getpid()}.new"), "w") as file:
            file.write(f"{rank} {world} {os.getpid()} {os.environ.get('GROUP_RANK', '0')} {time.time_ns()}\n")
        os.rename(file.name, file.name.removesuffix(".new") + ".first")
    step += 1
    time.sleep(0.05)
