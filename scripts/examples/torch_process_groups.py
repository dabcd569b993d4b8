"""torch.distributed, call by call: collectives, messages, groups, asynchronous work, DDP that accumulates and is saved.

    ivyrun -n 4 torch_process_groups.py
    ivyrun -n 4 torch_process_groups.py --backend ivy      # gloo is the default

It knows nothing about its launcher.
"""

import argparse
import os
import tempfile

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def collectives(rank, size):
    x = torch.tensor([2.0 * rank + 1, 2.0 * rank + 2])
    dist.all_reduce(x, op=dist.ReduceOp.SUM)
    assert x.tolist() == [size * size, size * size + size]
    x = torch.arange(4.0) if rank == 0 else torch.zeros(4)
    dist.broadcast(x, src=0)
    assert x.tolist() == [0, 1, 2, 3]
    parts = [torch.zeros(2) for _ in range(size)]
    dist.all_gather(parts, torch.full((2,), float(rank)))
    assert [part[0].item() for part in parts] == list(range(size))
    highest = torch.tensor([rank])
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    assert highest.item() == size - 1
    if dist.get_backend() != "gloo":  # gloo has no reduce_scatter.
        part = torch.zeros(2)
        dist.reduce_scatter(part, [torch.tensor([2.0 * each + 1, 2.0 * each + 2]) for each in range(size)])
        assert part.tolist() == [size * (2 * rank + 1), size * (2 * rank + 2)]
    dist.barrier()


def messages(rank, size):
    if rank == 0:
        dist.send(torch.arange(3.0), dst=size - 1)
    elif rank == size - 1:
        x = torch.zeros(3)
        assert dist.recv(x, src=0) == 0 and x.tolist() == [0, 1, 2]
    x, y = torch.tensor([float(rank)]), torch.zeros(1)
    works = [dist.isend(x, (rank + 1) % size), dist.irecv(y, (rank - 1) % size)]
    for work in works:
        work.wait()
    assert y.item() == (rank - 1) % size


def groups_and_work(rank, size):
    first = dist.new_group([0, 1])
    if rank < 2:
        x = torch.ones(1)
        dist.all_reduce(x, group=first)
        assert x.item() == 2
    x = torch.ones(1000)
    work = dist.all_reduce(x, async_op=True)
    y = torch.ones(10).sum()  # Meanwhile.
    work.wait()
    assert work.is_completed() and x[0].item() == size and y.item() == 10


def train(rank, size, steps=6, accumulate=2):
    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(steps * accumulate):
        x = torch.randn(16, 4, generator=torch.Generator().manual_seed(rank + size * step))
        is_last = step % accumulate == accumulate - 1
        with torch.enable_grad() if is_last else model.no_sync():
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            (loss / accumulate).backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    assert losses[-1] < losses[0], losses
    path = [os.path.join(tempfile.mkdtemp(), "model.pt") if rank == 0 else None]
    dist.broadcast_object_list(path, src=0)
    if rank == 0:
        torch.save(model.module.state_dict(), path[0])
    dist.barrier()
    again = torch.nn.Linear(4, 1)
    again.load_state_dict(torch.load(path[0], map_location="cpu"))
    assert torch.equal(again.weight, model.module.weight), "the ranks' models differ"
    dist.barrier()
    if rank == 0:
        os.unlink(path[0])
        os.rmdir(os.path.dirname(path[0]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="gloo")
    dist.init_process_group(parser.parse_args().backend, init_method="env://")
    rank, size = dist.get_rank(), dist.get_world_size()
    assert dist.is_initialized()
    collectives(rank, size)
    if size > 1:
        messages(rank, size)
        groups_and_work(rank, size)
    train(rank, size)
    if rank == 0:
        print(f"{size} ranks of backend {dist.get_backend()} agree")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
