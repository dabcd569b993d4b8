"""comm_threads.py SCENARIO: threads that change the arguments of calls. Each rank prints "went on" at the end.

Runs under any CPython, free-threaded ones too, and with a library that is built with AddressSanitizer.
"""

import array
import contextlib
import gc
import os
import random
import signal
import sys
import threading
import time

import numpy as np

import ivycomm as ic
from ivycomm import calls, groups

ROUNDS = int(os.environ.get("ROUNDS") or 30)


def prepare():
    """Makes a call on the slow path, after which the extension knows NumPy."""
    ic.all_reduce(np.ones(1), timeout=60.0)


class Threads:
    """Runs functions on threads, each repeatedly until the block ends, and raises an exception of any of them."""

    def __init__(self, *functions):
        self.errors, self.is_over = [], threading.Event()
        self.threads = [threading.Thread(target=self._repeat, args=(function,)) for function in functions]

    def _repeat(self, function):
        try:
            while not self.is_over.is_set():
                function()
        except BaseException as error:  # noqa: BLE001 - raised by __exit__.
            self.errors.append(error)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, kind, *_):
        self.is_over.set()
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive(), "a thread hangs"
        if self.errors and kind is None:
            raise self.errors[0]


def together(*functions):
    """Runs each function once, on separate threads at the same time."""
    errors, start = [], threading.Barrier(len(functions))

    def run(function):
        start.wait()
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - raised below.
            errors.append(error)

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


def frameworks():
    yield lambda size, value=1.0: np.full(size, value)
    with contextlib.suppress(ImportError):
        import torch
        yield lambda size, value=1.0: torch.full((size,), value)


@contextlib.contextmanager
def once_inside(act):
    """Calls act() on another thread as soon as this one is inside a call of the extension."""
    def watch():
        deadline = time.monotonic() + 60
        while not calls.inside() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.02)
        act()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        thread.join(90)
        assert not thread.is_alive(), "a thread hangs"


# ---- lists and dicts -----------------------------------------------------------------------------

def changed_lists(r, n):
    """Two threads replace the arrays of a list and a dict with equal ones and reorder them during calls on them."""
    prepare()
    for make in frameworks():
        ic.all_reduce_(make(3))
        parts = [make(20_000) for _ in range(8)]
        tree = {"weights": parts, "bias": make(5)}
        split = [3] * n
        numbers = [1.0, 2.0]

        def change():
            parts[:] = [make(20_000) for _ in range(8)]
            tree["bias"] = make(5)
            split[:] = [3] * n
            numbers[:] = [1.0, 2.0]

        def reorder():
            parts.reverse()
            parts[random.randrange(8)] = make(20_000)
            split.reverse()

        with Threads(change, reorder):
            for _ in range(ROUNDS):
                for call in ic.all_reduce_coalesced, ic.all_reduce_coalesced_, ic.all_reduce:
                    for timeout in None, 60.0:
                        done = call(parts, "max", timeout=timeout)
                        assert len(done) == 8 and all(float(part[-1]) == 1 for part in done), done
                done = ic.broadcast(tree)
                assert len(done["weights"]) == 8 and float(done["bias"][-1]) == 1
                done = ic.all_reduce_coalesced(parts, "max", async_op=True).wait()
                assert all(float(part[-1]) == 1 for part in done), done
                assert float(ic.all_to_all(make(3 * n), split)[-1]) == 1
                gathered = ic.all_gather(numbers)
                assert gathered.tolist() == [1.0, 2.0] * n, gathered
                objects = ic.all_gather_object(parts)
                assert len(objects) == n and all(len(each) == 8 for each in objects)


def emptied_lists(r, n):
    """The last references to the arrays of a call are dropped while it waits for the other rank."""
    prepare()
    for make in frameworks():
        ic.all_reduce_(make(3))
        for number, (call, timeout) in enumerate((call, timeout)
                                                 for call in (ic.all_reduce_coalesced, ic.all_reduce_coalesced_)
                                                 for timeout in (None, 60.0)):
            key = f"emptied {make(1)!r} {number}"
            parts = [make(1_000_000) for _ in range(4)]  # Large enough that their memory is unmapped when freed.

            def empty():
                parts.clear()
                gc.collect()
                ic.store().set(key, "yes")

            with once_inside(empty) if r == 0 else contextlib.nullcontext():
                if r:
                    ic.store().get(key, timeout=90)
                done = call(parts, timeout=timeout)
            assert len(done) == 4 and all(float(part[-1]) == n for part in done)


# ---- memory --------------------------------------------------------------------------------------

def resizable():
    """Yields (memory, function that resizes it, array over it for a call)."""
    for view in lambda memory: memory, lambda memory: np.frombuffer(memory, np.uint8):
        memory = bytearray(1000)
        yield memory, lambda memory=memory: memory.extend(b"more"), view
    numbers = array.array("d", [1.0] * 1000)
    yield numbers, lambda: numbers.append(1.0), lambda memory: np.frombuffer(memory, np.float64)
    own = np.ones(1000)
    yield own, lambda: own.resize(3), lambda memory: memory


def resized_arrays(r, n):
    """The memory of a call cannot be resized while the call waits, but after its end."""
    prepare()
    ways = {"short": lambda x: ic.all_reduce_(x), "long": lambda x: ic.all_reduce_(x, timeout=60.0)}
    for way, call in ways.items():
        for number, (memory, resize, view) in enumerate(resizable()):
            key, refused = f"resized {way} {number}", []

            def resize_early():
                try:
                    resize()
                except (BufferError, ValueError) as error:
                    refused.append(error)
                ic.store().set(key, "on")

            with once_inside(resize_early) if r == 0 else contextlib.nullcontext():
                if r:
                    ic.store().get(key, timeout=90)
                call(view(memory))
            assert refused or r, key
            work = ic.all_reduce_(view(memory), "max", async_op=True)
            if r == 0:
                resize_early()
                assert len(refused) == 2, key
            work.wait()
            del work
            assert memory[-1] in (0, n), memory[-1]
            if not isinstance(memory, np.ndarray):  # Its resize() counts this function's references too.
                resize()


def resized_between_calls(r, n):
    """Another thread gives an array new memory between calls on it. The calls must not use the old memory."""
    prepare()
    lock, x, sizes = threading.Lock(), np.ones(1), random.Random(r)

    def resize():
        with lock:
            x.resize(sizes.randrange(1, 200_000), refcheck=False)
            x.resize(0, refcheck=False)
            x.resize(70_000, refcheck=False)
            x[:] = 1

    with Threads(resize, resize):
        for _ in range(ROUNDS * 4):
            with lock:
                if x.size != 70_000:
                    x.resize(70_000, refcheck=False)
                    x[:] = 1
                done = ic.all_reduce(x)
                ic.all_reduce_(x, "max")
                assert done[-1] == n and x[-1] == 1, (done, x)


def replaced_tensors(r, n):
    """Another thread gives a tensor new memory. Operations that still use the old memory keep it alive."""
    import torch

    prepare()
    ic.all_reduce_(torch.ones(3))
    lock, x = threading.Lock(), torch.ones(70_000)

    def replace():
        with lock:
            x.data = torch.ones(70_000)
            x.set_(torch.ones(70_000).untyped_storage())

    with Threads(replace, replace):
        for _ in range(ROUNDS * 4):
            with lock:
                assert float(ic.all_reduce(x)[-1]) == n
                ic.all_reduce_(x, "max")
                assert float(x[-1]) == 1
    for number in range(2):
        former, key = torch.ones(1_000_000), f"replaced {number}"
        x = former.view(-1)

        def replace_late():
            x.data = torch.zeros(3)
            ic.store().set(key, "on")

        with once_inside(replace_late) if r == 0 else contextlib.nullcontext():
            if r:
                ic.store().get(key, timeout=90)
            ic.all_reduce_(x, timeout=None if number else 60.0)
        assert float(former[-1]) == n


# ---- groups --------------------------------------------------------------------------------------

def several_groups(r, n):
    """Each of four threads uses a separate group in all ways to call, while other groups are created and freed."""
    prepare()
    groups = [ic.new_group(range(n)) for _ in range(4)]

    def work(number):
        group, dice = groups[number], random.Random(number)
        for round_ in range(ROUNDS * 4):
            size = dice.randrange(70_000)
            x = np.full(size + 1, float(r + round_))
            total = sum(rank + round_ for rank in range(n))
            assert ic.all_reduce(x, group=group)[-1] == total
            assert ic.all_reduce(x, group=group, timeout=60.0)[-1] == total
            work_ = ic.all_reduce(x, group=group, async_op=True)
            if round_ % 3:
                assert work_.wait()[-1] == total
            del work_
            assert ic.all_gather(x, group=group)[-1] == n - 1 + round_
            assert ic.broadcast_(x.copy(), n - 1, group=group)[-1] == n - 1 + round_
            sending = ic.isend(x, (r + 1) % n, number, group=group)
            assert ic.recv(x, (r - 1) % n, number, group=group)[-1] == (r - 1) % n + round_
            sending.wait()
            ic.barrier(group=group)

    def come_and_go():
        for _ in range(ROUNDS):
            group = ic.new_group(range(n))
            ic.barrier(group=group)
            if random.random() < 0.5:
                group.free()
            del group

    together(come_and_go, *[lambda number=number: work(number) for number in range(4)])


def freed_groups(r, n):
    """Several threads free groups while others are inside calls on them, start calls, or abort them."""
    prepare()
    x = np.ones(4)
    for number in range(ROUNDS):
        group = [ic.new_group([rank]) for rank in range(n)][r]
        is_free = threading.Event()

        def call(timeout=None):
            with contextlib.suppress(ic.IvyError):  # Only Aborted or NotInitialized.
                while True:
                    ic.all_reduce(x, group=group, timeout=timeout)
            is_free.wait(30)
            try:
                ic.all_reduce(x, group=group, timeout=timeout)
                raise AssertionError("a freed group works")
            except ic.NotInitialized as error:
                assert "freed" in str(error), error

        def start():
            with contextlib.suppress(ic.IvyError):
                while True:
                    ic.all_reduce(x, group=group, async_op=True)
                    time.sleep(0.0002)  # Works that are not waited for would accumulate on a busy machine.

        def free():
            time.sleep(0.0003 * (number % 8))
            group.free()
            if not groups.is_open(group):
                is_free.set()

        def abort():
            time.sleep(0.0003 * (number % 5))
            with contextlib.suppress(ic.IvyError):
                group.abort("the drill")

        def divide():
            with contextlib.suppress(ic.IvyError):
                while True:
                    ic.new_group([0], group=group)

        together(call, lambda: call(60.0), start, free, free, *([abort] if number % 2 else []),
                 *([divide] if number % 3 else []))
    ic.barrier()


def dropped_groups(r, n):
    """The last references to groups and Works are dropped on other threads than those that use them."""
    prepare()
    x = np.ones(1000)
    kept = []

    def drop():
        while kept:
            with contextlib.suppress(IndexError):
                kept.pop()
        gc.collect()
        time.sleep(0.002)

    with Threads(drop, drop):
        for _ in range(ROUNDS * 2):
            group = ic.new_group(range(n))
            kept.append(group)
            kept.extend(ic.all_reduce(x, group=group, async_op=True) for _ in range(5))
            assert ic.all_reduce(x, group=group)[-1] == n
            del group
    ic.barrier()


def waits_for_one_work(r, n):
    """Several threads wait for one Work, test it, and add callbacks to it."""
    prepare()
    for number in range(ROUNDS):
        work, told = ic.all_reduce(np.full(5000, 1.0), async_op=True), []

        def wait():
            assert work.wait()[-1] == n

        def test():
            while not work.test():
                pass
            assert work.exception() is None

        def add():
            work.add_done_callback(told.append)

        together(wait, wait, test, test, add, add, lambda: ic.wait_any([work]), lambda: work.future().result(30))
        deadline = time.monotonic() + 30
        while len(told) < 2 and time.monotonic() < deadline:
            time.sleep(0.001)
        assert told == [work, work], told


# ---- signals -------------------------------------------------------------------------------------

class Handled(Exception):
    pass


def raising_handlers(r, n):
    """Handlers raise in the main thread's waits while other threads change its lists and make calls on other groups."""
    prepare()
    others = [ic.new_group(range(n)) for _ in range(2)]
    control = ic.new_group(range(n))
    dice = random.Random(r)
    may_raise = [False]

    def handler(*_):
        if may_raise[0]:
            may_raise[0] = False
            raise Handled

    signal.signal(signal.SIGUSR1, handler)
    parts = [np.ones(5000) for _ in range(4)]

    def change():
        parts[:] = [np.ones(5000) for _ in range(4)]
        time.sleep(0.0001)

    def work(number):
        for _ in range(ROUNDS * 20):
            assert ic.all_reduce_coalesced(parts, "max", group=others[number])[-1][-1] == 1

    ways = (lambda group: ic.all_reduce(np.ones(100), group=group),
            lambda group: ic.all_reduce_coalesced(parts, group=group),
            lambda group: ic.all_reduce(np.ones(100), group=group, timeout=60.0),
            lambda group: ic.all_reduce(np.ones(100), group=group, async_op=True).wait(),
            lambda group: ic.barrier(group=group))
    workers = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    with Threads(change):
        for worker in workers:
            worker.start()
        for number in range(ROUNDS):
            guards, call = [], ways[number % len(ways)]
            try:
                with ic.new_group(range(n), group=control) as group:
                    if r == number % n:
                        may_raise[0] = True
                        threading.Timer(dice.uniform(0.001, 0.05), os.kill, (os.getpid(), signal.SIGUSR1)).start()
                    while True:
                        call(group)
                        guards = [np.full(100, 7.0) for _ in range(5)]
            except Handled:
                assert r == number % n
            except ic.Aborted:
                assert r != number % n
            time.sleep(0.005)
            assert all((guard == 7.0).all() for guard in guards)
        for worker in workers:
            worker.join(120)
            assert not worker.is_alive()
    ic.barrier()


# ---- the end of the world and the process --------------------------------------------------------

def ended_worlds(r, n):
    """The world ends while threads start calls, which finish or raise that there is no world."""
    prepare()
    x = np.ones(10)
    for _ in range(ROUNDS):
        own = [ic.new_group([rank]) for rank in range(n)][r]

        def call(timeout):
            try:
                while True:
                    ic.all_reduce(x, group=own, timeout=timeout)
                    time.sleep(0.0002)  # finalize() fails while a thread is inside a call.
            except (ic.NotInitialized, ic.Aborted):
                pass

        threads = [threading.Thread(target=call, args=(timeout,)) for timeout in (None, None, 60.0)]
        for thread in threads:
            thread.start()
        time.sleep(0.01)
        while ic.is_initialized():
            with contextlib.suppress(ic.FailedPrecondition, ic.IvyError):
                ic.finalize()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        ic.init()


def pending_at_exit(r, n):
    """The process exits with Works that will never complete and with threads inside calls."""
    prepare()
    group = ic.new_group(range(n))
    pending = [ic.irecv(np.ones(100), src=(r + 1) % n, tag=9) for _ in range(3)]
    if r == 0:
        pending.append(ic.all_reduce(np.ones(5000), group=group, async_op=True))
        pending[-1].add_done_callback(lambda work: None)
    for timeout in None, 60.0:
        threading.Thread(target=lambda: ic.recv(np.ones(3), src=(r + 1) % n, tag=8, timeout=timeout), daemon=True).start()
    threading.Thread(target=lambda: pending[0].wait(), daemon=True).start()
    ic.barrier()
    time.sleep(0.2)
    print("went on", flush=True)
    sys.exit(0)


if __name__ == "__main__":
    ic.init()
    if os.environ.get("FREE_THREADED"):
        assert not sys._is_gil_enabled(), "the interpreter's lock is on"
    globals()[sys.argv[1]](ic.rank(), ic.world_size())
    print("went on", flush=True)
    ic.finalize()
