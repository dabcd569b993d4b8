# SPDX-License-Identifier: Apache-2.0
"""Trains with DDP on Gloo, forms the group again in the running processes when a host is lost, and prints the result.

    torch_lost_host.py STEPS FILE     rank 0 continues after step 20 only when FILE exists
"""

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import ivycomm.torch

steps, go = int(sys.argv[1]), sys.argv[2]
rejoin = int(os.environ.get("IVY_REJOIN", 0))
world = int(os.environ["WORLD_SIZE"])


def form_group():
    """Forms the group of all ranks, with the ranks that were started again. Returns the model as the newest member knows it,
    its optimizer, and the number of steps it has done."""
    ivycomm.torch.reconfigure(size=world, wait=None, timeout=240)
    known = [torch.zeros(1) for _ in range(world)]
    dist.all_gather(known, torch.tensor([float(step)]))
    newest = int(torch.stack(known).argmax())
    state = [model.state_dict(), optimizer.state_dict(), step] if dist.get_rank() == newest else [None] * 3
    dist.broadcast_object_list(state, newest)
    model.load_state_dict(state[0])
    optimizer.load_state_dict(state[1])
    return torch.nn.parallel.DistributedDataParallel(model), state[2]


torch.set_num_threads(1)
torch.manual_seed(7)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.002, momentum=0.5)
step, parallel = -1 if rejoin else 0, None
dist.init_process_group("gloo", enable_reconfigure=True, timeout=timedelta(seconds=40))
rank = int(os.environ["RANK"])
print(f"up {rank} pid {os.getpid()} rejoin {rejoin} attempt {os.environ['IVY_GENERATION']}", flush=True)
while step < steps:
    try:
        if parallel is None:
            parallel, step = form_group()
            assert dist.get_rank() == rank, (dist.get_rank(), rank)
        inputs = torch.randn(16, 8, generator=torch.Generator().manual_seed(1000 * step + rank))
        loss = (parallel(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
    except RuntimeError:
        print(f"forms the group again, rank {rank}, step {step}", flush=True)
        parallel = None
        continue
    optimizer.step()
    step += 1
    if step == 20 and rank == 0:
        print("waits at step 20", flush=True)
        while not os.path.exists(go):
            time.sleep(0.02)
total = sum(parameter.sum().item() for parameter in model.parameters())
print(f"done: rank {rank}, step {step}, world {dist.get_world_size()}, weight {total:.6f}, pid {os.getpid()}", flush=True)
os._exit(0)  # A group that was formed again may wait for a lost member when it is destroyed.
