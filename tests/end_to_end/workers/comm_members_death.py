"""Rank 1 dies while the others create a group with it. They print their errors as JSON."""

import json
import os
import signal
import time

import ivycomm as ic

world = ic.init()
ic.barrier()
if world.rank == 1:
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
begin = time.monotonic()
try:
    ic.group_of_members("pair of three", range(3), timeout=60)
except ic.IvyError as error:
    print(json.dumps({"kind": type(error).__name__, "rank": error.rank, "signal": error.signal, "text": str(error),
                      "after": time.monotonic() - begin}), flush=True)
time.sleep(0.5)
os._exit(0)
