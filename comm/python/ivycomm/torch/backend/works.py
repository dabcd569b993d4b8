# SPDX-License-Identifier: Apache-2.0
"""The objects that torch gets for operations: subclasses of c10d's Work."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch._C._distributed_c10d import Work, _create_work_from_future

from ...errors import IvyError, StillRunning
from ...work import Work as InnerWork
from .errors import torch_error
from .streams import await_event, current_stream, on_stream
from .turns import Task, Turns

if TYPE_CHECKING:
    from .channel import Channel

Tensors = Sequence[Any]


def _seconds(timeout: timedelta | None) -> float | None:
    """Converts a timeout of c10d to seconds. Returns None for no limit, which c10d expresses as zero."""
    seconds = timeout.total_seconds() if timeout is not None else 0
    return seconds if seconds > 0 else None


def _still_running(seconds: float) -> StillRunning:
    return StillRunning(f"the wait timed out: the operation is still running after {seconds:g} s")


# The C++ code of older versions waits for a Python work without keeping it alive, and may then wait forever.
MAY_BE_OF_PYTHON = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) >= (2, 14)


_done: Any = None  # A successful C++ work, used for all calls: creating one costs more than a small operation.


def handed(work: _IvyWork, channel: Channel) -> Any:
    """Returns the work to pass to torch: `work` itself, or a C++ work with the same future for C++ code of a torch that does
    not support works written in Python.

    wait() of such a C++ work does not report errors. Therefore only C++ code gets one, which reads the value of the future
    if it needs it, and errors that are already known are raised here.
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


# Returns whether a function of torch.distributed called the group. Any other caller may be C++ code.
def _is_called_by_python() -> bool:
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") == "ivycomm.torch.backend.calls":
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") == "torch.distributed.distributed_c10d"


def _ended_future() -> Any:
    ended = torch.futures.Future()
    ended.set_result([])
    return ended


class _IvyWork(Work):
    """The base class of all works. The methods of any work may be called from any thread."""

    def __init__(self, outputs: Tensors) -> None:
        super().__init__()
        self._outputs = outputs
        self._future: Any = None

    @property
    def is_of_blocking_call(self) -> bool:
        """Whether the operation had succeeded before the caller got the work."""
        return False

    def mark_for_python(self) -> None:
        """Called if Python code, and not C++ code, gets this work."""

    def result(self) -> Tensors:
        """Returns the output tensors. Does not wait."""
        return self._outputs

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Returns True when the operation is done. Raises its error, or an error after `timeout`."""
        raise NotImplementedError

    def is_completed(self) -> bool:
        raise NotImplementedError

    def exception(self) -> BaseException | None:
        raise NotImplementedError

    def get_future(self) -> Any:
        """Returns a future with the list of the output tensors, or the error."""
        raise NotImplementedError

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def _new_future(self) -> tuple[Any, Callable[[], object]]:
        """Returns (future, function that completes it): with the tensors, or with the operation's error, which C++ code also
        sees."""
        devices = [each.device for each in self._outputs[:1] if each.is_cuda]
        begun = torch.futures.Future(devices=devices) if devices else torch.futures.Future()
        return begun.then(lambda _: self._value()), lambda: begun.set_result(None)

    def _value(self) -> Tensors:
        error = self.exception()
        if error is not None:
            raise error
        return self._outputs


class OrderedWork(_IvyWork):
    """A collective that runs as a task (turns.py)."""

    def __init__(self, turns: Turns, task: Task, outputs: Tensors) -> None:
        super().__init__(outputs)
        self._turns, self._task = turns, task

    def wait(self, timeout: timedelta | None = None) -> bool:
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

    def is_completed(self) -> bool:
        if not self._task.is_done:
            self._turns.wake()  # The task may have been added for wait() to run.
        return self._task.is_done

    def exception(self) -> BaseException | None:
        error = self._task.error
        return None if error is None else torch_error(error)

    def get_future(self) -> Any:
        if self._future is None:
            self._future, end = self._new_future()
            self._task.when_done(end)
            if not self._task.is_done:
                self._turns.wake()
        return self._future

    def _get_duration(self) -> float:
        """Returns the duration of the operation in milliseconds."""
        return (self._task.ended - self._task.begun) * 1e3


class StreamWork(_IvyWork):
    """A collective that is done, or that was put on a side stream. wait() makes the current stream wait for that stream.

    kept: the tensors that the operation uses on the side stream. error: set if the operation has failed.
    """

    def __init__(self, outputs: Tensors, kept: Tensors = ()) -> None:
        super().__init__(outputs)
        self._kept = kept
        self._event: Any = None
        self._stream: Any = None
        self.error: BaseException | None = None

    @property
    def is_of_blocking_call(self) -> bool:
        return self._stream is None and self.error is None

    def mark(self, stream: Any) -> None:
        """Records that the operation was put on that stream."""
        self._stream = stream
        if MAY_BE_OF_PYTHON:  # Otherwise torch may get a future instead, which records its own event.
            self.mark_for_python()

    def mark_for_python(self) -> None:
        if self._stream is not None:
            self._end()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Makes the current stream wait for the operation. With a timeout it also blocks this thread."""
        if self.error is not None:
            raise torch_error(self.error)
        if self._stream is None:
            return True
        seconds, event = _seconds(timeout), self._end()
        if seconds is not None and not await_event(event, seconds):
            raise torch_error(_still_running(seconds))
        current_stream(self._stream.device).wait_event(event)
        self._kept = ()  # From here on it is safe to reuse their memory on the current stream.
        return True

    def is_completed(self) -> bool:
        return self.error is not None or self._stream is None or bool(self._end().query())

    def _end(self) -> Any:
        """Returns the event at the end of the operation."""
        if self._event is None:
            self._event = self._stream.record_event()
        return self._event

    def exception(self) -> BaseException | None:
        return None if self.error is None else torch_error(self.error)

    def get_future(self) -> Any:
        """Returns a future that has the outputs immediately. Waiting for it makes the current stream wait."""
        if self._future is None:
            devices = [each.device for each in self._outputs[:1] if each.is_cuda]
            begun = torch.futures.Future(devices=devices) if devices else torch.futures.Future()
            self._future = begun.then(lambda _: self._value()) if self.error is not None else begun
            with on_stream(self._stream) if self._stream is not None else contextlib.nullcontext():
                begun.set_result(self._outputs)
        return self._future

    def __del__(self) -> None:
        for tensor in self._kept:
            tensor.record_stream(self._stream)


class MessageWork(_IvyWork):
    """A message that the library sends or receives asynchronously. inner: ivycomm's Work."""

    def __init__(self, inner: InnerWork[Any], outputs: Tensors) -> None:
        super().__init__(outputs)
        self._inner = inner

    def wait(self, timeout: timedelta | None = None) -> bool:
        try:
            self._inner.wait(_seconds(timeout))
        except IvyError as error:
            raise torch_error(error) from error.__cause__
        return True

    def is_completed(self) -> bool:
        return self._inner.is_completed()

    def exception(self) -> BaseException | None:
        error = self._inner.exception()
        return None if error is None else torch_error(error)

    def source_rank(self) -> int:
        """Returns the sender's rank in the group. Blocks until the message has arrived."""
        return self._inner.message().source

    _source_rank = source_rank

    def get_future(self) -> Any:
        if self._future is None:
            self._future, end = self._new_future()
            # A thread for each message whose future is in use, because messages complete in any order.
            threading.Thread(target=lambda: (self._inner.timing(), end()), daemon=True, name="ivy-message").start()
        return self._future


class JoinedWork(_IvyWork):
    """Several works as one, which c10d calls coalescing."""

    def __init__(self, works: Sequence[_IvyWork]) -> None:
        super().__init__([tensor for work in works for tensor in work.result()])
        self._works = works

    def mark_for_python(self) -> None:
        for work in self._works:
            work.mark_for_python()

    def wait(self, timeout: timedelta | None = None) -> bool:
        for work in self._works:
            work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        return all([work.is_completed() for work in self._works])

    def exception(self) -> BaseException | None:
        return next((found for found in (work.exception() for work in self._works) if found is not None), None)

    def get_future(self) -> Any:
        if self._future is None:
            outputs = self._outputs

            def tensors(every: Any) -> Tensors:
                for each in every.value():
                    each.value()
                return outputs

            self._future = torch.futures.collect_all([work.get_future() for work in self._works]).then(tensors)
        return self._future
