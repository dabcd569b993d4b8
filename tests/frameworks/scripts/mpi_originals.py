# SPDX-License-Identifier: Apache-2.0
"""Communicators of mpi4py as groups of i_dist and back, on 2 x 2 ranks, and MPI's names of the reductions."""

import numpy
from mpi4py import MPI

import ivycomm as ic
from ivycomm import i_dist


def main():
    world = MPI.COMM_WORLD
    i_dist.init_dist()
    r, n = ic.rank(), ic.world_size()
    assert (world.Get_rank(), world.Get_size()) == (r, n) and isinstance(world, i_dist.NativeGroup)
    assert i_dist.Group(list(range(n))).to_native_group() == world
    half = i_dist.Group(list(range(n // 2)))
    native = half.to_native_group()
    assert half.to_native_group() is native and (native == MPI.COMM_NULL) == (not half.is_member)
    assert not half.is_member or native.allreduce(r) == sum(half.ranks)
    own = world.Split(r % 2, -r)  # The ranks in reverse order.
    group = i_dist.Group.from_native_group(own)
    members = [each for each in range(n) if each % 2 == r % 2][::-1]
    assert list(group.ranks) == members and group.rank == own.Get_rank() and group.to_native_group() is own
    assert i_dist.all_gather(numpy.array([r]), group=group).tolist() == members
    try:
        i_dist.Group.from_native_group(MPI.COMM_NULL)
    except TypeError as error:
        assert "that contains this rank" in str(error)
    else:
        raise AssertionError("COMM_NULL has no ranks")
    for name, wanted in (("SUM", sum(range(n))), ("MEAN", sum(range(n))), ("MAX", n - 1), ("MIN", 0), ("PRODUCT", 0),
                         ("BOR", 3), ("BAND", 0), ("BXOR", 0)):
        assert world.allreduce(r, op=i_dist.OpHandler(name).mpi_op) == wanted, name
    ic.barrier()
    print(f"rank {r}: there and back")


main()
