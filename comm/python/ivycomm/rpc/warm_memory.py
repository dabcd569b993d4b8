# SPDX-License-Identifier: Apache-2.0
"""Reuses large receive buffers: the first write to fresh pages takes longer than receiving the bytes.

A buffer is a NumPy array over an anonymous mapping. When the array and all its views are garbage-collected, the mapping
is kept for a while for the next buffer, and then unmapped.
"""

from __future__ import annotations

import contextlib
import mmap
import queue
import threading
import time
import weakref
from typing import Any

LEAST_BYTES = 4 << 20  # The allocator reuses smaller memory itself.
_KEPT_PIECES = 2
_KEPT_BYTES = 1 << 30  # Limit of all kept mappings together.
_KEPT_SECONDS = 10.0
_PAGE_BYTES = 2 << 20
_ROOM_TO_SPARE = 1.25  # A kept mapping may be larger than necessary by this factor.


class WarmMemory:
    """Thread: any."""

    def __init__(self) -> None:
        # None wakes the keeper. A SimpleQueue, because a garbage collection anywhere, even inside take(), may add to it.
        self._returned: queue.SimpleQueue[mmap.mmap | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._kept: list[tuple[float, mmap.mmap]] = []  # With the time at which it is unmapped, the oldest first.
        self._keeper: threading.Thread | None = None

    def take(self, length: int) -> Any:
        """Returns an array of that many bytes, not cleared."""
        import numpy

        mapping = self._kept_one(length) or _mapped(length)
        array = numpy.frombuffer(mapping, numpy.uint8, length)
        weakref.finalize(array, self._returned.put, mapping).atexit = False
        return array

    def _kept_one(self, length: int) -> mmap.mmap | None:
        found = None
        with self._lock:
            if self._keeper is None:
                self._keeper = threading.Thread(target=self._run, name="ivy-rpc-memory", daemon=True)
                self._keeper.start()
            with contextlib.suppress(queue.Empty):
                while True:
                    self._keep(self._returned.get_nowait())
            for index, (_, mapping) in enumerate(self._kept):
                if length <= len(mapping) <= _ROOM_TO_SPARE * _rounded(length):
                    found = self._kept.pop(index)[1]
                    break
            is_any_left = bool(self._kept)
        if is_any_left:
            self._returned.put(None)  # This thread may have taken mappings from the queue that the keeper waits for.
        return found

    # With the lock held.
    def _keep(self, mapping: mmap.mmap | None) -> None:
        if mapping is not None:
            self._kept.append((time.monotonic() + _KEPT_SECONDS, mapping))
        while len(self._kept) > _KEPT_PIECES or sum(len(each) for _, each in self._kept) > _KEPT_BYTES:
            del self._kept[0]

    def _run(self) -> None:
        while True:
            self._wait_and_release()

    # A separate function, so that its variables keep no mapping alive while the thread waits again.
    def _wait_and_release(self) -> None:
        with self._lock:
            patience = max(0.0, self._kept[0][0] - time.monotonic()) if self._kept else None
        returned = None
        with contextlib.suppress(queue.Empty):
            returned = self._returned.get(timeout=patience)
        with self._lock:
            self._keep(returned)
            while self._kept and self._kept[0][0] <= time.monotonic():
                del self._kept[0]


def _rounded(length: int) -> int:
    return -(-length // _PAGE_BYTES) * _PAGE_BYTES


def _mapped(length: int) -> mmap.mmap:
    mapping = mmap.mmap(-1, _rounded(length), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, AttributeError):  # A kernel without large pages.
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping
