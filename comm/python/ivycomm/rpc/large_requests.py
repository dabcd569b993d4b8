# SPDX-License-Identifier: Apache-2.0
"""Holds the parts of large requests until the callee asks for them.

Large parts that no thread of the callee is ready to receive would block replies, and requests that another thread waits
for. So the caller only announces the call. The callee asks for the parts when a thread is free to receive them. A few
calls per callee are announced at a time; the next one is announced when the parts of one of them have been sent.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

LARGE_BYTES = 1 << 20  # Of all parts together. For smaller requests, asking first costs more than it saves.
_ANNOUNCED = 8


def is_large(parts: Sequence[Buffer]) -> bool:
    return len(parts) > 1 and sum(memoryview(part).nbytes for part in parts) > LARGE_BYTES


class LargeRequests:
    """announce(kind, to, call, parts): tells the callee. send_parts(to, call, parts): sends them. Thread: any."""

    def __init__(self, announce: Callable[[int, int, int, list[Buffer]], object],
                 send_parts: Callable[[int, int, list[Buffer]], object]) -> None:
        self._announce, self._send_parts = announce, send_parts
        self._lock = threading.Lock()
        # Parts by callee and call.
        self._announced: dict[int, dict[int, list[Buffer]]] = collections.defaultdict(dict)
        # (kind, call, parts) by callee.
        self._waiting: dict[int, collections.deque[tuple[int, int, list[Buffer]]]] = collections.defaultdict(collections.deque)

    def add(self, kind: int, to: int, call: int, parts: list[Buffer]) -> None:
        """Announces a call now, or after others. kind: frames.ANNOUNCED or AWAITED."""
        with self._lock:
            if len(self._announced[to]) >= _ANNOUNCED:
                self._waiting[to].append((kind, call, parts))
                return
            self._announced[to][call] = parts
        self._announce(kind, to, call, parts)

    def asked(self, to: int, call: int) -> None:
        """Sends the parts of a call to its callee, which has asked for them."""
        parts = self._announced[to].get(call)
        if parts is None:
            return
        self._send_parts(to, call, parts)
        self.end(to, call)

    def end(self, to: int, call: int) -> None:
        """Drops the parts of a call, which are no longer needed, and announces the next call."""
        with self._lock:
            if self._announced[to].pop(call, None) is None or not self._waiting[to]:
                return
            kind, call, parts = self._waiting[to].popleft()
            self._announced[to][call] = parts
        self._announce(kind, to, call, parts)

    def withdraw(self, to: int, call: int) -> bool:
        """Drops a call that has not been announced. Returns False if there is none."""
        with self._lock:
            for index, waiting in enumerate(self._waiting[to]):
                if waiting[1] == call:
                    del self._waiting[to][index]
                    return True
        return False
