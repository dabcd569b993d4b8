"""Options of RpcContext and init_rpc. Prints "all equal" at the end: comm_rpc_context.py METHOD RANK SIZE.

Runs in plain processes, which find each other only by these options.
"""

import sys
import threading
import time

import ivycomm as ic
from ivycomm import rpc
from ivycomm.rpc.context import RpcContext, init_rpc

from comm_rpc import raises

may_end = threading.Event()


def main():
    method, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    raises(ValueError, lambda: RpcContext("carrier pigeon", method, size, rank))
    raises(TypeError, lambda: RpcContext(port=29500))
    context = RpcContext(backend="GLOO", init_method=method, world_size=size, rank=rank, timeout=0.5)
    context.register_function("hang", lambda: may_end.wait(60))
    context.register_function("let_end", may_end.set)
    context.register_function("rank", ic.rank)
    assert context.backend == "gloo" and context.timeout == 0.5 and not context.is_initialized
    raises(ic.NotInitialized, lambda: rpc.rpc_sync(0, "rank"))
    to = (rank + 1) % size
    with context as entered:
        assert entered is context and context.is_initialized and (ic.rank(), ic.world_size()) == (rank, size)
        assert rpc.rpc_sync(to, "rank") == to
        began = time.monotonic()
        raises(rpc.RpcTimeout, lambda: rpc.rpc_sync(to, "hang"))
        assert 0.5 <= time.monotonic() - began < 20, "the context's own time"
        assert rpc.rpc_sync(to, "let_end", timeout=60) is None
    assert not context.is_initialized
    with_others = init_rpc("mpi", init_method=method, world_size=size, rank=rank, timeout=60)
    assert with_others.is_initialized and rpc.rpc_sync(to, "rank") == to
    with_others.shutdown()
    assert not with_others.is_initialized
    ic.barrier()
    # A block that ends by an exception does not wait for the other ranks.
    if rank == 0:
        def fail_inside():
            with RpcContext():
                raise KeyError("mine")

        raises(KeyError, fail_inside)
    else:
        RpcContext().initialize()
    print("all equal")


if __name__ == "__main__":
    main()
