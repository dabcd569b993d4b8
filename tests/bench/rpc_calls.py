# SPDX-License-Identifier: Apache-2.0
"""A rank of tests/bench/run rpc: rpc_calls.py ivycomm|torch|copy|messages|mpi4py SIZE...: prints seconds as JSON.

ivycomm, torch: a remote call from rank 0 to rank 1 whose argument is a tensor of so many bytes (0: a float) and whose
result is its length. copy: only a copy of such a tensor into new memory. messages, mpi4py: half of a message's round trip
to rank 1. Each line has the bytes and the median seconds.
"""

import json
import statistics
import sys
import time

ROUND_SECONDS, CALLS_MOST, CALLS_LEAST = 1.0, 3000, 5


def length(value):
    return 8 if isinstance(value, float) else len(value)


def argument(size):
    import torch

    return torch.ones(size, dtype=torch.uint8) if size else 1.5


def calls_of_ivycomm():
    import ivycomm
    from ivycomm import rpc

    rpc.register(length)
    ivycomm.init()
    rpc.init_rpc()
    return ivycomm.rank(), argument, lambda x: rpc.rpc_sync(1, length, x), rpc.shutdown


def calls_of_torch():
    import os

    from torch.distributed import rpc

    rank = int(os.environ["RANK"])
    options = rpc.TensorPipeRpcBackendOptions(init_method="env://", rpc_timeout=120)
    rpc.init_rpc(f"rank{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    return rank, argument, lambda x: rpc.rpc_sync("rank1", length, args=(x,)), rpc.shutdown


def copies():
    return 0, argument, lambda x: x.clone() if hasattr(x, "clone") else x, lambda: None


def median_of(function, x):
    for _ in range(3):
        function(x)
    taken = []
    end = time.perf_counter() + ROUND_SECONDS
    while len(taken) < CALLS_LEAST or (len(taken) < CALLS_MOST and time.perf_counter() < end):
        begin = time.perf_counter()
        function(x)
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


CALLS = {"ivycomm": calls_of_ivycomm, "torch": calls_of_torch, "copy": copies}


def say(size, seconds):
    print(json.dumps({"bytes": size, "seconds": seconds}), flush=True)


def measure_calls(way, sizes):
    rank, make, call, shutdown = CALLS[way]()
    if rank == 0:
        for size in sizes:
            say(size, median_of(call, make(size)))
    shutdown()


def messages_of_ivycomm():
    import ivycomm

    ivycomm.init()
    return ivycomm.rank(), ivycomm.send, ivycomm.recv_, ivycomm.broadcast_object


def messages_of_mpi4py():
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    return world.Get_rank(), lambda x, to: world.Send(x, to), lambda x, source: world.Recv(x, source), world.bcast


def measure_messages(way, sizes):
    import numpy as np

    rank, send, receive, broadcast = {"messages": messages_of_ivycomm, "mpi4py": messages_of_mpi4py}[way]()

    def there_and_back(x):
        begin = time.perf_counter()
        if rank == 0:
            send(x, 1)
            receive(x, 1)
        else:
            receive(x, 0)
            send(x, 0)
        return (time.perf_counter() - begin) / 2

    for size in sizes:
        x = np.ones(size, np.uint8)
        each = statistics.median(there_and_back(x) for _ in range(CALLS_LEAST))
        # Both ranks must agree.
        rounds = broadcast(int(max(CALLS_LEAST, min(CALLS_MOST, (1 << 30) // size, 5 * ROUND_SECONDS / each))))
        taken = [there_and_back(x) for _ in range(rounds)]
        if rank == 0:
            say(size, statistics.median(taken))


def main():
    way, sizes = sys.argv[1], [int(size) for size in sys.argv[2:]]
    (measure_calls if way in CALLS else measure_messages)(way, sizes)


if __name__ == "__main__":
    main()
