"""Runs steps in a group that is formed again when a member dies. argv: the step at which this rank dies, or "spare"."""

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import ivycomm.torch

WHAT = sys.argv[1]
SIZE = int(sys.argv[2]) if len(sys.argv) > 2 else None
STEPS = 8


def say(*words):
    print(*words, flush=True)


dist.init_process_group("gloo", enable_reconfigure=True, timeout=timedelta(seconds=120))
first = dist.get_rank()
step = 0
if WHAT == "spare":
    say("waits")
    ivycomm.torch.reconfigure(spare=True, timeout=None)
    say("is", dist.get_rank(), "of", dist.get_world_size())
    dist.broadcast(at := torch.zeros(1), 0)
    step = int(at)
else:
    uuid, handles = ivycomm.torch.rendezvous_reconfigure(dist.distributed_c10d._get_reconfigure_handle(), size=SIZE)
    dist.distributed_c10d._reconfigure(uuid=uuid, handles=handles).wait()  # As in torch's documentation.
    say("is", dist.get_rank(), "of", dist.get_world_size())
    assert dist.get_rank() == first
while step < STEPS:
    if WHAT == str(step):
        os.kill(os.getpid(), signal.SIGKILL)
    x = torch.ones(1000)
    try:
        dist.all_reduce(x)
        step += 1
    except RuntimeError:
        begin = time.monotonic()
        ivycomm.torch.reconfigure()
        say("again", dist.get_rank(), "of", dist.get_world_size())
        print(f"{time.monotonic() - begin:.3f} s", file=sys.stderr)
        dist.broadcast(at := torch.full((1,), float(step)), 0)
        step = int(at)
say("sum", int(x[0]))
os._exit(0)
