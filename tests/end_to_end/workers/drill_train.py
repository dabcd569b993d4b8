# SPDX-License-Identifier: Apache-2.0
"""Trains a model with torch's DDP (gloo) and one with ivycomm, saves a checkpoint after each step and resumes from it.
Everything is deterministic, so that an undisturbed run ends with the same losses.

    drill_train.py CHECKPOINT STEPS PAUSE
"""

import os
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import ivycomm as ic

checkpoint, steps, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
torch.set_num_threads(1)
dist.init_process_group("gloo")
ic.init()
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(7)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
weights = np.zeros(4)
step = 0
if os.path.exists(checkpoint):
    saved = torch.load(checkpoint)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    weights, step = saved["weights"].numpy(), saved["step"]

while step < steps:
    inputs = torch.sin(torch.arange(32.0).reshape(8, 4) + rank + step)
    optimizer.zero_grad()
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).pow(2).mean()
    loss.backward()
    optimizer.step()
    data = inputs.double().numpy()
    error = data @ weights - data.sum(1)
    gradient = 2 * data.T @ error / len(data)
    weights = weights - 0.001 * ic.all_reduce(gradient) / world
    step += 1
    if rank == 0:
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict(),
                    "weights": torch.from_numpy(weights)}, checkpoint + ".new")
        os.replace(checkpoint + ".new", checkpoint)
    dist.barrier()
    if rank == 0:
        print(f"step {step}", flush=True)
    time.sleep(pause)

total = sum(float(parameter.double().sum()) for parameter in model.parameters())
if rank == 0:
    print(f"final {total:.12f} {weights.sum():.12f} with {world} ranks", flush=True)
dist.destroy_process_group()
