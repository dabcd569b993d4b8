# SPDX-License-Identifier: Apache-2.0
"""Requests whose parts wait here until their callee asks for them.

Large parts that nobody is ready for would stay in the way of replies and of what is asked for. So a few calls for each
callee are announced at a time; their callee asks for the parts when a thread is there for them, and the next call is
announced when they have been sent.
"""

import collections
import threading

LARGE_BYTES = 1 << 20  # Size of all parts together. For smaller requests, asking first costs more than it saves.
_ANNOUNCED = 8


def is_large(parts):
    return len(parts) > 1 and sum(memoryview(part).nbytes for part in parts) > LARGE_BYTES


class LargeRequests:
    """announce(kind, to, call, parts): tells the callee. send_parts(to, call, parts): sends them. Thread: any."""

    def __init__(self, announce, send_parts):
        self._announce, self._send_parts = announce, send_parts
        self._lock = threading.Lock()
        self._announced = collections.defaultdict(dict)  # By callee and call.
        self._waiting = collections.defaultdict(collections.deque)

    def add(self, kind, to, call, parts):
        """kind: frames.ANNOUNCED or AWAITED."""
        with self._lock:
            if len(self._announced[to]) >= _ANNOUNCED:
                self._waiting[to].append((kind, call, parts))
                return
            self._announced[to][call] = parts
        self._announce(kind, to, call, parts)

    def asked(self, to, call):
        """The callee `to` has a thread for this call's parts."""
        parts = self._announced[to].get(call)
        if parts is None:
            return
        self._send_parts(to, call, parts)
        self.end(to, call)

    def end(self, to, call):
        """The parts of this call are needed no more: the next call is announced."""
        with self._lock:
            if self._announced[to].pop(call, None) is None or not self._waiting[to]:
                return
            kind, call, parts = self._waiting[to].popleft()
            self._announced[to][call] = parts
        self._announce(kind, to, call, parts)

    def withdraw(self, to, call):
        """True: the callee has not been told of this call, and will not be."""
        with self._lock:
            for place, waiting in enumerate(self._waiting[to]):
                if waiting[1] == call:
                    del self._waiting[to][place]
                    return True
        return False
