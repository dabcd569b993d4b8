"""comm_deaths.py WHERE WAY [VICTIM]: a rank ends in the middle of WHERE, and every other rank prints its error.

WHERE is an operation below, or `init`. WAY: kill, exit, abort, stop, cut. The output is JSON with times of the monotonic
clock.
"""

import json
import os
import signal
import sys
import threading
import time

import ivycomm as ic

FIELDS = ("code", "rank", "host", "pid", "signal", "exit_code", "sequence", "operation")


def say(**what):
    print(json.dumps({"at_ns": time.monotonic_ns(), **what}), flush=True)


def die(way):
    say(dies=os.getpid())
    if way == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if way == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if way == "abort":
        os.abort()
    if way == "exit":
        os._exit(7)


def array(count):
    import numpy
    return numpy.ones(count, dtype=numpy.float32)


def all_reduce(r, n):
    ic.all_reduce(array(3))


def all_reduce_large(r, n):
    ic.all_reduce(array(1 << 20))


def broadcast(r, n):
    ic.broadcast(array(100_000))


def barrier(r, n):
    ic.barrier()


def split(r, n):
    ic.split(r % 2, r).free()


def ring(r, n):
    ic.sendrecv(array(5), (r + 1) % n, src=(r - 1) % n)


def work(r, n):
    ic.all_reduce(array(50_000), async_op=True).wait()


def meet_before_init(rank, size, victim, way):
    """The victim dies when the others, which share this directory, wait."""
    if rank != victim:
        open(f"rank{rank}.comes", "w").close()
        return
    while sum(name.endswith(".comes") for name in os.listdir()) < size - 1:
        time.sleep(0.02)
    time.sleep(float(os.environ["A_SECOND"]))  # Longer on slow machines.
    die(way)


def main():
    where, way, *victims = sys.argv[1:]
    rank, size = int(os.environ["IVY_RANK"]), int(os.environ["IVY_WORLD_SIZE"])
    victim = int(victims[0]) if victims else size - 1
    if where == "init":
        meet_before_init(rank, size, victim, way)
    try:
        ic.init(timeout=60)
        call = globals()[where]
        call(rank, size)
        ic.barrier()
        if way == "cut":
            say(ready=True)
        elif rank == victim:
            threading.Timer(0.3, die, (way,)).start()
        end = time.monotonic() + 60
        limit = {"timeout": 3} if way == "stop" and where == "barrier" else {}
        while time.monotonic() < end:
            if limit:
                ic.barrier(**limit)
            else:
                call(rank, size)
    except ic.IvyError as error:
        say(kind=type(error).__name__, text=str(error),
            **{name: getattr(error, name, None) for name in FIELDS})
        if way == "stop":
            time.sleep(0.5)


if __name__ == "__main__":
    main()
