"""Uses torch's store as its launcher says, and nothing else of torch's."""

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
    # Rank 0 goes; the others still talk to the store afterwards.
    if rank == 0:
        store.set("rank0", "is going")
        sys.exit(0)
    store.get("rank0")
    time.sleep(1)
    store.set(f"late{rank}", "x")
    print("still there", store.get(f"late{rank}").decode(), flush=True)
if mode == "stay":
    time.sleep(600)
if mode == "outlive":
    # The store is killed and comes back from its log: this client cannot dial again, a new one can.
    while True:
        try:
            store.set(f"beat{rank}", str(time.monotonic()))
            store.get(f"beat{rank}")
            time.sleep(0.05)
        except RuntimeError as error:
            print("lost:", str(error).splitlines()[0], flush=True)
            break
    again = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, False,
                     datetime.timedelta(seconds=60))
    print("again", [int(again.get(f"from{peer}")) for peer in range(world)], flush=True)
    print("left", again.add("left", 1), flush=True)
    again.set(f"bye{rank}", "x")
    again.wait([f"bye{peer}" for peer in range(world)])
