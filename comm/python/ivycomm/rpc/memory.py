# SPDX-License-Identifier: Apache-2.0
"""Sends and receives the bytes of any object with a buffer, for remote calls.

A call takes a few messages of a few bytes. So there is no Work and no array.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from .. import calls
from ..element_types import U8
from ..groups import Group
from ..library import ANY
from ..modules import imported
from ..waiting import SLICE_MS
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


class Room:
    """A reusable receive buffer. received: the size of the last message in it."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory
        self.length = memoryview(memory).nbytes
        self.source, self.received = ANY, 0

    def bytes(self) -> bytes:
        """Returns a copy of the received bytes."""
        return bytes(memoryview(self.memory)[:self.received])


class Messages:
    """The messages of one group. Thread: any. In the main thread, an exception of a signal handler interrupts a
    receive."""

    def __init__(self, group: Group) -> None:
        calls.load_array_types()
        self.group = group
        self._main = threading.main_thread().ident

    def send(self, part: Buffer, to: int, tag: int) -> None:
        """Sends the bytes of a part. Blocks until its memory may be changed."""
        length = len(part) if isinstance(part, bytes) else memoryview(part).nbytes
        calls.extension.ivy_send(self.group.handle, part, length, U8, to, tag)

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
        room.source, _, room.received = calls.extension.ivy_recv_within(
            self.group.handle, room.memory, room.length, U8, source, tag, milliseconds)
        return room.source >= 0
