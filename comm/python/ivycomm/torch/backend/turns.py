# SPDX-License-Identifier: Apache-2.0
"""Runs a group's collectives one after the other, on any thread. Independent of torch.

A task runs on the thread that waits for it, if it is the next one and no other thread runs a task; otherwise on the
group's own thread, which is started for the first task that must run asynchronously. So a blocking call needs no
change of threads, and a call that no thread waits for is still executed.

Callbacks run on threads that run no tasks (CallbackThreads), since a callback may wait for another task.

A signal handler may raise in the main thread between any two steps. Every step here can therefore be repeated: a task
stays the first one until it is done, its body is called once, and only `with` takes a lock.
"""

import collections
import os
import queue
import threading
import time
import weakref
from _thread import allocate_lock

_IDLE_SECONDS = 30.0  # How long a thread for callbacks is kept without any.


class Interrupted(RuntimeError):
    """A signal handler raised before a task's body had begun: this rank has left out an operation."""


class Task:
    """One operation: `body()` is called once, in its turn; what it raises is kept in `error`."""

    __slots__ = ("_body", "_end", "_callbacks", "_guard", "_on_lost", "_raised", "is_done", "error", "begun",
                 "ended")

    def __init__(self, body, on_lost=None):
        self._body, self._on_lost, self._callbacks = body, on_lost, collections.deque()
        self._guard, self._end = allocate_lock(), allocate_lock()
        self._end.acquire()
        self._raised, self.is_done, self.error, self.begun, self.ended = None, False, None, 0.0, 0.0

    def run(self):
        """Carries the task out. A second call finishes what an interrupt left undone."""
        if not self.begun:
            self._raised = Interrupted("a signal handler interrupted this operation before it began")
            self.begun = time.monotonic()
            try:
                self._body()
                self._raised = None
            except BaseException as error:  # noqa: BLE001 - whoever waits is told.
                self._raised = error
        if isinstance(self._raised, Interrupted) and self._on_lost is not None:
            self._on_lost()
        self.ended, self.error = time.monotonic(), self._raised
        self._body = None  # With it goes what only the operation needed.
        with self._guard:
            self.is_done = True
        _release(self._end)
        if self._callbacks:
            callback_threads.add(self)

    def when_done(self, callback):
        """Calls it when the task is done, on one of the callback threads; immediately, in this thread, if it is
        already done."""
        with self._guard:
            if not self.is_done:
                self._callbacks.append(callback)
                return
        callback()

    def call_back(self):
        while self._callbacks:
            self._callbacks.popleft()()

    def wait(self, seconds=None):
        """Waits at most that many seconds; returns whether the task is done."""
        if not self.is_done and self._end.acquire(timeout=-1 if seconds is None else seconds):
            _release(self._end)
        return self.is_done


def _release(lock):
    try:
        lock.release()
    except RuntimeError:
        pass  # An interrupted call had released it.


class CallbackThreads:
    """Threads that call back for tasks which are done.

    There are as many as callbacks that run at one time: each of them may wait for an operation whose end is told by
    another callback.
    """

    def __init__(self):
        self._tasks, self._guard = queue.SimpleQueue(), allocate_lock()
        self._spare = 0  # Threads that wait for a task, less the tasks that wait for a thread.

    def add(self, task):
        self._tasks.put(task)
        with self._guard:
            if self._spare > 0:
                self._spare -= 1
                return
        threading.Thread(target=self._serve, daemon=True, name="ivy-callback").start()

    def _serve(self):
        while True:
            try:
                task = self._tasks.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._guard:
                    if self._spare > 0:
                        self._spare -= 1
                        return
                continue  # A task is on its way.
            task.call_back()
            task = None
            with self._guard:
                self._spare += 1


callback_threads = CallbackThreads()


def _forget_threads():
    global callback_threads
    callback_threads = CallbackThreads()


os.register_at_fork(after_in_child=_forget_threads)

_STOP = object()


class Turns:
    """The tasks of one group. on_lost(): called when an interrupt has made this rank leave out a task."""

    def __init__(self, name, on_lost=None):
        self._name, self._tasks, self._wakes = name, collections.deque(), queue.SimpleQueue()
        self._on_lost = on_lost
        self._turn, self._guard, self._has_thread = allocate_lock(), allocate_lock(), False

    def add(self, body, is_lazy=False):
        """Appends a task. is_lazy: its caller will wait for it immediately."""
        task = Task(body, self._on_lost)
        self._tasks.append(task)
        if not is_lazy:
            self.wake()
        return task

    def wake(self):
        """From here on the group's own thread performs the tasks."""
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
            if self._turn.locked():
                # Another thread is at work, which ends with its own task.
                self.wake()
                task.wait()
                return
            with self._turn:
                first = _run_first(self._tasks) if not task.is_done else None
            if first is not None and first.error is not None and not isinstance(first.error, Exception):
                raise first.error  # Ctrl-C is its receiver's, whoever called the operation.

    def perform(self, body):
        """Calls body() in this thread, when its turn has come. Raises what it raises."""
        if not self._tasks and not self._turn.locked():
            with self._turn:
                if not self._tasks:
                    body()
                    return
        task = self.add(body, True)
        self.finish(task)
        if task.error is not None:
            raise task.error

    def drain(self, seconds):
        """Waits at most that many seconds; returns whether all tasks have ended."""
        if not self._tasks and not self._turn.locked():
            return True
        return self.add(lambda: None).wait(seconds)

    def stop(self):
        """Stops the thread when it has nothing left to do."""
        if self._has_thread:
            self._wakes.put(_STOP)


# The turn is held. A task is removed when it is done: an interrupt between the two loses nothing.
def _run_first(tasks):
    task = tasks[0]
    task.run()
    tasks.popleft()
    return task


def _serve(tasks, turn, wakes):
    while wakes.get() is not _STOP:
        while tasks:
            with turn:
                if tasks:
                    _run_first(tasks)
