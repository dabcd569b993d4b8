"""DDP, FSDP2, DTensor and functional collectives with backend ivy, compared with gloo or one process. Prints "all equal"."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

OLD = torch.__version__.startswith("1.")
if OLD:
    import ivycomm.torch  # noqa: F401  (it registers the backend)


def net():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 8))


def batch(rank, step):
    return torch.randn(4, 16, generator=torch.Generator().manual_seed(100 * step + rank))


def train(model, rank, steps=4, accumulate=False):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        if accumulate:
            with model.no_sync():
                model(batch(rank, 50 + step)).square().sum().backward()
        model(batch(rank, step)).square().sum().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def close(mine, theirs):
    for a, b in zip(mine, theirs):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-6), (a - b).abs().max()


def data_parallel(r, n, gloo):
    for accumulate in (False, True):
        mine = train(DistributedDataParallel(net()), r, accumulate=accumulate)
        close(mine, train(DistributedDataParallel(net(), process_group=gloo), r, accumulate=accumulate))
    buckets = DistributedDataParallel(net(), bucket_cap_mb=0.0005)  # Several buckets, which overlap the backward pass.
    close(train(buckets, r), train(DistributedDataParallel(net(), process_group=gloo), r))
    uneven = DistributedDataParallel(net())
    with uneven.join():
        for step in range(2 + r):
            uneven(batch(r, step)).sum().backward()


def hooks(r, n, gloo):
    """A program may process a bucket with its own hook, in Python or C++."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    halves = DistributedDataParallel(net())
    halves.register_comm_hook(None, default_hooks.bf16_compress_hook if not OLD else default_hooks.fp16_compress_hook)
    train(halves, r, 2)
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
    # Its futures' callbacks wait for other collectives. (The batched one fails in torch itself, on gloo too.)
    low = DistributedDataParallel(net())
    low.register_comm_hook(powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook)
    train(low, r, 8)


def sharded(r, n, gloo):
    """FSDP2 gives the same result as DDP."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (n,))
    model = net()
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(model, r)
    whole = [p.full_tensor().detach() for p in model.parameters()]
    close(whole, train(DistributedDataParallel(net(), process_group=gloo), r))
    if n % 2 == 0 and n > 2:
        wide = init_device_mesh("cpu", (2, n // 2), mesh_dim_names=("replicate", "shard"))
        model = fully_shard(net(), mesh=wide)
        train(model, r)
        close([p.full_tensor().detach() for p in model.parameters()], whole)


def distributed_tensors(r, n, gloo):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (n,))
    whole = torch.arange(float(6 * n * 4)).reshape(6 * n, 4)
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    assert rows.to_local().shape == (6, 4)
    assert torch.equal(rows.redistribute(mesh, [Replicate()]).to_local(), whole)
    assert torch.equal(rows.redistribute(mesh, [Shard(1)]).full_tensor(), whole)
    product = torch.mm(rows.t(), rows)  # Made of partial values, which are summed.
    assert torch.equal(product.full_tensor(), whole.t() @ whole)


def functional(r, n, gloo):
    import torch.distributed._functional_collectives as functional_

    x = torch.full((4,), float(r))
    total = functional_.all_reduce(x, "sum", dist.group.WORLD)
    assert torch.equal(torch.as_tensor(total), torch.full((4,), n * (n - 1) / 2)) and x[0] == r
    every = functional_.all_gather_tensor(x, 0, dist.group.WORLD)
    assert torch.equal(torch.as_tensor(every), torch.arange(float(n)).repeat_interleave(4))
    part = functional_.reduce_scatter_tensor(torch.arange(2.0 * n), "sum", 0, dist.group.WORLD)
    assert torch.equal(torch.as_tensor(part), n * torch.arange(2.0 * r, 2.0 * r + 2))

    from torch.distributed.nn.functional import all_reduce
    y = torch.full((3,), float(r), requires_grad=True)
    all_reduce(y).sum().backward()
    assert (y.grad == n).all()


def check_all(r, n, gloo):
    for check in (data_parallel, hooks) if OLD else (data_parallel, hooks, sharded, distributed_tensors, functional):
        check(r, n, gloo)


def main():
    dist.init_process_group("ivy")
    check_all(dist.get_rank(), dist.get_world_size(), dist.new_group(backend="gloo"))
    dist.destroy_process_group()
    print("all equal", flush=True)


if __name__ == "__main__":
    main()
