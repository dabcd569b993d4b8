"""Completion of Works, batches of messages, monitored barriers, groups that end, the store.

Prints "all equal" at the end.
"""

import asyncio
import gc
import math
import os
import threading
import time
import warnings

import numpy as np

import ivycomm as ic
from comm_leave import leave

SOON = 60  # Seconds. No step here takes as long, even on a very slow machine.


def raises(kind, call, *words):
    try:
        call()
    except kind as error:
        for word in words:
            assert word in str(error), f"{word!r} is not in: {error}"
        return error
    raise AssertionError(f"no {kind.__name__}")


def callbacks(r, n):
    called, has_called = [], threading.Event()

    def note(work):
        called.append((threading.current_thread() is threading.main_thread(), work.wait()[0]))
        has_called.set()

    work = ic.all_reduce(np.full(4, r), async_op=True)
    work.add_done_callback(note)
    assert has_called.wait(SOON)
    work.wait()
    work.add_done_callback(note)  # The Work is done, so the callback is called immediately on this thread.
    assert [value for _, value in called] == [sum(range(n))] * 2 and called[1][0], called
    # A callback that raises is printed, and the next one is called.
    seen = threading.Event()
    work = ic.barrier(async_op=True)
    work.add_done_callback(lambda _: [][0])
    work.add_done_callback(lambda _: seen.set())
    assert seen.wait(SOON)
    assert ic.all_reduce(np.ones(3), async_op=True).future().result(SOON).tolist() == [n] * 3
    tree = ic.all_reduce({"a": np.ones(2), "b": np.ones(2, "int32")}, async_op=True)
    assert tree.future().result(SOON)["b"].tolist() == [n, n]
    assert ic.all_reduce({}, async_op=True).future().result(SOON) == {}


def awaited(r, n):
    async def one(i):
        return (await ic.all_reduce(np.full(2, i + r), async_op=True))[0]

    async def tick():
        for _ in range(20):
            await asyncio.sleep(0.001)
        ic.store().set(f"ticked/{r}", "")

    async def several():
        ticking = asyncio.ensure_future(tick())
        # The loops of the others must continue while rank 0 lets them wait; otherwise it would wait forever.
        if r == 0:
            others = [f"ticked/{rank}" for rank in range(1, n)]
            await asyncio.get_running_loop().run_in_executor(None, ic.store().wait, others, SOON)
        results = await asyncio.gather(*(one(i) for i in range(8)))
        assert results == [n * i + sum(range(n)) for i in range(8)], results
        await ticking
        # Cancelling a task does not affect the operation.
        work = ic.barrier(async_op=True) if r else None
        if work is not None:
            waiting = asyncio.ensure_future(_wait(work))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        if r == 0:
            await ic.barrier(async_op=True)
        else:
            await work

    async def _wait(work):
        await work

    asyncio.run(several())


def first_and_all(r, n):
    raises(ValueError, lambda: ic.wait_any([]))
    assert ic.wait_all([]) == []
    works = [ic.all_reduce(np.full(1, i), async_op=True) for i in range(20)]
    left = list(range(20))
    while left:
        left.pop(ic.wait_any([works[i] for i in left], SOON))
    assert [result[0] for result in ic.wait_all(works, SOON)] == [n * i for i in range(20)]
    if n == 1:
        return
    # The receive whose message arrives completes first.
    x = [np.zeros(1), np.zeros(1)]
    if r == 0:
        receives = [ic.irecv(x[0], 1, tag=1), ic.irecv(x[1], 1, tag=2)]
        raises(ic.StillRunning, lambda: ic.wait_any(receives, 0.05), "none of 2")
        ic.send(np.ones(1), 1, tag=3)
        assert ic.wait_any(receives, SOON) == 1 and x[1][0] == 2
        raises(ic.StillRunning, lambda: ic.wait_all(receives, 0.05))
        ic.send(np.ones(1), 1, tag=3)
        assert [result[0] for result in ic.wait_all(receives, SOON)] == [1, 2]
    elif r == 1:
        for tag in (2, 1):
            ic.recv_(np.zeros(1), 0, tag=3)
            ic.send(np.full(1, float(tag)), 0, tag=tag)


def without_end(r, n):
    """math.inf means no timeout in every call that waits."""
    def later(call, *arguments, **named):
        thread = threading.Timer(0.05, call, arguments, named)
        thread.start()
        return thread

    for forever in (math.inf, 1e300):
        sending = later(ic.send, np.full(1, 3.0), r, tag=9)
        work = ic.irecv(np.zeros(1), r, tag=9)
        assert ic.wait_any([work], forever) == 0 and ic.wait_all([work], forever)[0] == 3
        sending.join()
        key = f"later/{r}/{forever}"
        setting = later(ic.store().set, key, "x")
        assert ic.store().get(key, forever) == b"x" and ic.store().wait([key], forever) is None
        setting.join()
        with ic.store().watch(key) as changes:
            setting = later(ic.store().set, key, "y")
            assert changes.next(forever).value == b"y"
            setting.join()
        pushing = later(ic.store().push, key, "z")
        assert ic.store().pop(key, forever) == b"z"
        pushing.join()


def batches(r, n):
    """Every rank sends to every rank in different orders, as in the tests of torch and MPI."""
    gifts = [np.full(100, 1000 * r + i) for i in range(n)]
    gets = [np.zeros(100, int) for _ in range(n)]
    operations = [ic.P2POp(ic.isend, gifts[i], i, 5) for i in range(n)]
    operations += [ic.P2POp(ic.irecv, gets[i], i, 5) for i in range(n)]
    works = ic.batch_isend_irecv(operations if r % 2 else operations[::-1], timeout=SOON)
    ic.wait_all(works, SOON)
    assert [get[0] for get in gets] == [1000 * i + r for i in range(n)]
    raises(TypeError, lambda: ic.batch_isend_irecv([(ic.send, gifts[0], 0)]), "operation 0", "isend")
    raises(ValueError, lambda: ic.batch_isend_irecv([(ic.isend, gifts[0], 0), (ic.isend, gifts[0], n)]), "operation 1")
    raises(ValueError, lambda: ic.batch_isend_irecv([(ic.isend, gifts[0], 0, -1)]), "operation 0", "-1")
    raises(TypeError, lambda: ic.batch_isend_irecv([(ic.isend, gifts[0], 0, None)]), "tag must be a whole number")
    assert ic.batch_isend_irecv([]) == []


def monitored(r, n):
    for _ in range(3):
        ic.monitored_barrier(timeout=SOON)
    ic.barrier()
    assert not [key for key in ic.store().keys("ivy/monitored/") if "/world/" in key]
    if n == 1:
        return
    group = ic.new_group(range(n))
    if r == n - 1:
        ic.store().get("all were told", SOON)
    else:
        error = raises(ic.MissingRanks, lambda: ic.monitored_barrier(group=group, timeout=0.5),
                       f"did not arrive: {n - 1}")
        assert error.missing == (n - 1,) and isinstance(error, ic.Timeout), error
        if ic.store().add("told") == n - 1:
            ic.store().set("all were told", "")
    # As after every failure the group is broken, also on the late rank.
    raises(ic.Timeout, lambda: ic.monitored_barrier(group=group, timeout=SOON))
    group.free()
    ic.barrier()


def groups_that_end(r, n):
    with ic.new_group([0]) as group:
        assert ic.all_reduce(np.ones(1), group=group) is None or r == 0
        name = group.name
    if r == 0:
        raises(ic.NotInitialized, lambda: group.handle, name)
    with ic.init() as world:  # Only finalize() ends the world.
        assert world.rank == r
    ic.barrier()
    # The group is dropped during an operation, which continues and then frees it.
    work = ic.all_reduce(np.ones(1000), group=ic.new_group(range(n)), async_op=True)
    gc.collect()
    assert work.wait(SOON)[0] == n
    ic.all_reduce(np.ones(1000), group=ic.new_group(range(n)), async_op=True)
    gc.collect()
    for _ in range(5):
        ic.split(0)
    ic.barrier()


def store_operations(r, n):
    store = ic.store()
    mine = f"works/{r}/"
    assert store.compare_set(mine + "a", None, "1") == (True, b"1")
    assert store.compare_set(mine + "a", None, "2") == (False, b"1")
    assert store.compare_set(mine + "a", "1", b"\0two") == (True, b"\0two")
    assert store.compare_set(mine + "none", "1", "2") == (False, None)
    assert store.set_once(mine + "b", "x") and not store.set_once(mine + "b", "y")
    assert store.append(mine + "list", "ab") == 2 and store.append(mine + "list", b"\0") == 3
    store.multi_set({mine + "x": "1", mine + "y": b"\0\0", mine + "empty": ""})
    assert store.multi_get([mine + "y", mine + "list", mine + "x", mine + "empty"]) == [b"\0\0", b"ab\0", b"1", b""]
    assert store.multi_get([]) == [] and store.check([]) and store.wait([]) is None
    assert store.check([mine + "x", mine + "y"]) and not store.check([mine + "x", mine + "none"])
    assert store.check(mine + "x") and not store.check(mine + "none")
    assert store.keys(mine) == sorted(mine + key for key in ("a", "b", "list", "x", "y", "empty"))
    assert store.num_keys(mine) == 6 and store.num_keys() >= 6
    store.wait([mine + "x", mine + "y"], 1)
    raises(ic.Timeout, lambda: store.wait([mine + "x", mine + "none"], 0.2), "none")
    raises(ic.Timeout, lambda: store.multi_get([mine + "none"], 0), "none")
    raises(ic.InvalidArgument, lambda: store.add(mine + "list"))
    raises(ic.Timeout, lambda: store.multi_get((key for key in [mine + "none"]), 0.1), "none")
    assert store.multi_get(mine + key for key in "xy") == [b"1", b"\0\0"]
    raises(ValueError, lambda: store.get("nul\0"), "NUL")
    for call in (lambda: store.set(mine + "x", 3), lambda: store.append(mine + "x", [1, 2]), lambda: store.push("q", None),
                 lambda: store.multi_set({mine + "x": 1.0}), lambda: store.compare_set(mine + "x", "1", 2)):
        raises(TypeError, call, "bytes or a str")
    assert store.get(mine + "x") == b"1"
    raises(TypeError, lambda: store.get(b"bytes"), "bytes")
    raises(ValueError, lambda: store.get("x", -1), "-1")
    queue = f"queue/{r}"
    assert store.queue_length(queue) == 0
    assert [store.push(queue, str(i)) for i in range(3)] == [1, 2, 3] and store.queue_length(queue) == 3
    assert [store.pop(queue) for _ in range(3)] == [b"0", b"1", b"2"]
    raises(ic.Timeout, lambda: store.pop(queue, 0.2), queue)
    # Each pushed item is popped once.
    for i in range(10):
        store.push("shared", f"{r} {i}")
    popped = [store.pop("shared", SOON) for _ in range(10)]
    everything = sorted(sum(ic.all_gather_object(popped), []))
    assert everything == sorted(f"{rank} {i}".encode() for rank in range(n) for i in range(10))
    for key in store.keys(mine):
        assert store.delete(key)
    assert store.num_keys(mine) == 0


def keys_beyond_utf8(r, n):
    """Other clients of the store may set keys that are not UTF-8. They are listed and watched with surrogates."""
    store, mine = ic.store(), f"bytes/{r}/"
    other = mine + os.fsdecode(b"\xff")
    with store.watch(other) as changes:
        store.multi_set({mine + "a": "1", other: "2"})
        assert changes.next(SOON) == ("set", other, b"2")
        raises(ic.Timeout, lambda: changes.next(0.1), ascii(other)[1:-1])
    assert store.keys(mine) == [mine + "a", other] and store.get(other) == b"2" and store.num_keys(other) == 1
    assert store.delete(other) and store.keys(mine) == [mine + "a"]


def store_watches(r, n):
    store = ic.store()
    mine = f"watched/{r}/"
    with store.watch(mine) as changes:
        raises(ic.Timeout, lambda: changes.next(0.1), mine)
        store.set(f"elsewhere/{r}", "x")
        store.set(mine + "a", b"\0")
        store.multi_set({mine + "b": "", mine + "c": "3"})
        store.delete(mine + "a")
        store.delete(mine + "a")
        store.add(mine + "n", 2)
        store.append(mine + "c", "4")
        store.compare_set(mine + "c", "34", "5")
        told = [changes.next(SOON) for _ in range(7)]
        assert told == [("set", mine + "a", b"\0"), ("set", mine + "b", b""), ("set", mine + "c", b"3"),
                        ("deleted", mine + "a", None), ("set", mine + "n", b"2"), ("set", mine + "c", b"34"),
                        ("set", mine + "c", b"5")], told
        raises(ic.Timeout, lambda: changes.next(0), mine)
        # A thread that waits without a timeout ends with the watch.
        iterated = []
        thread = threading.Thread(target=lambda: iterated.extend(changes))
        thread.start()
        store.set(mine + "d", "last")
        while not iterated:
            time.sleep(0.001)
        changes.close()
        thread.join(SOON)
        assert not thread.is_alive() and iterated == [("set", mine + "d", b"last")]
    raises(ValueError, changes.next, "closed")
    changes.close()
    raises(ValueError, lambda: store.watch("nul\0"), "NUL")
    # The changes of one rank reach all others in order.
    with store.watch("all/") as changes:
        ic.barrier()
        if r == 0:
            for i in range(1000):
                store.set("all/same", str(i))
        assert [changes.next(SOON).value for _ in range(1000)] == [str(i).encode() for i in range(1000)]
    del changes
    gc.collect()
    unread = store.watch("unread/")
    for i in range(100):
        store.set("unread/x", "y" * 1000)
    del unread
    gc.collect()


def store_meetings(r, n):
    store = ic.store()
    assert [store.barrier("rounds", timeout=SOON) for _ in range(3)] == [1, 2, 3]
    assert store.barrier(f"of one/{r}", 1, 0) == 1
    raises(ic.Timeout, lambda: store.barrier(f"nobody else/{r}", 2, 1, timeout=0.3), "nobody else")
    raises(ValueError, lambda: store.barrier("x", 2, 2), "member 2")
    # A member that timed out does not count as arrived.
    thread = threading.Thread(target=store.barrier, args=(f"nobody else/{r}", 2, 0), kwargs={"timeout": SOON})
    thread.start()
    while "nobody else" not in store.why():
        time.sleep(0.001)
    assert store.barrier(f"nobody else/{r}", 2, 1, timeout=SOON) == 1
    thread.join(SOON)
    ic.barrier()


def exclusive_scans(r, n):
    for dtype in ("int8", "uint64", "float16", "float32", "complex128", "bool"):
        for count in (0, 1, 70_000):
            x = np.full(count, r + 1).astype(dtype)
            before = [np.full(count, i + 1).astype(dtype) for i in range(r)]
            expected = sum(before[1:], before[0]) if before else np.zeros(count, dtype)
            out = np.empty_like(x)
            for got in (ic.exscan(x), ic.exscan(x, out=out), ic.exscan(x, async_op=True).wait(), ic.exscan_(x.copy())):
                assert got.dtype == x.dtype and np.array_equal(got, expected), (dtype, count, got, expected)
    least, greatest = ic.exscan(np.full(3, r, "int16"), "min"), ic.exscan(np.full(3, float(r)), "max")
    assert least[0] == (0 if r else 32767) and greatest[0] == (r - 1 if r else -np.inf)
    assert ic.exscan(np.full(3, 2.0), "product")[0] == 2.0 ** r
    assert ic.exscan(np.full(3, float(r)), "mean")[0] == (sum(range(r)) / r if r else 0)


def main():
    warnings.simplefilter("error", RuntimeWarning)
    ic.init()
    r, n = ic.rank(), ic.world_size()
    for part in (callbacks, awaited, first_and_all, without_end, batches, exclusive_scans, store_operations, keys_beyond_utf8,
                 store_watches, store_meetings, groups_that_end, monitored):
        started = time.monotonic()
        part(r, n)
        if os.environ.get("SHOW_TIMES") and r == 0:
            print(part.__name__, round(time.monotonic() - started, 2), flush=True)
    leave("left")
    ic.finalize()
    print("all equal")


if __name__ == "__main__":
    main()
