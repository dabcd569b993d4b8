# SPDX-License-Identifier: Apache-2.0
"""Waits that Ctrl-C can interrupt.

The interpreter runs signal handlers in the main thread, between two bytecodes. A wait inside the library is a single
step for it, so the main thread waits in slices.
"""

from __future__ import annotations

import _thread
import contextlib
import signal
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

SLICE_MS = 50
_ABORT_SECONDS = 5.0  # An abort wakes every wait within 10 ms; this is for a machine that hardly moves.


def must_slice() -> bool:
    """Returns whether a Python signal handler could run in this thread."""
    if threading.current_thread() is not threading.main_thread():
        return False
    return callable(signal.getsignal(signal.SIGINT)) or any(
        callable(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2,
                                                          signal.SIGALRM))


class Event:
    """An event that is set once, by any thread, with one waiter. The wait() of threading.Event may raise "release
    unlocked lock" instead of the exception of a signal handler; so may Thread.start()."""

    def __init__(self) -> None:
        self._is_set, self._lock = False, _thread.allocate_lock()
        self._lock.acquire()

    def set(self) -> None:
        self._is_set = True
        with contextlib.suppress(RuntimeError):  # It was already set.
            self._lock.release()

    def wait(self, seconds: float | None = None) -> bool:
        """Waits at most `seconds`; returns whether it was set."""
        if not self._is_set:
            self._lock.acquire(timeout=-1 if seconds is None else min(seconds, threading.TIMEOUT_MAX))
        return self._is_set


def call_in_slices(function: Callable[[], T], on_interrupt: Callable[[], object] | None) -> T:
    """Runs function() on a separate thread, while this one handles signals.

    If a handler raises, on_interrupt() is called, which must make the function return soon; after that has happened,
    the exception propagates. None: the function keeps running.
    """
    if not must_slice():
        return function()
    outcome: dict[str, Any] = {}
    # Not Thread.join: when interrupted, it believes that a running thread has ended.
    has_ended = Event()

    def body() -> None:
        try:
            outcome["value"] = function()
        except BaseException as error:  # noqa: BLE001 - handed to the caller.
            outcome["error"] = error
        finally:
            has_ended.set()

    try:
        _thread.start_new_thread(body, ())
        while not has_ended.wait(SLICE_MS / 1000):
            pass
    except BaseException:
        if on_interrupt is not None:
            on_interrupt()
            has_ended.wait(_ABORT_SECONDS)
        raise
    if "error" in outcome:
        raise outcome["error"]
    result: T = outcome["value"]
    return result
