# SPDX-License-Identifier: Apache-2.0
"""Watches of the job's store: reports every change of a key that starts with a prefix."""

from __future__ import annotations

import collections
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Literal, NamedTuple, Optional

from . import calls
from .errors import IvyError, Timeout
from .groups import Group
from .store_calls import seconds, wait_in_slices

def _text(key: bytes) -> str:
    """Returns a key as text. Bytes that are not UTF-8, of other clients' keys, become surrogates."""
    return key.decode(errors="surrogateescape")


_WHAT: dict[int, Literal["set", "deleted", "missed"]] = {1: "set", 2: "deleted", 3: "missed"}


class Change(NamedTuple):
    """A change in the job's store. what: "set", "deleted", or "missed": earlier changes may have been missed, so read the
    keys again. key: None if changes were missed. value: the bytes that were set, else None.
    """

    what: Literal["set", "deleted", "missed"]
    key: Optional[str] = None
    value: Optional[bytes] = None


class Watch:
    """Changes of the job's store in order, starting when Store.watch() returned; an iterator and a context manager.

    At most 64 Ki changes (64 MiB) are kept until they are taken; beyond that all of them count as missed, as do changes
    while the connection to the store was lost. One thread at a time may take changes; any thread may call close().
    """

    def next(self, timeout: float | None = None) -> Change:
        """Blocks until there is a change, and returns it. Raises Timeout after `timeout` seconds (None: no limit), and
        ValueError once closed."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends the watch, and the iteration of a thread that waits. A second call does nothing."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Change]:
        return self

    def __next__(self) -> Change:
        try:
            return self.next()
        except ValueError:
            raise StopIteration from None

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class WatchOfStore(Watch):
    def __init__(self, group: Group, prefix: bytes) -> None:
        number = calls.extension.ivy_store_watch(group.handle, prefix)
        self._group, self._number, self._prefix, self._is_open = group, number, prefix, True
        self._end = weakref.finalize(self, _end_watch, group, number)
        self._end.atexit = False

    def next(self, timeout: float | None = None) -> Change:
        try:
            what, key, value = wait_in_slices(self._next, timeout if timeout is None else seconds(timeout),
                                              f"no key below {_text(self._prefix)!r} changed")
        except Exception:
            if not self._is_open:
                raise ValueError("this watch is closed") from None
            raise
        return Change(_WHAT[what], None if key is None else _text(key), value)

    def close(self) -> None:
        self._is_open = False
        self._end()

    def _next(self, milliseconds: int) -> tuple[int, bytes | None, bytes | None]:
        if not self._is_open:
            raise ValueError("this watch is closed")
        change: tuple[int, bytes | None, bytes | None] = calls.extension.ivy_store_next_change(
            self._group.handle, self._number, milliseconds)
        return change


def _end_watch(group: Group, number: int) -> None:
    try:
        calls.extension.ivy_store_end_watch(group.handle, number)
    except IvyError:
        pass  # The world has ended, and its watches with it.


class WatchOfOne(Watch):
    """The watch of a world of one rank: the threads of this process share its store, and `changed` is its condition."""

    def __init__(self, changed: threading.Condition, watches: list[WatchOfOne], prefix: bytes) -> None:
        self._changed, self._watches, self._prefix = changed, watches, prefix
        self._changes: collections.deque[Change] = collections.deque()
        self._is_open = True
        with changed:
            watches.append(self)

    def note(self, change: Change) -> None:
        """Keeps a change of a key, if it is watched, until next(). The caller holds the condition."""
        if change.key is None or not change.key.encode(errors="surrogateescape").startswith(self._prefix):
            return
        if len(self._changes) == 1 << 16:
            self._changes.clear()
            self._changes.append(Change("missed"))
        self._changes.append(change)

    def next(self, timeout: float | None = None) -> Change:
        deadline = None if timeout is None else time.monotonic() + seconds(timeout)
        with self._changed:
            while not self._changes and self._is_open:
                left = threading.TIMEOUT_MAX if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    raise Timeout(f"no key below {_text(self._prefix)!r} changed within {timeout:g} s")
                self._changed.wait(min(left, threading.TIMEOUT_MAX))
            if not self._is_open:
                raise ValueError("this watch is closed")
            return self._changes.popleft()

    def close(self) -> None:
        with self._changed:
            self._is_open = False
            if self in self._watches:
                self._watches.remove(self)
            self._changed.notify_all()
