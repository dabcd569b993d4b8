"""The originals' names that are torch's own: process groups, reductions, and pmap by torch.func.vmap if torch has it.

Prints "all equal" at the end.
"""

import ivycomm as ic
import torch
import torch.distributed as dist
from ivycomm import i_dist


def groups_there_and_back(r, n):
    world = i_dist.Group(list(range(n)))
    assert world.to_native_group() is dist.group.WORLD and isinstance(dist.group.WORLD, i_dist.NativeGroup)
    half = i_dist.Group(list(range(n // 2)))
    native = half.to_native_group()
    assert half.to_native_group() is native
    if half.is_member:
        x = torch.tensor([r + 1.0])
        dist.all_reduce(x, group=native)
        assert x.item() == sum(range(1, n // 2 + 1)) and dist.get_rank(native) == half.rank
    # Each rank has the group of its own half. Only members make the request, in both halves at the same time.
    halves = [dist.new_group(list(range(n // 2))), dist.new_group(list(range(n // 2, n)))]
    mine = halves[r >= n // 2]
    for _ in range(2):
        ours = i_dist.Group.from_native_group(mine)
        members = [each for each in range(n) if (each >= n // 2) == (r >= n // 2)]
        assert list(ours.ranks) == members and ours.rank == dist.get_rank(mine) and ours.to_native_group() is mine
        assert i_dist.all_reduce(torch.tensor([r]), group=ours).item() == sum(members)
    everybody = i_dist.Group.from_native_group(dist.group.WORLD)
    assert i_dist.all_reduce(torch.tensor([r]), group=everybody).item() == sum(range(n))
    try:
        i_dist.Group.from_native_group(halves[r < n // 2])
    except TypeError as error:
        assert "that contains this rank" in str(error)
    else:
        raise AssertionError("a group that this rank is not in")


def reductions(r, n):
    for name, wanted in (("SUM", sum(range(n))), ("MEAN", sum(range(n))), ("MAX", n - 1), ("MIN", 0), ("PRODUCT", 0),
                         ("BOR", n - 1 | 1), ("BAND", 0)):
        x = torch.tensor([r])
        dist.all_reduce(x, op=i_dist.OpHandler(name).torch_op)
        assert x.item() == wanted, (name, x)
    assert i_dist.OpHandler("BXOR").torch_op == dist.ReduceOp.BXOR


def maps(r, n):
    rows, columns, weights = torch.randn(3 * n + 1, 4), torch.randn(4, 3 * n + 1), torch.randn(4, 2)
    for x in rows, columns, weights:
        dist.broadcast(x, 0)
    calls = []

    def layer(row, column, weights):
        calls.append(1)
        hidden = torch.tanh(row @ weights)
        return {"hidden": hidden, "pair": (hidden.sum(), column[:2])}

    mapped = i_dist.pmap(layer, in_axes=(0, 1, None))(rows, columns, weights)
    own = (3 * n + 1) * (r + 1) // n - (3 * n + 1) * r // n
    assert len(calls) == (1 if hasattr(torch, "func") else own), "torch's own vmap maps all positions of a rank at once"
    hidden = torch.tanh(rows @ weights)
    for got, wanted in ((mapped["hidden"], hidden), (mapped["pair"][0], hidden.sum(1)), (mapped["pair"][1], columns[:2].T)):
        assert torch.allclose(got, wanted, atol=1e-6)
    if hasattr(torch, "func"):
        gradient = torch.func.grad(lambda row: (row ** 3).sum())
        assert torch.allclose(i_dist.pmap(gradient)(rows), torch.func.vmap(gradient)(rows), atol=1e-6)


def main():
    dist.init_process_group("gloo")
    i_dist.init_dist()
    r, n = ic.rank(), ic.world_size()
    for each in (groups_there_and_back, reductions, maps):
        each(r, n)
    ic.barrier()
    dist.destroy_process_group()
    print("all equal")


if __name__ == "__main__":
    main()
