"""The job's store: small values by key, seen by all ranks of this generation."""

import ctypes
import threading
import time
from ctypes import byref, c_int, c_int64, c_size_t, c_void_p

from .errors import DEADLINE_EXCEEDED, NotInitialized, Timeout, check, last_error
from .library import load
from .waiting import calling, must_slice
from .groups import is_initialized, world

_SLICE_SECONDS = 0.2
_DEFAULT_SECONDS = 600.0


class Store:
    """Keys are str (at most 8 KiB), values bytes (at most 8 MiB); a str value is stored as UTF-8."""

    def __init__(self, group):
        self._group = group

    def set(self, key, value):
        value = value.encode() if isinstance(value, str) else bytes(value)
        check(load().ivy_store_set(self._group.handle, key.encode(), value, len(value)))

    def get(self, key, timeout=None):
        """The value, as soon as somebody has set it. Timeout after `timeout` seconds (None: 600)."""
        deadline = time.monotonic() + (_DEFAULT_SECONDS if timeout is None else timeout)
        while True:
            left = max(0.0, deadline - time.monotonic())
            slice_ = min(left, _SLICE_SECONDS) if must_slice() else left
            value, size = c_void_p(), c_size_t()
            with calling():
                code = load().ivy_store_get(self._group.handle, key.encode(), max(1, int(slice_ * 1000)),
                                            byref(value), byref(size))
            if code == DEADLINE_EXCEEDED and time.monotonic() < deadline:
                continue
            if code != 0:
                error = last_error(code)
                if isinstance(error, Timeout):
                    raise Timeout(f"key {key!r} was not set within {timeout} s: {error}") from None
                raise error
            try:
                return ctypes.string_at(value, size.value)
            finally:
                load().ivy_bytes_free(value)

    def wait(self, keys, timeout=None):
        """Returns when all these keys are set."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for key in [keys] if isinstance(keys, str) else keys:
            self.get(key, None if deadline is None else max(0.0, deadline - time.monotonic()))

    def add(self, key, delta=1):
        """Adds to a counter, which begins at 0; the new value."""
        value = c_int64()
        check(load().ivy_store_add(self._group.handle, key.encode(), delta, byref(value)))
        return value.value

    def delete(self, key):
        """Was there such a key?"""
        existed = c_int()
        check(load().ivy_store_remove(self._group.handle, key.encode(), byref(existed)))
        return bool(existed.value)


class StoreOfOne:
    """The same for a world of one rank, which has no server: the threads of this process share it."""

    def __init__(self):
        self._values, self._changed = {}, threading.Condition()

    def set(self, key, value):
        with self._changed:
            self._values[key] = value.encode() if isinstance(value, str) else bytes(value)
            self._changed.notify_all()

    def get(self, key, timeout=None):
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values,
                                          _DEFAULT_SECONDS if timeout is None else timeout):
                raise Timeout(f"key {key!r} was not set within {timeout} s")
            return self._values[key]

    wait = Store.wait

    def add(self, key, delta=1):
        with self._changed:
            value = int(self._values.get(key, b"0")) + delta
            self._values[key] = str(value).encode()
            self._changed.notify_all()
            return value

    def delete(self, key):
        with self._changed:
            return self._values.pop(key, None) is not None


_of_one = StoreOfOne()


def store():
    """The job's store."""
    group = world()
    if not is_initialized():
        raise NotInitialized("this process was forked from a worker: it has no place in the job, and no store")
    return Store(group) if group.size > 1 else _of_one
