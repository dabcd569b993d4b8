# SPDX-License-Identifier: Apache-2.0
"""Sends and receives the bytes of any object with a buffer, for remote calls.

A call takes a few messages of a few bytes. So there is no Work and no array, and a receive buffer's arguments of the C
function are prepared once.
"""

from __future__ import annotations

import ctypes
import threading
import time
from typing import TYPE_CHECKING, Any

from .. import calls
from ..element_types import U8
from ..errors import check
from ..groups import Group
from ..library import ANY, MessageHeader, load
from ..modules import imported
from ..waiting import SLICE_MS, calling
from .warm_memory import LEAST_BYTES, WarmMemory

if TYPE_CHECKING:
    from typing_extensions import Buffer

_WITHOUT_LIMIT = -1
_warm = WarmMemory()


def room_of(length: int) -> Any:
    """Returns writable memory of that many bytes; uninitialized if it is large and NumPy is imported."""
    numpy = imported("numpy")
    # A small bytearray is made faster than an array, although it is cleared.
    if numpy is None or length < 65536:
        return bytearray(max(1, length))[:length] if length else bytearray()
    return numpy.empty(length, numpy.uint8) if length < LEAST_BYTES else _warm.take(length)


def _address(part: Buffer) -> tuple[Any, object]:
    """Returns (address, owner) of a part's memory, which stays at the address while the owner exists."""
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
    """A reusable receive buffer, and the header of the last message in it."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory
        self.length = memoryview(memory).nbytes
        self.address, self._owner = _address(memory)
        self.header = MessageHeader(struct_bytes=ctypes.sizeof(MessageHeader))
        self.header_place = ctypes.byref(self.header)

    def bytes(self) -> bytes:
        """Returns a copy of the received bytes."""
        return bytes(memoryview(self.memory)[:self.header.bytes])


class Messages:
    """The messages of one group. Thread: any. In the main thread, an exception of a signal handler interrupts a
    receive."""

    def __init__(self, group: Group) -> None:
        library = load()
        calls.load_array_types()
        self.group, self._receive = group, library.ivy_recv_within
        self._main = threading.main_thread().ident

    def send(self, part: Buffer, to: int, tag: int) -> None:
        """Sends the bytes of a part. Blocks until its memory may be changed."""
        address, owner = _address(part)
        length = len(part) if isinstance(part, bytes) else memoryview(part).nbytes
        calls.call("ivy_send", (self.group.handle, address, length, U8, to, tag))
        del owner  # Must exist until here.

    def receive(self, room: Room, source: int | None, tag: int, timeout: float | None = None) -> bool:
        """Receives a message of at most room.length bytes. Blocks; returns False if none has started to arrive after
        `timeout` seconds (None: no limit). source: a rank of the group, or None for any."""
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

    def is_there(self, room: Room, source: int | None, tag: int) -> bool:
        """Receives a message that has started to arrive; otherwise returns False immediately."""
        return self._receive_within(room, ANY if source is None else source, tag, 0)

    def _receive_within(self, room: Room, source: int, tag: int, milliseconds: int) -> bool:
        with calling(self.group.handle):
            code = self._receive(self.group.handle, room.address, room.length, U8, source, tag, room.header_place,
                                 milliseconds)
        if code:
            check(code)
        return bool(room.header.source >= 0)
