"""Waiting that Ctrl-C can end.

The interpreter runs signal handlers in the main thread, between two of its own steps. A wait inside
the library is one such step, so the main thread waits in slices.
"""

import _thread
import contextlib
import signal
import sys
import threading

SLICE_MS = 50
_ABORT_SECONDS = 5.0  # An abort wakes every wait within 10 ms; this is for a machine that hardly moves.


# The frame of each function that is inside a call on a communicator; the world must not end meanwhile. Keep no frame in
# a variable of its own function: what that holds would live until the next garbage collection.
inside = []


class calling:  # noqa: N801: used as a function.
    """Around a call on a communicator that may wait."""

    def __enter__(self):
        inside.append(sys._getframe(1))

    def __exit__(self, *_):
        inside.remove(sys._getframe(1))


def count_inside():
    """How many calls are under way. A function that a signal handler has ended before it was taken off is none."""
    known = list(inside)
    if known:
        running = set()
        for frame in sys._current_frames().values():
            while frame is not None:
                running.add(frame)
                frame = frame.f_back
        for frame in known:
            if frame not in running:
                with contextlib.suppress(ValueError):  # Two may look at the same time.
                    inside.remove(frame)
    return len(inside)


def must_slice():
    """Could a signal handler written in Python want to run in this thread?"""
    if threading.current_thread() is not threading.main_thread():
        return False
    return callable(signal.getsignal(signal.SIGINT)) or any(
        callable(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2,
                                                          signal.SIGALRM))


class Bell:
    """Rung once, by any thread; one waits for it. As threading.Event, whose wait() however may raise "release unlocked
    lock" in place of what a signal handler has raised; so may Thread.start()."""

    def __init__(self):
        self._is_rung, self._lock = False, _thread.allocate_lock()
        self._lock.acquire()

    def ring(self):
        self._is_rung = True
        with contextlib.suppress(RuntimeError):  # It has been rung before.
            self._lock.release()

    def wait(self, seconds=None):
        """Has it been rung? seconds: how long it is waited for at most."""
        if not self._is_rung:
            self._lock.acquire(timeout=-1 if seconds is None else min(seconds, threading.TIMEOUT_MAX))
        return self._is_rung


def call_in_slices(function, on_interrupt):
    """function() on a thread of its own, while this one stays open for signals.

    When a handler raises, its exception goes on. on_interrupt() is called before: it makes the function
    return soon, and that is waited for. None: the function is left to itself.
    """
    if not must_slice():
        return function()
    outcome = {}
    # Not Thread.join: interrupted, it takes a thread that still runs for one that has ended.
    has_ended = Bell()

    def body():
        try:
            outcome["value"] = function()
        except BaseException as error:  # noqa: B902: handed to the caller.
            outcome["error"] = error
        finally:
            has_ended.ring()

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
    return outcome["value"]
