"""Errors of remote calls. Prints "all equal" at the end. The argument is the number of MiB that a call returns.

Every rank calls the next one, so each is both caller and callee.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
import time

import ivycomm as ic
import numpy as np
from ivycomm import rpc
from ivycomm.rpc import memory
from ivycomm.rpc.context import RpcContext

from comm_rpc import raises

may_end = threading.Event()
begun, counted = [], []  # Calls of `hang` and `count` on this rank.


@rpc.register
def add(a, b):
    return a + b


@rpc.register
def hang():
    begun.append(None)
    may_end.wait(120)


@rpc.register
def count(*_):
    counted.append(None)


@rpc.register
def let_end():
    may_end.set()


@rpc.register
def leave_by(name):
    raise {"SystemExit": SystemExit(3), "KeyboardInterrupt": KeyboardInterrupt}[name]


@rpc.register
def stop(seconds):
    """Stops this process for so long. A child process continues it."""
    pid = os.getpid()
    if os.fork() == 0:
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)
        os._exit(0)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.1)  # The signal stops the threads one after the other.


@rpc.register
def ones(mebibytes):
    return np.ones(mebibytes << 17)


@rpc.register
def give(mebibytes, value):
    return np.full(mebibytes << 17, value)


@rpc.register
def give_what_cannot_be_pickled():
    return lambda: 1


@rpc.register
def ports():
    """Returns the TCP addresses on which this process listens."""
    own = {os.stat(f"/proc/self/fd/{name}").st_ino for name in os.listdir("/proc/self/fd")
           if os.path.exists(f"/proc/self/fd/{name}")}
    with open("/proc/net/tcp") as file:
        rows = [line.split() for line in file.readlines()[1:]]
    return [(".".join(str(each) for each in reversed(bytes.fromhex(row[1][:8]))), int(row[1][9:], 16))
            for row in rows if row[3] == "0A" and int(row[9]) in own]


def check_hanging(to):
    began = time.monotonic()
    hanging = [rpc.rpc_async(to, "hang", timeout=0.3) for _ in range(3)]
    raises(rpc.RpcTimeout, hanging[0].result)
    assert time.monotonic() - began < 30
    assert rpc.rpc_sync(to, "add", 1, 2) == 3, "others are served meanwhile"
    ic.barrier()
    rpc.rpc_sync(to, "let_end")
    assert [call.result(timeout=60) for call in hanging] == [None] * 3


def wait_until(is_so, what):
    until = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until, what
        time.sleep(0.01)


def check_cancelled(to):
    """All threads are busy, so calls that are cancelled in the queue never start, and nothing about them is kept."""
    ic.barrier()
    may_end.clear()
    begun.clear()
    ic.barrier()
    hanging = [rpc.rpc_async(to, "hang") for _ in range(64)]
    wait_until(lambda: len(begun) == 64, "64 functions run")
    large = np.ones(1 << 18)
    calls = [rpc.rpc_async(to, "count"), *(rpc.rpc_async(to, "count", large) for _ in range(12))]
    assert all(call.cancel() and call.cancel() and call.cancelled() for call in calls)
    assert hanging[0].cancel(), "in vain: it has begun"
    raises(ic.Aborted, calls[0].result)
    time.sleep(0.2)
    ic.barrier()
    may_end.set()
    assert [call.result(timeout=60) for call in hanging[1:]] == [None] * 63
    for call in calls:
        call.settle(60)
    hanging[0].settle(60)
    assert rpc.rpc_sync(to, "add", 1, 2) == 3
    ic.barrier()
    assert not counted, f"{len(counted)} of {len(calls)} calls began that were given up before"


def check_nothing_is_remembered():
    def is_forgotten():
        rpc.rpc_sync(ic.rank(), "add", 1, 2)  # A rank handles notifications of cancelled calls when it is called.
        return not rpc._service._cancelled

    wait_until(is_forgotten, rpc._service._cancelled)
    ic.barrier()


def check_memory(to):
    """Memory of a large result is reused only when it is no longer referenced, and is freed after a while."""
    if ic.rank() == 0:
        first = rpc.rpc_sync(to, "ones", 8)
        part, place = first[10:20], first.ctypes.data
        del first
        second = rpc.rpc_sync(to, "give", 8, 5.0)
        assert second.ctypes.data != place and (part == 1).all() and (second == 5).all()
        del part
        third = rpc.rpc_sync(to, "give", 8, 7.0)
        assert third.ctypes.data == place and (second == 5).all() and (third == 7).all()
        held = [rpc.rpc_sync(to, "give", 4 + each, 1.0) for each in range(6)]
        del second, third, held
        assert len(rpc.rpc_sync(to, "give", 4, 1.0)) == 4 << 17 and len(memory._warm._kept) <= 2
        wait_until(lambda: not memory._warm._kept, "nothing is kept")
    ic.barrier()


def check_stopped(to):
    if ic.rank() == 0:
        late = rpc.rpc_async(to, "stop", 1.0, timeout=0.2)
        raises(rpc.RpcTimeout, late.result)
        assert rpc.rpc_sync(to, "add", 1, 2) == 3 and late.result(timeout=60) is None
    ic.barrier()


def check_large(to, mebibytes):
    calls = [rpc.rpc_async(to, "ones", mebibytes) for _ in range(2)]
    assert rpc.rpc_sync(to, "add", 1, 2) == 3
    for call in calls:
        value = call.result(timeout=600)
        assert value.nbytes == mebibytes << 20 and value[0] == value[-1] == 1 and value.sum() == len(value)
    x = np.arange(float(mebibytes << 15))
    assert rpc.rpc_sync(to, "add", x, x)[-1] == 2 * x[-1]
    call = rpc.rpc_async(to, "ones", mebibytes)
    call.cancel()  # The result still arrives and is dropped.
    assert rpc.rpc_sync(to, "add", 2, 2) == 4


def check_any_order(to, mebibytes):
    """Every rank makes many calls at the same time and reads the last result first. The long run has more results than are
    buffered."""
    count, x = (40, np.ones(1 << 20)) if mebibytes > 100 else (12, np.ones(1 << 18))
    calls = [rpc.rpc_async(to, "add", x, each) for each in range(count)]
    assert rpc.rpc_sync(to, "add", 1, 1) == 2
    for each, call in reversed(list(enumerate(calls))):
        got = call.result(timeout=600)
        assert got[0] == got[-1] == 1 + each, each


def check_threads(to):
    wrong = []

    def call(number):
        got = [rpc.rpc_sync(to, "add", number, each) for each in range(30)]
        if got != [number + each for each in range(30)]:
            wrong.append(got)

    threads = [threading.Thread(target=call, args=(1000 * number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong


def check_bad_input(to):
    # More calls than threads: exceptions that end a program must not end serving threads.
    for name in ["SystemExit", "KeyboardInterrupt"] * 40:
        error = raises(rpc.RemoteError, lambda: rpc.rpc_sync(to, "leave_by", name, timeout=60))
        assert f"builtins.{name}" in str(error), error
    assert "cannot be called" not in str(raises(rpc.UnknownFunction, lambda: rpc.rpc_sync(to, lambda: 1)))
    with_lock = raises(TypeError, lambda: rpc.rpc_sync(to, "add", threading.Lock(), 1))
    assert "pickle" in str(with_lock), with_lock
    lambda_back = raises(Exception, lambda: rpc.rpc_sync(to, "give_what_cannot_be_pickled"))
    assert "pickle" in str(lambda_back), lambda_back
    assert "tensorpipe, gloo" in str(raises(ValueError, lambda: RpcContext(backend="carrier pigeon")))
    raises(ValueError, lambda: rpc.register_function("add", check_threads))
    raises(TypeError, lambda: rpc.register("add"))


def check_signal(to):
    """A handler that raises ends the wait and does not break later calls."""
    def handler(*_):
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGALRM, handler)
    ic.barrier()  # Earlier `let_end` calls have arrived.
    may_end.clear()
    ic.barrier()
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        rpc.rpc_sync(to, "hang")
        raise AssertionError("no interrupt")
    except KeyboardInterrupt:
        pass
    signal.signal(signal.SIGALRM, former)
    ic.barrier()
    rpc.rpc_sync(to, "let_end")
    assert rpc.rpc_sync(to, "add", 3, 4) == 7


def check_strangers(to):
    """A client that knows the ports but not the job's secret is disconnected and does not disturb the ranks."""
    found = rpc.rpc_sync(to, "ports")
    if ic.node_rank() == 0 and "hosts" in sys.argv:
        assert found, "a rank of several hosts listens"
    for address in found:
        for words in (b"", b"\xff" * 4096, b"GET / HTTP/1.0\r\n\r\n", os.urandom(64)):
            with socket.create_connection(address, timeout=30) as stranger:
                with contextlib.suppress(OSError):  # The connection may already be closed.
                    stranger.sendall(words)
                    stranger.shutdown(socket.SHUT_WR)
                assert rpc.rpc_sync(to, "add", 5, 6) == 11
                stranger.settimeout(60)
                with contextlib.suppress(ConnectionResetError):
                    while stranger.recv(4096):
                        pass
    assert rpc.rpc_sync(to, "add", 5, 6) == 11


def main():
    ic.init()
    rpc.init_rpc()
    to = (ic.rank() + 1) % ic.world_size()
    check_bad_input(to)
    check_threads(to)
    check_hanging(to)
    check_cancelled(to)
    check_memory(to)
    check_signal(to)
    check_stopped(to)
    check_strangers(to)
    check_any_order(to, int(sys.argv[1]))
    check_large(to, int(sys.argv[1]))
    check_nothing_is_remembered()
    rpc.shutdown()
    print("all equal")


if __name__ == "__main__":
    main()
