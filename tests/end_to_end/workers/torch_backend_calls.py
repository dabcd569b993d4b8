"""Every call of torch.distributed with backend ivy, compared with gloo. Prints "all equal" at the end.

argv: the backend ("ivy"), and "models" to also run torch_backend_models.py.
"""

import contextlib
import gc
import sys
import threading
import time
import types
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist

import torch_backend_models

OLD = torch.__version__.startswith("1.")
VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
TELLS_FACTORS = VERSION >= (2, 14)
BACKEND = sys.argv[1] if len(sys.argv) > 1 else "ivy"
IS_MIXED = ":" in BACKEND  # torch's works of such groups report neither their completion nor the sender.
if OLD:
    import ivycomm.torch  # noqa: F401  (it registers the backend)

OPS = [dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX]
BITS = [dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR]
REALS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
WHOLES = [torch.uint8, torch.int8, torch.int32, torch.int64]


def same(mine, theirs, what=""):
    if isinstance(mine, (list, tuple)):
        assert len(mine) == len(theirs)
        for each in zip(mine, theirs):
            same(*each, what)
        return
    assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
    tolerance = 1e-2 if mine.dtype in (torch.float16, torch.bfloat16) else 1e-6
    equal = (torch.allclose(mine.float(), theirs.float(), rtol=tolerance) if mine.is_floating_point()
             else torch.equal(mine, theirs))
    assert equal, (what, mine, theirs)


def values(shape, dtype, rank):
    made = torch.arange(1, 1 + max(1, torch.Size(shape).numel())).reshape(shape) % 5 + rank
    return made.to(dtype) if dtype != torch.bool else made % 2 == 0


def refused(call, kind, *words):
    try:
        call()
    except kind as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError(f"not refused: {words}")


def reductions(r, n, gloo):
    for dtype in REALS + WHOLES:
        for op in OPS + (BITS if dtype in WHOLES else []):
            mine, theirs = values((3, 4), dtype, r), values((3, 4), dtype, r)
            dist.all_reduce(mine, op)
            if dtype == torch.bfloat16 and OLD:  # This torch's gloo does not support it.
                continue
            dist.all_reduce(theirs, op, group=gloo)
            same(mine, theirs, (dtype, op))
    big = torch.full((300_000,), float(r))
    work = dist.all_reduce(big, async_op=True)
    assert work.wait() and (IS_MIXED or work.is_completed()) and big[-1] == n * (n - 1) / 2
    flags = torch.tensor([r == 0, True, False])
    dist.all_reduce(flags, dist.ReduceOp.MAX)
    assert flags.tolist() == [True, True, False]
    complex_ = torch.full((3,), complex(r, 1))
    dist.all_reduce(complex_)
    assert complex_[0] == complex(n * (n - 1) / 2, n)
    mean = torch.full((3,), float(r))
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    assert mean[0] == (n - 1) / 2
    turned = torch.full((3, 4), float(r)).t()  # Dense, but not in C order.
    strided = torch.full((4, 4), float(r))[:, ::2]
    dist.all_reduce(turned)
    dist.all_reduce(strided)
    assert (turned == n * (n - 1) / 2).all() and (strided == n * (n - 1) / 2).all()
    for root in range(n):
        mine, theirs = values((5,), torch.float32, r), values((5,), torch.float32, r)
        dist.reduce(mine, root)
        dist.reduce(theirs, root, group=gloo)
        assert r != root or torch.equal(mine, theirs)
    both = [torch.full((2,), float(r)), torch.full((3,), r)]
    dist.distributed_c10d._get_default_group().allreduce_coalesced([both[0], both[0].clone()]).wait()
    assert both[0][0] == n * (n - 1) / 2
    empty = torch.empty(0)
    dist.all_reduce(empty)
    sparse = torch.sparse_coo_tensor([[0]], [1.0], (3,))
    refused(lambda: dist.all_reduce(sparse), Exception, "dense")


def moves(r, n, gloo):
    for dtype in REALS[:3] + WHOLES + ([] if OLD else [torch.bool]):  # Supported by the old gloo.
        for root in range(n):
            mine, theirs = values((3, 2), dtype, r), values((3, 2), dtype, r)
            dist.broadcast(mine, root)
            dist.broadcast(theirs, root, group=gloo)
            same(mine, theirs)
            for group in (None, gloo):
                parts = [values((4,), dtype, i + root) for i in range(n)] if r == root else None
                got = torch.empty(4, dtype=dtype)
                dist.scatter(got, parts, root, group=group)
                same(got, values((4,), dtype, r + root))
                gathered = [torch.empty(4, dtype=dtype) for _ in range(n)] if r == root else None
                dist.gather(values((4,), dtype, r), gathered, root, group=group)
                assert r != root or all(torch.equal(gathered[i], values((4,), dtype, i)) for i in range(n))
        for shape in ((), (3,), (2, 3)):
            every = [torch.empty(shape, dtype=dtype) for _ in range(n)]
            dist.all_gather(every, values(shape, dtype, r))
            same(every, [values(shape, dtype, i) for i in range(n)])
    flat = torch.zeros(n * 3)
    dist.all_gather(list(flat.chunk(n)), torch.full((3,), float(r)))  # Views of one block.
    assert torch.equal(flat, torch.arange(float(n)).repeat_interleave(3))
    uneven = [torch.empty(i + 1) for i in range(n)]
    dist.all_gather(uneven, torch.full((r + 1,), float(r)))
    same(uneven, [torch.full((i + 1,), float(i)) for i in range(n)])


def lists(r, n, gloo):
    """all_gather_coalesced nests its lists the other way round than all_gather. Invalid lists are rejected."""
    warnings.simplefilter("ignore")  # all_gather_coalesced is deprecated.
    for shapes in ([(2,)], [(2,), (2,)], [(2,)] * n, [(3,), (2, 2), (1,)]):
        inputs = [torch.full(shape, 10.0 * r + i) for i, shape in enumerate(shapes)]
        gathered = []
        for group in (None, gloo):
            outputs = [[torch.full(shape, -1.0) for shape in shapes] for _ in range(n)]
            dist.all_gather_coalesced(outputs, inputs, group=group)
            gathered.append(outputs)
        same(*gathered, shapes)
        same(gathered[0], [[torch.full(shape, 10.0 * q + i) for i, shape in enumerate(shapes)] for q in range(n)])
    if IS_MIXED:
        return  # The call passes through torch's C++ code.
    group, x = dist.distributed_c10d._get_default_group(), torch.ones(2)
    row, root = [torch.ones(2) for _ in range(n)], dist.GatherOptions()
    from_root = dist.distributed_c10d.ScatterOptions()
    root.rootRank = from_root.rootRank = r
    whole = torch.ones(2 * n)
    for call in (lambda: group.allgather([row[1:]], [x]), lambda: group.allgather([row + [x]], [x]),
                 lambda: group.allgather([row], [x, x]), lambda: group.allgather_coalesced([[x]] * (n - 1), [x]),
                 lambda: group.allgather_coalesced([[x]] * n, [x, x]), lambda: group.gather([row[1:]], [x], root),
                 lambda: group.gather([], [x], root), lambda: group.scatter([x], [row[1:]], from_root),
                 lambda: group.scatter([x, x], [row], from_root), lambda: group.reduce_scatter([x], [row[1:]]),
                 lambda: group.reduce_scatter([x, x], [row]), lambda: group.alltoall(row[1:], row),
                 lambda: group.alltoall(row, row + [x]),
                 lambda: group.all_gather_into_tensor_coalesced([whole], [x, x]),
                 lambda: group.reduce_scatter_tensor_coalesced([x, x], [whole])):
        refused(call, ValueError, "must be")
    uneven = [torch.ones(1), torch.ones(3), *row[2:]]
    for call in (lambda: group.gather([uneven], [x], root), lambda: group.allgather([[each.double() for each in row]], [x]),
                 lambda: group.gather([[each.double() for each in row]], [x], root),
                 lambda: group.alltoall([each.double() for each in row], row)):
        refused(call, ValueError, "input")
    dist.all_reduce(x)  # None of these calls has reached another rank.
    assert x[0] == n


def scattered_sums(r, n, gloo):
    total = n * (n - 1) / 2
    got = torch.empty(3)
    dist.reduce_scatter(got, [torch.full((3,), float(r + i)) for i in range(n)])
    assert (got == total + n * r).all()
    uneven = torch.empty(r + 1)
    dist.reduce_scatter(uneven, [torch.full((i + 1,), float(r)) for i in range(n)])
    assert (uneven == total).all()
    if OLD:
        return
    dist.reduce_scatter_tensor(got, torch.arange(3.0 * n), op=dist.ReduceOp.AVG)
    assert torch.equal(got, torch.arange(3.0 * r, 3.0 * r + 3))
    every = torch.empty(n, 2, 3, dtype=torch.int64)
    dist.all_gather_into_tensor(every, torch.full((2, 3), r))
    assert all((every[i] == i).all() for i in range(n))
    refused(lambda: dist.all_gather_into_tensor(torch.empty(5), torch.empty(4)), ValueError, "5 elements")
    odd = torch.zeros(n, dtype=torch.float8_e4m3fnuz)  # The library does not have this type, but can move it.
    dist.all_gather_into_tensor(odd, torch.full((1,), r + 1.0).to(torch.float8_e4m3fnuz))
    assert odd.float().tolist() == [i + 1.0 for i in range(n)]
    x = torch.full((4,), float(r))
    if TELLS_FACTORS:
        dist.all_reduce(x, dist._make_nccl_premul_sum(0.5))
        assert (x == total / 2).all()
    with dist._coalescing_manager(async_ops=True) as together:
        outs = [torch.empty(n * k) for k in (1, 4)]
        for out, k in zip(outs, (1, 4)):
            dist.all_gather_into_tensor(out, torch.full((k,), float(r)))
    together.wait()
    assert all(torch.equal(out, torch.arange(float(n)).repeat_interleave(k)) for out, k in zip(outs, (1, 4)))
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as together:
        for tensor in (x, got):
            dist.broadcast(tensor.fill_(r), 0)
    together.wait()
    assert (x == 0).all() and (got == 0).all()


def exchanges(r, n, gloo):
    x = torch.arange(2.0 * n) + 100 * r
    y, z = torch.empty(2 * n), torch.empty(2 * n)
    dist.all_to_all_single(y, x)
    dist.all_to_all_single(z, x, group=gloo)
    same(y, z)
    send = [i + 1 for i in range(n)]
    rows = torch.full((sum(send), 2), r)
    got = torch.empty(n * (r + 1), 2, dtype=torch.int64)
    dist.all_to_all_single(got, rows, [r + 1] * n, send)
    assert torch.equal(got, torch.arange(n).repeat_interleave(r + 1)[:, None].expand(-1, 2))
    lists = [torch.empty(r + 1) for _ in range(n)]
    dist.all_to_all(lists, [torch.full((i + 1,), float(r)) for i in range(n)])
    same(lists, [torch.full((r + 1,), float(i)) for i in range(n)])
    # Equal splits on one rank and different ones elsewhere, which may happen in a mixture of experts.
    table = [[4 + 3 * (max(a, b) + 1 == n and min(a, b) > 0) for b in range(n)] for a in range(n)]
    send, recv = table[r], [table[i][r] for i in range(n)]
    assert r != 0 or len({*send, *recv}) == 1
    got = torch.empty(sum(recv))
    dist.all_to_all_single(got, torch.full((sum(send),), float(r)), recv, send)
    parts = [torch.empty(k) for k in recv]
    dist.all_to_all(parts, [torch.full((k,), float(r)) for k in send])
    want = torch.cat([torch.full((k,), float(i)) for i, k in enumerate(recv)])
    assert torch.equal(got, want) and torch.equal(torch.cat(parts), want)
    nothing = torch.empty(0)
    dist.all_to_all_single(nothing, torch.empty(0), [0] * n, [0] * n)


def messages(r, n, gloo):
    right, left = (r + 1) % n, (r - 1) % n
    got = torch.empty(3)
    jobs = dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((3,), float(r)), right),
                                   dist.P2POp(dist.irecv, got, left)])
    for job in jobs:
        job.wait()
    assert (got == left).all()
    wide = torch.zeros(3, 2)
    sending = dist.isend(torch.full((3,), float(r)), right, tag=7)
    assert dist.recv(wide[:, 0], left, tag=7) == left
    sending.wait()
    assert wide.tolist() == [[float(left), 0.0]] * 3
    if r == 0:
        heard = {dist.recv(got) for _ in range(n - 1)}
        assert heard == set(range(1, n)), heard
        late = dist.irecv(got, 1, tag=9)
        refused(lambda: late.wait(timedelta(milliseconds=50)), RuntimeError, "still running")
        assert not late.is_completed()
        dist.send(torch.ones(1), 1, tag=8)
        late.wait()
        assert late.get_future().wait()[0] is got
    else:
        dist.send(torch.full((3,), float(r)), 0)
        if r == 1:
            dist.recv(torch.empty(1), 0, tag=8)
            dist.send(got, 0, tag=9)


def objects(r, n, gloo):
    every = [None] * n
    dist.all_gather_object(every, {"rank": r, "text": "x" * r})
    assert [each["rank"] for each in every] == list(range(n))
    words = ["a", {"b": 1}] if r == 0 else [None, None]
    dist.broadcast_object_list(words, 0)
    assert words == ["a", {"b": 1}]
    mine = [None]
    dist.scatter_object_list(mine, list(range(n)) if r == 0 else None, 0)
    assert mine == [r]
    gathered = [None] * n if r == 0 else None
    dist.gather_object(r * 2, gathered, 0)
    assert r != 0 or gathered == [2 * i for i in range(n)]
    if not OLD:
        if r == 0:
            dist.send_object_list([1, "two"], 1)
        elif r == 1:
            got = [None, None]
            assert dist.recv_object_list(got, 0) == 0 and got == [1, "two"]
    dist.barrier()


def futures(r, n, gloo):
    """Asynchronous calls keep their order, and futures complete even if they are waited for in another order."""
    tensors = [torch.full((1000,), float(r)) for _ in range(20)]
    works = [dist.all_reduce(each, async_op=True) for each in tensors]
    ends = [work.get_future().then(lambda future: future.value()[0].sum().item()) for work in works]
    assert [end.wait() for end in reversed(ends)] == [1000.0 * n * (n - 1) / 2] * 20
    x = torch.ones(4)
    first = dist.all_reduce(x, async_op=True)
    dist.all_reduce(x)  # After it.
    assert first.wait() and (x == n * n).all()
    assert first.result()[0] is x or OLD


def callbacks(r, n, gloo):
    """A callback of a future may wait for another collective, as in torch's PowerSGD hook."""
    x, y, z = torch.ones(4), torch.full((4,), 2.0), torch.full((4,), 3.0)

    def second(future):
        future.value()
        return dist.all_reduce(y, async_op=True).get_future().then(third).wait()

    def third(future):
        dist.all_reduce(z, async_op=True).wait()
        return future.value()[0]

    if r != 0:
        time.sleep(0.3)  # So that rank 0's future is not done when then() is called.
    end = dist.all_reduce(x, async_op=True).get_future().then(second)
    if r != 0:
        time.sleep(0.3)
    assert end.wait()[0] == 2 * n and (x == n).all() and (z == 3 * n).all()
    # Blocked callbacks do not delay operations. The callback of a completed future is called on this thread.
    leave, main = threading.Event(), threading.current_thread()
    held = [dist.all_reduce(x, async_op=True).get_future().then(
        lambda future: threading.current_thread() is main or leave.wait(60)) for _ in range(4)]
    dist.all_reduce(y, async_op=True).wait()
    assert dist.all_reduce(z, async_op=True).get_future().wait()
    leave.set()
    assert all(end.wait() for end in held)


def records(r, n, gloo):
    """The profiler and debuggers find the same records as for torch's own groups."""
    group = dist.distributed_c10d._get_default_group()
    before = group._get_sequence_number_for_group()
    for _ in range(3):
        dist.all_reduce(torch.ones(1))
    dist.barrier()
    assert group._get_sequence_number_for_group() == before + 4
    with torch.profiler.profile() as seen:
        dist.all_reduce(torch.ones(1))
        dist.broadcast(torch.ones(1), 0)
        dist.all_gather([torch.ones(1) for _ in range(n)], torch.ones(1))
    names = {each.name for each in seen.events()}
    assert {"c10d::allreduce_", "c10d::broadcast_", "c10d::allgather_"} <= names, names
    # Operations of another thread are not part of this thread's batch.
    if not OLD:
        x = torch.ones(3)
        with contextlib.ExitStack() as inside:
            together = inside.enter_context(dist._coalescing_manager(async_ops=True))
            works = []
            other = threading.Thread(target=lambda: works.append(group.allreduce([x])))
            other.start()
            other.join()
            got = torch.empty(n)
            dist.all_gather_into_tensor(got, torch.full((1,), float(r)))
        together.wait()
        assert works[0].result() and len(together.works) == 1 and got.tolist() == list(map(float, range(n)))
        works[0].wait()
        assert (x == n).all()


class Stream:
    """Replaces a device's current stream. Its work is done after a while."""

    def __init__(self, seconds):
        self.end = time.monotonic() + seconds

    def record_event(self):
        return self

    def query(self):
        return time.monotonic() >= self.end


def barrier_of_devices(r, n, gloo):
    """A barrier waits for the work on the current stream, as NCCL's barrier does."""
    import ivycomm.torch.backend.streams as streams
    before = torch.cuda.is_initialized, torch.cuda.current_device, streams.current_stream
    torch.cuda.is_initialized, torch.cuda.current_device = (lambda: True), (lambda: 0)
    stream = Stream(0.4 if r == 0 else 0.0)
    streams.current_stream = lambda device: stream
    try:
        dist.barrier()
        after = time.monotonic()
    finally:
        torch.cuda.is_initialized, torch.cuda.current_device, streams.current_stream = before
    ends = [None] * n
    dist.all_gather_object(ends, stream.end)
    assert after >= ends[0]


def groups(r, n, gloo):
    """Only members create a group, and pairs communicate at the same time."""
    pairs = [dist.new_group([i, (i + 1) % n]) for i in range(n)]
    for i, pair in enumerate(pairs):
        if r in (i, (i + 1) % n):
            x = torch.ones(2) * r
            dist.all_reduce(x, group=pair)
            assert x[0] == i + (i + 1) % n
    if not OLD:
        own = dist.new_group([r], use_local_synchronization=True)
        x = torch.full((2,), float(r))
        dist.all_reduce(x, group=own)
        assert x[0] == r
        dist.destroy_process_group(own)
        again = dist.new_group([r], use_local_synchronization=True)
        dist.broadcast(x, r, group=again)
        some = dist.new_group(list(range(n))[::-1])  # torch sorts them.
        y = torch.full((1,), float(r))
        dist.broadcast(y, n - 1, group=some)
        assert y[0] == n - 1
        import ivycomm
        assert ivycomm.world_size() == n and ivycomm.rank() == r
        assert IS_MIXED or dist.distributed_c10d._get_default_group().ivycomm_group.size == n
        assert ivycomm.all_reduce(torch.ones(2))[0] == n  # Groups of the world, in addition to torch's groups.
    subgroups(r, n)
    dist.barrier()


def in_a_part(r, n, gloo):
    """Every call in a group of some ranks of the world. Roots and peers are still ranks of the world."""
    ranks = list(range(1, n))
    part, m, me = dist.new_group(ranks), n - 1, r - 1
    if r == 0:
        return
    for dtype in REALS + WHOLES + [torch.int16, torch.complex64]:
        x = torch.full((5,), r).to(dtype)
        dist.all_reduce(x, group=part)
        assert (x == sum(ranks)).all(), (dtype, x)
        every = [torch.empty(2, dtype=dtype) for _ in ranks]
        dist.all_gather(every, torch.full((2,), r).to(dtype), group=part)
        assert [each[0].real.item() for each in every] == ranks, (dtype, every)
        got = torch.empty(1, dtype=dtype)
        dist.reduce_scatter(got, [torch.full((1,), r + to).to(dtype) for to in range(m)], group=part)
        assert got[0].real == sum(ranks) + m * me, (dtype, got)
        for root in ranks:
            x = torch.full((3,), r).to(dtype)
            dist.reduce(x, root, group=part)
            assert r != root or (x == sum(ranks)).all(), (dtype, x)
            x = torch.full((3,), r).to(dtype)
            dist.broadcast(x, root, group=part)
            assert (x == root).all(), (dtype, x)
            gathered = [torch.empty(1, dtype=dtype) for _ in ranks] if r == root else None
            dist.gather(torch.full((1,), r).to(dtype), gathered, root, group=part)
            assert gathered is None or [each[0].real.item() for each in gathered] == ranks
            given = [torch.full((1,), root + to).to(dtype) for to in range(m)] if r == root else None
            dist.scatter(got, given, root, group=part)
            assert got[0].real == root + me, (dtype, got)
    swapped = torch.empty(m)
    dist.all_to_all_single(swapped, torch.full((m,), float(r)), group=part)
    assert swapped.tolist() == ranks
    in_a_part_one_by_one(r, ranks, part)
    dist.barrier(group=part)


def in_a_part_one_by_one(r, ranks, part):
    after, before = ranks[r % len(ranks)], ranks[(r - 2) % len(ranks)]
    got = torch.empty(1)
    sending = dist.isend(torch.full((1,), float(r)), after, group=part, tag=3)
    assert dist.recv(got, before, group=part, tag=3) == before and got[0] == before
    sending.wait()
    words = [r] if r == ranks[-1] else [None]
    dist.broadcast_object_list(words, ranks[-1], group=part)
    every = [None] * len(ranks)
    dist.all_gather_object(every, str(r), group=part)
    assert words == [ranks[-1]] and every == [str(rank) for rank in ranks], (words, every)


def subgroups(r, n):
    if n % 2 == 0:
        own, every = dist.new_subgroups(group_size=2)
        x = torch.full((3,), float(r))
        dist.all_reduce(x, group=own)
        assert len(every) == n // 2 and dist.get_world_size(own) == 2 and x[0] == r // 2 * 4 + 1
        for each in every:
            dist.destroy_process_group(each)
    if not OLD:
        own, every = dist.new_subgroups_by_enumeration([[0, n - 1], *([i] for i in range(1, n - 1))])
        x = torch.full((3,), float(r))
        dist.all_reduce(x, group=own)
        assert len(every) == n - 1 and x[0] == (n - 1 if r in (0, n - 1) else r)
    if hasattr(dist, "split_group") and not IS_MIXED:
        # Before torch 2.14 the default group would have to name a device, which torch checks first.
        why = "support" if VERSION >= (2, 14) else "split"
        refused(lambda: dist.split_group(None, [[i] for i in range(n)]), (RuntimeError,), why)


def dropped_groups(r, n, gloo):
    """A group is garbage-collected while a collective waits for other ranks: the collector does not wait for them, and the
    collective completes."""
    import ivycomm
    from ivycomm.torch.backend.channel import Channel
    from ivycomm.torch.backend.process_group import IvyProcessGroup
    group = IvyProcessGroup(Channel(ivycomm.group_of_members("dropped", range(n)), 60), types.SimpleNamespace(
        store=dist.distributed_c10d._get_default_store(), group_rank=r, group_size=n))
    x = torch.ones(2)
    if r == 0:
        group.allreduce([x])
        begin = time.monotonic()
        del group
        gc.collect()
        assert time.monotonic() - begin < 5, "the collector waits for other ranks"
        ivycomm.store().set("dropped", "yes")
        while x[0] != n and time.monotonic() - begin < 60:
            time.sleep(0.01)
    else:
        ivycomm.store().get("dropped", timeout=60)
        group.allreduce([x]).wait()
    assert x[0] == n, x


def main():
    place = {}
    for each in range(1 if IS_MIXED else 2):  # In the second world gloo would connect to its first one.
        dist.init_process_group(BACKEND, timeout=timedelta(seconds=60), **place)
        r, n = dist.get_rank(), dist.get_world_size()
        if OLD:  # It would count the ranks of its first world.
            place = {"store": dist.PrefixStore("again", dist.distributed_c10d._get_default_store()), "rank": r,
                     "world_size": n}
        assert "ivy" in dist.get_backend().lower()
        # Only once, because gloo would find the keys of its first world in torch's store.
        gloo = dist.new_group(backend="gloo") if each == 0 else None
        for check in (reductions, moves, lists, scattered_sums, exchanges, messages, objects, futures, callbacks, records,
                      barrier_of_devices, groups, dropped_groups, in_a_part):
            if (each == 0 or check in (messages, objects, futures)) and not (
                    IS_MIXED and check in (messages, futures, callbacks, records, barrier_of_devices)):
                check(r, n, gloo)
        if each == 0 and "models" in sys.argv:
            torch_backend_models.check_all(r, n, gloo)
        dist.destroy_process_group()
        refused(lambda: dist.all_reduce(torch.ones(1)), (ValueError, RuntimeError), "not been initialized")
    print("all equal", file=sys.stdout, flush=True)


main()
