"""The order of a group's collectives: one after the other, whoever carries them out. Knows nothing of torch.

A task is carried out by the thread that waits for it, where it is the next one and nobody is at work; else by
the group's own thread, which exists from the first task that must run behind its caller's back. So a blocking
call costs no change of threads, and a call that nobody waits for still happens.
"""

import collections
import queue
import threading
import time
import weakref
from _thread import allocate_lock


class Task:
    """One operation: `body()` is called once, in its turn; what it raises is kept in `error`."""

    __slots__ = ("_body", "_end", "_callbacks", "_guard", "is_done", "error", "begun", "ended")

    def __init__(self, body):
        self._body, self._callbacks = body, []
        self._guard, self._end = allocate_lock(), allocate_lock()
        self._end.acquire()
        self.is_done, self.error, self.begun, self.ended = False, None, 0.0, 0.0

    def run(self):
        self.begun = time.monotonic()
        try:
            self._body()
        except BaseException as error:  # noqa: B902: whoever waits is told.
            self.error = error
        self.ended = time.monotonic()
        self._body = None  # With it goes what only the operation needed.
        with self._guard:
            self.is_done, callbacks, self._callbacks = True, self._callbacks, None
        self._end.release()
        for callback in callbacks:
            callback()

    def when_done(self, callback):
        """Calls it at the end, in the thread that carries the task out; at once, where the task is done."""
        with self._guard:
            if not self.is_done:
                self._callbacks.append(callback)
                return
        callback()

    def wait(self, seconds=None):
        """Is it done, after at most so many seconds?"""
        if not self.is_done and self._end.acquire(timeout=-1 if seconds is None else seconds):
            self._end.release()
        return self.is_done


_STOP = object()


class Turns:
    """The tasks of one group."""

    def __init__(self, name):
        self._name, self._tasks, self._wakes = name, collections.deque(), queue.SimpleQueue()
        self._turn, self._guard, self._has_thread = allocate_lock(), allocate_lock(), False

    def add(self, body, is_lazy=False):
        """Puts a task behind all others. is_lazy: its caller will wait for it at once."""
        task = Task(body)
        self._tasks.append(task)
        if not is_lazy:
            self.wake()
        return task

    def wake(self):
        """From here on the group's own thread carries the tasks out."""
        if not self._has_thread:
            with self._guard:
                if not self._has_thread:
                    threading.Thread(target=_serve, args=(self._tasks, self._turn, self._wakes), daemon=True,
                                     name=f"ivy-{self._name}").start()
                    weakref.finalize(self, self._wakes.put, _STOP)
                    self._has_thread = True
        self._wakes.put(None)

    def finish(self, task):
        """Returns when the task is done; its turn may come in this thread."""
        while not task.is_done:
            if not self._turn.acquire(blocking=False):
                # Another thread is at work, which ends with its own task.
                self.wake()
                task.wait()
                return
            try:
                if not task.is_done:
                    self._tasks.popleft().run()
            finally:
                self._turn.release()

    def perform(self, body):
        """Calls body() in this thread, when its turn has come. Raises what it raises."""
        if not self._tasks and self._turn.acquire(blocking=False):
            try:
                body()
            finally:
                self._turn.release()
            return
        task = self.add(body, True)
        self.finish(task)
        if task.error is not None:
            raise task.error

    def drain(self, seconds):
        """Have all tasks ended, after at most so many seconds?"""
        if not self._tasks and self._turn.acquire(blocking=False):
            self._turn.release()
            return True
        return self.add(lambda: None).wait(seconds)

    def stop(self):
        """Ends the thread when it has nothing to do."""
        if self._has_thread:
            self._wakes.put(_STOP)


def _serve(tasks, turn, wakes):
    while wakes.get() is not _STOP:
        while tasks:
            with turn:
                if tasks:
                    tasks.popleft().run()
