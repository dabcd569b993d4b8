"""Groups and works that were freed or dropped do not leak, and every call after their end raises an error. Prints "all
equal" at the end. The arguments are the numbers of groups and works.
"""

import asyncio
import ctypes
import gc
import os
import signal
import sys
import warnings

import numpy as np

import ivycomm as ic
from comm_leave import leave
from ivycomm import work as works_of


class Heap(ctypes.Structure):
    """struct mallinfo2."""
    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks",
                                                     "uordblks", "fordblks", "keepcost")]


_heap = ctypes.CDLL(None).mallinfo2
_heap.restype = Heap


def held():
    """Returns the resources of this process: descriptors, threads, mappings, heap memory (0 under a sanitizer)."""
    gc.collect()
    heap = _heap()
    with open("/proc/self/maps") as maps:
        return {"descriptors": len(os.listdir("/proc/self/fd")), "threads": len(os.listdir("/proc/self/task")),
                "mappings": sum(1 for _ in maps), "bytes of the heap": heap.uordblks + heap.hblkhd}


def not_more(before, after, what, number):
    # Some of the allocator's arenas, and objects that are created at first use. The library keeps the handle of each group,
    # about 130 bytes, to recognize stale ones.
    allowed = {"descriptors": 2, "threads": 2, "mappings": 40, "bytes of the heap": 50_000 + 200 * number}
    for name, number in after.items():
        assert number <= before[name] + allowed[name], f"{what}: {name} were {before}, are {after}"


def many_groups(r, n, number):
    def some(count):
        for i in range(count):
            if i % 3 == 0:
                with ic.new_group(range(n)) as group:
                    ic.all_reduce(np.ones(2), group=group)
            elif i % 3 == 1:
                group = ic.split(0, -r)
                ic.isend(np.ones(1), group.rank, group=group).wait()
                ic.recv_(np.ones(1), group.rank, group=group)
                group.free()
            else:
                ic.all_reduce(np.ones(2), group=ic.new_group(range(n)), async_op=True).wait()
        ic.new_group([0])
        ic.barrier()

    some(30)
    before = held()
    some(number)
    not_more(before, held(), f"after {number} groups", number)


def dropped_works(r, n, number):
    """Works that are not waited for: their arrays are kept until they are done, and then freed."""
    for i in range(number):
        x = np.full(2000, float(i))
        ic.all_reduce_(x, async_op=True)
        if i % 10 == 0:
            ic.isend(x, (r + 1) % n, tag=i)
            ic.irecv(np.empty_like(x), (r - 1) % n, tag=i)
        if i % 10 == 5:
            ic.all_reduce(x, async_op=True).add_done_callback(lambda work: work.wait())
        del x
    ic.barrier()
    ic.all_reduce(np.ones(1))
    gc.collect()
    ic.barrier()
    for _ in range(1000):
        works_of.sweep()
        if not works_of._operations:
            break
        signal.sigtimedwait([], 0.01)
    assert not works_of._operations, f"{len(works_of._operations)} operations are kept"


def expect(kind, calls, what):
    for name, call in calls.items():
        try:
            call()
        except kind:
            continue
        except BaseException as error:
            raise AssertionError(f"{what}, {name}: {error!r}") from error
        raise AssertionError(f"{what}, {name}: nothing was raised")


def calls_of(group, running):
    x = np.ones(2)

    async def await_it():
        await running

    return {
        "all_reduce": lambda: ic.all_reduce(x), "all_reduce of the group": lambda: ic.all_reduce(x, group=group),
        "asynchronous": lambda: ic.all_reduce(x, async_op=True), "exscan": lambda: ic.exscan(x),
        "barrier": ic.barrier, "monitored_barrier": ic.monitored_barrier, "send": lambda: ic.send(x, 0),
        "irecv": lambda: ic.irecv(x, 0), "batch": lambda: ic.batch_isend_irecv([(ic.isend, x, 0)]),
        "objects": lambda: ic.all_gather_object(1), "new_group": lambda: ic.new_group([0]),
        "split": lambda: ic.split(0),
        "abort": ic.abort,
        "store": lambda: ic.store().get("x"), "registered": lambda: ic.empty_registered(4),
        "wait": lambda: running.wait(), "wait_all": lambda: ic.wait_all([running]),
        "await": lambda: asyncio.run(await_it()),
        "future": lambda: running.future().result(30),
    }


def a_forked_child(r, n):
    group = ic.new_group(range(n))
    if r:  # These ranks are late, so that rank 0 forks while an operation runs.
        ic.store().get("the child is gone", 60)
        ic.barrier()
        return
    running = ic.barrier(async_op=True)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            expect(ic.NotInitialized, calls_of(group, running), "in a forked child")
        except BaseException as error:
            print(error, file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    if n > 1:
        ic.store().set("the child is gone", "")
    running.wait(60)


def main():
    warnings.simplefilter("error", RuntimeWarning)
    numbers = [int(word) for word in sys.argv[1:3]] or [300, 500]
    os.environ["IVY_RANK_WAS"] = os.environ.get("IVY_RANK", "")
    kept = dict(os.environ)
    if "IVY_RANK" in kept:
        os.environ.clear()
        expect(ic.FailedPrecondition, {"init": ic.init}, "with an emptied environment")
        os.environ.update(kept)
    ic.init()
    os.environ.clear()  # Nothing may need the environment from here on.
    r, n = ic.rank(), ic.world_size()
    many_groups(r, n, numbers[0])
    dropped_works(r, n, numbers[1])
    a_forked_child(r, n)
    group, done = ic.new_group(range(n)), ic.barrier(async_op=True)
    done.wait()
    leave("left")
    ic.finalize()
    calls = calls_of(group, done)
    for name in ("wait", "wait_all", "await", "future"):  # These calls already have their result.
        calls.pop(name)()
    expect(ic.NotInitialized, calls, "after finalize")
    assert group.size == n and group.rank == r and repr(group)
    print("all equal")


if __name__ == "__main__":
    main()
