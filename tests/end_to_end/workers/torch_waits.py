"""Rank 0 waits for a key that rank 1 never sets, as in a rendezvous that hangs."""

import datetime
import os
import time

from torch.distributed import TCPStore

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, False,
                 datetime.timedelta(seconds=300))
store.set(f"ready{rank}", "x")
store.get(f"ready{1 - rank}")
print("both are there", flush=True)
if rank == 0:
    store.get("unique-id-of-rank-1")
time.sleep(300)
