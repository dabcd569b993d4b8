"""Waiting that Ctrl-C can end.

The interpreter runs signal handlers in the main thread, between two of its own steps. A wait inside
the library is one such step, so the main thread waits in slices.
"""

import contextlib
import signal
import threading

SLICE_MS = 50
_ABORT_SECONDS = 5.0  # An abort wakes every wait within 10 ms; this is for a machine that hardly moves.


# One entry for each thread that is inside a call on a communicator; the world must not end meanwhile.
inside = []


@contextlib.contextmanager
def calling():
    """Around a call on a communicator that may wait."""
    inside.append(None)
    try:
        yield
    finally:
        inside.pop()


def must_slice():
    """Could a signal handler written in Python want to run in this thread?"""
    if threading.current_thread() is not threading.main_thread():
        return False
    return callable(signal.getsignal(signal.SIGINT)) or any(
        callable(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2,
                                                          signal.SIGALRM))


def call_in_slices(function, on_interrupt):
    """function() on a thread of its own, while this one stays open for signals.

    When a handler raises, its exception goes on. on_interrupt() is called before: it makes the function
    return soon, and that is waited for. None: the function is left to itself.
    """
    if not must_slice():
        return function()
    outcome = {}
    # Not Thread.join: interrupted, it takes a thread that still runs for one that has ended.
    has_ended = threading.Event()

    def body():
        try:
            outcome["value"] = function()
        except BaseException as error:  # noqa: B902: handed to the caller.
            outcome["error"] = error
        finally:
            has_ended.set()

    thread = threading.Thread(target=body, name="ivycomm-call", daemon=True)
    try:
        thread.start()
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
