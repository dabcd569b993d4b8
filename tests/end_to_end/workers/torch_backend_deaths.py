"""Rank 1 dies or is absent while the others are in a collective. Each prints its errors as JSON."""

import json
import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

if torch.__version__.startswith("1."):
    import ivycomm.torch  # noqa: F401

CASE = sys.argv[1]
TIMEOUT = {"timeout": 3, "mismatch": 10}.get(CASE, 60)


def told(call):
    begin = time.monotonic()
    try:
        call()
    except RuntimeError as error:
        print(json.dumps({"kind": type(error).__name__, "cause": type(error.__cause__).__name__, "text": str(error),
                          "blamed": getattr(error.__cause__, "rank", None), "after": time.monotonic() - begin}),
              flush=True)
        return
    print(json.dumps({"kind": "none"}), flush=True)


dist.init_process_group("ivy", timeout=timedelta(seconds=TIMEOUT))
rank = dist.get_rank()
x = torch.ones(100_000)
dist.all_reduce(x)
if rank == 1:
    if CASE == "mismatch":
        told(lambda: dist.all_reduce(x[1:]))
    if CASE == "killed":
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1 if CASE == "mismatch" else TIMEOUT + 4)
    os._exit(0)
if CASE == "killed" and rank == 0:
    work = dist.all_reduce(x, async_op=True)
    told(lambda: work.get_future().wait())  # torch wraps the text of an error in its own error.
told(lambda: dist.all_reduce(x))
told(lambda: dist.all_reduce(x))  # The group is broken, so the next call fails immediately.
if CASE == "mismatch":  # The call of C++ code, as in DDP.
    told(lambda: dist._broadcast_coalesced(dist.distributed_c10d._get_default_group(), [x], 1 << 20, 0))
time.sleep(1)
os._exit(0)
