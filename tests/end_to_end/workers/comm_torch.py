"""ivycomm on torch tensors. Prints "all equal" at the end."""

import torch

import ivycomm as ic
from comm_leave import leave


def refused(call, kinds, words):
    try:
        call()
    except kinds as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"not refused: {words}")


def inference(r, n):
    """Inference tensors are written only if torch allows it, and this is checked before anything is written."""
    with torch.inference_mode():
        x = torch.full((3,), float(r))
        assert torch.equal(ic.all_reduce(x), torch.full((3,), sum(range(n)) * 1.0))
        ic.all_reduce_(x)
        assert x[0] == sum(range(n))
        work = ic.all_reduce_(x, async_op=True)
    assert work.wait(30) is x
    before = x.clone()
    assert torch.equal(ic.all_reduce(x), before * n)
    for wrong in (lambda: ic.all_reduce_(x), lambda: ic.all_reduce(before, out=x)):
        refused(wrong, ValueError, "inference")
    assert torch.equal(x, before)


def forms(r, n):
    """channels_last is kept, even if the ranks' memory formats differ; elements correspond by the tensor's logical order."""
    for shape, form in (((2, 3, 4, 5), torch.channels_last), ((2, 3, 2, 3, 2), torch.channels_last_3d)):
        plain = torch.arange(120.0 if len(shape) == 4 else 72.0).reshape(shape)
        x = (plain + r).contiguous(memory_format=form if r == 0 else torch.contiguous_format)
        total = n * plain + sum(range(n))
        for got in (ic.all_reduce(x), ic.all_reduce_coalesced([x])[0], ic.all_reduce([x])[0]):
            assert torch.equal(got, total) and got.stride() == x.stride(), got.stride()
        assert torch.equal(ic.broadcast(x), plain)


def no_memory(r, n):
    """Tensors without memory, which torch uses while it traces a function."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    with FakeTensorMode():
        fake = torch.ones(2)
    for wrong in (lambda: ic.all_reduce(fake), lambda: torch.func.vmap(lambda x: ic.all_reduce(x))(torch.ones(2, 3))):
        refused(wrong, TypeError, "no memory that can be sent")


def main():
    ic.init()
    r, n = ic.rank(), ic.world_size()
    for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float16,
                  torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128):
        x = torch.arange(7).to(dtype)
        total = (torch.arange(7) * n).to(dtype)
        y = ic.all_reduce(x)
        assert y.dtype == dtype and torch.equal(y, total) and x[1] == 1, dtype
        assert ic.all_reduce_(x) is x and torch.equal(x, total), dtype
        assert torch.equal(ic.all_gather(total), total.repeat(n))
        assert torch.equal(ic.scatter(total.repeat(n) if r == 0 else None), total)
    bits = torch.tensor([r == 0, True, False])
    assert torch.equal(ic.all_reduce(bits), torch.tensor([True, True, False]))

    # One rounding only: 1 + 2^-8 * ranks, added in f32, is not lost step by step.
    small = torch.tensor([1.0 if r == 0 else 2.0 ** -9]).to(torch.bfloat16)
    expected = torch.tensor([1 + (n - 1) * 2.0 ** -9]).to(torch.bfloat16)
    assert torch.equal(ic.all_reduce(small), expected)

    grid = torch.arange(12.0).reshape(3, 4) + r
    assert torch.equal(ic.all_reduce(grid.T), sum(torch.arange(12.0).reshape(3, 4).T + i for i in range(n)))
    assert torch.equal(ic.all_gather(grid, axis=1), torch.cat([grid - r + i for i in range(n)], 1))
    assert [int(t[0, 0]) for t in ic.all_gather_list(grid)] == list(range(n))
    z = (torch.ones(3) + 1j * r).conj()
    assert torch.equal(ic.all_reduce(z), (torch.ones(3) * n - 1j * sum(range(n))))
    assert ic.all_gather(torch.tensor(float(r))).tolist() == [float(i) for i in range(n)]
    assert ic.all_reduce(torch.empty(0, 3)).shape == (0, 3)

    mine = {"w": torch.full((3,), float(r)), "b": [torch.tensor(r), torch.full((2,), 1, dtype=torch.bfloat16)]}
    got = ic.all_reduce(mine)
    assert torch.equal(got["w"], torch.full((3,), sum(range(n)) * 1.0)) and got["b"][0] == sum(range(n)), got
    assert got["b"][1].dtype == torch.bfloat16 and ic.all_reduce_(mine) is mine and torch.equal(mine["w"], got["w"])

    weights = torch.nn.Parameter(torch.full((3,), float(r + 1)))
    y = ic.all_reduce(weights)
    assert y.requires_grad and y[0] == sum(range(1, n + 1)) and weights[0] == r + 1
    with torch.no_grad():
        assert not ic.all_reduce(weights).requires_grad
    before = weights._version
    ic.broadcast_(weights.detach(), 0)
    assert weights[0] == 1 and weights._version > before, "autograd must notice the change"

    for wrong, word in ((lambda: ic.all_reduce_(grid.T), "contiguous"),
                        (lambda: ic.all_reduce_(torch.ones(2, dtype=torch.complex64).conj()), "conjugate"),
                        (lambda: ic.all_reduce(torch.ones(2).to_sparse()), "dense"),
                        (lambda: ic.all_reduce(torch.empty(2, device="meta")), "CPU")):
        refused(wrong, (TypeError, ValueError), word)

    if hasattr(torch, "func"):
        no_memory(r, n)
    import numpy  # One rank with another framework than the rest.
    mixed = numpy.ones(4, "float32") if r == 0 else torch.ones(4)
    assert float(ic.all_reduce(mixed)[0]) == n
    works = [ic.all_reduce(torch.full((1000,), float(i)), async_op=True) for i in range(20)]
    assert [float(work.wait(30)[0]) for work in works] == [float(i * n) for i in range(20)]
    for part in (inference, forms):
        part(r, n)
    ic.barrier()
    leave("all equal")


if __name__ == "__main__":
    main()
