"""Derivatives of ivycomm's operations on torch tensors, compared with autograd on the same sums in one process. Prints "all
equal" at the end. With "compile": inside torch.compile, without a graph break."""

import sys

import torch

import ivycomm as ic
import ivycomm.torch as ict
from comm_leave import leave

DOUBLE = torch.float64


def seeds(n, shape, shift=0):
    """One tensor for each rank, the same on every rank."""
    made = []
    for rank in range(n):
        random = torch.Generator().manual_seed(100 * shift + rank)
        made.append(torch.randn(shape(rank) if callable(shape) else shape, generator=random, dtype=DOUBLE))
    return made


def parts(whole, split):
    return list(torch.split(whole, split))


def operations(r, n):
    """Returns {name: (shape of each rank's x, ivycomm's function of x, reference: results of all ranks from their inputs)}."""
    rows, even = [rank + 1 for rank in range(n)], (2 * n, 3)
    uneven = (sum(rows), 3)
    total = lambda xs: sum(xs)  # noqa: E731
    last = n - 1
    zeros = lambda x: x * 0.0  # noqa: E731
    return {
        "all_reduce": (even, ic.all_reduce, lambda xs: [total(xs)] * n),
        "its mean": (even, lambda x: ic.all_reduce(x, "mean"), lambda xs: [total(xs) / n] * n),
        "all_reduce of a view": (even, lambda x: ic.all_reduce(x.T), lambda xs: [total(xs).T] * n),
        "premul_sum": (even, lambda x: ic.all_reduce(x, "premul_sum", factor=r + 0.5),
                       lambda xs: [sum(x * (i + 0.5) for i, x in enumerate(xs))] * n),
        "all_reduce of a 0-d tensor": ((), ic.all_reduce, lambda xs: [total(xs)] * n),
        "asynchronous": (even, lambda x: ic.all_reduce(x, async_op=True).wait(30), lambda xs: [total(xs)] * n),
        "a tree": (even, lambda x: ic.all_reduce({"a": x, "b": [2 * x]})["b"][0], lambda xs: [2 * total(xs)] * n),
        "coalesced": (even, lambda x: torch.cat(ic.all_reduce_coalesced([x, x[:1] * 3], "mean")),
                      lambda xs: [torch.cat([total(xs), 3 * total(xs)[:1]]) / n] * n),
        "all_gather": (even, ic.all_gather, lambda xs: [torch.cat(xs)] * n),
        "all_gather along axis 1": (even, lambda x: ic.all_gather(x, axis=1), lambda xs: [torch.cat(xs, 1)] * n),
        "uneven all_gather": (lambda rank: (rank + 1, 2), lambda x: ic.all_gather(x, uneven=True),
                              lambda xs: [torch.cat(xs)] * n),
        "all_gather of 0-d tensors": ((), ic.all_gather, lambda xs: [torch.stack(xs)] * n),
        "all_gather_list": (even, lambda x: sum((i + 1) * part for i, part in enumerate(ic.all_gather_list(x))),
                            lambda xs: [sum((i + 1) * x for i, x in enumerate(xs))] * n),
        "reduce_scatter": (even, ic.reduce_scatter, lambda xs: parts(total(xs), 2)),
        "its mean in parts": (uneven, lambda x: ic.reduce_scatter(x, "mean", split=rows),
                              lambda xs: parts(total(xs) / n, rows)),
        "broadcast": (even, lambda x: ic.broadcast(x, last), lambda xs: [xs[last] + zeros(x) for x in xs]),
        "reduce": (even, lambda x: ict.reduce(x, last, "mean"),
                   lambda xs: [zeros(x) for x in xs[:-1]] + [total(xs) / n]),
        "gather": (even, lambda x: ict.gather(x, last, axis=1),
                   lambda xs: [zeros(torch.cat(xs, 1))] * last + [torch.cat(xs, 1)]),
        "uneven gather": (lambda rank: (rank + 1, 2), lambda x: ict.gather(x, 0, uneven=True),
                          lambda xs: [torch.cat(xs)] + [zeros(torch.cat(xs))] * last),
        "scatter": (uneven, lambda x: ic.scatter(x, last, split=rows if r == last else None),
                    lambda xs: parts(xs[last], rows)),
        "all_to_all": (even, ic.all_to_all, lambda xs: [torch.cat([parts(x, 2)[i] for x in xs]) for i in range(n)]),
        "all_to_all in parts": (uneven, lambda x: ic.all_to_all(x, rows),
                                lambda xs: [torch.cat([parts(x, rows)[i] for x in xs]) for i in range(n)]),
        "scan": (even, ic.scan, lambda xs: [total(xs[:i + 1]) for i in range(n)]),
        "exscan": (even, ic.exscan, lambda xs: [sum(xs[:i], 0 * xs[i]) for i in range(n)]),
        "its premul_sum": (even, lambda x: ic.exscan(x, "premul_sum", factor=r + 0.5),
                           lambda xs: [sum((xs[j] * (j + 0.5) for j in range(i)), 0 * xs[i]) for i in range(n)]),
        "sendrecv": (even, lambda x: ic.sendrecv(x, (r + 1) % n, src=(r - 1) % n, recv_tag=0),
                     lambda xs: [xs[i - 1] for i in range(n)]),
    }


def against_one_process(r, n):
    """The loss is the sum over ranks of sum(weights * result ** 2 / 2), so that second derivatives are not zero."""
    for name, (shape, ours, reference) in operations(r, n).items():
        xs = [x.requires_grad_() for x in seeds(n, shape)]
        results = reference(xs)
        weights = [torch.randn(y.shape, generator=torch.Generator().manual_seed(7 + i), dtype=DOUBLE)
                   for i, y in enumerate(results)]
        losses = [(w * y * y).sum() / 2 for w, y in zip(weights, results)]
        first = torch.autograd.grad(sum(losses), xs, create_graph=True, allow_unused=True)
        first = [torch.zeros_like(x) if g is None else g for x, g in zip(xs, first)]
        second = torch.autograd.grad(sum((g * g).sum() for g in first), xs, allow_unused=True)
        x = seeds(n, shape)[r].requires_grad_()
        y = ours(x)
        assert torch.allclose(y, results[r]), name
        got, = torch.autograd.grad((weights[r] * y * y).sum() / 2, x, create_graph=True, allow_unused=True)
        if got is None:
            assert not first[r].any(), name
            got = (0 * y).sum()  # Takes part in the second derivative like the others.
        else:
            assert torch.allclose(got, first[r]), f"{name}: {got} is not {first[r]}"
        twice, = torch.autograd.grad((got * got).sum(), x, allow_unused=True)
        if twice is not None and second[r] is not None:
            assert torch.allclose(twice, second[r]), f"{name}, second derivative: {twice} is not {second[r]}"
        ic.barrier(timeout=30)


def checked_by_torch(r, n):
    """gradcheck perturbs the same element on every rank, so only operations that are symmetric in the ranks can be checked."""
    x = torch.randn(n, 1, dtype=DOUBLE, generator=torch.Generator().manual_seed(1)).requires_grad_()
    for function in (ic.all_reduce, lambda t: ic.all_reduce(t, "mean"), lambda t: ic.all_gather(ic.reduce_scatter(t)),
                     lambda t: ic.all_to_all(ic.all_to_all(t))):
        assert torch.autograd.gradcheck(function, (x,)) and torch.autograd.gradgradcheck(function, (x,))


def identity(r, n):
    """The loss is the same on every rank and counts once, so the gradient is that of one process."""
    x = torch.full((3,), float(r + 1), requires_grad=True)
    loss = (ict.all_reduce(x, "mean", grad="identity") ** 2).sum()
    loss.backward()
    assert torch.allclose(x.grad, torch.full((3,), 2 * (n + 1) / 2 / n)), x.grad
    x.grad = None
    ict.all_reduce_coalesced([x], grad="identity")[0].sum().backward()
    assert torch.equal(x.grad, torch.ones(3))


def from_one_rank(r, n):
    """scatter is also differentiated on ranks that pass no input."""
    x = torch.ones(n, 2, requires_grad=True) if r == 0 else None
    y = ic.scatter(x)
    (y * (r + 1)).sum().backward()
    if r == 0:
        assert torch.equal(x.grad, torch.arange(1.0, n + 1).reshape(n, 1).expand(n, 2)), x.grad


def refused(r, n):
    leaf = torch.ones(4, requires_grad=True)
    for call in (lambda: ic.all_reduce_(leaf), lambda: ic.all_reduce_(leaf * 2), lambda: ic.all_reduce_({"a": leaf}),
                 lambda: ic.all_reduce(leaf, out=torch.empty(4)), lambda: ic.all_reduce(torch.ones(4), out=leaf),
                 lambda: ic.all_reduce(leaf, "max"), lambda: ic.all_reduce([leaf], "product"), lambda: ic.reduce(leaf),
                 lambda: ic.gather(leaf), lambda: ic.scan(leaf, "min"), lambda: ic.scan(leaf, "mean"),
                 lambda: ic.exscan(leaf, "mean"), lambda: ic.exscan(leaf, "max"), lambda: ic.exscan_(leaf),
                 lambda: ic.recv_(leaf, 0), lambda: ic.sendrecv(leaf, 0)):
        try:
            call()
        except RuntimeError as error:
            assert not isinstance(error, ic.IvyError) and "grad" in str(error), error
        else:
            raise AssertionError("a tensor that requires grad was not refused")
    assert torch.equal(leaf, torch.ones(4))
    with torch.no_grad():
        assert ic.all_reduce_(leaf) is leaf and ic.all_reduce(leaf, "max").sum() == 4 * n
    assert (ic.reduce(leaf.detach()) is None) == (r != 0)
    work = ic.isend(leaf, r)  # Returns nothing that could be differentiated.
    assert torch.equal(ic.recv(torch.empty(4), r), leaf.detach()) and work.wait(30) is None
    group = ic.new_group([0])
    assert (ic.all_reduce(leaf, group=group) is None) == (r != 0)


def compiled(r, n, backend):
    torch._dynamo.config.suppress_errors = False
    group = ic.new_group(range(n - 1, -1, -1))
    rows = [rank + 1 for rank in range(n)]

    def step(x):
        y = ict.all_reduce(x * 2, "mean") + ict.broadcast(x, n - 1) + ict.scan(x) + ict.exscan(x)
        y = ict.all_gather(ict.reduce_scatter(y.sin()), axis=0) + ict.all_to_all(y)
        y = y + ict.all_reduce(y, group=group, grad="identity") + ict.reduce(y, 0)
        z = ict.all_to_all(y[:sum(rows)], rows, output_split=[rows[r]] * n)
        return y.sum() + (z * z).sum() + ict.gather(y, 0, axis=1).sum()

    x = seeds(n, (2 * n * (n + 1), 3))[r].requires_grad_()
    expected, = torch.autograd.grad(step(x), x)
    fast = torch.compile(step, fullgraph=True, backend=backend)
    for _ in range(2):
        got, = torch.autograd.grad(fast(x), x)
        assert torch.allclose(got, expected), (got, expected)
    try:
        torch.compile(lambda t: ict.all_reduce(t, "max"), fullgraph=True, backend=backend)(x)
    except RuntimeError as error:
        assert "max" in str(error), error
    else:
        raise AssertionError("max has no derivative")
    assert torch.allclose(fast(x.detach()), step(x.detach()))


def main():
    torch.set_num_threads(1)
    ic.init(timeout=60)
    r, n = ic.rank(), ic.world_size()
    if sys.argv[1:2] == ["compile"]:
        compiled(r, n, sys.argv[2])
    else:
        for part in (against_one_process, checked_by_torch, identity, from_one_rank, refused):
            part(r, n)
    ic.barrier()
    leave("all equal")


if __name__ == "__main__":
    main()
