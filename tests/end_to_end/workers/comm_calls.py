"""comm_calls.py SCENARIO: calls by the extension's fast path, also interrupted by signal handlers. Each rank prints "went on"
at the end."""

import array
import ctypes
import os
import random
import signal
import sys
import threading
import time

import numpy as np

import ivycomm as ic
from ivycomm import calls
from ivycomm.element_types import DTYPES
from ivycomm.library import IN_PLACE

TYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64",
         "bool", "complex64", "complex128")
SHAPES = ((), (0,), (1,), (6,), (6, 5), (2, 3, 4))


def same(one, other):
    assert one.dtype == other.dtype and one.shape == other.shape, (one.dtype, one.shape, other.dtype, other.shape)
    assert type(one) is type(other) and np.array_equal(one, other), (one, other)


def prepare():
    """Makes a call on the slow path, after which the extension knows NumPy."""
    ic.all_reduce(np.ones(1), timeout=60.0)


def same_results(r, n):
    """The fast path and the slow path, which a timeout selects, give the same results."""
    prepare()
    for dtype in TYPES:
        for shape in SHAPES:
            x = ((np.arange(np.prod(shape, dtype=int)) + r) % 2).astype(dtype).reshape(shape)
            op = "max" if not dtype.startswith("complex") else "sum"
            same(ic.all_reduce(x, op), ic.all_reduce(x, op, timeout=60.0))
            same(ic.all_gather(x), ic.all_gather(x, timeout=60.0))
            one, other, into = x.copy(), x.copy(), np.empty_like(x)
            assert ic.all_reduce_(one, op) is one and ic.all_reduce(x, op, out=into) is into
            same(one, ic.all_reduce_(other, op, timeout=60.0))
            same(into, one)
            mine = x.copy()
            assert ic.broadcast_(mine, n - 1) is mine
            same(mine, ic.broadcast(x, n - 1))
            if x.ndim and x.shape[0] % n == 0:
                same(ic.reduce_scatter(x, op), ic.reduce_scatter(x, op, timeout=60.0))
            same_moves(x, op, n)
            same_messages(x, r, n)
            done = calls.extension.all_reduce_(x, op, None, False, None, 1.0)
            assert done is x, (dtype, shape, done)
    parts = [np.full(size, float(r + size)) for size in (3, 0, 200_000, 1, 70)]
    for done, expected in zip(ic.all_reduce_coalesced(parts), [ic.all_reduce(part) for part in parts]):
        same(done, expected)
    mixed = [np.ones(2), np.ones(2, "f4")]
    try:
        ic.all_reduce_coalesced(mixed)
        raise AssertionError("parts of two types are one operation")
    except TypeError:
        pass
    tree = {"weights": parts, "step": np.int64(1), "bias": np.ones((2, 2), "f4")}
    done = ic.all_reduce(tree, "max")
    same(done["weights"][3], np.array([float(n)]))
    same(done["bias"], tree["bias"])
    copies = [part.copy() for part in parts]
    assert all(one is other for one, other in zip(ic.all_reduce_coalesced_(copies, ic.ReduceOp.MAX), copies))
    for one, other in zip(copies, done["weights"]):
        same(one, other)
    same(ic.all_reduce(x, "mean", ic.world()), ic.all_reduce(x, "mean"))


def same_moves(x, op, n):
    """The less common collectives on the fast path and the slow path."""
    same(ic.broadcast(x, n - 1), ic.broadcast(x, n - 1, timeout=60.0))
    for one, other in ((ic.reduce(x, n - 1, op), ic.reduce(x, n - 1, op, timeout=60.0)),
                       (ic.gather(x, n - 1), ic.gather(x, n - 1, timeout=60.0))):
        assert (one is None) == (other is None) == (ic.rank() != n - 1)
        if one is not None:
            same(one, other)
    same(ic.scan(x, op), ic.scan(x, op, timeout=60.0))
    same(ic.exscan(x, op), ic.exscan(x, op, timeout=60.0))
    for in_place in (ic.scan_, ic.exscan_, lambda y, op, timeout=None: ic.reduce_(y, n - 1, op, timeout=timeout)):
        one, other = x.copy(), x.copy()
        assert in_place(one, op) is one
        same(one, in_place(other, op, timeout=60.0))
    if x.ndim and x.shape[0] % n == 0:
        same(ic.all_to_all(x), ic.all_to_all(x, timeout=60.0))
        for in_place in (ic.all_to_all_, ic.all_gather_):
            one, other = x.copy(), x.copy()
            assert in_place(one) is one
            same(one, in_place(other, timeout=60.0))
    assert calls.extension.scan(x, op, None, None, False, None, 1.0) is not NotImplemented
    assert calls.extension.gather(x, 0, 0, False, None, None, False, None) is not NotImplemented


def same_messages(x, r, n):
    after, before = (r + 1) % n, (r - 1) % n
    for timeout in (None, 60.0):
        ic.send(x, after, 3, timeout=timeout)
        one = np.empty_like(x)
        assert ic.recv_(one, before, 3, timeout=timeout) is one
        ic.send(one, before, timeout=timeout)
        same(ic.recv(x, None if n == 2 else after, timeout=timeout), x)
    assert calls.extension.send(x, after, 4, None, False, None) is None
    assert calls.extension.recv(x, before, 4, None, None, None, False) is not NotImplemented


def tensors(r, n):
    """torch tensors, some of which need the slow path."""
    import torch

    ic.all_reduce(torch.ones(1), timeout=60.0)
    for name in ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64", "bool"):
        x = ((torch.arange(12) + r) % 2).to(getattr(torch, name)).reshape(3, 4)
        expected = torch.ones(3, 4, dtype=x.dtype)
        assert torch.equal(ic.all_reduce(x, "max"), expected)
        version = x._version
        assert ic.all_reduce_(x, "max") is x and torch.equal(x, expected) and x._version > version
        same_tensors(x, n)
        x.fill_(r)
        assert ic.broadcast_(x, n - 1) is x and torch.equal(x, torch.full_like(x, n - 1))
        assert calls.extension.all_reduce_(x, "max", None, False, None, 1.0) is x, name
    assert ic.all_reduce(torch.ones(3, requires_grad=True)).requires_grad
    assert torch.equal(ic.all_reduce(torch.ones(3, 4).T), torch.full((4, 3), float(n)))
    lazy = torch.tensor([1 + 2j]).conj()
    assert torch.equal(ic.all_reduce(lazy), n * torch.tensor([1 - 2j]))
    assert lazy.imag.is_neg() and torch.equal(ic.all_reduce(lazy.imag), torch.tensor([-2.0 * n]))
    with torch.inference_mode():
        inferred = torch.ones(3)
    try:
        ic.all_reduce_(inferred)
        raise AssertionError("an inference tensor was written into")
    except ValueError:
        pass


def same_tensors(x, n):
    import torch
    for one, other in ((ic.scan(x, "max"), ic.scan(x, "max", timeout=60.0)),
                       (ic.exscan(x, "max"), ic.exscan(x, "max", timeout=60.0)),
                       (ic.reduce(x, 0, "max"), ic.reduce(x, 0, "max", timeout=60.0)),
                       (ic.broadcast(x, n - 1), ic.broadcast(x, n - 1, timeout=60.0)),
                       (ic.gather(x), ic.gather(x, timeout=60.0)),
                       (ic.all_gather(x), ic.all_gather(x, timeout=60.0)),
                       (ic.all_gather(x[0, 0].clone()), ic.all_gather(x[0, 0].clone(), timeout=60.0)),
                       (ic.reduce_scatter(x.repeat(n, 1), "max"), ic.reduce_scatter(x.repeat(n, 1), "max", timeout=60.0)),
                       (ic.all_gather_(x.repeat(n, 1)), ic.all_gather_(x.repeat(n, 1), timeout=60.0)),
                       (ic.all_to_all_(x.repeat(n, 1)), ic.all_to_all_(x.repeat(n, 1), timeout=60.0)),
                       (ic.all_to_all(x.repeat(n, 1)), ic.all_to_all(x.repeat(n, 1), timeout=60.0))):
        assert one is other is None or (one.shape == other.shape and torch.equal(one, other))
    whole = x.repeat(n, 1)
    version = whole._version
    ic.all_gather_(whole)
    assert whole._version > version
    taken = (calls.extension.all_gather(x, 0, False, None, None, False, None),
             calls.extension.reduce_scatter(whole, "max", None, None, None, False, None, 1.0),
             calls.extension.all_to_all(whole, None, None, None, None, False, None))
    assert all(done is not NotImplemented for done in taken)
    one = x.clone()
    version = one._version
    ic.send(x, ic.rank())
    assert ic.recv_(one, ic.rank()) is one and torch.equal(one, x) and one._version > version
    ic.send(x, ic.rank())
    assert torch.equal(ic.recv(x, ic.rank()), x)
    assert ic.scan_(one, "max") is one and torch.equal(one, ic.scan(x, "max")) and one._version > version
    assert ic.reduce_(one, 0, "max") is one


def unusual_arguments(r, n):
    """Unusual arguments take the slow path, which supports them or raises a clear error."""
    prepare()
    x = np.arange(12.0).reshape(3, 4)
    locked = x.copy()
    locked.flags.writeable = False
    for wrong, error in ((lambda: ic.all_reduce_(locked), ValueError), (lambda: ic.all_reduce_(x.T), ValueError),
                         (lambda: ic.all_reduce_(x, "smallest"), ValueError), (lambda: ic.broadcast_(x, n), ValueError),
                         (lambda: ic.broadcast_(x, True + n), ValueError),
                         (lambda: ic.all_reduce(x, out=np.empty(3)), ValueError),
                         (lambda: ic.all_reduce(x, out=np.empty((3, 4), "f4")), ValueError),
                         (lambda: ic.all_reduce(np.ma.array([1.0])), TypeError),
                         (lambda: ic.all_reduce(x, "band"), ic.InvalidArgument),
                         (lambda: ic.all_reduce(x, group=7), TypeError)):
        try:
            wrong()
        except error:
            continue
        raise AssertionError(f"no {error.__name__}")
    same(ic.all_reduce(x.T), x.T * n)
    same(ic.all_reduce(x.astype(">f8")), x * n)
    assert ic.all_reduce(2.5) == 2.5 * n and np.array_equal(ic.all_reduce([1, 2]), [n, 2 * n])
    memory = np.ones(12)
    same(ic.all_reduce(memory[:8], out=memory[4:]), np.full(8, float(n)))
    same(ic.all_reduce(memory, out=memory), memory)
    pair = ic.new_group([0, 1])
    if pair.is_member:
        same(ic.all_reduce(x, group=pair), x * 2)
        ic.barrier(group=pair)
        pair.free()
        try:
            ic.barrier(group=pair)
            raise AssertionError("a freed group works")
        except ic.NotInitialized:
            pass
    else:
        assert ic.all_reduce(x, group=pair) is None and ic.barrier(group=pair) is None
    old = ic.world()
    ic.finalize()
    for group in (None, old):
        try:
            ic.all_reduce_(x, group=group)
            raise AssertionError("a world that has ended works")
        except ic.NotInitialized:
            pass
    ic.init()
    same(ic.all_reduce(x), x * n)


def plain_calls(r, n):
    """Arguments of the C interface, and errors for invalid ones."""
    prepare()
    group, x = ic.world(), np.arange(6.0)
    handle, here = group.handle, x.ctypes.data
    f64, total = DTYPES["float64"][0], 0
    counts = array.array("Q", [6] * n)
    gathered = np.empty(6 * n)

    def call(name, *arguments, timeout_ms=0):
        return getattr(calls.extension, name)(*arguments, timeout_ms)

    assert call("ivy_all_reduce", handle, IN_PLACE, here, 6, f64, total) is None
    same(x, np.arange(6.0) * n)
    x[:] = r
    assert call("ivy_all_gather_v", handle, here, gathered.ctypes.data, counts, None, f64, timeout_ms=9000) is None
    same(gathered, np.repeat(np.arange(float(n)), 6))
    for wrong in (("ivy_barrier",), ("ivy_barrier", handle, 1, 1.0, None, None),
                    ("ivy_broadcast", handle, here, -1, f64, 0), ("ivy_broadcast", handle, here, 6, 2**40, 0),
                    ("ivy_broadcast", handle, 2**80, 6, f64, 0), ("ivy_broadcast", handle, "x", 6, f64, 0),
                    ("ivy_broadcast", handle, ctypes.byref(ctypes.c_int()), 6, f64, 0),
                    ("ivy_broadcast", handle, ctypes.c_double(), 6, f64, 0), ("ivy_broadcast", handle, here, 6.0, f64, 0)):
        try:
            raise AssertionError(f"{wrong}: {call(*wrong)}")
        except (TypeError, ValueError, OverflowError):
            pass
    x[:] = 1
    same(ic.all_reduce(x, timeout=9), np.full(6, float(n)))
    same(ic.all_gather(x[:r + 1], uneven=True, timeout=9), np.ones(n * (n + 1) // 2))
    try:
        ic.broadcast(x, src=0) if r else ic.all_reduce(x, timeout=5)
        raise AssertionError("ranks that differ are not told")
    except ic.Mismatch:
        pass
    ic.finalize()
    ic.init()


def threads(r, n):
    """Each thread waits on a separate group, in a different order on every rank."""
    prepare()
    groups = [ic.new_group(range(n)) for _ in range(3)]
    wrong = []

    def work(number):
        x = np.ones(number + 1)
        for _ in range(200):
            if not np.array_equal(ic.all_reduce(x, group=groups[number]), x * n):
                wrong.append(number)

    workers = [threading.Thread(target=work, args=(number,)) for number in (range(3) if r else reversed(range(3)))]
    for worker in workers:
        worker.start()
    for _ in range(200):
        ic.barrier()
    for worker in workers:
        worker.join()
    assert not wrong, wrong


def send_later(number):
    threading.Timer(0.3, os.kill, (os.getpid(), number)).start()


def handler_runs(r, n):
    """A handler that does not raise runs during the wait for the other ranks, and the operation continues."""
    prepare()
    x, ran = np.ones(3), []

    def handler(*_):
        ran.append(True)
        try:
            ic.barrier()
        except ic.FailedPrecondition as error:
            assert "signal handler" in str(error), error
            ran.append("refused")
        ic.store().set("go", "on")

    signal.signal(signal.SIGUSR1, handler)
    if r == 0:
        send_later(signal.SIGUSR1)
    else:
        ic.store().get("go", timeout=30)  # Only the handler on rank 0 releases the other ranks.
    same(ic.all_reduce(x), x * n)
    assert r != 0 or ran == [True, "refused"], ran


def changed_lists(r, n):
    """A thread replaces the arrays of a list during a call on it. The call holds references to the original arrays."""
    try:
        import torch
        make = (lambda size: np.full(size, 1.0)), (lambda size: torch.ones(size))
    except ImportError:
        make = (lambda size: np.full(size, 1.0)),
    prepare()
    for one in make:
        ic.all_reduce_(one(3))
        for call in ic.all_reduce_coalesced_, ic.all_reduce_coalesced:
            for _ in range(20):
                parts, is_over = [one(20_000) for _ in range(8)], threading.Event()

                def change():
                    while not is_over.is_set():
                        parts[:] = [one(20_000) for _ in range(8)]

                changer = threading.Thread(target=change)
                ic.barrier()
                if r == 0:
                    changer.start()
                try:
                    done = call(list(parts) if r else parts)
                finally:
                    is_over.set()
                    if r == 0:
                        changer.join()
                assert all(float(part[0]) == n for part in done), done


def emptied_list(r, n):
    """While a call waits for the other rank, another thread drops the last references to its tensors."""
    import torch

    prepare()
    ic.all_reduce_(torch.ones(3))
    parts = [torch.ones(4_000_000) for _ in range(8)]  # Large enough that their memory is unmapped when freed.
    if r == 0:
        def empty():
            parts.clear()
            ic.store().set("emptied", "yes")

        threading.Timer(0.3, empty).start()
    else:
        ic.store().get("emptied", timeout=30)
    done = ic.all_reduce_coalesced(parts)
    assert len(done) == 8 and all(float(part[-1]) == n for part in done)


def freed_groups(r, n):
    """Another thread frees a group during a call on it. The call succeeds or reports that the group is freed."""
    prepare()
    x = np.ones(4)
    for number in range(200):
        group = [ic.new_group([rank]) for rank in range(n)][r]
        freer = threading.Timer(0.0005 * (number % 4), group.free)
        freer.start()
        try:
            while True:
                ic.all_reduce_(x, "max", group=group)
        except ic.IvyError as error:
            assert "freed" in str(error), error
        freer.join()
    ic.barrier()


def arrays_without_bytes(r, n):
    """Types with an item size of 0 are rejected, also by the extension."""
    prepare()
    for dtype in [], "V0", "S0", "U0":
        for call in (lambda x: ic.all_reduce(x), lambda x: ic.all_gather(x), lambda x: ic.broadcast_(x),
                     lambda x: ic.all_reduce_coalesced([x, x])):
            try:
                call(np.empty(3, dtype=dtype))
                raise AssertionError(f"{dtype!r} was taken")
            except TypeError:
                pass
    ic.barrier()


def late_interrupts(r, n, moments=range(0, 30, 3)):
    """A second SIGINT arrives while the first one's exception is being raised. Later successful calls must not raise it."""
    prepare()
    for number in moments:
        timers = []
        try:
            if r == 0:
                for delay in 0.01, 0.0101 + 0.0001 * number:
                    timers.append(threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT)))
                    timers[-1].start()
            else:
                ic.store().get(f"go {number}", timeout=30)
            ic.all_reduce(np.ones(4), timeout=60.0)
            raise AssertionError("not interrupted")
        except (KeyboardInterrupt, ic.IvyError):
            pass
        while True:
            try:
                for timer in timers:  # On a busy machine the second signal may be late, or its timer was never started.
                    if timer.ident is not None:
                        timer.join()
                time.sleep(0.05)
                if r == 0:
                    ic.store().set(f"go {number}", "on")
                ic.finalize()
                ic.init()
                break
            except KeyboardInterrupt:
                pass
        for _ in range(20):
            ic.all_reduce(np.ones(4), timeout=60.0)


def late_interrupts_at_every_moment(r, n):
    late_interrupts(r, n, range(30))


def interrupted_calls(r, n):
    """Ctrl-C in waiting calls: on the fast path, on the slow path, after an asynchronous call, and in a send."""
    big = np.ones(1 << 20)
    interrupt_each(r, (lambda: ic.all_reduce_(big), lambda: ic.all_reduce(big, timeout=60.0),
                       lambda: [ic.barrier(async_op=True), ic.barrier()], lambda: ic.send(big, 1)))


def interrupted_barriers(r, n):
    interrupt_each(r, (lambda: ic.barrier(), lambda: ic.barrier(timeout=60.0)))


def interrupt_each(r, waiting):
    prepare()
    for number, call in enumerate(waiting):
        if r == 0:
            send_later(signal.SIGINT)
            try:
                call()
                raise AssertionError(f"call {number} was not interrupted")
            except KeyboardInterrupt:
                ic.store().set(f"go {number}", "on")
        else:
            ic.store().get(f"go {number}", timeout=30)
        try:
            for _ in range(100):
                ic.barrier()
            raise AssertionError(f"the world is whole after call {number}")
        except ic.Aborted as error:
            assert error.rank == 0 and "rank 0 aborted communicator world" in str(error), error
        ic.finalize()
        ic.init()


def drill(r, n):
    """SIGINT at random moments in loops that create and drop arrays. Memory of a dropped array must not be written."""
    prepare()
    dice = random.Random(f"{os.environ.get('IVY_JOB_ID')} {r}")
    for _ in range(12):
        guards = []
        try:
            if r == 0:
                threading.Timer(dice.uniform(0.001, 0.05), os.kill, (os.getpid(), signal.SIGINT)).start()
            while True:
                for size in (1, 100, 5000, 70000):
                    x = np.ones(size)
                    assert ic.all_reduce(x)[-1] == n
                    ic.all_reduce_(x)
                    del x
                    guards = [np.full(size, 7.0) for _ in range(3)]
        except (KeyboardInterrupt, ic.Aborted):
            pass
        time.sleep(0.01)
        assert all((guard == 7.0).all() for guard in guards)
        while True:  # The signal may also arrive here.
            try:
                if ic.is_initialized():
                    if r == 0:
                        ic.abort("the next round")
                    ic.finalize()
                ic.init()
                break
            except (KeyboardInterrupt, ic.Aborted):
                pass


if __name__ == "__main__":
    ic.init()
    globals()[sys.argv[1]](ic.rank(), ic.world_size())
    print("went on", flush=True)
    ic.finalize()
