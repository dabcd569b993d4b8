"""comm_aborts.py TURNS [OPERATION...] [--method M --rank R --size N]: in each turn the last rank aborts a group in which
all others wait, and each prints when it got the error.

The operations are used in turn. In "mixed" ones every third rank receives a message instead. In "late" ones rank 0 does,
and the others wait for rank 0, so that they do not notice the end of the aborting rank's connections. The output is JSON
with times of the monotonic clock, which all hosts of the testbed share.
"""

import argparse
import json
import time

import numpy

import ivycomm as ic

SMALL = numpy.ones(3, dtype=numpy.float32)
LARGE = numpy.ones(2_000_000, dtype=numpy.float32)


def wait_in(operation, turn, group):
    last = group.size - 1
    how, _, name = operation.rpartition(" ")
    is_other = (how == "mixed" and (turn + group.rank) % 3 == 0) or (how == "late" and group.rank == 0)
    operation = "recv" if is_other else name
    if operation == "recv":
        ic.recv_(SMALL.copy(), last, group=group)
    elif operation == "recv_any":
        ic.recv_(SMALL.copy(), group=group)
    elif operation == "send":
        ic.send(numpy.zeros(16_000_000, dtype=numpy.float32), last, group=group)  # More than sockets buffer.
    elif operation == "all_reduce":
        ic.all_reduce(SMALL, group=group)
    elif operation == "all_reduce_large":
        ic.all_reduce(LARGE, group=group)
    elif operation == "broadcast":
        ic.broadcast(SMALL, 0 if how == "late" else last, group=group)
    elif operation == "scatter":
        ic.scatter(numpy.ones(group.size) if group.rank == 0 else None, 0, group=group)
    elif operation == "all_to_all":
        ic.all_to_all(numpy.ones(group.size * 5), group=group)
    elif operation == "work":
        (ic.irecv(SMALL.copy(), 0, group=group) if how == "late"
         else ic.all_gather(SMALL, group=group, async_op=True)).wait()
    else:
        ic.barrier(group=group)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("turns", type=int)
    parser.add_argument("operations", nargs="*", default=["all_reduce"])
    parser.add_argument("--method")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--size", type=int)
    given = parser.parse_args()
    ic.init(given.method, rank=given.rank, world_size=given.size, timeout=60)
    rank, size = ic.rank(), ic.world_size()
    for turn in range(given.turns):
        operation = given.operations[turn % len(given.operations)]
        group = ic.split(0, rank)
        ic.barrier(group=group)
        if rank == size - 1:
            time.sleep(0.1)  # Wait until the others sleep in the operation.
            words = {"aborts": turn, "at_ns": time.monotonic_ns()}
            group.abort("enough")
        else:
            try:
                wait_in(operation, turn, group)
                words = {"not_told": turn}
            except ic.Aborted as error:
                words = {"told": turn, "at_ns": time.monotonic_ns(), "text": str(error)}
        print(json.dumps({**words, "by": rank}), flush=True)
        group.free()
        ic.barrier()
    ic.finalize()


main()
