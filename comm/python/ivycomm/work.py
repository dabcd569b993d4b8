# SPDX-License-Identifier: Apache-2.0
"""Work: an asynchronous operation, and the function that starts all operations."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

from . import calls
from .arrays import current_stream, find_stream, let_borrowed_end
from .errors import IvyError, NotInitialized, StillRunning, Timeout
from .futures import Future
from .library import FOREVER
from .waiting import SLICE_MS, must_slice

T = TypeVar("T")


class Timing(NamedTuple):
    """Seconds from the call to its start, and from its start to its end."""

    queued: float
    ran: float


class Message(NamedTuple):
    """Who sent a message (rank in the group), with which tag, and how many bytes."""

    source: int
    tag: int
    bytes: int


class _Operation:
    """The library's part of a Work: the handle, and the memory that the operation uses until it is done.

    A signal handler may raise between any two steps of the interpreter, including those of a destructor. So the library
    itself writes the handle to its final location, and _operations holds the memory from before the call: an
    interruption may leave something unfreed, but frees nothing that is in use, and nothing twice.
    """

    __slots__ = ("handle", "keep", "is_done", "claim")

    def __init__(self, keep: Any) -> None:
        self.handle, self.keep, self.is_done = calls.handle_place(), keep, False
        self.claim: list[None] = [None]  # Who pops that frees it.


_operations: set[_Operation] = set()  # All that are not freed.
_abandoned: set[_Operation] = set()  # Those whose works nobody holds any more. Only added to by destructors.


class Work(Future[T]):
    """An operation that was called with async_op=True, or by isend or irecv.

    Its arrays belong to the library until it is done; the library keeps them alive, even if the Work is
    garbage-collected. Methods may be called from any thread. Timeouts are seconds.
    """

    def __init__(self, operation: _Operation | None, finish: Callable[[Any], T] | None) -> None:
        self._operation, self._finish = operation, finish
        self._result: T | None = None
        self._error: Exception | None = None
        self._message: Message | None = None
        self._timing: Timing | None = None
        self._is_held = False  # The result was given before the operation was known to be done.
        self._is_done = operation is None
        self._lock = threading.Lock()

    @classmethod
    def done(cls, result: T | None = None) -> Work[T]:
        """Returns a Work of an operation that had nothing to do."""
        work = cls(None, None)
        work._result, work._timing = result, Timing(0.0, 0.0)
        return work

    def wait(self, timeout: float | None = None) -> T:
        """Blocks until the operation is done and returns its result. timeout: seconds; None: until the operation's own
        timeout ends it.

        For GPU memory without a timeout it returns immediately and makes the current stream wait, so that work put on
        the stream later sees the result; use synchronize() to block this thread. Raises the operation's error, as far
        as it is known; StillRunning if the timeout of this call expires: the operation continues.
        """
        if timeout is None and self._hold_back():
            return cast(T, self._result)
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._is_done:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            self._wait_slice(left)
            if not self._is_done and deadline is not None and time.monotonic() >= deadline:
                raise StillRunning(f"the operation is still running after {timeout:g} s; wait again, or abort")
        if self._error is not None:
            raise self._error
        return cast(T, self._result)

    result = wait

    def synchronize(self) -> T:
        """Blocks this thread until the operation is done, also on a GPU. Returns the result, or raises."""
        return self.wait(float(2**31))

    # Returns True if the operation is on a device and the current stream now waits for it.
    def _hold_back(self) -> bool:
        if self._is_done or self._operation is None:
            return False
        stream = current_stream(self._operation.keep)
        if stream is None:
            return False
        try:
            calls.extension.ivy_work_hold_back(self._operation.handle, stream)
        except IvyError:
            return False  # wait() raises it.
        with self._lock:
            if not self._is_done and self._finish is not None:
                self._result, self._finish = self._finish(self), None
                self._is_held = True
        return True

    def test(self) -> bool:
        """Returns whether it is done, successfully or not. Never blocks, never raises."""
        if not self._is_done:
            with self._lock:
                if not self._is_done:
                    try:
                        if calls.extension.ivy_work_test(self._operation.handle):
                            self._settle(None)
                    except IvyError as error:  # The operation's, or that this is a forked child.
                        self._settle(error)
        return self._is_done

    is_completed = test

    def exception(self) -> BaseException | None:
        """Returns the operation's exception; None while it runs and if it succeeded. Never blocks."""
        self.test()
        return self._error

    def abort(self) -> None:
        """Breaks the operation's group on every rank, unless the operation is done. Does not block."""
        with self._lock:
            if not self._is_done:
                calls.extension.ivy_work_abort(self._operation.handle)

    def timing(self) -> Timing:
        """Returns Timing(queued, ran) in seconds. Blocks until the operation is done."""
        if not self._is_done:
            self._wait_done()
        return cast(Timing, self._timing)

    def message(self) -> Message:
        """Returns Message(source, tag, bytes) of a receive. Waits for it, and raises its error, as wait() does."""
        self.wait()
        return cast(Message, self._message)

    def _wait_done(self) -> None:
        while not self._is_done:
            self._wait_slice(None)

    def _wait_slice(self, seconds: float | None) -> None:
        # A wait must not hold the lock, so _settle keeps the handle until the Work itself is destroyed. The handle is
        # freed under the lock, only by the thread that saw the operation's end.
        at_most = SLICE_MS if must_slice() else 1000
        milliseconds = at_most if seconds is None else int(min(at_most, seconds * 1000 + 1))
        failure: IvyError | None = None
        try:
            calls.extension.ivy_work_wait(self._operation.handle, milliseconds)
        except Timeout:
            self.test()  # The operation's own deadline, or this wait's.
            return
        except IvyError as error:
            failure = error
        with self._lock:
            if not self._is_done:
                self._settle(failure)

    # Called once, with the lock held. failure: the operation's error, without the traceback, which would keep its frames.
    def _settle(self, failure: IvyError | None) -> None:
        if failure is not None:
            self._error = failure.with_traceback(None)
        self._timing = Timing(0.0, 0.0)
        with contextlib.suppress(NotInitialized):  # This is a forked child.
            self._timing = Timing(*calls.extension.ivy_work_timing(self._operation.handle))
        if failure is None and not self._is_held:
            try:
                self._result = self._finish(self) if self._finish else None
            except Exception as error:  # noqa: BLE001 - told by wait.
                self._error = error
        self._operation.is_done = True
        self._operation.keep = self._finish = None
        self._is_done = True

    def give_up(self) -> None:
        """Ends it, by breaking its group unless it is done, so that the caller can reuse its memory."""
        operation = self._operation
        if not self._is_done and operation.handle[0]:
            with contextlib.suppress(IvyError):
                calls.extension.ivy_work_abort(operation.handle)
            _wait_end(operation)  # Woken within 10 ms.
            operation.is_done = self._is_done = True

    def __del__(self) -> None:
        operation = getattr(self, "_operation", None)
        if operation is not None and _abandoned is not None:  # It is None while the interpreter shuts down.
            # A destructor may run in any thread: call the library later, and never wait for it.
            _abandoned.add(operation)

    def __repr__(self) -> str:
        return f"<ivycomm.Work {'done' if self._is_done else 'running'}>"


def read_message(work: Work[Any]) -> Message:
    """For the `finish` function of a receive: returns the received message's source, tag and size, and keeps them for
    Work.message()."""
    work._message = Message(*calls.extension.ivy_work_message(work._operation.handle))
    return work._message


def sweep(wait: bool = False) -> None:
    """Frees abandoned works that are done; with `wait` also those that are not."""
    if not _abandoned:
        return
    for operation in list(_abandoned):
        try:
            operation.claim.pop()
        except IndexError:
            continue  # Another thread frees it.
        # If there is no handle, the library rejected the call.
        if operation.handle[0] and not operation.is_done and not _has_ended(operation, wait):
            operation.claim.append(None)
            continue
        operation.keep = None
        with contextlib.suppress(IvyError):  # Its own error, or that its world has ended.
            calls.extension.ivy_work_free(operation.handle)
        _operations.discard(operation)
        _abandoned.discard(operation)


def _has_ended(operation: _Operation, wait: bool) -> bool:
    if wait:
        _wait_end(operation)
        return True
    try:
        return bool(calls.extension.ivy_work_test(operation.handle))
    except NotInitialized:
        return False  # This is a forked child.
    except IvyError:
        return True  # It failed.


def _wait_end(operation: _Operation) -> None:
    with contextlib.suppress(IvyError):
        calls.extension.ivy_work_wait(operation.handle, FOREVER)


def milliseconds(timeout: float | None) -> int:
    """Converts a timeout in seconds to the C interface's: None is the communicator's, inf is no limit."""
    if timeout is None:
        return 0
    if timeout < 0:
        raise ValueError(f"timeout must not be negative: {timeout} s")
    # Values beyond the field's 64 bits would wrap to a different number.
    return FOREVER if timeout >= 2**53 else max(1, round(timeout * 1000))


def start(name: str, arguments: tuple[Any, ...], keep: Any, finish: Callable[[Any], Any] | None = None,
          async_op: bool = False, timeout: float | None = None, factor: float = 0.0, has_message: bool = False) -> Any:
    """Starts an operation. Blocks until it is done and returns finish(work), or returns a Work if it is asynchronous.

    name, arguments: the C function, such as "ivy_all_reduce", and its arguments except the last; the first is the
    group's handle. keep: all objects whose memory the operation uses. finish: called once the operation has succeeded,
    with its Work, or with None if it has no Work; None: the result is None. timeout: seconds; None: the group's. factor:
    multiplies this rank's input ("premul_sum"). has_message: the operation has a Work even if it blocks, because finish
    reads the message's header from it.

    A signal handler that raises during a blocking call aborts the communicator: its memory could not be released
    otherwise.
    """
    sweep()
    calls.load_array_types()
    method = getattr(calls.extension, name)
    stream, limit = find_stream(keep), milliseconds(timeout)
    is_borrowed = stream is not None and let_borrowed_end(keep, stream)  # Waited for here, as no stream can.
    if not (async_op or has_message or is_borrowed):
        method(*arguments, limit, factor, stream)
        return finish(None) if finish else None
    operation = _Operation((keep, arguments[0]))  # The communicator's handle: a dropped group ends after it.
    _operations.add(operation)
    work: Work[Any] = Work(operation, finish)
    try:
        method(*arguments, limit, factor, stream, operation.handle)
        return work if async_op else work.wait()
    except BaseException:
        if not async_op:
            work.give_up()  # Nothing of a call that blocks runs on when a signal handler raises.
        raise
