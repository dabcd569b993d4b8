"""Callbacks of Works that raise exceptions which programs rarely catch, and more completions than a small pipe holds. Prints
"all equal"."""

import asyncio
import os
import sys
import threading
import time

import ivycomm as ic
import numpy as np
from ivycomm import futures

SET_PIPE_SIZE = 1031  # F_SETPIPE_SZ, which fcntl defines since Python 3.10.
COUNT = 1500


def check_callbacks_that_raise():
    """A callback that raises must not stop later callbacks: only one thread calls them."""
    other = 1 - ic.rank()
    for raised in SystemExit, asyncio.CancelledError, KeyboardInterrupt:
        def fail(_):
            raise raised("out of a callback")

        array, second = np.zeros(1), threading.Event()
        work = ic.irecv(array, other)
        work.add_done_callback(fail)
        ic.send(np.ones(1), other)
        work.wait()
        work = ic.irecv(array, other)
        work.add_done_callback(lambda _: second.set())
        ic.send(np.ones(1), other)
        assert second.wait(20), raised


def check_a_small_pipe():
    """The kernel gives small pipes to users who already have many."""
    import fcntl
    ends = []

    def small():
        ends[:] = pipe()
        fcntl.fcntl(ends[1], SET_PIPE_SIZE, 4096)
        return ends

    pipe, os.pipe = os.pipe, small
    futures._watcher = None
    try:
        futures._the_watcher()
    finally:
        os.pipe = pipe
    other, called = 1 - ic.rank(), []
    works = [ic.irecv(np.zeros(1), other) for _ in range(COUNT)]
    for work in works:
        work.add_done_callback(called.append)
    ic.barrier()
    sys.setswitchinterval(1000)  # This thread keeps the interpreter lock, as a long call of a C function would.
    sent = [ic.isend(np.ones(1), other) for _ in range(COUNT)]
    end = time.monotonic() + 1
    while time.monotonic() < end:
        pass
    sys.setswitchinterval(0.005)
    ic.wait_all(works + sent)
    end = time.monotonic() + 20
    while len(called) < COUNT and time.monotonic() < end:
        time.sleep(0.01)
    assert len(called) == COUNT, len(called)


ic.init()
check_callbacks_that_raise()
check_a_small_pipe()
ic.barrier()
print("all equal")
