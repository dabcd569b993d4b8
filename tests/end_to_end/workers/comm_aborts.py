"""comm_aborts.py TURNS: each turn the last rank aborts a group in which all others wait; each says when it was told.

What is said is JSON, with the time of the machine's monotonic clock.
"""

import json
import os
import sys
import time

import numpy

import ivycomm as ic


def main():
    rank, size = int(os.environ["IVY_RANK"]), int(os.environ["IVY_WORLD_SIZE"])
    ic.init(timeout=60)
    for turn in range(int(sys.argv[1])):
        group = ic.split(0, rank)
        ic.barrier(group=group)
        if rank == size - 1:
            time.sleep(0.1)  # So that the others are inside, asleep.
            words = {"aborts": turn, "at_ns": time.monotonic_ns()}
            group.abort("enough")
        else:
            try:
                ic.all_reduce(numpy.ones(3, dtype=numpy.float32), group=group)
                words = {"not_told": turn}
            except ic.Aborted as error:
                words = {"told": turn, "at_ns": time.monotonic_ns(), "text": str(error)}
        print(json.dumps(words), flush=True)
        group.free()
        ic.barrier()
    ic.finalize()


main()
