"""For the workers of test_ivycomm.py."""

import ivycomm as ic


def leave(words):
    """Lets all ranks end together, and those of rank 0's host, which has the store, last. These workers test operations, not
    the exit of processes."""
    store, rank, others = ic.store(), ic.rank(), range(1, ic.world_size())
    store.set(f"leaving/{rank}", "")
    store.wait([f"leaving/{other}" for other in range(ic.world_size())], timeout=60)
    if rank == 0:
        store.wait([f"gone/{other}" for other in others], timeout=60)
    else:
        store.set(f"gone/{rank}", "")
    print(words)
