# SPDX-License-Identifier: Apache-2.0
"""Distributes an array of one rank over the devices of all of JAX's processes. Needs no MPI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import groups, messages, objects


def scatter_to_sharding(array: Any, sharding: Any, src: int = 0, *, group: groups.Group | None = None) -> Any:
    """Returns a jax.Array with this sharding and rank src's values.

    array: on rank src a NumPy array, or anything that NumPy converts to one; ignored on the others, where it may be None.
    sharding: any jax.sharding.Sharding over the devices of the group's processes, the same on all ranks. Rank src sends
    each rank only the pieces that its devices hold, and each piece once. If the devices belong to several processes,
    jax.distributed.initialize() must have been called.

    Collective: every rank of the group (None: the world) calls it, in the same order among the group's operations; blocks
    until this rank has its pieces, with the group's timeout. Raises ValueError on every rank if the sharding does not
    divide the shape, and the errors of send() and recv(). On a rank that is not a member it returns None.
    """
    import jax
    import numpy
    group = groups.resolve(group)
    if not group.is_member:
        return None
    at_root = group.rank == src
    whole: Any = numpy.asarray(array) if at_root else None
    shape, dtype = objects.broadcast_object((whole.shape, whole.dtype) if at_root else None, src, group=group)
    sharding.shard_shape(shape)
    needed = _pieces(sharding.addressable_devices_indices_map(shape), shape)
    everybody = objects.gather_object(needed, src, group=group)
    pieces = {}
    if at_root:
        works = []
        for rank, wanted in enumerate(everybody or []):
            for piece in wanted:
                part = numpy.ascontiguousarray(whole[_slices(piece)])
                if rank == src:
                    pieces[piece] = part
                else:
                    works.append(messages.isend(part, rank, group=group))
        for work in works:
            work.wait()
    else:
        for piece in needed:
            pieces[piece] = messages.recv_(numpy.empty([end - begin for begin, end in piece], dtype), src, group=group)
    return jax.make_array_from_callback(shape, sharding, lambda index: pieces[_piece(index, shape)])


def _piece(index: Sequence[slice], shape: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Converts an index of slices to ((begin, end), ...), which can be compared and sent."""
    return tuple(part.indices(length)[:2] for part, length in zip(index, shape))


def _pieces(map_of_devices: Any, shape: Sequence[int]) -> list[tuple[tuple[int, int], ...]]:
    return sorted({_piece(index, shape) for index in map_of_devices.values()})


def _slices(piece: Sequence[tuple[int, int]]) -> tuple[slice, ...]:
    return tuple(slice(begin, end) for begin, end in piece)
