# SPDX-License-Identifier: Apache-2.0
"""The collectives and messages of the original ivy.distributed: its names, its order of arguments, its defaults."""

from __future__ import annotations

from typing import Any

from ... import arrays, collectives, groups, messages
from .reductions import IvyReduceOp, named


def all_reduce(x: Any, op: Any = IvyReduceOp.SUM, *, group: groups.Group | None = None, out: Any = None) -> Any:
    """Returns op, element by element, over x of all ranks, on every rank. out: an array that receives the result."""
    return collectives.all_reduce(x, named(op), group=group, out=out)


def all_gather(x: Any, axis: int = 0, *, group: groups.Group | None = None, tiled: bool = False, out: Any = None) -> Any:
    """Returns x of all ranks, concatenated along axis; tiled: as a list. out: an array, or a list of arrays if tiled.
    Raises TypeError for a list without tiled, and ValueError if the list does not fit."""
    if not tiled:
        return collectives.all_gather(x, axis, group=group, out=_single(out))
    return _into_list(out, collectives.all_gather_list(x, group=group))


def all_to_all(x: Any, group: groups.Group | None = None, out: Any = None) -> Any:
    """Sends part r of x, along axis 0, to rank r; returns the received parts, concatenated. Parts are equal."""
    return collectives.all_to_all(x, group=group, out=out)


def broadcast(x: Any, *, group: groups.Group | None = None, src: int = 0, out: Any = None) -> Any:
    """Returns rank src's x on every rank; on the others x only specifies shape and type."""
    return collectives.broadcast(x, src, group=group, out=out)


def gather(x: Any, axis: int = 0, *, group: groups.Group | None = None, tiled: bool = False, dst: int = 0,
           out: Any = None) -> Any:
    """As all_gather on rank dst; None on the others."""
    if not tiled:
        return collectives.gather(x, dst, axis, group=group, out=_single(out))
    stacked = collectives.gather(arrays.adopt(x)[1][None], dst, group=group)
    return None if stacked is None else _into_list(out, [stacked[rank] for rank in range(len(stacked))])


def reduce(x: Any, op: Any = IvyReduceOp.SUM, *, group: groups.Group | None = None, dst: int = 0, out: Any = None) -> Any:
    """Returns op, element by element, over x of all ranks, on rank dst; None on the others."""
    return collectives.reduce(x, dst, named(op), group=group, out=out)


def scatter(out_buffer: Any, x: Any = None, *, group: groups.Group | None = None, src: int = 0) -> Any:
    """Returns this rank's part of rank src's x, along axis 0: in out_buffer, or in a new array if out_buffer is
    immutable (JAX's, TensorFlow's)."""
    if _can_change(out_buffer):
        return collectives.scatter(x, src, group=group, out=out_buffer)
    like = x if groups.resolve(group).rank == src else out_buffer
    return collectives.scatter(like, src, group=group)


def reduce_scatter(x: Any, op: Any = IvyReduceOp.SUM, *, group: groups.Group | None = None, out: Any = None) -> Any:
    """Returns this rank's part, along axis 0, of op over x of all ranks: rank r gets the r-th of equal parts."""
    return collectives.reduce_scatter(x, named(op), group=group, out=out)


def send(x: Any, dst: int, group: groups.Group | None = None, tag: int = 0) -> Any:
    """Sends x to rank dst of the group. Not collective; blocks until x may be changed."""
    return messages.send(x, dst, tag, group=group)


def recv(x_buffer: Any, src: int | None = None, group: groups.Group | None = None, tag: int | None = 0) -> Any:
    """Returns the message of rank src of the group with this tag (src or tag None or -1: any): in x_buffer, or in a
    new array if x_buffer is immutable (JAX's, TensorFlow's). Not collective; blocks until it has arrived."""
    receive: Any = messages.recv_ if _can_change(x_buffer) else messages.recv
    return receive(x_buffer, None if src == -1 else src, None if tag == -1 else tag, group=group)


def barrier(group: groups.Group | None = None) -> Any:
    """Blocks until every rank of the group has called it."""
    return collectives.barrier(group=group)


def _single(out: Any) -> Any:
    if isinstance(out, (list, tuple)):
        raise TypeError("a list as out= requires tiled=True")
    return out


def _into_list(out: Any, parts: Any) -> Any:
    """Returns the parts themselves, or the arrays of the list `out` after copying the values to them."""
    if out is None or parts is None:
        return parts
    if not isinstance(out, (list, tuple)) or len(out) != len(parts):
        raise ValueError(f"out with tiled=True must be a list of {len(parts)} arrays, one for each rank")
    for to, part in zip(out, parts):
        kind, array = arrays.adopt_output(to, "out")
        into, from_ = kind.output(array, "out"), arrays.adopt(part)[0].input(part)
        if (into.count, into.dtype) != (from_.count, from_.dtype):
            raise ValueError("an array of out differs in length or type from the array of its rank")
        kind.copy(into, from_)
        kind.changed(array)
    return out


def _can_change(buffer: Any) -> bool:
    kind = arrays.kind_of(buffer)
    try:
        arrays.adopt_output(buffer, "the buffer")
    except TypeError:
        if kind is None:
            raise
        return False
    return True
