"""Trains with DDP, saves a checkpoint, and resumes from it, like any script for torchrun: nothing here depends on ivyrun.
Rank 1 kills itself once, after step 3. With "wait" all ranks wait there instead until the test ends the first attempt.

    elastic.py CHECKPOINT [STEPS [wait]]
"""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel


@record
def main():
    checkpoint, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 6
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    if os.path.exists(checkpoint):
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        step = saved["step"]
    print(f"attempt {attempt} begins at step {step}, {dist.get_world_size()} ranks", flush=True)
    while step < steps:
        optimizer.zero_grad()
        model(torch.full((8, 4), 1.0 + dist.get_rank())).pow(2).mean().backward()
        optimizer.step()
        step += 1
        if dist.get_rank() == 0:
            torch.save({"step": step, "model": model.state_dict()}, checkpoint + ".new")
            os.replace(checkpoint + ".new", checkpoint)
        dist.barrier()
        if step == 3 and attempt == 0 and sys.argv[3:] == ["wait"]:
            print("step 3 is saved", flush=True)
            time.sleep(600)
        if step == 3 and dist.get_rank() == 1 and attempt == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    total = sum(parameter.sum() for parameter in model.parameters()).detach()
    print(f"finished at step {step} of attempt {attempt}, sum {total.item():.6f}", flush=True)
    dist.destroy_process_group()


main()
