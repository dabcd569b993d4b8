"""Each documented call of Ivy Distributed and of Neurenix's context once, compared with results of one process.

Prints "all equal" at the end. Works for any number of ranks; `a` and `b` are the same on all of them.
"""

import contextlib
import io
import os
import pickle
import sys
import time

import numpy as np

import ivy.distributed as i_dist
import ivycomm as ic
from ivycomm.compat.context import DistributedContext

CHECKS = {}
a = np.random.default_rng(5).random((8, 6))
b = np.random.default_rng(6).random(6)


def check(function):
    CHECKS[function.__name__] = function
    return function


def raises(kind, call, *words):
    try:
        call()
    except kind as error:
        assert all(word in str(error) for word in words), error
        return
    raise AssertionError(f"no {kind.__name__}")


@check
def parallel_context(context, r, n):
    assert i_dist.ParallelContext() is context and i_dist.is_initialized() and i_dist.init_dist() is context
    assert (context.get_global_rank(), context.get_local_rank(), context.get_world_size()) == (r, context.local_rank, n)
    assert context["rank"] == context.global_rank == r and "world_size" in context and "nothing" not in context
    assert i_dist.init_dist("nccl") is context and (context.backend, context.device) == ("auto", "cpu")  # The rank has joined.
    assert context.is_initized and context.is_initialized and context.initilize() is context
    assert context.default_group is context.world_comm and context.default_group.size == n
    assert context.local_world_size * context.num_nodes == n and context.node_rank == r // context.local_world_size
    assert context.local_rank == r % context.local_world_size and context.xla_token is None and context.device in ("cpu", "cuda")
    assert context.backend == "auto" and context.restart_count == 0 and set(context.keys()) > {"run_id", "rank"}
    assert dict(context)["rank"] == context.get("rank") == r and context.get("nothing", 5) == 5 and f"rank {r} of {n}" in repr(context)
    context["mine"] = 3
    context.token = 4
    assert (context.mine, context["token"], i_dist.ParallelContext().mine) == (3, 4, 3) and "mine" in context
    raises(AttributeError, lambda: setattr(context, "rank", 1), "launcher")
    raises(AttributeError, lambda: context.rnak, "rnak", 'did you mean "rank"?')
    raises(KeyError, lambda: context["rnak"])


@check
def group(context, r, n):
    half = i_dist.Group(list(range((n + 1) // 2)))
    assert half.size == len(half) == (n + 1) // 2 and list(half.ranks) == list(range(half.size)) and half[0] == 0
    inside = r < half.size
    assert half.is_member == inside and half.rank == (r if inside else None)
    total = i_dist.all_reduce(a[0] + r, group=half)
    assert (total is None) == (not inside)
    assert total is None or np.allclose(total, sum(a[0] + each for each in range(half.size)))
    assert half.to_native_group() is half and i_dist.Group.from_native_group(half) is half
    raises(TypeError, lambda: i_dist.Group.from_native_group("a string"), "str")
    raises(TypeError, lambda: i_dist.Group(7), "int")
    again = i_dist.Group(half)
    assert again.ranks == list(range(half.size)) and isinstance(again, i_dist.NativeGroup) and not isinstance(7, i_dist.NativeGroup)


@check
def meshes(context, r, n):
    columns = 2 if n % 2 == 0 else 1
    mesh = i_dist.NamedMesh((n // columns, columns), axis_names=("x", "y"))
    assert mesh.shape == (n // columns, columns) and mesh.axis_names == ("x", "y") and tuple(mesh.coord) == divmod(r, columns)
    ranks = np.arange(n).reshape(mesh.shape)
    for axis, line in (("x", ranks[:, r % columns]), ("y", ranks[r // columns])):
        assert list(mesh.axis_group(axis).ranks) == list(line)
        assert i_dist.all_reduce(np.array([r]), group=mesh.axis_group(axis)).item() == line.sum()
    both = i_dist.MpDpMesh((n, 1))
    assert both.axis_names == ("dp", "mp") and both.axis_group("dp").size == n and both.axis_group(1).size == 1
    assert i_dist.Mesh((n,)).axis_group(0).size == n
    both = i_dist.MpDpMesh((n // columns, columns))  # (2, 2) for four ranks.
    for axis, line in (("dp", ranks[:, r % columns]), ("mp", ranks[r // columns])):
        assert list(both.axis_group(axis).ranks) == list(line)
        assert i_dist.all_reduce(np.array([r]), group=both.axis_group(axis)).item() == line.sum()
    raises(ValueError, lambda: i_dist.NamedMesh((n, 1), axis_names=("x",)), "axis_names")
    raises(ValueError, lambda: i_dist.MpDpMesh((n,)), "two axes")
    raises(ValueError, lambda: i_dist.Mesh((n + 1,)), str(n + 1))


@check
def reductions(context, r, n):
    every = [a * (each + 1) for each in range(n)]
    for op, wanted in ((i_dist.IvyReduceOp.SUM, sum(every)), (i_dist.IvyReduceOp.MEAN, sum(every) / n), ("MAX", every[-1]),
                       ("min", every[0]), (i_dist.IvyReduceOp.PRODUCT, np.prod(every, axis=0))):
        assert np.allclose(i_dist.all_reduce(every[r], op), wanted), op
    for op, function in (("BAND", np.bitwise_and), ("BOR", np.bitwise_or), ("BXOR", np.bitwise_xor)):
        wanted = function.reduce([np.array([each * 5 + 3]) for each in range(n)])
        assert i_dist.all_reduce(np.array([r * 5 + 3]), getattr(i_dist.IvyReduceOp, op)) == wanted, op
    out = np.empty_like(a)
    assert i_dist.all_reduce(every[r], out=out) is out and np.allclose(out, sum(every))
    mean = i_dist.OpHandler("mean")
    assert mean.op is i_dist.IvyReduceOp.MEAN is i_dist.IvyReduceOp("MEAN") and (mean.name, mean.cupy_op()) == ("MEAN", "sum")
    assert np.allclose(i_dist.all_reduce(every[r], mean), sum(every) / n)
    assert np.allclose(ic.all_reduce(every[r], i_dist.IvyReduceOp.MEAN), sum(every) / n)
    raises(ValueError, lambda: i_dist.OpHandler("median"), "median")
    raises(ValueError, lambda: i_dist.OpHandler("prodct"), "prodct", 'did you mean "PRODUCT"?')
    raises(ValueError, lambda: i_dist.OpHandler("bor").cupy_op(), "BOR")
    raises((ValueError, TypeError, ic.IvyError), lambda: i_dist.all_reduce(np.arange(3), "bnad"))


@contextlib.contextmanager
def counted():
    """Yields a list that collects the names of ivycomm's operations that are called in the block."""
    names = []

    def counting(name, function):
        def call(*arguments, **named):
            names.append(name)
            return function(*arguments, **named)

        return call

    originals = [(module, name, function) for module in (ic.collectives, ic.messages)
                 for name, function in vars(module).items()
                 if getattr(function, "__module__", None) == module.__name__ and name[0].islower()]
    for module, name, function in originals:
        setattr(module, name, counting(name, function))
    try:
        yield names
    finally:
        for module, name, function in originals:
            setattr(module, name, function)


@check
def each_call_is_one_operation(context, r, n):
    rows = np.arange(n * 3.0).reshape(n, 3)
    every = [rows * (each + 1) for each in range(n)]
    for name, call in (("reduce_scatter", i_dist.reduce_scatter), ("all_to_all", i_dist.all_to_all),
                       ("all_gather", i_dist.all_gather), ("all_reduce", i_dist.all_reduce), ("barrier", lambda _: i_dist.barrier())):
        with counted() as names:
            result = call(every[r])
        assert names == [name], names
        assert name != "reduce_scatter" or np.allclose(result, sum(every)[r])


@check
def barriers_wait_for_the_last(context, r, n):
    """All ranks of this test share a clock, even those of simulated hosts and test hosts."""
    import neurenix.distributed
    own = DistributedContext(backend="gloo").initialize()
    for barrier in (i_dist.barrier, ic.barrier, neurenix.distributed.barrier, own.barrier):
        if r == n - 1:
            time.sleep(0.5)
        came = time.monotonic()
        barrier()
        left = time.monotonic()
        assert left >= max(ic.all_gather_object(came)), barrier


@check
def results_in_out(context, r, n):
    rows = np.arange(n * 3.0).reshape(n, 3)
    every = [rows * (each + 1) for each in range(n)]
    total = sum(every)
    for call, wanted in ((i_dist.all_to_all, np.stack([each[r] for each in every])), (i_dist.reduce_scatter, total[r:r + 1]),
                         (i_dist.all_gather, np.concatenate(every)), (i_dist.broadcast, every[0])):
        out = np.full_like(wanted, -1)
        assert call(every[r], out=out) is out and np.allclose(out, wanted), call
    for call, wanted in ((i_dist.gather, np.concatenate(every)), (i_dist.reduce, total)):
        out = np.full_like(wanted, -1)
        got = call(every[r], dst=n - 1, out=out)
        assert got is (out if r == n - 1 else None) and (r != n - 1 or np.allclose(out, wanted)), call
    for op, wanted in ((i_dist.IvyReduceOp.MAX, every[-1]), ("MIN", every[0]), (i_dist.OpHandler("mean"), total / n)):
        assert np.allclose(i_dist.reduce_scatter(every[r], op), wanted[r]), op
        got = i_dist.reduce(every[r], op, dst=n - 1)
        assert got is None if r != n - 1 else np.allclose(got, wanted), op


@check
def calls_of_a_group(context, r, n):
    """Members get results in the group's order; other ranks get None."""
    half = i_dist.Group(list(range((n + 1) // 2))[::-1])
    m, own = half.size, half.rank
    rows = [np.arange(m * 3.0).reshape(m, 3) + each for each in half.ranks]
    x, last = (rows[own] if half.is_member else rows[0]), own == m - 1
    assert half.rank == (m - 1 - r if r < m else None)
    for got, wanted in ((i_dist.broadcast(x, group=half, src=m - 1), rows[-1]),
                        (i_dist.all_gather(x, 1, group=half), np.concatenate(rows, 1)),
                        (i_dist.all_gather(x, group=half, tiled=True), rows),
                        (i_dist.gather(x, group=half, dst=m - 1), np.concatenate(rows) if last else None),
                        (i_dist.reduce(x, "MAX", group=half, dst=m - 1), np.max(rows, 0) if last else None),
                        (i_dist.reduce_scatter(x, group=half), sum(rows)[own:][:1] if half.is_member else None),
                        (i_dist.all_to_all(x, half), [each[own] for each in rows] if half.is_member else None),
                        (i_dist.all_reduce(x, "MIN", group=half), np.min(rows, 0))):
        assert got is None if wanted is None or not half.is_member else np.allclose(got, wanted), (got, wanted)
    part = i_dist.scatter(np.empty((1, 3)), x if own == m - 1 else None, group=half, src=m - 1)
    assert part is None if own is None else np.allclose(part, rows[-1][own])
    if own == 0:
        i_dist.send(x, m - 1, half, 2)
    if last:
        assert np.allclose(i_dist.recv(np.empty_like(x), 0, half, 2), rows[0])
    assert i_dist.barrier(half) is None


@check
def lists_as_out(context, r, n):
    every = [a + each for each in range(n)]
    out = [np.empty_like(a) for _ in range(n)]
    assert i_dist.all_gather(every[r], tiled=True, out=out) is out and np.array_equal(out, every)
    out = [np.empty_like(a) for _ in range(n)]
    got = i_dist.gather(every[r], tiled=True, dst=n - 1, out=out)
    assert got is (out if r == n - 1 else None) and (got is None or np.array_equal(out, every))
    raises(TypeError, lambda: i_dist.all_gather(a, out=out), "tiled")
    raises(ValueError, lambda: i_dist.all_gather(a, tiled=True, out=out[1:]), f"{n} arrays")
    x = np.arange(n) + 10 * r
    assert np.array_equal(i_dist.all_to_all(x, None), 10 * np.arange(n) + r)


@check
def messages(context, r, n):
    """Group and tag are positional arguments, as in the original."""
    got = np.empty_like(a)
    if n == 1:
        i_dist.send(a, 0, None, 3)
    elif r == 0:
        i_dist.send(a, n - 1, None, 3)
        i_dist.send(b, n - 1)
    if r == n - 1:
        assert i_dist.recv(got, 0, None, 3) is got and np.array_equal(got, a)
    if r == n - 1 and n > 1:
        assert np.array_equal(i_dist.recv(x_buffer=np.empty_like(b), src=-1, tag=-1), b)
    i_dist.barrier()


@check
def print0(context, r, n):
    with contextlib.redirect_stdout(io.StringIO()) as said:
        i_dist.print0("hello", 3)
        last = i_dist.Group([n - 1])
        i_dist.print0("last", group=last, end="!")
    assert said.getvalue() == ("hello 3\n" if r == 0 else "") + ("last!" if r == n - 1 else "")


@check
def pmap_of_an_axis_that_is_too_short(context, r, n):
    if n > 1:
        raises(ValueError, lambda: i_dist.pmap(lambda row: row)(a[:n - 1]))


@check
def pmap_as_documented(context, r, n):
    rows = np.random.default_rng(8).random((2 * n + 1, 3))

    def halves(row, factor=1):
        return row * factor, row.sum()

    whole, sums = i_dist.pmap(halves, in_axes=0, out_axes=(1, 0), dst=-1)(rows, factor=2)  # All elements of a tuple, on all ranks.
    assert np.allclose(whole, 2 * rows.T) and np.allclose(sums, rows.sum(axis=1))
    assert i_dist.pmap(halves).__name__ == "halves"
    raises(ValueError, lambda: i_dist.pmap(halves, dst=n)(rows), str(n))
    raises(ValueError, lambda: i_dist.pmap(halves, out_axes=(0, 0, 0))(rows), "3 numbers for 2 results")


@check
def what_is_wrong_on_one_rank_is_told_on_all(context, r, n):
    """A rank whose object cannot be sent gets its own exception; the other ranks get one that names the rank."""
    own, cannot = r == n - 1, lambda: 1
    kind = (pickle.PicklingError, AttributeError, TypeError) if own else TypeError
    raises(kind, lambda: ic.broadcast_object(cannot if own else None, src=n - 1), *([] if own else [f"rank {n - 1} "]))
    raises(kind, lambda: ic.all_gather_object(cannot if own else r), *([] if own else [f"rank {n - 1} "]))
    raises(kind, lambda: ic.gather_object(cannot if own else r, dst=0), *([] if own else [f"rank {n - 1} "]))
    raises(kind, lambda: ic.scatter_object([cannot] * n if own else None, src=n - 1), *([] if own else [f"rank {n - 1} "]))
    raises((ValueError, TypeError), lambda: ic.scatter_object([1] * (n + 1) if own else None, src=n - 1))
    if n > 1:
        raises(ValueError, lambda: i_dist.scatter(np.empty(1), np.arange(n + 1.0) if own else None, src=n - 1), f"{n + 1} rows")
        raises(ValueError, lambda: i_dist.reduce_scatter(np.ones(n + 1)), f"{n + 1} rows")
        raises(ValueError, lambda: i_dist.all_to_all(np.ones(n + 1)), f"{n + 1} rows")
    raises(ValueError, lambda: i_dist.scatter(np.empty(1), None, src=n - 1), "pass x")
    # The group still works, and functions that are not sent may be of any kind.
    assert ic.all_gather_object(r) == list(range(n)) and np.allclose(i_dist.pmap(lambda row: row + 1)(a), a + 1)
    assert ic.sim.World(2).run(lambda comm: comm.rank) == [0, 1]


@check
def names_that_are_not_there(context, r, n):
    import neurenix.distributed
    raises(AttributeError, lambda: i_dist.all_gahter, "did you mean all_gather?")
    raises(AttributeError, lambda: neurenix.distributed.init_distribted, "did you mean init_distributed?")
    raises(AttributeError, lambda: ic.sim.Wrld, "did you mean World?")
    raises(AttributeError, lambda: ic.size, "did you mean world_size?")
    raises(AttributeError, lambda: ic.init_process_group, "did you mean init?")
    raises(AttributeError, lambda: ic.rpc.rpc_snc, "did you mean rpc_sync?")


@check
def xmap(context, r, n):
    mesh = i_dist.NamedMesh((n,), axis_names=("rows",))
    row = i_dist.xmap(lambda x, y: (x * y).sum(), in_axes=[{0: "rows"}, {}], out_axes={0: "rows"}, mesh=mesh)
    assert np.allclose(row(a, b), (a * b).sum(axis=1))
    columns = 2 if n % 2 == 0 else 1
    both = i_dist.NamedMesh((n // columns, columns), axis_names=("x", "y"))
    outer = i_dist.xmap(lambda p, q: p * q, in_axes=[{0: "x"}, {0: "y"}], out_axes={0: "x", 1: "y"}, mesh=both)
    assert np.allclose(outer(a[:, 0], b), np.outer(a[:, 0], b))
    raises(ValueError, lambda: i_dist.xmap(lambda x: x, in_axes=[{}], out_axes={}, mesh=mesh), "contains no axis")


@check
def dp_pipeline(context, r, n):
    def gradient(weights, x):
        return {"w": x.T @ (x @ weights) / len(x)}

    uneven = np.random.default_rng(7).random((2 * n + 1, 6))
    whole = i_dist.dp_pipeline(gradient, batch_axis=(None, 0))(b, uneven)["w"]
    assert np.allclose(whole, gradient(b, uneven)["w"], rtol=1e-6)


@check
def neurenix_context(context, r, n):
    own = DistributedContext(backend="gloo")
    assert own.initialize() is own and own.is_initialized and own.is_main_process == (r == 0)
    assert (own.rank, own.world_size, own.local_rank) == (r, n, context.local_rank) and "DistributedContext" in repr(own)
    own.barrier()
    assert (ic.get_rank(), ic.get_world_size(), ic.is_main_process()) == (r, n, r == 0)
    raises(ValueError, lambda: DistributedContext(backend="glooo"), "glooo", 'did you mean "gloo"?')
    raises(AttributeError, lambda: ic.init_distribted, "did you mean")


def told_of_a_context():
    """Before init_dist: arguments and attributes of a DistributedContext before it starts."""
    waiting = DistributedContext(backend="gloo", device_id=3)
    for question in ("rank", "world_size", "local_rank", "is_main_process", "device"):
        raises(ic.FailedPrecondition, lambda: getattr(waiting, question), "initialize()")
    raises(ic.FailedPrecondition, waiting.barrier, "initialize()")
    assert not waiting.is_initialized and "not started" in repr(waiting) and waiting.device_index == 3
    raises(ValueError, lambda: DistributedContext(timeout=0), "timeout")
    if "IVY_RANK" not in os.environ:
        return
    r, n = int(os.environ["IVY_RANK"]), int(os.environ["IVY_WORLD_SIZE"])
    # Another rank or size than the launcher's is rejected without a wait.
    raises((ValueError, ic.IvyError), lambda: DistributedContext("gloo", world_size=n + 1, rank=r).initialize(), str(n + 1))
    with DistributedContext("gloo", world_size=n, rank=r, device_id=3, timeout=60.0) as own:
        assert (own.rank, own.world_size, own.timeout, own.device, own.device_index) == (r, n, 60.0, "cuda:3", 3)
    with DistributedContext("gloo", timeout=5.0) as own:
        assert own.device == ("cpu" if ic.device() is None else f"cuda:{ic.device()}")
        if r == 0 and n > 1:
            raises(ic.Timeout, lambda: ic.recv(np.empty(1), n - 1, tag=9))  # The context's timeout applies to an operation without one.
        ic.store().set(f"asked {r}", b"")
        ic.store().wait([f"asked {each}" for each in range(n)], timeout=60)


@check
def objects(context, r, n):
    assert ic.broadcast_object({"rank": r}, src=n - 1) == {"rank": n - 1}
    assert ic.scatter_object([each * 2 for each in range(n)] if r == 0 else None) == 2 * r
    assert ic.gather_object(r, dst=0) == (list(range(n)) if r == 0 else None)
    assert ic.all_gather_object((r, "x")) == [(each, "x") for each in range(n)]


@check
def shards(context, r, n):
    mine = ic.shard_indices(10, epoch=1)
    assert sorted(set(sum(ic.all_gather_object(mine), []))) == list(range(10))


def main():
    told_of_a_context()
    raises(ic.NotInitialized, lambda: i_dist.all_reduce(a), "init")
    raises(ic.NotInitialized, lambda: i_dist.ParallelContext().rank)
    raises(ValueError, lambda: i_dist.init_dist(backend="ncll"), "ncll", 'did you mean "nccl"?')
    context = i_dist.init_dist()
    assert os.environ.get("IVY_RANK") in (None, str(context.rank))
    for name, function in CHECKS.items():
        try:
            function(context, context.rank, context.world_size)
        except BaseException:
            print(f"rank {context.rank}: {name} failed", file=sys.stderr, flush=True)
            raise
    context.reset_context()
    assert not i_dist.is_initialized() and context.backend is None
    print("all equal")


if __name__ == "__main__":
    main()
