"""For the workers of test_ivycomm.py."""

import ivycomm as ic


def leave(words):
    """All ranks end together, by the store: these workers test operations, not the ends of processes."""
    store = ic.store()
    if store.add("leaving") == ic.world_size():
        store.set("all leave", "now")
    store.get("all leave", timeout=60)
    print(words)
