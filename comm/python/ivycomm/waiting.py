"""Waiting that Ctrl-C can end.

The interpreter runs signal handlers in the main thread, between two of its own steps. A wait inside
the library is one such step, so the main thread waits in slices.
"""

import _thread
import contextlib
import signal
import threading
import weakref

SLICE_MS = 50
_ABORT_SECONDS = 5.0  # An abort wakes every wait within 10 ms; this is for a machine that hardly moves.


# Weak references to the locks of calling(), and the handle of the group that each is about.
_inside = {}


def calling(handle=None):
    """`with calling(handle):` around a call by ctypes on a group's communicator, which must not end meanwhile. None: a call
    on the world's. Ask for the group's handle inside the block: it is not freed from then on.

    A call is under way while its lock is held. A signal handler may raise before the block is left, or even in it: the
    lock is then freed with the frame's stack, and counts no more.
    """
    lock = _thread.allocate_lock()
    _inside[weakref.ref(lock, _forget)] = handle
    return lock


def _forget(reference):
    _inside.pop(reference, None)


def count_inside(handle=None):
    """How many threads are inside calling(handle); None: on any communicator."""
    count = 0
    for reference, of in _inside.copy().items():
        lock = reference()
        count += lock is not None and lock.locked() and (handle is None or handle is of)
    return count


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
