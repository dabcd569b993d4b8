# SPDX-License-Identifier: Apache-2.0
"""Communicators of MPI 4 sessions: each is made from a group of ranks and a name, without MPI_COMM_WORLD."""

import sys

from mpi4py import MPI

turns = int(sys.argv[1]) if len(sys.argv) > 1 else 3
session = MPI.Session.Init()
world = session.Create_group("mpi://WORLD")
rank, size = world.Get_rank(), world.Get_size()
numbers = []
for turn in range(turns):
    # The even ranks and the odd ranks, each with ranks of both hosts.
    half = world.Incl(range(rank % 2, size, 2))
    own = MPI.Intracomm.Create_from_group(half, f"half/of {turn}")
    own_sum = own.allreduce(rank)
    own.Free()
    # The ranks of a host, and all ranks.
    everybody = MPI.Intracomm.Create_from_group(world, f"all {turn}")
    total = everybody.allreduce(rank)
    everybody.Free()
    # Both halves, connected by their first ranks.
    other = world.Incl(range(1 - rank % 2, size, 2))
    between = MPI.Intercomm.Create_from_groups(half, 0, other, 0, f"between {turn}")
    other_sum = between.allreduce(rank)
    between.Free()
    numbers.append((own_sum, other_sum, total))
session.Finalize()
print(f"rank {rank} of {size}: {sorted(set(numbers))}")
