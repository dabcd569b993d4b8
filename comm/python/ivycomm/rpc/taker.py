# SPDX-License-Identifier: Apache-2.0
"""Takes the replies of calls whose callers wait for something else.

A reply that nobody takes stays in the way of those that come behind it from the same rank, once there is more of it than
the library keeps. So a call's caller does not have to ask for results in the order in which they come.
"""

import itertools
import threading

_LOOK_SECONDS = 0.02
_LOOKS_IN_VAIN = 10  # Then the thread sleeps until there is a call.
_CALLS_OF_A_LOOK = 64
_STOP_SECONDS = 1.0


class Taker:
    """under_way: the futures that have no result yet; other threads add to it and take from it."""

    def __init__(self, under_way):
        self._under_way = under_way
        self._closing, self._has_calls = threading.Event(), threading.Event()
        self._turn = 0  # Index of the future that the next _look() checks first.
        self._thread = threading.Thread(target=self._run, name="ivy-rpc-taker", daemon=True)
        self._thread.start()

    def wake(self):
        """Call this when a request has been sent."""
        if not self._has_calls.is_set():
            self._has_calls.set()

    def stop(self):
        """Ends the thread. Returns False if it is still receiving a reply."""
        self._closing.set()
        self._has_calls.set()
        self._thread.join(_STOP_SECONDS)
        return not self._thread.is_alive()

    def _run(self):
        in_vain = 0
        while not self._closing.is_set():
            in_vain = 0 if self._under_way else in_vain + 1
            if in_vain > _LOOKS_IN_VAIN:
                self._has_calls.clear()
                # A call that has begun meanwhile may not have seen that, nor may a stop.
                if not self._under_way and not self._closing.is_set():
                    self._has_calls.wait()
                in_vain = 0
            self._closing.wait(_LOOK_SECONDS)
            while not self._closing.is_set() and self._look():
                pass

    # Returns True if a reply has arrived, so that it is worth looking again immediately.
    def _look(self):
        futures = list(self._under_way)
        begin = self._turn % len(futures) if futures else 0
        self._turn = begin + _CALLS_OF_A_LOOK
        some = itertools.islice(itertools.chain(futures[begin:], futures[:begin]), _CALLS_OF_A_LOOK)
        # A future that somebody waits for is left alone.
        return sum(future.done() for future in some if not self._closing.is_set()) > 0
