# SPDX-License-Identifier: Apache-2.0
"""Selects this rank's rows of a data set. Pure."""

from __future__ import annotations

import random

from . import groups


def shard_indices(length: int, *, epoch: int = 0, seed: int = 0, shuffle: bool = True, drop_last: bool = False,
                  pad: bool | None = None, group: groups.Group | None = None, rank: int | None = None,
                  world_size: int | None = None) -> list[int]:
    """Returns the indices of this rank's part of a data set of `length` rows; the order differs per epoch.

    Sends nothing, and may be called by any rank and thread; all ranks must pass the same arguments except `rank`. The
    parts are disjoint and equally long: if `length` is not divisible by the number of ranks, the first indices are
    repeated (pad, the default), or, with drop_last, the last ones are omitted. pad=False without drop_last: every index
    once, and the lengths of the parts differ by at most one. shuffle=False: rank, rank + size, rank + 2 size, ...
    rank, world_size: by default those of the group, of the world, or of a world of one before init(). Raises ValueError
    if the arguments contradict each other.
    """
    if length < 0:
        raise ValueError(f"length must not be negative: {length}")
    if drop_last and pad:
        raise ValueError("drop_last and pad cannot be used together")
    rank, size = _place(group, rank, world_size)
    order = list(range(length))
    if shuffle:
        # One generator for all ranks, and another for each epoch.
        random.Random(f"{seed}/{epoch}").shuffle(order)
    if drop_last:
        del order[length - length % size:]
    elif (pad is None or pad) and order:
        while len(order) % size:
            order.append(order[len(order) - length])
    return order[rank::size]


def _place(group: groups.Group | None, rank: int | None, world_size: int | None) -> tuple[int, int]:
    if (rank is None) != (world_size is None):
        raise ValueError("pass both rank and world_size, or neither")
    if rank is None and (group is not None or groups.is_initialized()):
        members = groups.resolve(group)
        rank, world_size = members.rank, members.size
        if rank is None:
            raise ValueError("this rank is not a member of the group")
    rank, world_size = (0, 1) if rank is None or world_size is None else (int(rank), int(world_size))
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not from 0 to {world_size - 1}")
    return rank, world_size
