# SPDX-License-Identifier: Apache-2.0
"""The objects that torch gets for operations: subclasses of c10d's Work."""

import contextlib
import sys

import torch
from torch._C._distributed_c10d import Work, _create_work_from_future

from ...errors import IvyError, StillRunning
from .errors import torch_error
from .streams import await_event, current_stream, on_stream


def _seconds(timeout):
    """c10d's timeout as seconds; None: without limit (c10d says so by zero)."""
    seconds = timeout.total_seconds() if timeout is not None else 0
    return seconds if seconds > 0 else None


def _still_running(seconds):
    return StillRunning(f"the wait timed out: the operation still runs after {seconds:g} s")


# Older ones let go of a work of Python's while their C++ waits for it, which then never ends.
MAY_BE_OF_PYTHON = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) >= (2, 14)


_done = None  # A work of C++ that has ended well; one for all, since a future costs more than a small operation.


def handed(work, channel):
    """The work as torch gets it: where it must not be of Python's, one of C++ that ends with the same future.

    Such a work's wait() tells nothing of what its operation failed with. So it goes to C++ alone, which reads the value
    of the future where it needs one, and what is known of a failure by then is raised here.
    """
    global _done
    if MAY_BE_OF_PYTHON:
        return work
    if _is_called_by_python():
        work.mark_for_python()
        return work
    error = channel.failure or work.exception()
    if error is not None:
        raise torch_error(error)
    if not work.is_of_blocking_call:
        return _create_work_from_future(work.get_future())
    if _done is None:
        _done = _create_work_from_future(_ended_future())
    return _done


# torch.distributed's functions call a group of Python's directly; all others may be C++.
def _is_called_by_python():
    frame = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") == "ivycomm.torch.backend.calls":
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") == "torch.distributed.distributed_c10d"


def _ended_future():
    ended = torch.futures.Future()
    ended.set_result([])
    return ended


class _IvyWork(Work):
    """The part that both kinds of work share. The methods of any Work may be called from any thread."""

    def __init__(self, outputs):
        super().__init__()
        self._outputs, self._future = outputs, None

    @property
    def is_of_blocking_call(self):
        """Returns whether it succeeded before its caller got it, and the caller needs nothing else from it."""
        return False

    def mark_for_python(self):
        """Python gets this work itself."""

    def result(self):
        """Returns the output tensors; does not wait."""
        return self._outputs

    def synchronize(self):
        self.wait()

    def block_current_stream(self):
        self.wait()

    def is_success(self):
        return self.is_completed() and self.exception() is None

    def _new_future(self):
        """(the future, what ends it): with the tensors, or with the operation's error, in C++ as in Python."""
        devices = [each.device for each in self._outputs[:1] if each.is_cuda]
        begun = torch.futures.Future(devices=devices) if devices else torch.futures.Future()
        return begun.then(lambda _: self._value()), lambda: begun.set_result(None)

    def _value(self):
        error = self.exception()
        if error is not None:
            raise error
        return self._outputs


class OrderedWork(_IvyWork):
    """A collective, which runs in its turn (turns.py)."""

    def __init__(self, turns, task, outputs):
        super().__init__(outputs)
        self._turns, self._task = turns, task

    def wait(self, timeout=None):
        """Returns True when the operation is done; raises its error, or on timeout."""
        seconds, task = _seconds(timeout), self._task
        if not task.is_done:
            if seconds is None:
                self._turns.finish(task)
            else:
                self._turns.wake()
                if not task.wait(seconds):
                    raise torch_error(_still_running(seconds))
        if task.error is not None:
            raise torch_error(task.error)
        return True

    def is_completed(self):
        if not self._task.is_done:
            self._turns.wake()  # It might have been left for wait().
        return self._task.is_done

    def exception(self):
        error = self._task.error
        return None if error is None else torch_error(error)

    def get_future(self):
        """Ends with the list of the output tensors, or with the error."""
        if self._future is None:
            self._future, end = self._new_future()
            self._task.when_done(end)
            if not self._task.is_done:
                self._turns.wake()
        return self._future

    def _get_duration(self):
        """Returns the milliseconds that the operation took."""
        return (self._task.ended - self._task.begun) * 1e3


class StreamWork(_IvyWork):
    """A collective that is done, or on a stream: of its own until wait(), with which the current stream has it, too.

    kept: the tensors that it uses on a stream which is not the current one.
    """

    def __init__(self, outputs, kept=()):
        super().__init__(outputs)
        self._kept, self._event, self._stream, self.error = kept, None, None, None

    @property
    def is_of_blocking_call(self):
        return self._stream is None and self.error is None

    def mark(self, stream):
        """Records that the operation is on that stream."""
        self._stream = stream
        if MAY_BE_OF_PYTHON:  # Else torch may get a future, which has an event of its own.
            self.mark_for_python()

    def mark_for_python(self):
        if self._stream is not None:
            self._end()

    def wait(self, timeout=None):
        """Makes the current stream wait for the operation. With a timeout it also blocks the thread."""
        if self.error is not None:
            raise torch_error(self.error)
        if self._stream is None:
            return True
        seconds, event = _seconds(timeout), self._end()
        if seconds is not None and not await_event(event, seconds):
            raise torch_error(_still_running(seconds))
        current_stream(self._stream.device).wait_event(event)
        self._kept = ()  # The current stream is the one on which their memory is used again.
        return True

    def is_completed(self):
        return self.error is not None or self._stream is None or self._end().query()

    def _end(self):
        if self._event is None:
            self._event = self._stream.record_event()
        return self._event

    def exception(self):
        return None if self.error is None else torch_error(self.error)

    def get_future(self):
        """Has the outputs at once, for streams: whoever waits for it lets the current stream wait."""
        if self._future is None:
            devices = [each.device for each in self._outputs[:1] if each.is_cuda]
            begun = torch.futures.Future(devices=devices) if devices else torch.futures.Future()
            self._future = begun.then(lambda _: self._value()) if self.error is not None else begun
            with on_stream(self._stream) if self._stream is not None else contextlib.nullcontext():
                begun.set_result(self._outputs)
        return self._future

    def __del__(self):
        for tensor in self._kept:
            tensor.record_stream(self._stream)


class MessageWork(_IvyWork):
    """A message that the library sends or receives asynchronously. `inner`: ivycomm's Work."""

    def __init__(self, inner, outputs, pool):
        super().__init__(outputs)
        self._inner, self._pool = inner, pool

    def wait(self, timeout=None):
        try:
            self._inner.wait(_seconds(timeout))
        except IvyError as error:
            raise torch_error(error) from error.__cause__
        return True

    def is_completed(self):
        return self._inner.is_completed()

    def exception(self):
        error = self._inner.exception()
        return None if error is None else torch_error(error)

    def source_rank(self):
        """Returns the sender's rank in the group; waits for the message."""
        return self._inner.message().source

    _source_rank = source_rank

    def get_future(self):
        if self._future is None:
            self._future, end = self._new_future()
            self._pool.add(lambda: (self._inner.timing(), end()))
        return self._future


class JoinedWork(_IvyWork):
    """Several works as one: what c10d calls coalescing."""

    def __init__(self, works):
        super().__init__([tensor for work in works for tensor in work.result()])
        self._works = works

    def mark_for_python(self):
        for work in self._works:
            work.mark_for_python()

    def wait(self, timeout=None):
        for work in self._works:
            work.wait(timeout)
        return True

    def is_completed(self):
        return all([work.is_completed() for work in self._works])

    def exception(self):
        return next((found for found in (work.exception() for work in self._works) if found is not None), None)

    def get_future(self):
        if self._future is None:
            outputs = self._outputs

            def tensors(every):
                for each in every.value():
                    each.value()
                return outputs

            self._future = torch.futures.collect_all([work.get_future() for work in self._works]).then(tensors)
        return self._future
