# SPDX-License-Identifier: Apache-2.0
"""Reports the end of Works without blocking a thread in each: callbacks, asyncio, and the first of several.

The library writes a Work's number to a pipe when the Work is done. One thread of the process, started by the first
callback, reads it and calls the callbacks. No thread of the library ever runs Python.
"""

from __future__ import annotations

import fcntl
import functools
import itertools
import os
import struct
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from . import calls
from .errors import StillRunning
from .waiting import Event

if TYPE_CHECKING:
    import asyncio
    import concurrent.futures
    from array import array

T = TypeVar("T")

_F_GETPIPE_SZ = 1032  # fcntl has the name from Python 3.10 on.


class _Watcher:
    """The pipe and its thread. A forked child, which can use neither, creates new ones."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)  # The thread that carries out operations must not wait here.
        # 64 KiB, or less if this user has many pipes. The library drops numbers that do not fit into the pipe.
        self._room = fcntl.fcntl(self._reader, _F_GETPIPE_SZ)
        self._numbers, self._lock = itertools.count(1), threading.Lock()
        # The number in the pipe -> (work, its callbacks). The reference keeps id(work) unique until they were called.
        self._waiting: dict[int, tuple[Future[Any], list[Callable[[], object]]]] = {}
        self._number_of: dict[int, int] = {}  # By id(work).
        threading.Thread(target=self._run, name="ivycomm-done", daemon=True).start()

    def watch(self, work: Future[Any], handle: array[int], on_done: Callable[[], object]) -> Callable[[], None]:
        """Calls on_done() on the thread when the operation of that handle is done; returns a function that cancels
        this."""
        with self._lock:
            known = self._number_of.get(id(work))
            if known is not None:
                self._waiting[known][1].append(on_done)
                return lambda: self._forget(known, on_done)
            number = next(self._numbers)
            self._number_of[id(work)] = number
            self._waiting[number] = (work, [on_done])
        try:
            calls.extension.ivy_work_notify(handle, self._writer, number)
        except BaseException:
            self._take(number)
            raise
        return lambda: self._forget(number, on_done)

    def _forget(self, number: int, on_done: Callable[[], object]) -> None:
        with self._lock:
            _, callbacks = self._waiting.get(number, (None, []))
            if on_done in callbacks:
                callbacks.remove(on_done)

    def _take(self, number: int) -> Iterable[Callable[[], object]]:
        with self._lock:
            work, callbacks = self._waiting.pop(number, (None, []))
            self._number_of.pop(id(work), None)
            return callbacks

    def _run(self) -> None:
        while True:
            try:
                data = os.read(self._reader, self._room)
            except InterruptedError:
                continue
            self._call_callbacks(data)

    # A separate function, so that the thread holds no work while it reads.
    def _call_callbacks(self, data: bytes) -> None:
        ended = [number for number, in struct.iter_unpack("=Q", data)]
        if len(data) >= self._room:  # The pipe was full, so numbers may be missing: test every work.
            with self._lock:
                pending = list(self._waiting.items())
            ended += [number for number, (work, _) in pending if work.test()]
        for number in ended:
            for on_done in self._take(number):
                _call(on_done)


def _call(function: Callable[..., object], *arguments: object) -> None:
    """Calls the function and prints any exception, because no caller waits for it.

    This includes SystemExit and CancelledError, which would end the only thread that runs callbacks.
    """
    try:
        function(*arguments)
    except BaseException:  # noqa: BLE001 - see the docstring.
        import traceback  # Slow to import, and rarely needed.

        print(f"ivycomm: a callback of a Work raised:\n{traceback.format_exc()}", file=sys.stderr, end="", flush=True)


_watcher: _Watcher | None = None
_watcher_lock = threading.Lock()


def _the_watcher() -> _Watcher:
    global _watcher
    if _watcher is None or _watcher.pid != os.getpid():
        with _watcher_lock:
            if _watcher is None or _watcher.pid != os.getpid():
                _watcher = _Watcher()
    return _watcher


class Future(Generic[T]):
    """The part of Work that reports its end."""

    __slots__ = ()

    if TYPE_CHECKING:
        _operation: Any

        def test(self) -> bool: ...
        def wait(self, timeout: float | None = None) -> T: ...

    def add_done_callback(self, function: Callable[[Any], object]) -> None:
        """Calls function(work) once when the operation is done, whether or not it failed.

        If it is already done, calls it immediately, in this thread; otherwise on a thread of ivycomm, where it should
        be short and must not wait for other works' callbacks. Exceptions are printed. The Work is kept alive until
        then.
        """
        if self.test():
            _call(function, self)
        else:
            self._call_at_end(lambda: _call(function, self))

    def future(self) -> concurrent.futures.Future[T]:
        """Returns a concurrent.futures.Future with this Work's result or exception. It cannot be cancelled."""
        import concurrent.futures  # Slow to import, and rarely needed.

        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()

        def settle(work: Future[T]) -> None:
            try:
                future.set_result(work.wait())
            except Exception as error:  # noqa: BLE001 - it becomes the future's exception.
                future.set_exception(error)

        self.add_done_callback(settle)
        return future

    def __await__(self) -> Generator[asyncio.Future[None], None, T]:
        """`await work` in an asyncio coroutine returns the result, as wait() does, without blocking the loop.

        A cancelled task stops waiting; the operation continues, because other ranks take part in it.
        """
        import asyncio  # Imported here because it is slow; a caller that awaits has already imported it.

        if not self.test():
            loop = asyncio.get_running_loop()
            ended: asyncio.Future[None] = loop.create_future()

            def wake() -> None:
                if not ended.done():
                    ended.set_result(None)

            def wake_from_thread(_work: Future[T]) -> None:
                try:
                    loop.call_soon_threadsafe(wake)
                except RuntimeError:  # The loop is closed: nobody waits any more.
                    pass

            self.add_done_callback(wake_from_thread)
            yield from ended
        return self.wait()

    def _call_at_end(self, on_done: Callable[[], object]) -> Callable[[], None]:
        if self._operation is None:  # It had nothing to do.
            on_done()
            return lambda: None
        return _the_watcher().watch(self, self._operation.handle, on_done)


def call_when_done(work: Future[Any], on_done: Callable[[], object]) -> Callable[[], None]:
    """Calls on_done() once when the work is done, on the watcher's thread or immediately. Returns a function that cancels
    this."""
    return work._call_at_end(on_done)


def wait_any(works: Iterable[Future[Any]], timeout: float | None = None) -> int:
    """Blocks until one of the works is done, whether or not it failed, and returns its index.

    timeout: seconds; None: no limit. Raises StillRunning if none is done by then, and ValueError if there are no works.
    `works[index].wait()` returns the result or raises the exception. May be called from any thread.
    """
    works = list(works)
    if not works:
        raise ValueError("wait_any needs at least one work")
    ended: list[int] = []
    has_ended = Event()
    for index, work in enumerate(works):
        if work.test():
            return index
    undo: list[Callable[[], None]] = []

    def report(index: int) -> None:
        ended.append(index)
        has_ended.set()

    try:
        for index, work in enumerate(works):
            undo.append(call_when_done(work, functools.partial(report, index)))
        if not has_ended.wait(timeout):
            raise StillRunning(f"none of {len(works)} operations has finished after {timeout:g} s; wait again, or abort")
    finally:
        for each in undo:
            each()
    return ended[0]


def wait_all(works: Iterable[Future[T]], timeout: float | None = None) -> list[T]:
    """Blocks until all works are done and returns their results, in order.

    timeout: seconds for all together; None: no limit. Raises StillRunning if one is not done by then. If one fails,
    waits for the others too, so that no array remains in use, and raises the failure that comes first in order. May be
    called from any thread.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    results: list[T] = []
    failure: Exception | None = None
    for work in list(works):
        try:
            results.append(work.wait(None if deadline is None else max(0.0, deadline - time.monotonic())))
        except StillRunning:
            raise
        except Exception as error:  # noqa: BLE001 - raised below.
            failure = failure or error
    if failure is not None:
        raise failure
    return results
