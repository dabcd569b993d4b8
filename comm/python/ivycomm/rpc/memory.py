# SPDX-License-Identifier: Apache-2.0
"""Bytes of any owner as messages: what remote calls send and receive.

A call is a few messages of a few bytes, so buffers and arguments are prepared once: no Work, no array.
"""

import ctypes
import threading
import time

from .. import calls
from ..element_types import U8
from ..errors import check
from ..library import ANY, MessageHeader, load
from ..modules import imported
from ..waiting import SLICE_MS, calling
from .warm_memory import LEAST_BYTES, WarmMemory

_WITHOUT_LIMIT = -1
_warm = WarmMemory()


def room_of(length):
    """Returns memory of that size to receive into, uninitialised if NumPy is available."""
    numpy = imported("numpy")
    # Small memory is quicker made without, and needs no clearing worth the name.
    if numpy is None or length < 65536:
        return bytearray(max(1, length))[:length] if length else bytearray()
    return numpy.empty(length, numpy.uint8) if length < LEAST_BYTES else _warm.take(length)


def _address(part):
    """(address, owner) of a part's memory; the owner keeps it where it is."""
    if isinstance(part, bytes):
        return part, part  # ctypes converts bytes to a pointer itself.
    view = memoryview(part)
    if not view.nbytes:
        return None, part
    if not view.readonly:
        held = (ctypes.c_char * view.nbytes).from_buffer(part)
        return ctypes.addressof(held), held
    numpy = imported("numpy")
    if numpy is not None:
        array = numpy.frombuffer(view, numpy.uint8)
        return array.__array_interface__["data"][0], array
    return _address(bytes(view))


class Room:
    """A reusable receive buffer, with the facts of the last message."""

    def __init__(self, memory):
        self.memory = memory
        self.length = memoryview(memory).nbytes
        self.address, self._owner = _address(memory)
        self.header = MessageHeader(struct_bytes=ctypes.sizeof(MessageHeader))
        self.header_place = ctypes.byref(self.header)

    def bytes(self):
        """Returns a copy of the received bytes."""
        return bytes(memoryview(self.memory)[:self.header.bytes])


class Messages:
    """The messages of one group. Thread: any; in the main one, a signal handler's exception ends a wait."""

    def __init__(self, group):
        library = load()
        calls.teach()
        self.group, self._receive = group, library.ivy_recv_within
        self._main = threading.main_thread().ident

    def send(self, part, to, tag):
        """Sends a part's bytes; returns when its memory may be changed."""
        address, owner = _address(part)
        length = len(part) if part is address else memoryview(part).nbytes
        calls.call("ivy_send", (self.group.handle, address, length, U8, to, tag))
        del owner  # It kept the memory.

    def receive(self, room, source, tag, timeout=None):
        """Receives at most as many bytes as `room` has. False: nothing has come within `timeout` seconds.

        source None: anyone. A message that has begun to come is waited for.
        """
        source = ANY if source is None else source
        if timeout is None and threading.get_ident() != self._main:
            return self._receive_within(room, source, tag, _WITHOUT_LIMIT)
        until = None if timeout is None else time.monotonic() + timeout
        # Between two slices the interpreter runs signal handlers.
        while True:
            left = SLICE_MS if until is None else min(SLICE_MS, max(0.0, 1000 * (until - time.monotonic())))
            if self._receive_within(room, source, tag, -int(-left // 1)):
                return True
            if until is not None and time.monotonic() >= until:
                return False

    def is_there(self, room, source, tag):
        """As receive, for what has come already; never waits."""
        return self._receive_within(room, ANY if source is None else source, tag, 0)

    def _receive_within(self, room, source, tag, milliseconds):
        with calling(self.group.handle):
            code = self._receive(self.group.handle, room.address, room.length, U8, source, tag, room.header_place,
                                 milliseconds)
        if code:
            check(code)
        return room.header.source >= 0
