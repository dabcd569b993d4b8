# SPDX-License-Identifier: Apache-2.0
"""The job's store: small values by key, shared by all ranks until the job is restarted."""

from __future__ import annotations

import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from . import calls
from .errors import InvalidArgument, NotFound, NotInitialized, Timeout
from .groups import Group, is_initialized, world
from .library import whole_number
from .store_calls import seconds as _seconds
from .store_calls import wait_in_slices
from .store_watch import Change, Watch, WatchOfOne, WatchOfStore

_MEETING = struct.Struct("=IIQQ")  # ivy_store_meeting: size, member, arrival, round


def _name(key: str) -> bytes:
    if not isinstance(key, str):
        raise TypeError(f"a key of the store must be a str, not a {type(key).__name__}")
    if "\0" in key:
        raise ValueError(f"the key {key!r} contains a NUL")
    return key.encode(errors="surrogateescape")


def _names(keys: str | Iterable[str]) -> tuple[bytes, ...]:
    return tuple(_name(key) for key in ([keys] if isinstance(keys, str) else keys))


def _bytes(value: str | bytes) -> bytes:
    if isinstance(value, str):
        return value.encode()
    try:
        return bytes(memoryview(value))
    except TypeError:  # bytes(3) would be three NULs.
        raise TypeError(f"a value of the store must be bytes or a str, not a {type(value).__name__}") from None


def _place(size: int, member: int | None) -> tuple[int, int]:
    if member is None or not 0 < size < 1 << 32 or not 0 <= member < size:
        raise ValueError(f"member {member} is not from 0 to size - 1 of a barrier of size {size}")
    return size, member


class Store:
    """The job's key-value store. Keys are str (at most 8 KiB), values bytes (at most 8 MiB); a str value is stored as
    UTF-8. The library's own keys start with "ivy/".

    Methods may be called from any thread, and by any rank without the others. Those with a timeout (seconds; None: 600)
    block until the answer is there, and raise Timeout. All raise TypeError or ValueError for a key that is not text
    without NUL, for a value that is neither bytes nor str, and for a negative timeout; ResourceExhausted if a limit is
    exceeded; NotInitialized after finalize(). A failure here breaks no group.
    """

    def __init__(self, group: Group) -> None:
        self._group = group

    def set(self, key: str, value: str | bytes) -> None:
        """Stores a value, whether or not the key exists."""
        data = _bytes(value)
        calls.extension.ivy_store_set(self._group.handle, _name(key), data, len(data))

    def get(self, key: str, timeout: float | None = None) -> bytes:
        """Waits until the key has a value and returns it. Raises Timeout after `timeout` seconds (None: 600)."""
        value: bytes = self._wait("ivy_store_get", _name(key), timeout=timeout, what=f"key {key!r} was not set")
        return value

    def wait(self, keys: str | Iterable[str], timeout: float | None = None) -> None:
        """Waits until all these keys (or this one) exist. Raises Timeout, which names the missing keys, after `timeout`
        seconds (None: 600)."""
        names = _names(keys)
        self._wait("ivy_store_wait", names, len(names), timeout=timeout, what="keys were not set")

    def check(self, keys: str | Iterable[str]) -> bool:
        """Returns whether all these keys (or this one) exist now."""
        names = _names(keys)
        return bool(calls.extension.ivy_store_check(self._group.handle, names, len(names)))

    def add(self, key: str, delta: int = 1) -> int:
        """Adds to a counter, which starts at 0, atomically; returns the new value. The key's value is the number as text.
        Raises InvalidArgument if the value is not a number, and ValueError if `delta` does not fit into 64 bits."""
        return int(calls.extension.ivy_store_add(self._group.handle, _name(key), whole_number(delta, "delta", 64)))

    def append(self, key: str, value: str | bytes) -> int:
        """Appends to a value, which is empty at first, atomically; returns its new length in bytes."""
        return int(calls.extension.ivy_store_append(self._group.handle, _name(key), _bytes(value)))

    def compare_set(self, key: str, expected: str | bytes | None, desired: str | bytes) -> tuple[bool, bytes | None]:
        """Stores `desired` if the value equals `expected` (None: if the key is missing).

        Returns (whether it was stored, the value afterwards or None).
        """
        wanted, desired = None if expected is None else _bytes(expected), _bytes(desired)
        swapped: tuple[bool, bytes | None] = calls.extension.ivy_store_compare_set(self._group.handle, _name(key), wanted,
                                                                                   desired)
        return swapped

    def set_once(self, key: str, value: str | bytes) -> bool:
        """Stores a value if the key is missing; returns whether it did."""
        return self.compare_set(key, None, value)[0]

    def delete(self, key: str) -> bool:
        """Deletes a key; returns whether it existed."""
        return bool(calls.extension.ivy_store_remove(self._group.handle, _name(key)))

    def multi_get(self, keys: Iterable[str], timeout: float | None = None) -> list[bytes]:
        """Waits until all these keys exist, and returns their values in the order of the keys, read atomically. Timeout as
        for wait()."""
        keys = [keys] if isinstance(keys, str) else list(keys)
        names = _names(keys)
        deadline = time.monotonic() + _seconds(timeout)
        while True:
            self.wait(keys, max(0.0, deadline - time.monotonic()))
            try:
                return list(calls.extension.ivy_store_multi_get(self._group.handle, names))
            except NotFound:
                continue  # One was deleted meanwhile.

    def multi_set(self, values: Mapping[str, str | bytes] | Iterable[tuple[str, str | bytes]]) -> None:
        """Stores all of a dict (or of pairs) atomically."""
        by_key = dict(values)
        names, contents = _names(list(by_key)), tuple(_bytes(value) for value in by_key.values())
        calls.extension.ivy_store_multi_set(self._group.handle, names, len(names), contents)

    def push(self, queue: str, value: str | bytes) -> int:
        """Appends a value to a queue; returns its new length. Queues have their own names, separate from keys."""
        return int(calls.extension.ivy_store_push(self._group.handle, _name(queue), _bytes(value)))

    def pop(self, queue: str, timeout: float | None = None) -> bytes:
        """Takes the first value of a queue, and waits for one if it is empty. Only one rank gets it. Raises Timeout
        after `timeout` seconds (None: 600)."""
        value: bytes = self._wait("ivy_store_pop", _name(queue), timeout=timeout, what=f"queue {queue!r} received nothing")
        return value

    def queue_length(self, queue: str) -> int:
        """Returns the number of values in a queue."""
        return int(calls.extension.ivy_store_queue_length(self._group.handle, _name(queue)))

    def keys(self, prefix: str = "") -> list[str]:
        """Returns the keys that start with `prefix`, sorted. Invalid UTF-8 in other clients' keys is decoded as
        surrogates."""
        names: bytes = calls.extension.ivy_store_list(self._group.handle, _name(prefix))
        return names.decode(errors="surrogateescape").split("\0")[:-1]

    def num_keys(self, prefix: str = "") -> int:
        """Returns the number of keys that start with `prefix`."""
        return int(calls.extension.ivy_store_count(self._group.handle, _name(prefix)))

    def barrier(self, name: str, size: int | None = None, member: int | None = None,
                timeout: float | None = None) -> int:
        """Waits at the barrier of this name; returns the number of the round, from 1. Raises Timeout after `timeout`
        seconds (None: 600).

        size: number of members (None: all ranks); member: this member's number, below size (None: this rank). Any ranks
        and threads may take part; a member that dies before it arrives is missing, and no group is broken.
        """
        size, member = _place(self._group.size if size is None else size, self._group.rank if member is None else member)
        meeting = bytearray(_MEETING.pack(size, member, 0, 0))
        self._wait("ivy_store_barrier", _name(name), meeting, timeout=timeout, what=f"barrier {name!r} was not complete")
        return int(_MEETING.unpack(meeting)[3])

    def watch(self, prefix: str = "") -> Watch:
        """Returns a Watch of all changes, from now on, of keys that start with `prefix`."""
        return WatchOfStore(self._group, _name(prefix))

    def why(self) -> str:
        """Returns a text for people: what each blocked client waits for, and which members of a barrier are missing."""
        text: bytes = calls.extension.ivy_store_why(self._group.handle)
        return text.decode(errors="replace")

    def _wait(self, function: str, *arguments: Any, timeout: float | None, what: str) -> Any:
        """Returns the result of this function of the C interface, which waits. Raises Timeout, which begins with `what`."""
        return wait_in_slices(lambda milliseconds: getattr(calls.extension, function)(self._group.handle, *arguments, milliseconds),
                              _seconds(timeout), what)


class StoreOfOne(Store):
    """The store of a world of one rank, which has no server: the threads of this process share it."""

    def __init__(self) -> None:  # Not Store's: there is no group.
        self._values: dict[bytes, bytes] = {}
        self._queues: dict[bytes, deque[bytes]] = {}
        self._meetings: dict[bytes, list[Any]] = {}  # [rounds that are complete, members of the current one]
        self._watches: list[WatchOfOne] = []
        self._waiting: list[str] = []  # A line for each thread that waits.
        self._changed = threading.Condition()  # Guards all of these.

    def set(self, key: str, value: str | bytes) -> None:
        self.multi_set({key: value})

    def get(self, key: str, timeout: float | None = None) -> bytes:
        return self.multi_get([key], timeout)[0]

    def wait(self, keys: str | Iterable[str], timeout: float | None = None) -> None:
        self.multi_get([keys] if isinstance(keys, str) else keys, timeout)

    def check(self, keys: str | Iterable[str]) -> bool:
        names = _names(keys)
        with self._changed:
            return all(name in self._values for name in names)

    def add(self, key: str, delta: int = 1) -> int:
        delta = whole_number(delta, "delta", 64)
        with self._changed:
            before = self._values.get(_name(key), b"0")
            try:
                value = int(before) + delta
            except ValueError:
                raise InvalidArgument(f"the value of key {key!r} is not a number") from None
            self._put({key: str(value)})
            return value

    def append(self, key: str, value: str | bytes) -> int:
        with self._changed:
            whole = self._values.get(_name(key), b"") + _bytes(value)
            self._put({key: whole})
            return len(whole)

    def compare_set(self, key: str, expected: str | bytes | None, desired: str | bytes) -> tuple[bool, bytes | None]:
        with self._changed:
            current = self._values.get(_name(key))
            if current != (None if expected is None else _bytes(expected)):
                return False, current
            self._put({key: desired})
            return True, _bytes(desired)

    def delete(self, key: str) -> bool:
        with self._changed:
            existed = self._values.pop(_name(key), None) is not None
            if existed:
                self._tell(Change("deleted", key))
            return existed

    def multi_get(self, keys: Iterable[str], timeout: float | None = None) -> list[bytes]:
        names = _names(keys)
        with self._changed:
            if not self._wait_for(lambda: all(name in self._values for name in names), timeout, f"keys {keys!r}"):
                missing = ", ".join(repr(name.decode(errors="surrogateescape")) for name in names if name not in self._values)
                raise Timeout(f"key {missing} was not set within {_seconds(timeout):g} s")
            return [self._values[name] for name in names]

    def multi_set(self, values: Mapping[str, str | bytes] | Iterable[tuple[str, str | bytes]]) -> None:
        with self._changed:
            self._put(dict(values))

    def push(self, queue: str, value: str | bytes) -> int:
        with self._changed:
            waiting = self._queues.setdefault(_name(queue), deque())
            waiting.append(_bytes(value))
            self._changed.notify_all()
            return len(waiting)

    def pop(self, queue: str, timeout: float | None = None) -> bytes:
        with self._changed:
            waiting = self._queues.setdefault(_name(queue), deque())
            if not self._wait_for(lambda: waiting, timeout, f"queue {queue!r}"):
                raise Timeout(f"queue {queue!r} received nothing within {_seconds(timeout):g} s")
            return waiting.popleft()

    def queue_length(self, queue: str) -> int:
        with self._changed:
            return len(self._queues.get(_name(queue), ()))

    def keys(self, prefix: str = "") -> list[str]:
        with self._changed:
            return sorted(name.decode(errors="surrogateescape") for name in self._values if name.startswith(_name(prefix)))

    def num_keys(self, prefix: str = "") -> int:
        return len(self.keys(prefix))

    def barrier(self, name: str, size: int | None = None, member: int | None = None, timeout: float | None = None) -> int:
        size, member = _place(1 if size is None else size, 0 if member is None else member)
        with self._changed:
            meeting = self._meetings.setdefault(_name(name), [0, set()])
            round_: int = meeting[0] + 1
            meeting[1].add(member)
            if len(meeting[1]) >= size:
                meeting[:] = [round_, set()]
                self._changed.notify_all()
                return round_
            try:
                if not self._wait_for(lambda: meeting[0] >= round_, timeout, f"barrier {name!r}"):
                    raise Timeout(f"barrier {name!r} was not complete within {_seconds(timeout):g} s")
            except BaseException:  # Ctrl-C too.
                if meeting[0] < round_:
                    meeting[1].discard(member)
                raise
            return round_

    def watch(self, prefix: str = "") -> Watch:
        return WatchOfOne(self._changed, self._watches, _name(prefix))

    def why(self) -> str:
        with self._changed:
            return "\n".join(self._waiting) or "store: no blocked requests"

    # _wait_for(), _put() and _tell() require self._changed.
    def _wait_for(self, predicate: Callable[[], object], timeout: float | None, what: str) -> bool:
        line = f"{threading.current_thread().name} waits for {what}"
        self._waiting.append(line)
        try:
            return bool(self._changed.wait_for(predicate, min(_seconds(timeout), threading.TIMEOUT_MAX)))
        finally:
            self._waiting.remove(line)

    def _put(self, values: Mapping[str, str | bytes]) -> None:
        by_name = {_name(key): _bytes(value) for key, value in values.items()}
        self._values.update(by_name)
        for name, value in by_name.items():
            self._tell(Change("set", name.decode(errors="surrogateescape"), value))
        self._changed.notify_all()

    def _tell(self, change: Change) -> None:
        for watch in self._watches:
            watch.note(change)
        self._changed.notify_all()


_of_one = StoreOfOne()


def store() -> Store:
    """Returns the job's store. Does not block. Raises NotInitialized before init(), after finalize() and in a forked
    child."""
    group = world()
    if not is_initialized():
        raise NotInitialized("this process was forked from a worker, so it does not belong to the job and has no store")
    return Store(group) if group.size > 1 else _of_one
