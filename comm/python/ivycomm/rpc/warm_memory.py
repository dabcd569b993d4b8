# SPDX-License-Identifier: Apache-2.0
"""Large memory to receive into that is used again: the first write to fresh pages takes longer than a message's bytes.

A piece is an anonymous mapping under an array of NumPy's. It comes back when nobody holds the array any more, nor a view
of it. The last ones are kept for a while and then given back to the system.
"""

import contextlib
import mmap
import queue
import threading
import time
import weakref

LEAST_BYTES = 4 << 20  # Below that, the allocator keeps memory itself.
_KEPT_PIECES = 2
_KEPT_BYTES = 1 << 30  # Limit of all kept pieces together.
_KEPT_SECONDS = 10.0
_PAGE_BYTES = 2 << 20
_ROOM_TO_SPARE = 1.25  # By how much a kept piece may be larger than what is asked for.


class WarmMemory:
    """Thread: any."""

    def __init__(self):
        # A garbage collection may put something there anywhere, also inside take(): SimpleQueue allows that.
        self._returned = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._kept = []  # (until when, mapping), the oldest first.
        self._keeper = None

    def take(self, length):
        """An array of so many bytes, not cleared."""
        import numpy

        mapping = self._kept_one(length) or _mapped(length)
        array = numpy.frombuffer(mapping, numpy.uint8, length)
        weakref.finalize(array, self._returned.put, mapping).atexit = False
        return array

    def _kept_one(self, length):
        found = None
        with self._lock:
            if self._keeper is None:
                self._keeper = threading.Thread(target=self._run, name="ivy-rpc-memory", daemon=True)
                self._keeper.start()
            with contextlib.suppress(queue.Empty):
                while True:
                    self._keep(self._returned.get_nowait())
            for place, (_, mapping) in enumerate(self._kept):
                if length <= len(mapping) <= _ROOM_TO_SPARE * _rounded(length):
                    found = self._kept.pop(place)[1]
                    break
            is_any_left = bool(self._kept)
        if is_any_left:
            self._returned.put(None)  # The keeper has not seen all of them come.
        return found

    # With the lock held.
    def _keep(self, mapping):
        if mapping is not None:
            self._kept.append((time.monotonic() + _KEPT_SECONDS, mapping))
        while len(self._kept) > _KEPT_PIECES or sum(len(each) for _, each in self._kept) > _KEPT_BYTES:
            del self._kept[0]

    def _run(self):
        while True:
            self._wait_and_release()

    # A separate function, so that its variables keep no piece alive while the thread waits again.
    def _wait_and_release(self):
        with self._lock:
            patience = max(0.0, self._kept[0][0] - time.monotonic()) if self._kept else None
        returned = None
        with contextlib.suppress(queue.Empty):
            returned = self._returned.get(timeout=patience)
        with self._lock:
            self._keep(returned)
            while self._kept and self._kept[0][0] <= time.monotonic():
                del self._kept[0]


def _rounded(length):
    return -(-length // _PAGE_BYTES) * _PAGE_BYTES


def _mapped(length):
    mapping = mmap.mmap(-1, _rounded(length), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, AttributeError):  # A kernel without large pages.
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping
