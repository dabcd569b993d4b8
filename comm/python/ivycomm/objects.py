"""Any Python object, as a pickle (protocol 5).

Unpickling runs what the sender says; all senders are ranks of this job, which know its secret.
"""

import ctypes
import pickle

from .counts import counts_of, number_of_each
from .element_types import I64, U8
from .library import load
from .work import start
from .groups import _root, resolve

_PROTOCOL = 5


def _bytes_of(obj):
    data = pickle.dumps(obj, protocol=_PROTOCOL)
    return data, ctypes.c_char_p(data), len(data)


def _address(buffer):
    return ctypes.cast(buffer, ctypes.c_void_p).value


def _room(size):
    return ctypes.create_string_buffer(max(1, size))


def _object(buffer, begin, size):
    return pickle.loads(memoryview(buffer)[begin:begin + size])


def broadcast_object(obj=None, src=0, *, group=None, timeout=None):
    """Rank src's object, everywhere."""
    group = resolve(group)
    if not group.is_member:
        return None
    at_root = group.rank == _root(group, src)
    data, pointer, size = _bytes_of(obj) if at_root else (None, None, 0)
    length = ctypes.c_int64(size)
    start(load().ivy_broadcast, (group.handle, ctypes.addressof(length), 1, I64, src), length,
          timeout=timeout)
    room = pointer if at_root else _room(length.value)
    start(load().ivy_broadcast, (group.handle, _address(room), length.value, U8, src), (room, data),
          timeout=timeout)
    return obj if at_root else _object(room, 0, length.value)


def all_gather_object(obj, *, group=None, timeout=None):
    """[object of rank 0, object of rank 1, ...] on every rank."""
    group = resolve(group)
    if not group.is_member:
        return None
    data, pointer, size = _bytes_of(obj)
    sizes = number_of_each(group, size, timeout)
    room = _room(sum(sizes))
    start(load().ivy_all_gather_v, (group.handle, _address(pointer), _address(room), counts_of(sizes), None, U8),
          (data, pointer, room), timeout=timeout)
    return _objects(room, sizes)


def _objects(room, sizes):
    objects, begin = [], 0
    for size in sizes:
        objects.append(_object(room, begin, size))
        begin += size
    return objects


def gather_object(obj, dst=0, *, group=None, timeout=None):
    """[object of rank 0, object of rank 1, ...] at rank dst, None on the others."""
    group = resolve(group)
    if not group.is_member:
        return None
    at_root = group.rank == _root(group, dst)
    data, pointer, size = _bytes_of(obj)
    sizes = number_of_each(group, size, timeout)
    room = _room(sum(sizes)) if at_root else None
    start(load().ivy_gather_v, (group.handle, _address(pointer), size, _address(room) if at_root else None,
                                counts_of(sizes), None, U8, dst),
          (data, pointer, room), timeout=timeout)
    return _objects(room, sizes) if at_root else None


def scatter_object(objects=None, src=0, *, group=None, timeout=None):
    """objects[r] of rank src goes to rank r; only rank src needs to give them."""
    group = resolve(group)
    if not group.is_member:
        return None
    at_root = group.rank == _root(group, src)
    sizes, joined = None, b""
    if at_root:
        if objects is None or len(objects) != group.size:
            raise ValueError(f"scatter_object needs {group.size} objects, one for each rank")
        pickles = [pickle.dumps(obj, protocol=_PROTOCOL) for obj in objects]
        sizes, joined = (ctypes.c_int64 * group.size)(*map(len, pickles)), b"".join(pickles)
    length = ctypes.c_int64()
    start(load().ivy_scatter, (group.handle, ctypes.addressof(sizes) if at_root else None,
                               ctypes.addressof(length), 1, I64, src),
          (sizes, length), timeout=timeout)
    room, pointer = _room(length.value), ctypes.c_char_p(joined)
    counts = counts_of(list(sizes)) if at_root else None
    start(load().ivy_scatter_v, (group.handle, _address(pointer) if at_root else None, counts, None,
                                 _address(room), length.value, U8, src),
          (pointer, joined, counts, room), timeout=timeout)
    return _object(room, 0, length.value)
