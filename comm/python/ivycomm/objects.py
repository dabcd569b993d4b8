# SPDX-License-Identifier: Apache-2.0
"""Any Python object, as a pickle (protocol 5).

Unpickling runs code that the sender chooses; all senders are ranks of this job, which know its secret. If an object
cannot be pickled, its rank raises pickle's exception, and the others a TypeError that names the rank.
"""

from __future__ import annotations

import array
import itertools
import pickle
from collections.abc import Sequence
from typing import Any, TypeVar, cast

from . import docstrings
from .counts import counts_of, number_of_each
from .element_types import I64, U8
from .work import start
from .groups import Group, checked_rank, resolve

T = TypeVar("T")

_PROTOCOL = 5


_REFUSED = -1  # Sent as the length of an object that cannot be pickled.


def _bytes_of(obj: object) -> tuple[bytes, int, Exception | None]:
    """Returns (pickle, its length, None). If the object cannot be pickled, returns no data, the length _REFUSED and the
    exception."""
    try:
        data = pickle.dumps(obj, protocol=_PROTOCOL)
    except Exception as error:  # noqa: BLE001 - whatever a class of the user's raises. The others have to hear of it.
        return b"", _REFUSED, error
    return data, len(data), None


def _raise_refusals(sizes: dict[int, int], error: Exception | None) -> None:
    """Raises this rank's exception, or one that names the first rank whose object cannot be pickled."""
    if error is not None:
        raise error
    for rank, size in sizes.items():
        if size == _REFUSED:
            raise TypeError(f"rank {rank} of the group passed an object that cannot be pickled; its own exception has the reason")


def _object(buffer: Any, begin: int, size: int) -> Any:
    return pickle.loads(memoryview(buffer)[begin:begin + size])


@docstrings.collective
def broadcast_object(obj: T | None = None, src: int = 0, *, group: Group | None = None, timeout: float | None = None) -> T:
    """Returns rank src's object on every rank; on the others `obj` is ignored.

    Raises pickle's exception on rank src if the object cannot be pickled, and TypeError on the others.
    """
    group = resolve(group)
    if not group.is_member:
        return cast(T, None)
    src = checked_rank(group, src)
    at_root = group.rank == src
    data, size, error = _bytes_of(obj) if at_root else (b"", 0, None)
    length = array.array("q", [size])
    start("ivy_broadcast", (group.handle, length, 1, I64, src), length, timeout=timeout)
    _raise_refusals({src: length[0]}, error)
    room = data if at_root else bytearray(length[0])
    start("ivy_broadcast", (group.handle, room, length[0], U8, src), room, timeout=timeout)
    return cast(T, obj if at_root else _object(room, 0, length[0]))


@docstrings.collective
def all_gather_object(obj: T, *, group: Group | None = None, timeout: float | None = None) -> list[T]:
    """Returns [object of rank 0, object of rank 1, ...] on every rank.

    Raises pickle's exception on a rank whose object cannot be pickled, and TypeError on the others.
    """
    return cast("list[T]", _gathered(obj, None, group, timeout))


@docstrings.collective
def gather_object(obj: T, dst: int = 0, *, group: Group | None = None, timeout: float | None = None) -> list[T] | None:
    """Returns [object of rank 0, object of rank 1, ...] on rank dst, None on the others. Errors as for
    all_gather_object."""
    return _gathered(obj, dst, group, timeout)


def _gathered(obj: T, dst: int | None, group: Group | None, timeout: float | None) -> list[T] | None:
    """Returns the objects of all ranks on rank dst, or on every rank if dst is None."""
    group = resolve(group)
    if not group.is_member:
        return None
    root = () if dst is None else (checked_rank(group, dst),)
    data, size, error = _bytes_of(obj)
    sizes = number_of_each(group, size, timeout)
    _raise_refusals(dict(enumerate(sizes)), error)
    room = None if root and group.rank != root[0] else bytearray(sum(sizes))
    function, own = ("ivy_gather_v", (size,)) if root else ("ivy_all_gather_v", ())
    start(function, (group.handle, data, *own, room, counts_of(sizes), None, U8, *root), (data, room), timeout=timeout)
    if room is None:
        return None
    return [_object(room, end - size, size) for end, size in zip(itertools.accumulate(sizes), sizes)]


def _pickles_of(objects: Sequence[object] | None, count: int) -> tuple[list[bytes], Exception | None]:
    """Returns (pickles, None), or ([], exception)."""
    try:
        if objects is None or len(objects) != count:
            raise ValueError(f"scatter_object needs {count} objects, one for each rank")
        return [pickle.dumps(obj, protocol=_PROTOCOL) for obj in objects], None
    except Exception as error:  # noqa: BLE001 - whatever a class of the user's raises. The others have to hear of it.
        return [], error


@docstrings.collective
def scatter_object(objects: Sequence[T] | None = None, src: int = 0, *, group: Group | None = None,
                   timeout: float | None = None) -> T:
    """Returns objects[r] of rank src on rank r; only rank src must pass `objects`, one for each rank.

    Raises ValueError (their number is wrong) or pickle's exception on rank src, and then TypeError on the others.
    """
    group = resolve(group)
    if not group.is_member:
        return cast(T, None)
    src = checked_rank(group, src)
    at_root = group.rank == src
    sizes: Any = None
    joined, error = b"", None
    if at_root:
        pickles, error = _pickles_of(objects, group.size)
        lengths = [_REFUSED] * group.size if error else map(len, pickles)
        sizes, joined = array.array("q", lengths), b"".join(pickles)
    length = array.array("q", [0])
    start("ivy_scatter", (group.handle, sizes, length, 1, I64, src), (sizes, length), timeout=timeout)
    _raise_refusals({src: length[0]}, error)
    room = bytearray(length[0])
    counts = counts_of(sizes) if at_root else None
    start("ivy_scatter_v", (group.handle, joined if at_root else None, counts, None, room, length[0], U8, src),
          (joined, counts, room), timeout=timeout)
    return cast(T, _object(room, 0, length[0]))
