"""Remote calls. Prints "all equal" at the end. With "dies", rank 1 exits inside a call."""

import importlib.util
import os
import sys
import threading
import time

import ivycomm as ic
from ivycomm import rpc
from ivycomm.rpc import frames


@rpc.register
def add(a, b):
    return a + b


@rpc.register
def same(value):
    return value


@rpc.register
def fail(text):
    raise KeyError(text)


class Stubborn(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} {two}")


@rpc.register
def fail_stubbornly():
    raise Stubborn(1, 2)  # Can be pickled, but not unpickled.


@rpc.register
def sleep(seconds):
    time.sleep(seconds)
    return seconds


@rpc.register
def to_and_fro(depth):
    return rpc.rpc_sync((ic.rank() + 1) % ic.world_size(), "to_and_fro", depth - 1) + 1 if depth else 0


@rpc.register
def end():
    os._exit(3)


def raises(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def check_frames():
    for parts in ([b""], [b"x" * 10, b"y" * 5000], [b"p", b"", b"q"]):
        frame, following = frames.pack(frames.CALL, 7, parts)
        kind, call, found, lengths = frames.unpack(frame)
        assert (kind, call, lengths) == (frames.CALL, 7, [len(part) for part in parts])
        assert (found or following) == parts, parts
        kind, call, found, lengths = frames.unpack(frames.pack_ahead(frames.ANNOUNCED, 9, [b"x" * 5000, *parts]))
        assert (kind, call, found, lengths) == (frames.ANNOUNCED, 9, None, [5000, *(len(part) for part in parts)])
    for garbage in (b"", b"\xff" * 40, frames.pack(frames.CALL, 1, [b"abc"])[0][:-1]):
        raises(ValueError, lambda: frames.unpack(garbage))


def check_arrays(to):
    import numpy as np
    x = np.arange(100_000.0).reshape(100, -1)[::2]
    assert np.array_equal(rpc.rpc_sync(to, "add", x, 1), x + 1)
    y = rpc.rpc_sync(to, add, {"a": [x]}["a"][0], x)
    y[0] = 0  # Results are writable.
    try:
        import torch
    except ImportError:
        return
    for t in (torch.randn(5), torch.randn(1000, 10).to(torch.bfloat16), torch.ones(3, 4).t(), torch.tensor(2), torch.empty(0)):
        got = rpc.rpc_sync(to, "add", t, t)
        assert got.dtype == t.dtype and torch.equal(got, t + t)
    check_tensors(to)


def check_tensors(to):
    """Tensors with more properties than memory and shape. None is copied for its pickle."""
    import torch
    from neurenix.tensor import Tensor
    leaf = torch.randn(1000, requires_grad=True)
    named = torch.ones(3)
    named.mark = "bias"
    complex_ones = torch.ones(4, dtype=torch.complex64) * 1j
    for t in (leaf, (leaf * 2), torch.nn.Parameter(torch.randn(30, 40)), torch.nn.Parameter(torch.ones(2), requires_grad=False),
              Tensor(torch.randn(600, 4)), Tensor([1.5]).requires_grad_(), complex_ones.conj(), complex_ones.conj().imag,
              torch.ones(64, 64)[::2, 1:].requires_grad_(), torch.eye(3).to_sparse(), torch.ones(()), torch.ones(2, 0, 3)):
        got = rpc.rpc_sync(to, "same", t)
        assert type(got) is type(t) and got.dtype == t.dtype and got.shape == t.shape, (got, t)
        assert got.requires_grad == t.requires_grad and got.is_leaf, t
        assert torch.equal(got.to_dense() if got.is_sparse else got, t.to_dense() if t.is_sparse else t), (got, t)
        if t.is_contiguous() and t.numel() > 600:
            parts = frames.dump(t)
            assert len(parts) == 2 and torch.frombuffer(parts[1], dtype=t.dtype).data_ptr() == t.data_ptr(), t
    if hasattr(torch._utils, "_get_obj_state"):
        assert rpc.rpc_sync(to, "same", named).mark == "bias"


def check_errors(to):
    error = raises(KeyError, lambda: rpc.rpc_sync(to, "fail", "lost"))
    assert error.args == ("lost",) and f'"fail" on rank {to}' in str(error.__cause__) and "raise KeyError" in str(error.__cause__)
    assert "Stubborn: 1 2" in str(raises(rpc.RemoteError, lambda: rpc.rpc_sync(to, "fail_stubbornly")))
    assert 'did you mean "add"?' in str(raises(rpc.UnknownFunction, lambda: rpc.rpc_sync(to, "ad", 1, 2)))
    raises(TypeError, lambda: rpc.rpc_sync(to, "add", 1))
    raises(rpc.UnknownFunction, lambda: rpc.rpc_sync(to, raises))
    raises(ValueError, lambda: rpc.rpc_sync(99, "add", 1, 2))
    raises(TypeError, lambda: rpc.rpc_sync(1.5, "add", 1, 2))
    assert rpc.rpc_sync(dst_rank=to, function_name="add", a=1, b=2) == 3
    assert 'did you mean "rank 1"?' in str(raises(ValueError, lambda: rpc.rpc_sync("rank_1", "add", 1, 2)))
    late = rpc.rpc_async(to, "sleep", 2.0, timeout=0.2)
    assert isinstance(raises(rpc.RpcTimeout, late.result), TimeoutError)
    assert late.result(timeout=60) == 2.0
    given_up = rpc.rpc_async(to, "sleep", 0.5)
    assert given_up.cancel() and given_up.cancelled()
    raises(ic.Aborted, given_up.result)


def check_many(to):
    told, done = [], threading.Event()
    future = rpc.rpc_async(to, "add", 1, 2)
    future.add_done_callback(lambda each: (told.append(each.result()), done.set()))
    assert done.wait(60) and told == [3] and future.done() and not future.cancel()
    assert rpc.rpc_sync(to, "to_and_fro", 30) == 30
    futures = [rpc.rpc_async(to, "add", i, ic.rank()) for i in range(int(sys.argv[1]))]
    assert [future.result() for future in futures] == [i + ic.rank() for i in range(int(sys.argv[1]))]


def main():
    check_frames()
    raises(ic.NotInitialized, lambda: rpc.rpc_sync(0, "add", 1, 2))
    ic.init()
    rpc.init_rpc(f"rank {ic.rank()}")
    to = (ic.rank() + 1) % ic.world_size()
    if sys.argv[1] == "dies":
        if ic.rank() == 0:
            error = raises(ic.RankDied, lambda: rpc.rpc_sync(1, "end"))
            print("died:", error.rank, error.exit_code, flush=True)
        time.sleep(60)
    assert rpc.rpc_sync(to, "add", 2, b=3) == 5 and rpc.rpc_sync(f"rank {to}", add, "a", "b") == "ab"
    assert rpc.rpc_sync(ic.rank(), "add", 1, 1) == 2
    check_errors(to)
    check_many(to)
    if importlib.util.find_spec("numpy"):
        check_arrays(to)
    rpc.shutdown()
    raises(ic.NotInitialized, lambda: rpc.rpc_sync(0, "add", 1, 2))
    assert "tensorpipe" in str(raises(ValueError, lambda: rpc.init_rpc(backend="tensorpip")))
    ic.init_rpc("tensorpipe", init_method=None, world_size=-1, rank=-1)
    assert rpc.rpc_sync(to, "add", 1, 2) == 3
    rpc.shutdown()
    print("all equal")


if __name__ == "__main__":
    main()
