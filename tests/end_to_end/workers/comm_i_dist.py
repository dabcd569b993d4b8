"""The original's names on arrays. Prints "all equal" at the end."""

import os

import ivycomm as ic
import numpy as np

from comm_leave import leave
from ivycomm import i_dist


def raises(kind, call):
    try:
        call()
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}")


def main():
    import ivycomm.i_dist.reductions  # The old path of compat.i_dist.reductions.
    assert ivycomm.i_dist.reductions.IvyReduceOp is i_dist.IvyReduceOp
    if not os.path.exists("/dev/nvidiactl"):
        raises(ic.IvyError, lambda: i_dist.init_dist(backend="nccl"))
    raises(ValueError, lambda: i_dist.init_dist(backend="carrier pigeon"))
    context = i_dist.init_dist()
    r, n = context.rank, context["world_size"]
    x = np.arange(6.0).reshape(2, 3) + r
    every = [x - r + i for i in range(n)]

    assert np.array_equal(i_dist.all_gather(x), np.concatenate(every))
    assert np.array_equal(i_dist.all_gather(x, axis=1), np.concatenate(every, 1))
    assert np.array_equal(i_dist.all_gather(x, tiled=True), every)
    assert np.array_equal(i_dist.all_reduce(x), sum(every))
    assert np.allclose(i_dist.all_reduce(x, i_dist.IvyReduceOp.MEAN), sum(every) / n)
    assert np.array_equal(i_dist.broadcast(x, src=n - 1), every[-1])
    for tiled, expected in ((False, np.concatenate(every)), (True, every)):
        got = i_dist.gather(x, tiled=tiled, dst=n - 1)
        assert (got is None) == (r != n - 1) and (got is None or np.array_equal(got, expected)), tiled
    total = i_dist.reduce(x, dst=0)
    assert (total is None) == (r != 0) and (total is None or np.array_equal(total, sum(every)))
    out = np.empty((2, 3))
    assert i_dist.scatter(out, np.concatenate(every) if r == 0 else None) is out and np.array_equal(out, every[r])
    assert np.array_equal(i_dist.reduce_scatter(np.concatenate([x] * n)), sum(every))
    assert np.array_equal(i_dist.all_to_all(np.repeat(np.arange(n), 2) + 10 * r), np.repeat(np.arange(n) * 10, 2) + r)
    i_dist.barrier()

    # pmap: an uneven length, other axes, several arguments, trees, one destination.
    length = 2 * n + 1
    a, b = np.random.default_rng(0).random((length, 4)), np.random.default_rng(1).random((4, length))
    assert np.allclose(i_dist.pmap(lambda row: row * 2)(a), a * 2)
    assert np.allclose(i_dist.pmap(lambda row: row * 2, out_axes=1)(a), a.T * 2)
    assert np.allclose(i_dist.pmap(lambda row, column, c: row.sum() + column.sum() + c, in_axes=(0, 1, None))(a, b, 5),
                       a.sum(1) + b.sum(0) + 5)
    tree = i_dist.pmap(lambda t: {"double": t["a"] * 2, "pair": (t["a"].sum(), t["a"][:2])})({"a": a})
    assert np.allclose(tree["double"], a * 2) and np.allclose(tree["pair"][0], a.sum(1))
    assert np.allclose(tree["pair"][1], a[:, :2]) and isinstance(tree["pair"], tuple)
    there = i_dist.pmap(lambda row: row, dst=0)(a)
    assert (there is None) == (r != 0)
    if n > 1:
        raises(ValueError, lambda: i_dist.pmap(lambda row: row)(a[:1]))
    raises(ValueError, lambda: i_dist.pmap(lambda p, q: p, in_axes=(0, 0))(a, b))
    leave("left")
    context.reset_context()
    assert not context.is_initialized
    print("all equal")


if __name__ == "__main__":
    main()
