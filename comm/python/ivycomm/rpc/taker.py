# SPDX-License-Identifier: Apache-2.0
"""Receives replies that no caller is waiting for.

The library buffers a limited amount per rank. A reply that is not received would finally block later replies from the
same rank, so a program would have to wait for its results in the order in which they arrive.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection
from typing import Protocol

_POLL_SECONDS = 0.02
_IDLE_POLLS = 10  # After so many polls without a call in progress, the thread sleeps until there is one.
_CALLS_PER_POLL = 64
_STOP_SECONDS = 1.0


class _Future(Protocol):
    def done(self) -> bool:
        """Receives the reply if it has arrived. Returns whether there is one."""


class Taker:
    """under_way: the futures without a result. Other threads add and remove futures."""

    def __init__(self, under_way: Collection[_Future]) -> None:
        self._under_way = under_way
        self._closing, self._has_calls = threading.Event(), threading.Event()
        self._turn = 0  # Index of the future that the next poll checks first.
        self._thread = threading.Thread(target=self._run, name="ivy-rpc-taker", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Must be called after a future was added."""
        if not self._has_calls.is_set():
            self._has_calls.set()

    def stop(self) -> bool:
        """Stops the thread. Returns False if it is still receiving a reply after 1 s."""
        self._closing.set()
        self._has_calls.set()
        self._thread.join(_STOP_SECONDS)
        return not self._thread.is_alive()

    def _run(self) -> None:
        idle_polls = 0
        while not self._closing.is_set():
            idle_polls = 0 if self._under_way else idle_polls + 1
            if idle_polls > _IDLE_POLLS:
                self._has_calls.clear()
                # A call or stop() just before may have found it still set.
                if not self._under_way and not self._closing.is_set():
                    self._has_calls.wait()
                idle_polls = 0
            self._closing.wait(_POLL_SECONDS)
            while not self._closing.is_set() and self._poll():
                pass

    # Returns True if a reply has arrived: then others may have arrived, too.
    def _poll(self) -> bool:
        futures = list(self._under_way)
        begin = self._turn % len(futures) if futures else 0
        self._turn = begin + _CALLS_PER_POLL
        some = itertools.islice(itertools.chain(futures[begin:], futures[:begin]), _CALLS_PER_POLL)
        # done() skips a future that another thread waits for.
        return sum(future.done() for future in some if not self._closing.is_set()) > 0
