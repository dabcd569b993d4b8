"""Bytes of any owner as messages: what remote calls send and receive."""

import ctypes

from ..element_types import U8
from ..library import ANY, load
from ..modules import imported
from ..work import start


def room_of(length):
    """Memory of so many bytes to receive into, not cleared where NumPy can give it."""
    numpy = imported("numpy")
    # Small memory is quicker made without, and needs no clearing worth the name.
    if numpy is None or length < 65536:
        return bytearray(max(1, length))[:length] if length else bytearray()
    return numpy.empty(length, numpy.uint8)


def _address(part):
    """(address, owner) of a part's memory; the owner keeps it where it is."""
    view = memoryview(part)
    if not view.nbytes:
        return None, part
    if isinstance(part, bytes):
        return ctypes.cast(ctypes.c_char_p(part), ctypes.c_void_p).value, part
    if not view.readonly:
        held = (ctypes.c_char * view.nbytes).from_buffer(part)
        return ctypes.addressof(held), held
    numpy = imported("numpy")
    if numpy is not None:
        array = numpy.frombuffer(view, numpy.uint8)
        return array.__array_interface__["data"][0], array
    return _address(bytes(view))


def send_part(group, part, to, tag):
    """Sends a part's bytes; returns when its memory may be changed."""
    address, owner = _address(part)
    start(load().ivy_send, (group.handle, address, memoryview(part).nbytes, U8, to, tag), owner)


def receive_part(group, room, source, tag, is_blocking=False):
    """Receives at most as many bytes as `room` has. Returns the Message, or the Work when it is not blocking.

    Without a time limit: callers have their own.
    """
    address, owner = _address(room)
    arguments = (group.handle, address, memoryview(room).nbytes, U8, ANY if source is None else source, tag, None)
    if is_blocking:
        return start(load().ivy_recv, arguments, owner, lambda work: work._read_message(), False, float("inf"),
                     has_message=True)
    return start(load().ivy_recv, arguments, owner, lambda work: work._read_message(), True, float("inf"))
