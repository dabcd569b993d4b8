"""comm_errors.py SCENARIO: an operation fails, and every remaining rank prints its error as JSON."""

import contextlib
import gc
import json
import os
import signal
import sys
import threading
import time
import weakref

import ivycomm as ic
from ivycomm import calls

FIELDS = ("code", "rank", "host", "pid", "signal", "exit_code", "sequence", "operation")


def say(error):
    print(json.dumps({"kind": type(error).__name__, "text": str(error),
                      **{name: getattr(error, name, None) for name in FIELDS}}))


def mismatch(r, n):
    if r == n - 1:
        ic.barrier()
    else:
        ic.all_gather_object("x")


def reduce_until_killed(r, n, elements, reduce):
    """The last rank dies in the middle of a stream of operations."""
    import numpy
    x = numpy.zeros(elements)
    if r == n - 1:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        reduce(x)


def killed(r, n):
    reduce_until_killed(r, n, 1 << 20, ic.all_reduce)


def killed_while_read(r, n):
    """Two ranks reduce in place and read each other's memory. One of them dies."""
    reduce_until_killed(r, n, 2 << 20, ic.all_reduce_)


def exited(r, n):
    ic.barrier()  # Without it, some ranks may still be in init and would get the error there.
    if r == n - 1:
        os._exit(7)
    ic.barrier()


def interrupted(r, n):
    """Ctrl-C on rank 0, which waits for ranks that are late. They get the error when they make the call."""
    if r == 0:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            ic.barrier()
        except KeyboardInterrupt:
            print("interrupted")
        ic.store().set("go", "on")
    else:
        ic.store().get("go", timeout=30)
    for _ in range(100):
        ic.barrier()


def interrupted_wait(r, n):
    """Ctrl-C in Work.wait leaves the operation running."""
    if r == 0:
        work = ic.barrier(async_op=True)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            work.wait()
        except KeyboardInterrupt:
            print("interrupted")
        ic.store().set("go", "on")
        work.wait(30)
    else:
        ic.store().get("go", timeout=30)
        ic.barrier()
    print("went on")


class Kept:
    """Replaces an array: memory that the library uses."""


@contextlib.contextmanager
def raising_calls(function):
    """Simulates a signal during a call of this C function: its handler raises before the interpreter executes another step."""
    real = getattr(calls.extension, function)

    def call(*arguments):
        real(*arguments)
        raise KeyboardInterrupt

    setattr(calls.extension, function, call)
    try:
        yield
    finally:
        setattr(calls.extension, function, real)


def interrupted_before_the_work(r, n):
    """Ctrl-C between a call and its Work ends the operation: its memory may be freed, so the library must not write there."""
    from ivycomm.work import start
    if r == 0:
        try:
            with raising_calls("ivy_barrier"):
                start("ivy_barrier", (ic.world().handle,), Kept(), has_message=True)
        except KeyboardInterrupt:
            print("interrupted")
        ic.store().set("go", "on")
        ic.barrier()
    else:
        ic.store().get("go", timeout=30)
        ic.barrier()


def interrupted_start(r, n):
    """Ctrl-C before an asynchronous call has returned its Work: the operation continues, and its memory is kept until its end."""
    from ivycomm.work import start, sweep
    if r == 0:
        kept = Kept()
        freed = weakref.ref(kept)
        try:
            with raising_calls("ivy_barrier"):
                start("ivy_barrier", (ic.world().handle,), kept, async_op=True)
        except KeyboardInterrupt:
            print("interrupted")
        del kept
        gc.collect()
        sweep()
        assert freed() is not None, "the memory of an operation that runs is gone"
        ic.store().set("go", "on")
    else:
        ic.store().get("go", timeout=30)
        ic.barrier()
    ic.barrier()
    if r == 0:
        sweep()
        assert freed() is None, "the memory of an operation that is done is kept"
    print("went on")


def interrupted_at_the_end(r, n):
    """Ctrl-C at the end of a call, before it has returned: the world can still be finalized and joined again."""
    ic.store().set("there", "yes")
    try:
        with raising_calls("ivy_store_get"):
            ic.store().get("there")
    except KeyboardInterrupt:
        print("interrupted")
    assert calls.inside() == 0
    ic.finalize()
    ic.init()
    assert ic.all_gather_object(r) == list(range(n))
    print("went on")


def interrupted_group(r, n):
    """Ctrl-C while rank 0 creates a group and the others are absent."""
    if r == 0:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            ic.new_group([0, 1])
        except KeyboardInterrupt:
            print("interrupted")
        ic.store().set("go", "on")
    else:
        ic.store().get("go", timeout=30)
    for _ in range(100):
        ic.barrier()


def uncaught(r, n):
    """The last rank ends by an uncaught exception while the others wait for it."""
    ic.barrier()
    if r == n - 1:
        raise ValueError("the data of epoch 3 are missing")
    ic.barrier()


def uncaught_group(r, n):
    group = ic.split(0)
    if r == n - 1:
        raise ValueError("the data of epoch 3 are missing")
    ic.barrier(group=group)


def timeout(r, n):
    if r == n - 1:
        ic.store().get("told", timeout=30)
    else:
        try:
            ic.barrier(timeout=0.5)
        finally:
            if r == 0:
                ic.store().set("told", "yes")
    ic.barrier()


def still_running(r, n):
    """A wait times out, but the operation continues."""
    if r == 0:
        work = ic.barrier(async_op=True)
        try:
            work.wait(timeout=0.1)
        except ic.StillRunning:
            print("still running")
        ic.store().set("go", "on")
        work.wait(float("inf"))
        ic.barrier(timeout=1e300)
    else:
        ic.store().get("go", timeout=30)
        ic.barrier()
        ic.barrier(timeout=1e10)
    print("went on")


def aborted(r, n):
    if r == n - 1:
        ic.abort("enough of it")
    ic.barrier()


def message_timeouts(r, n):
    """Rank 1 does not take part. Every way of waiting for its messages ends at the timeout."""
    import numpy
    x, large = numpy.ones(3), numpy.ones(4 << 20)
    calls = [lambda **more: ic.recv_(x, 1, **more),
             lambda **more: ic.irecv(x, 1, **more).wait(),
             lambda **more: ic.sendrecv(x, 1, src=1, **more),
             lambda **more: ic.send(large, 1, **more)]
    groups = [ic.split(0, r) for _ in calls]
    if r == 1:
        ic.store().get("told", timeout=60)
    for call, group in zip(calls, groups):
        try:
            ic.barrier(group=group) if r == 1 else call(group=group, timeout=0.2)
        except ic.IvyError as error:
            say(error)
    if r == 0:
        ic.store().set("told", "yes")
    ic.barrier()
    print("went on")


def message_mismatch(r, n):
    """Only a Work on rank 1 fails. The next operation reports it on every rank."""
    import numpy
    if r == 0:
        ic.send(numpy.ones(6), 1)
    if r == 1:
        try:
            ic.irecv(numpy.ones(5), 0).wait(60)
        except ic.Mismatch:
            print("mismatch")
    ic.barrier()


def message_beside_left(r, n):
    """The last rank has left long ago while rank 0 waits for a message of rank 1."""
    import numpy
    if r == n - 1:
        ic.finalize()
        return
    if r == 1:
        time.sleep(0.7)  # Longer than the grace period for a rank that has left.
        ic.send(numpy.ones(3), 0)
    else:
        ic.recv_(numpy.zeros(3), 1, timeout=60)
    print("went on")


def thrown_away(r, n):
    """Works and their memory may be dropped while they run. They end with the world."""
    import numpy
    for _ in range(50):
        ic.all_reduce(numpy.ones(1000), async_op=True)
    if r == 0:
        ic.barrier(async_op=True)  # No other rank joins.
        ic.all_reduce(numpy.ones(1 << 20), async_op=True)
    ic.finalize()
    print("went on")


def freed_during_finalize(r, n):
    """A thread frees a group, which waits for the receiver of a message; finalize() waits for that thread."""
    import numpy
    group = ic.new_group([0, 1])
    if r == 0:
        ic.isend(numpy.ones(8 << 20), 1, group=group)
        thread = threading.Thread(target=group.free)
        thread.start()
        time.sleep(0.5)
        ic.store().set("freeing", "yes")
    elif r == 1:
        ic.store().get("freeing", timeout=30)
        time.sleep(2)
        assert ic.recv(numpy.empty(8 << 20), 0, group=group).all()
    begin = time.monotonic()
    ic.finalize()
    if r == 0:
        assert time.monotonic() - begin > 1, "finalize() has not waited"
        thread.join()
    print("went on")


def daemon_thread(r, n):
    """The interpreter exits while a thread waits in a call."""
    from ivycomm import calls
    if r == 0:
        threading.Thread(target=ic.barrier, daemon=True).start()
        deadline = time.monotonic() + 30
        while not calls.inside() and time.monotonic() < deadline:
            time.sleep(0.01)
        try:
            ic.finalize()
        except ic.IvyError as error:
            assert "other threads" in str(error), error
            ic.store().set("told", "yes")
    else:
        ic.store().get("told", timeout=30)
    print("went on")


def main():
    ic.init()
    try:
        globals()[sys.argv[1]](ic.rank(), ic.world_size())
    except ic.IvyError as error:
        say(error)


if __name__ == "__main__":
    main()
