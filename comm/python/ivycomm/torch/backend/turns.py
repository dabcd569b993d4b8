# SPDX-License-Identifier: Apache-2.0
"""Runs a group's collectives one after the other, on any thread. Independent of torch.

A task runs on the thread that waits for it, if it is the next one and no other thread runs a task; otherwise on the
group's own thread, which is started for the first task that must run asynchronously. So a blocking call needs no
thread switch, and a call that no thread waits for is still executed.

Callbacks run on separate threads (CallbackThreads), because a callback may wait for another task.

A signal handler may raise an exception in the main thread between any two steps. Every step here can therefore be
repeated: a task stays the first one until it is done, its body is called once, and locks are only acquired by `with`.
"""

from __future__ import annotations

import collections
import os
import queue
import threading
import time
import weakref
from _thread import LockType, allocate_lock
from collections.abc import Callable

_IDLE_SECONDS = 30.0  # After this time without a callback, a callback thread exits.


class Interrupted(RuntimeError):
    """A signal handler raised an exception before a task's body was called: this rank has omitted an operation."""


class Task:
    """One operation. body() is called once, when it is the task's turn. error: the exception that it has raised. begun,
    ended: times of time.monotonic(); 0 before."""

    __slots__ = ("_body", "_end", "_callbacks", "_guard", "_on_lost", "_raised", "is_done", "error", "begun",
                 "ended")

    def __init__(self, body: Callable[[], object], on_lost: Callable[[], object] | None = None) -> None:
        self._body: Callable[[], object] | None = body
        self._on_lost = on_lost
        self._callbacks: collections.deque[Callable[[], object]] = collections.deque()
        self._guard, self._end = allocate_lock(), allocate_lock()
        self._end.acquire()
        self._raised: BaseException | None = None
        self.error: BaseException | None = None
        self.is_done, self.begun, self.ended = False, 0.0, 0.0

    def run(self) -> None:
        """Executes the task. If a signal handler has interrupted the first call, a second call completes it."""
        body = self._body
        if not self.begun and body is not None:
            self._raised = Interrupted("a signal handler interrupted this operation before it started")
            self.begun = time.monotonic()
            try:
                body()
                self._raised = None
            except BaseException as error:  # noqa: BLE001 - raised in the thread that waits.
                self._raised = error
        if isinstance(self._raised, Interrupted) and self._on_lost is not None:
            self._on_lost()
        self.ended, self.error = time.monotonic(), self._raised
        self._body = None  # Frees the operation's memory.
        with self._guard:
            self.is_done = True
        _release(self._end)
        if self._callbacks:
            callback_threads.add(self)

    def when_done(self, callback: Callable[[], object]) -> None:
        """Calls callback() on a callback thread when the task is done; in this thread if it is done already."""
        with self._guard:
            if not self.is_done:
                self._callbacks.append(callback)
                return
        callback()

    def call_back(self) -> None:
        while self._callbacks:
            self._callbacks.popleft()()

    def wait(self, seconds: float | None = None) -> bool:
        """Blocks until the task is done, at most that many seconds (None: no limit). Returns whether it is."""
        if not self.is_done and self._end.acquire(timeout=-1 if seconds is None else seconds):
            _release(self._end)
        return self.is_done


def _release(lock: LockType) -> None:
    try:
        lock.release()
    except RuntimeError:
        pass  # An interrupted call has released it.


class CallbackThreads:
    """Threads that run the callbacks of tasks.

    There is one for each callback that runs at the same time, because a callback may wait for an operation whose completion
    is reported by another callback.
    """

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()
        self._guard = allocate_lock()
        self._spare = 0  # The number of threads that wait for a task, minus the number of tasks in the queue.

    def add(self, task: Task) -> None:
        self._tasks.put(task)
        with self._guard:
            if self._spare > 0:
                self._spare -= 1
                return
        threading.Thread(target=self._serve, daemon=True, name="ivy-callback").start()

    def _serve(self) -> None:
        while True:
            try:
                task = self._tasks.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._guard:
                    if self._spare > 0:
                        self._spare -= 1
                        return
                continue  # A task is about to be added.
            task.call_back()
            del task  # The thread may wait for a long time.
            with self._guard:
                self._spare += 1


callback_threads = CallbackThreads()


def _forget_threads() -> None:
    global callback_threads
    callback_threads = CallbackThreads()


os.register_at_fork(after_in_child=_forget_threads)

_STOP = object()


class Turns:
    """The tasks of one group. on_lost(): called if a signal handler has made this rank omit a task."""

    def __init__(self, name: str, on_lost: Callable[[], object] | None = None) -> None:
        self._name, self._on_lost = name, on_lost
        self._tasks: collections.deque[Task] = collections.deque()
        self._wakes: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._turn, self._guard, self._has_thread = allocate_lock(), allocate_lock(), False

    def add(self, body: Callable[[], object], is_lazy: bool = False) -> Task:
        """Appends a task and returns it. is_lazy: does not wake the group's thread, because the caller will call finish()."""
        task = Task(body, self._on_lost)
        self._tasks.append(task)
        if not is_lazy:
            self.wake()
        return task

    def wake(self) -> None:
        """Makes the group's own thread run the tasks."""
        if not self._has_thread:
            with self._guard:
                if not self._has_thread:
                    threading.Thread(target=_serve, args=(self._tasks, self._turn, self._wakes), daemon=True,
                                     name=f"ivy-{self._name}").start()
                    weakref.finalize(self, self._wakes.put, _STOP)
                    self._has_thread = True
        self._wakes.put(None)

    def finish(self, task: Task) -> None:
        """Blocks until the task is done. May run it, and the tasks before it, in this thread."""
        while not task.is_done:
            if self._turn.locked():
                # Another thread is running a task, and may stop after its own.
                self.wake()
                task.wait()
                return
            with self._turn:
                first = _run_first(self._tasks) if not task.is_done else None
            if first is not None and first.error is not None and not isinstance(first.error, Exception):
                raise first.error  # KeyboardInterrupt belongs to this thread, whichever thread added the task.

    def perform(self, body: Callable[[], object]) -> None:
        """Calls body() after the tasks before it, and blocks until it has returned. Raises its exception."""
        if not self._tasks and not self._turn.locked():
            with self._turn:
                if not self._tasks:
                    body()
                    return
        task = self.add(body, True)
        self.finish(task)
        if task.error is not None:
            raise task.error

    def drain(self, seconds: float) -> bool:
        """Blocks until all tasks are done, at most that many seconds. Returns whether they are."""
        if not self._tasks and not self._turn.locked():
            return True
        return self.add(lambda: None).wait(seconds)

    def stop(self) -> None:
        """Stops the group's thread after its last task."""
        if self._has_thread:
            self._wakes.put(_STOP)


# The caller holds the turn. The task is removed only when it is done, so that an exception of a signal handler between the
# two steps loses nothing.
def _run_first(tasks: collections.deque[Task]) -> Task:
    task = tasks[0]
    task.run()
    tasks.popleft()
    return task


def _serve(tasks: collections.deque[Task], turn: LockType, wakes: queue.SimpleQueue[object]) -> None:
    while wakes.get() is not _STOP:
        while tasks:
            with turn:
                if tasks:
                    _run_first(tasks)
