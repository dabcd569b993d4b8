# SPDX-License-Identifier: Apache-2.0
"""gpu_worker.py SCENARIO...: frameworks on one real GPU, which all ranks share. Prints "ok SCENARIO" and figures."""

import os
import re
import sys
import time

if int(os.environ["WORLD_SIZE"]) > 1:
    # Makes NCCL treat the ranks as separate hosts, so that they may share a GPU.
    os.environ["NCCL_HOSTID"] = "rank" + os.environ["RANK"]
    os.environ["NCCL_IB_DISABLE"] = "1"
    os.environ["NCCL_MAX_CTAS"] = "2"

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import ivycomm as ic  # noqa: E402
from ivycomm import calls as ivycomm_calls  # noqa: E402

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
GPU = torch.device("cuda", 0)


def figure(text):
    if RANK == 0:
        print("figure: " + text, flush=True)


def arrays():
    """Every operation on tensors of several types on the GPU, without synchronizing with the host."""
    ic.init()
    total, first = SIZE * (SIZE + 1) / 2, torch.arange(5, device=GPU)
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64):
        x = torch.full((1000,), RANK + 1, device=GPU, dtype=dtype)
        y = ic.all_reduce(x)
        assert y.is_cuda and y.dtype is dtype and bool((y == total).all()), (dtype, y)
        assert ic.all_reduce_(x) is x and bool((x == total).all())
    rows = ic.all_gather(torch.full((2, 3), float(RANK), device=GPU))
    assert rows.shape == (2 * SIZE, 3) and rows[::2, 0].tolist() == list(range(SIZE)), rows
    part = ic.reduce_scatter(torch.ones(4 * SIZE, device=GPU))
    assert part.tolist() == [SIZE] * 4, part
    assert torch.equal(ic.broadcast_(first * (RANK + 1), src=SIZE - 1), first * SIZE)
    swapped = ic.all_to_all(torch.full((SIZE,), float(RANK), device=GPU))
    assert swapped.tolist() == list(range(SIZE)), swapped
    tree = ic.all_reduce({"a": torch.ones(3, device=GPU), "b": [torch.ones(2, 2, device=GPU)]})
    assert tree["a"].tolist() == [SIZE] * 3 and tree["b"][0].is_cuda
    with torch.no_grad():
        staged = ic.all_reduce(torch.full((8,), 1 << RANK, device=GPU, dtype=torch.int32), "bor")
    assert staged.tolist() == [(1 << SIZE) - 1] * 8, staged


def messages():
    """Messages between GPUs with ivycomm and c10d."""
    ic.init()
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    x, y = torch.full((1000,), float(RANK), device=GPU), torch.empty(1000, device=GPU)
    ic.all_reduce_(torch.ones(1, device=GPU))
    got = ic.sendrecv(x, after, src=before)
    assert got.is_cuda and bool((got == before).all()), got
    works = ic.batch_isend_irecv([ic.P2POp(ic.isend, x, after), ic.P2POp(ic.irecv, y, before)])
    for work in works:
        work.wait()
    assert bool((y == before).all()), y
    if SIZE > 1:
        if RANK == 0:
            ic.send(x + 5, 1)
        elif RANK == 1:
            ic.recv_(y, 0)
            assert bool((y == 5).all()), y
    ic.finalize()
    dist.init_process_group("ivy")
    dist.all_reduce(x.clone())
    y.zero_()
    if SIZE > 1:  # One after the other, because torch does not batch messages of a backend written in Python.
        for is_send in (RANK == 0, RANK != 0):
            if is_send:
                dist.send(x, after)
            else:
                dist.recv(y, before)
        assert bool((y == before).all()), y
    dist.destroy_process_group()


def works():
    """Asynchronous operations: the stream waits, the host does not."""
    ic.init()
    a, b = torch.randn(4096, 4096, device=GPU), torch.randn(4096, 4096, device=GPU)
    ic.all_reduce_(torch.ones(1, device=GPU))
    a @ b
    torch.cuda.synchronize()
    began = time.monotonic()
    for _ in range(40):
        c = a @ b
    x = torch.ones(1 << 20, device=GPU)
    work = ic.all_reduce_(x, async_op=True)
    result = work.wait()
    on_stream = time.monotonic() - began
    assert result is x
    x += 1
    torch.cuda.synchronize()
    done = time.monotonic() - began
    assert bool((x == SIZE + 1).all()), x
    assert on_stream < done / 2 or SIZE > 1, (on_stream, done)
    assert work.synchronize() is x and work.test()
    figure(f"wait() of work behind {done * 1e3:.1f} ms of products returned after {on_stream * 1e3:.2f} ms, ranks {SIZE}")
    del c


def graph():
    """A CUDA graph with operations in it, replayed a thousand times."""
    ic.init()
    x = torch.zeros(1000, device=GPU)
    ic.all_reduce_(x)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        ic.all_reduce_(x, "max")
    torch.cuda.synchronize()
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        x += 1
        ic.all_reduce_(x, "max")
        work = ic.all_reduce_(x, "min", async_op=True)
        work.wait()
    began = time.monotonic()
    for _ in range(1000):
        recorded.replay()
    torch.cuda.synchronize()
    assert bool((x == 1000).all()), x[:4]
    figure(f"a torch graph with two operations: {(time.monotonic() - began) * 1e3:.1f} us each time, ranks {SIZE}")


def gradients():
    """Derivatives."""
    ic.init()
    x = torch.full((6,), RANK + 1.0, device=GPU, requires_grad=True)
    (ic.all_reduce(x) ** 2).sum().backward()
    total = SIZE * (SIZE + 1) / 2
    assert torch.allclose(x.grad, torch.full((6,), 2 * total * SIZE, device=GPU)), x.grad


def compiled():
    """An operation in a compiled function."""
    ic.init()
    import ivycomm.torch as ict
    compiled = torch.compile(lambda t: ict.all_reduce(t) * 2, fullgraph=True)
    assert compiled(torch.ones(6, device=GPU)).tolist() == [2 * SIZE] * 6


def _is_refused(group, pattern, x):
    began = time.monotonic()
    try:
        ic.all_reduce_(x, group=group, async_op=True).synchronize()
    except ic.IvyError as error:
        assert re.search(pattern, str(error)), error
        assert time.monotonic() - began < 30, error
        print(f"rank {RANK}: {type(error).__name__} after {time.monotonic() - began:.1f} s: {error}", flush=True)
    else:
        raise AssertionError(f"all_reduce of {x.numel()} elements succeeded")


def mistakes():
    """Mistakes of two ranks are exceptions on both, in time."""
    ic.init(timeout=15)
    groups = [ic.new_group([0, 1]) for _ in range(4)]
    if RANK == 1:
        os.environ["NCCL_NET_PLUGIN"] = "another"
    _is_refused(groups[0], "NCCL_NET_PLUGIN", torch.ones(8, device=GPU))
    os.environ.pop("NCCL_NET_PLUGIN", None)
    ic.all_reduce_(torch.ones(8, device=GPU), group=groups[1])
    _is_refused(groups[1], "differs", torch.ones(1000 if RANK == 0 else 16 << 20, device=GPU))
    _is_refused(groups[2], "differs|device", torch.ones(8, device=GPU if RANK == 0 else "cpu"))
    x = torch.ones(1000, device=GPU)
    ic.all_reduce_(x, group=groups[3])
    torch.cuda.synchronize()
    if RANK == 0:
        recorded = torch.cuda.CUDAGraph()  # The graph is not replayed.
        with torch.cuda.graph(recorded):
            ic.all_reduce_(x, group=groups[3])
        del recorded
    else:
        ic.all_reduce_(x, group=groups[3])
    _is_refused(groups[3], "rank 0 has recorded 1 operation into graphs", torch.ones(2000, device=GPU))
    torch.cuda.synchronize()


def _step_time(backend, steps=30):
    dist.init_process_group(backend)
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[layer for _ in range(8) for layer in (torch.nn.Linear(2048, 2048), torch.nn.ReLU())])
    model = torch.nn.parallel.DistributedDataParallel(model.to(GPU), device_ids=[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data, losses, times = torch.randn(256, 2048, device=GPU), [], []
    for step in range(steps):
        torch.cuda.synchronize()
        began = time.monotonic()
        optimizer.zero_grad()
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        times.append(time.monotonic() - began)
        losses.append(loss.item())
    dist.destroy_process_group()
    return losses, sorted(times[5:])[len(times[5:]) // 2]


def ddp():
    """DDP with backend ivy and with torch's own backend: the losses are the same; prints the time of a step."""
    nccl, by_nccl = _step_time("nccl")
    ivy, by_ivy = _step_time("ivy")
    assert max(abs(a - b) for a, b in zip(nccl, ivy)) < 1e-5, (nccl, ivy)
    figure(f"a step of DDP (8 layers of 2048 x 2048), ranks {SIZE}: ivy {by_ivy * 1e3:.2f} ms, nccl {by_nccl * 1e3:.2f} ms,"
           f" ratio {by_ivy / by_nccl:.3f}")


def c10d():
    """c10d's calls on the GPU with backend ivy."""
    dist.init_process_group("ivy")
    x = torch.full((100,), RANK + 1.0, device=GPU)
    work = dist.all_reduce(x, async_op=True)
    future = work.get_future()
    work.wait()
    assert bool((future.wait()[0] == SIZE * (SIZE + 1) / 2).all())
    out = torch.empty(4 * SIZE, device=GPU)
    dist.all_gather_into_tensor(out, torch.full((4,), float(RANK), device=GPU))
    assert out[::4].tolist() == list(range(SIZE)), out
    part = torch.empty(4, device=GPU)
    dist.reduce_scatter_tensor(part, torch.ones(4 * SIZE, device=GPU), async_op=True).wait()
    assert part.tolist() == [SIZE] * 4
    strided = torch.zeros(4, 6, device=GPU)[:, ::2]
    strided += RANK + 1
    dist.all_reduce(strided)
    assert bool((strided == SIZE * (SIZE + 1) / 2).all()), strided
    dist.broadcast_object_list([RANK], src=0)
    dist.barrier()
    dist.destroy_process_group()


def _each(call, count=300, rounds=7):
    """Returns the microseconds of host time that a call takes."""
    # Ranks that share a GPU get time slices of some milliseconds.
    if SIZE > 1:
        count, rounds = max(1, count // 10), min(rounds, 5)
    call()
    torch.cuda.synchronize()
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(count):
            call()
        times.append((time.perf_counter() - began) / count)
        torch.cuda.synchronize()
    return sorted(times)[rounds // 2] * 1e6


def _all_calls(of, x, y, whole, part):
    """Returns the three collectives of ivycomm or torch by name."""
    if of is ic:
        return {"all_reduce": lambda: ic.all_reduce_(y), "all_gather": lambda: ic.all_gather(x),
                "reduce_scatter": lambda: ic.reduce_scatter(whole)}
    return {"all_reduce": lambda: dist.all_reduce(y), "all_gather": lambda: dist.all_gather_into_tensor(whole, x),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole)}


def _begin(backend, name):
    """Creates a process group with separate keys in the store. The store outlives the group, and torch would read the NCCL id
    of the previous group."""
    store, rank, size = next(dist.rendezvous("env://"))
    dist.init_process_group(backend, store=dist.PrefixStore(name, store), rank=rank, world_size=size)


def sizes():
    """Measures the same calls with several sizes and compares them with torch's own."""
    ic.init()
    figures = {}
    for count, times in ((2, 100), (2048, 100), (2 << 20, 20), (256 << 20, 2)):
        rounds = 3 if times == 2 and SIZE > 1 else 5
        x, y = (torch.ones(count // SIZE, device=GPU), torch.ones(count, device=GPU))
        whole, part = torch.ones(count, device=GPU), torch.ones(count // SIZE, device=GPU)
        for name, call in _all_calls(ic, x, y, whole, part).items():
            figures[name, count] = [_each(call, times, rounds)]
        for backend in ("nccl", "ivy"):
            _begin(backend, f"{backend}{count}")
            for name, call in _all_calls(dist, x, y, whole, part).items():
                figures[name, count].append(_each(call, times, rounds))
            dist.destroy_process_group()
    for (name, count), (ours, nccl, ivy) in figures.items():
        figure(f"{name} of {4 * count} bytes from Python, ranks {SIZE}: ivycomm {ours:.1f} us, torch's nccl {nccl:.1f} us, "
               f"backend ivy {ivy:.1f} us")


def calls():
    """Measures the host time of a call and compares it with torch's own."""
    ic.init()
    dist.init_process_group("nccl")
    x = torch.ones(1024, device=GPU)
    each = _each

    ours, torchs = each(lambda: ic.all_reduce_(x)), each(lambda: dist.all_reduce(x))
    torchs_apart = each(lambda: dist.all_reduce(x, async_op=True).wait())
    assert ivycomm_calls.extension.all_reduce_(x, "sum", None, False, None, 1.0) is x
    dist.destroy_process_group()
    dist.init_process_group("ivy")
    backend, apart = each(lambda: dist.all_reduce(x)), each(lambda: dist.all_reduce(x, async_op=True).wait())
    figure(f"all_reduce of 4 KiB from Python, ranks {SIZE}: ivycomm {ours:.1f} us, torch's nccl {torchs:.1f} us, "
           f"torch's backend ivy {backend:.1f} us; asynchronous: nccl {torchs_apart:.1f} us, ivy {apart:.1f} us")
    dist.destroy_process_group()


class OnlyDlpack:
    """A tensor that only supports DLPack and records the calls."""

    asked = []

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, **options):
        self.asked.append(options)
        return self.tensor.__dlpack__(**options)

    @classmethod
    def from_dlpack(cls, x):
        return cls(torch.from_dlpack(x))


class Nameless(OnlyDlpack):
    """A tensor whose framework cannot import arrays of another framework."""

    from_dlpack = None


def dlpack_arrays():
    """GPU arrays that only support DLPack: values, streams, and released memory."""
    ic.init()
    total = SIZE * (SIZE + 1) / 2
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64):
        y = ic.all_reduce(OnlyDlpack(torch.full((10, 3), RANK + 1, device=GPU, dtype=dtype)))
        assert type(y) is OnlyDlpack and y.tensor.is_cuda and y.tensor.dtype is dtype, (dtype, y)
        assert y.tensor.shape == (10, 3) and bool((y.tensor == total).all()), (dtype, y.tensor)
    assert all(options["stream"] == 1 for options in OnlyDlpack.asked), OnlyDlpack.asked
    late = torch.zeros(1 << 20, device=GPU)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):  # The operation waits for pending work on that stream.
        torch.cuda._sleep(200_000_000)
        late += RANK + 1
        y = ic.all_reduce(OnlyDlpack(late))
        assert bool((y.tensor == total).all()), y.tensor
    rows = ic.all_gather(OnlyDlpack(torch.full((2, 3), float(RANK), device=GPU)))
    assert rows.tensor.shape == (2 * SIZE, 3) and rows.tensor[::2, 0].tolist() == list(range(SIZE)), rows.tensor
    sent = ic.broadcast(OnlyDlpack(torch.arange(4, device=GPU) * (RANK + 1)), src=SIZE - 1)
    assert sent.tensor.tolist() == [0, SIZE, 2 * SIZE, 3 * SIZE], sent.tensor
    work = ic.reduce_scatter(OnlyDlpack(torch.ones(4 * SIZE, device=GPU)), async_op=True)
    assert work.wait().tensor.tolist() == [SIZE] * 4
    ours = ic.all_reduce(Nameless(torch.ones(5, device=GPU)))
    assert torch.from_dlpack(ours).tolist() == [SIZE] * 5 and torch.as_tensor(ours, device=GPU).tolist() == [SIZE] * 5
    out = torch.empty(5, device=GPU)
    assert ic.all_reduce(Nameless(torch.ones(5, device=GPU)), out=out) is out and out.tolist() == [SIZE] * 5
    _dlpack_refusals()
    _dlpack_in_place()
    _dlpack_memory()


def _dlpack_refusals():
    for x, error, words in ((torch.ones(4, 4, device=GPU).t(), ValueError, "not contiguous"),
                            (torch.ones(4, device=GPU, requires_grad=True), (TypeError, RuntimeError), "grad")):
        try:
            ic.all_reduce(OnlyDlpack(x))
        except error as refused:
            assert words in str(refused), refused
        else:
            raise AssertionError(f"{x} was accepted")


def _dlpack_in_place():
    """In-place operations are only allowed if the framework declares the memory writable, as version 1 of DLPack can."""
    x = torch.ones(6, device=GPU)
    try:
        can_say = "versioned" in repr(x.__dlpack__(max_version=(1, 0)))
    except TypeError:
        can_say = False
    shown = OnlyDlpack(x)
    try:
        assert ic.all_reduce_(shown) is shown and x.tolist() == [SIZE] * 6 and can_say, x
    except TypeError as refused:
        assert "is read-only" in str(refused) and not can_say and x.tolist() == [1] * 6, refused


def _dlpack_memory():
    """Inputs are released when the operation is done, results with the last tensor that uses them."""
    before = torch.cuda.memory_allocated()
    kept = [ic.all_reduce(OnlyDlpack(torch.full((1 << 22,), float(index), device=GPU))).tensor for index in range(3)]
    assert torch.cuda.memory_allocated() == before, torch.cuda.memory_summary()
    assert [x[-1].item() for x in kept] == [0, SIZE, 2 * SIZE], kept
    kept.clear()
    ic.all_reduce(OnlyDlpack(torch.ones(1, device=GPU)))
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    for _ in range(8):  # Each array has 64 MiB.
        ic.all_reduce(OnlyDlpack(torch.ones(1 << 24, device=GPU)))
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    if SIZE == 1:  # Otherwise the other ranks also allocate and free memory.
        assert torch.cuda.mem_get_info()[0] > free - (200 << 20), (free, torch.cuda.mem_get_info())


def cupy_arrays():
    import cupy
    ic.init()
    x = cupy.full((100,), RANK + 1, dtype=cupy.float32)
    y = ic.all_reduce(x)
    assert isinstance(y, cupy.ndarray) and float(y[0]) == SIZE * (SIZE + 1) / 2, y
    ic.all_reduce_(x)
    assert float(x[3]) == SIZE * (SIZE + 1) / 2


def cupyx_group():
    """cupyx.distributed with the address that ivyrun sets, without ivycomm."""
    import ctypes
    import glob

    import nvidia.nccl
    # CuPy searches for the library only by its name.
    ctypes.CDLL(glob.glob(os.path.join(next(iter(nvidia.nccl.__path__)), "lib", "libnccl.so.*"))[0], ctypes.RTLD_GLOBAL)
    import cupy
    from cupyx import distributed
    group = distributed.init_process_group(SIZE, RANK)
    x, y = cupy.full((100,), RANK + 1, dtype=cupy.float32), cupy.empty(100, dtype=cupy.float32)
    group.all_reduce(x, y)
    cupy.cuda.Stream.null.synchronize()
    assert float(y[5]) == SIZE * (SIZE + 1) / 2, y
    group.stop()


def jax_arrays():
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax
    import jax.numpy as jnp
    ic.init()
    import ivycomm.jax as icj
    x = jnp.full((100,), RANK + 1.0)
    assert next(iter(x.devices())).platform == "gpu", x.devices()
    y = ic.all_reduce(x)
    assert next(iter(y.devices())).platform == "gpu" and float(y[0]) == SIZE * (SIZE + 1) / 2, y
    step = jax.jit(lambda v: icj.all_reduce(v * 2) + 1)
    assert float(step(x)[5]) == SIZE * (SIZE + 1) + 1
    grad = jax.grad(lambda v: (icj.all_reduce(v) ** 2).sum())(x)
    assert float(grad[0]) == SIZE * SIZE * (SIZE + 1), grad[0]
    looped = jax.jit(lambda v: jax.lax.fori_loop(0, 5, lambda _, w: icj.all_reduce(w, "max"), v))
    assert float(looped(x)[0]) == SIZE


for name in sys.argv[1:]:
    globals()[name]()
    print(f"ok {name}", flush=True)
