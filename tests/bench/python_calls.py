# SPDX-License-Identifier: Apache-2.0
"""A rank of tests/bench/run python: python_calls.py ivycomm|mpi4py SIZE...: prints the times of all_reduce as JSON lines.

Each line has the bytes and, for both forms, the seconds of one call: the lower quartile of many short rounds, because
other programs interrupt some of them.
"""

import json
import sys
import time

import numpy as np

ROUND_SECONDS, ROUNDS = 0.002, 40


def by_ivycomm():
    import ivycomm

    ivycomm.init()
    all_reduce, in_place = ivycomm.all_reduce, ivycomm.all_reduce_
    return ivycomm.rank(), ivycomm.barrier, in_place, all_reduce


def by_mpi4py():
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    allreduce, here, empty_like = world.Allreduce, MPI.IN_PLACE, np.empty_like

    def functional(x):
        y = empty_like(x)
        allreduce(x, y)
        return y

    return world.Get_rank(), world.Barrier, lambda x: allreduce(here, x), functional


def seconds_of(function, x, barrier, calls):
    barrier()
    begin = time.perf_counter()
    for _ in range(calls):
        function(x)
    return (time.perf_counter() - begin) / calls


def measure(function, size, barrier, agree):
    x = np.full(size // 8, 0.0)  # Sums of zeros do not change the values.
    seconds_of(function, x, barrier, 3)
    first = agree(seconds_of(function, x, barrier, 10))
    calls = int(min(2000, max(1, ROUND_SECONDS // first)))
    rounds = sorted(seconds_of(function, x, barrier, calls) for _ in range(ROUNDS if calls > 1 else 12))
    return rounds[len(rounds) // 4]


def main():
    rank, barrier, in_place, functional = {"ivycomm": by_ivycomm, "mpi4py": by_mpi4py}[sys.argv[1]]()

    def agree(seconds):
        """Returns a common time, so that every rank makes the same number of calls."""
        total = np.array([seconds])
        in_place(total)
        return max(total[0] / 2, 1e-9)

    for size in map(int, sys.argv[2:]):
        times = [measure(function, size, barrier, agree) for function in (in_place, functional)]
        if rank == 0:
            print(json.dumps({"bytes": size, "in place": times[0], "functional": times[1]}), flush=True)


main()
