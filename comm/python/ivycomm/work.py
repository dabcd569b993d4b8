"""Work: an operation under way, and the one way in which all operations are started."""

import ctypes
import threading
import time
from collections import namedtuple
from ctypes import POINTER, byref, c_double, c_int, c_void_p

from .arrays import find_stream
from .errors import DEADLINE_EXCEEDED, OK, StillRunning, check, last_error
from .library import DEVICE_MEMORY, ENQUEUE, FOREVER, Call, MessageHeader, load
from .waiting import SLICE_MS, inside, must_slice

Timing = namedtuple("Timing", "queued ran")
Timing.__doc__ = "Seconds from the call to its start, and from its start to its end."
Message = namedtuple("Message", "source tag bytes")
Message.__doc__ = "Who sent a message (rank in the group), with which tag, and how many bytes."

# Works that nobody holds any more but that still own memory. Only appended to by destructors.
_abandoned = []
_abandoned_lock = threading.Lock()


class Work:
    """An operation that was called with async_op=True.

    Its arrays belong to the library until it is done; the Work keeps them alive, also when it is itself
    thrown away. Methods may be called from any thread.
    """

    def __init__(self, handle, keep, finish):
        self._handle, self._keep, self._finish = handle, keep, finish
        self._result = self._error = self._message = self._timing = None
        self._is_done = handle is None
        self._lock = threading.Lock()

    @classmethod
    def done(cls, result=None):
        """An operation that had nothing to do."""
        work = cls(None, None, None)
        work._result, work._timing = result, Timing(0.0, 0.0)
        return work

    def wait(self, timeout=None):
        """The result, when the operation is done. timeout: seconds, None: without limit.

        Raises what the operation failed with; StillRunning when the time is over (it goes on).
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._is_done:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            self._wait_slice(left)
            if not self._is_done and deadline is not None and time.monotonic() >= deadline:
                raise StillRunning(f"the operation still runs after {timeout:g} s; wait again, or abort")
        if self._error is not None:
            raise self._error
        return self._result

    result = wait

    def test(self):
        """Is it done? Never waits, never raises."""
        if not self._is_done:
            with self._lock:
                if not self._is_done:
                    done = c_int(0)
                    code = load().ivy_work_test(self._handle, byref(done))
                    if done.value or code != OK:  # Not done and not OK: this is a forked child.
                        self._settle(code)
        return self._is_done

    is_completed = test

    def exception(self):
        """What it failed with; None while it runs and when it ended well."""
        self.test()
        return self._error

    def abort(self):
        """Breaks the operation's communicator on every rank, unless the operation is done."""
        with self._lock:
            if not self._is_done:
                check(load().ivy_work_abort(self._handle))

    def timing(self):
        """Timing(queued, ran) in seconds; waits for the end."""
        if not self._is_done:
            self._wait_done()
        return self._timing

    def message(self):
        """Message(source, tag, bytes) of a receive that is done."""
        self.wait()
        return self._message

    def _wait_done(self):
        while not self._is_done:
            self._wait_slice(None)

    def _wait_slice(self, seconds):
        # The handle is freed under the lock only by who saw the end; a wait must not hold the lock, so
        # it works on a handle that _settle keeps until the Work itself goes.
        at_most = SLICE_MS if must_slice() else 1000
        milliseconds = at_most if seconds is None else int(min(at_most, seconds * 1000 + 1))
        code = load().ivy_work_wait(self._handle, milliseconds)
        if code == DEADLINE_EXCEEDED:
            self.test()  # The operation's own deadline, or this wait's.
            return
        with self._lock:
            if not self._is_done:
                self._settle(code)

    # Called once, with the lock held, right after the call that returned `code`.
    def _settle(self, code):
        if code != OK:
            self._error = last_error(code)
        library = load()
        queued, ran = c_double(0), c_double(0)
        library.ivy_work_timing(self._handle, byref(queued), byref(ran))
        self._timing = Timing(queued.value, ran.value)
        if code == OK:
            try:
                self._result = self._finish(self) if self._finish else None
            except Exception as error:  # noqa: B902: told by wait.
                self._error = error
        self._keep = self._finish = None
        self._is_done = True

    def _read_message(self):
        header = MessageHeader(struct_bytes=ctypes.sizeof(MessageHeader))
        check(load().ivy_work_message(self._handle, byref(header)))
        self._message = Message(header.source, header.tag, header.bytes)
        return self._message

    def __del__(self):
        handle = getattr(self, "_handle", None)
        if handle is not None and _abandoned is not None:  # None: the interpreter ends.
            # A destructor runs anywhere: the library is called later, and never waited for.
            _abandoned.append((handle, self._keep))

    def __repr__(self):
        return f"<ivycomm.Work {'done' if self._is_done else 'running'}>"


def sweep(wait=False):
    """Frees abandoned works that are done; with `wait` also those that are not."""
    if not _abandoned or not _abandoned_lock.acquire(blocking=wait):
        return
    try:
        library, running = load(), []
        while _abandoned:
            handle, keep = _abandoned.pop()
            done = c_int(0)
            library.ivy_work_test(handle, byref(done))
            if done.value or wait:
                library.ivy_work_free(handle)
            else:
                running.append((handle, keep))
        _abandoned.extend(running)
    finally:
        _abandoned_lock.release()


def milliseconds(timeout):
    """The C interface's form of a timeout in seconds: None is the communicator's, inf is forever."""
    if timeout is None:
        return 0
    if timeout < 0:
        raise ValueError(f"a timeout of {timeout} s")
    # More than the number's 64 bits hold would be another number.
    return FOREVER if timeout >= 2**53 else max(1, round(timeout * 1000))


def start(function, arguments, keep, finish=None, async_op=False, timeout=None, factor=0.0,
          has_message=False):
    """Calls function(*arguments, &call) and returns finish(work), or a Work when it is asynchronous.

    keep: everything whose memory the operation uses. A signal handler that raises during a blocking
    call aborts the communicator: its memory could not be given back otherwise.
    """
    sweep()
    call = Call(struct_bytes=ctypes.sizeof(Call), timeout_ms=milliseconds(timeout), factor=factor)
    stream = find_stream(keep)
    if stream is not None:
        call.stream, call.flags = stream, DEVICE_MEMORY | ENQUEUE
    # What is only put on a stream waits for the other ranks' calls at most: no slices for Ctrl-C.
    if not (async_op or has_message or (stream is None and must_slice())):
        inside.append(None)  # As `calling`, which costs more than a small operation.
        try:
            check(function(*arguments, byref(call)))
        finally:
            inside.pop()
        return finish(None) if finish else None
    handle = c_void_p()
    call.work = ctypes.cast(byref(handle), POINTER(c_void_p))
    check(function(*arguments, byref(call)))
    work = Work(handle, keep, finish)
    return work if async_op else finish_blocking(work)


def finish_blocking(work):
    """work.wait() for a call that blocks: nothing of it runs on when a signal handler raises."""
    try:
        return work.wait()
    except BaseException:
        if not work._is_done:
            work.abort()
            load().ivy_work_free(work._handle)  # Waits; abort wakes it within 10 ms.
            work._handle = None
            work._is_done = True
        raise
