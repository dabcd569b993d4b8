"""ivycomm.compat.torchdist: each function of torch.distributed's on NumPy's arrays; says "all equal" at the end."""

import datetime
import sys

import ivycomm as ic
import numpy as np

from ivycomm.compat import torchdist as dist


def raises(kind, call, *words):
    try:
        call()
    except kind as error:
        assert all(word in str(error) for word in words), error
        return
    raise AssertionError(f"no {kind.__name__}")


def wait(work):
    work.wait()
    assert work.is_completed()


def collectives(r, n):
    every = [np.arange(4.0) + 10 * each for each in range(n)]
    for op, wanted in ((dist.ReduceOp.SUM, sum(every)), (dist.ReduceOp.MAX, every[-1]), (dist.ReduceOp.AVG, sum(every) / n)):
        for async_op in (False, True):
            x = every[r].copy()
            done = dist.all_reduce(x, op, async_op=async_op)
            wait(done) if async_op else None
            assert np.allclose(x, wanted) and (done is None) != async_op
    x = every[r].copy()
    dist.broadcast(x, src=n - 1)
    assert np.array_equal(x, every[-1])
    x = every[r].copy()
    dist.reduce(x, dst=0)
    assert r or np.array_equal(x, sum(every))
    for async_op in (False, True):
        parts = [np.empty(4) for _ in range(n)]
        done = dist.all_gather(parts, every[r], async_op=async_op)
        wait(done) if async_op else None
        assert np.array_equal(parts, every)
    whole = np.empty((n, 4))
    dist.all_gather_into_tensor(whole, every[r])
    assert np.array_equal(whole, every)
    parts = [np.empty(4) for _ in range(n)] if r == n - 1 else None
    dist.gather(every[r], parts, dst=n - 1)
    assert parts is None or np.array_equal(parts, every)
    x = np.empty(4)
    dist.scatter(x, every if r == 0 else None, src=0)
    assert np.array_equal(x, every[r])
    dist.reduce_scatter(x, [each + r for each in every])
    assert np.allclose(x, n * every[r] + sum(range(n)))
    dist.reduce_scatter_tensor(x, np.concatenate(every))
    assert np.allclose(x, n * every[r])
    outputs = [np.empty(1) for _ in range(n)]
    dist.all_to_all(outputs, [np.array([10.0 * r + each]) for each in range(n)])
    assert [each.item() for each in outputs] == [10.0 * each + r for each in range(n)]
    x = np.empty(n)
    dist.all_to_all_single(x, np.arange(n) + 10.0 * r)
    assert np.array_equal(x, 10.0 * np.arange(n) + r)
    uneven = np.empty(n * (r + 1))
    dist.all_to_all_single(uneven, np.concatenate([np.full(each + 1, 1.0 * r) for each in range(n)]),
                           [r + 1] * n, [each + 1 for each in range(n)])
    assert np.array_equal(uneven, np.repeat(np.arange(n), r + 1))
    dist.barrier()
    wait(dist.barrier(async_op=True))
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=60))


def messages(r, n):
    right, left = (r + 1) % n, (r - 1) % n
    x, y = np.full(3, float(r)), np.empty(3)
    works = [dist.isend(x, right, tag=2), dist.irecv(y, left, tag=2)]
    for work in works:
        wait(work)
    assert (y == left).all()
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, y, left)]):
        work.wait()
    assert (y == left).all()
    if n > 1 and r < 2:
        if r == 0:
            dist.send(x, dst=1)
        else:
            assert dist.recv(y) == 0 and (y == 0).all()


def objects(r, n):
    several = [{"rank": r}, r]
    dist.broadcast_object_list(several, src=n - 1)
    assert several == [{"rank": n - 1}, n - 1]
    every = [None] * n
    dist.all_gather_object(every, (r,))
    assert every == [(each,) for each in range(n)]
    every = [None] * n if r == 0 else None
    dist.gather_object(r, every)
    assert every in (None, list(range(n)))
    mine = [None]
    dist.scatter_object_list(mine, [each * each for each in range(n)] if r == 0 else None)
    assert mine == [r * r]


def sub_groups(r, n):
    last = dist.new_group([n - 1])
    inside = r == n - 1
    assert dist.get_rank(last) == (0 if inside else -1) and dist.get_world_size(last) == (1 if inside else -1)
    assert dist.get_process_group_ranks(last) == [n - 1] and dist.get_global_rank(last, 0) == n - 1
    assert not inside or dist.get_group_rank(last, n - 1) == 0
    x = np.ones(2)
    dist.broadcast(x, src=n - 1, group=last)  # Ranks are the world's.
    dist.all_reduce(x, group=last)
    assert x.tolist() == [1, 1]
    assert dist.get_process_group_ranks() == list(range(n)) and dist.new_group() is not None
    dist.get_store().add("count", 1)


def bad_input(n):
    x = np.ones(3)
    raises(ValueError, lambda: dist.all_gather([x] * (n + 1), x), f"{n + 1} arrays", f"{n} ranks")
    raises(ValueError, lambda: dist.reduce_scatter(x, [x] * (n + 1)))
    raises(ValueError, lambda: dist.broadcast(x, src=n))
    raises(ValueError, lambda: dist.P2POp(print, x, 0), "isend")
    raises(AttributeError, lambda: dist.all_reduce_multigpu, "one GPU")
    raises(TypeError, lambda: dist.all_reduce((1, 2)))


def main():
    assert dist.is_available() and not dist.is_initialized() and dist.is_gloo_available() and not dist.is_ucc_available()
    assert isinstance(dist.is_nccl_available(), bool) and isinstance(dist.is_torchelastic_launched(), bool)
    raises(ValueError, lambda: dist.init_process_group("glooo"), "glooo", 'did you mean "gloo"?')
    if not dist.is_nccl_available():
        raises(ic.FailedPrecondition, lambda: dist.init_process_group("nccl"), "GPU")
        assert not dist.is_initialized()
    raises(ValueError, lambda: dist.init_process_group(store=object()), "store")
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=5))
    r, n = dist.get_rank(), dist.get_world_size()
    assert dist.is_initialized() and dist.get_backend() == "gloo"
    for each in (collectives, messages, objects, sub_groups):
        each(r, n)
    bad_input(n)
    dist.barrier()
    dist.destroy_process_group()
    assert not dist.is_initialized() and "torch" not in sys.modules
    print("all equal")


if __name__ == "__main__":
    main()
