# SPDX-License-Identifier: Apache-2.0
"""Arrays that rank 0 has, spread over the devices of all of JAX's processes. No MPI is needed for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import groups, messages, objects


def scatter_to_sharding(array: Any, sharding: Any, src: int = 0, *, group: groups.Group | None = None) -> Any:
    """A jax.Array with this sharding, whose values only rank src has to have.

    array: at rank src a NumPy array (or what NumPy makes of it); ignored elsewhere, so None will do. sharding: any
    jax.sharding.Sharding over the devices of the group's processes, of any number of dimensions, the same on all ranks.
    Rank src sends to every rank the pieces that its devices hold and nothing else; replicated pieces travel once to each
    rank. Needs jax.distributed.initialize() when the devices are of several processes.
    Errors: ValueError where the sharding does not divide the shape, on every rank.
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
    """An index of slices as ((begin, end), ...), which can be compared and sent."""
    return tuple(part.indices(length)[:2] for part, length in zip(index, shape))


def _pieces(map_of_devices: Any, shape: Sequence[int]) -> list[tuple[tuple[int, int], ...]]:
    return sorted({_piece(index, shape) for index in map_of_devices.values()})


def _slices(piece: Sequence[tuple[int, int]]) -> tuple[slice, ...]:
    return tuple(slice(begin, end) for begin, end in piece)
