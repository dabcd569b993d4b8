"""Uses only torch's store, with the launcher's settings."""

import datetime
import os
import sys
import time

from torch.distributed import TCPStore

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
mode = sys.argv[1]
assert os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "True"
store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, False,
                 datetime.timedelta(seconds=60))
store.set(f"from{rank}", str(rank * rank))
squares = [int(store.get(f"from{peer}")) for peer in range(world)]
print("squares", squares, "sum", store.add("met", 0), flush=True)
if mode == "first_leaves":
    # Rank 0 exits; the others still use the store afterwards.
    if rank == 0:
        store.set("rank0", "is going")
        sys.exit(0)
    store.get("rank0")
    time.sleep(1)
    store.set(f"late{rank}", "x")
    print("still there", store.get(f"late{rank}").decode(), flush=True)
if mode == "stay":
    time.sleep(600)
