"""Trains a small network with PyTorch's DistributedDataParallel.

It knows nothing about its launcher: rank, world size and the master's address come from the
environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), as with every PyTorch launcher.
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def make_dataset(samples):
    """Noisy samples of a smooth function of eight inputs, the same on every rank."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(samples, 8, generator=generator)
    weights = torch.randn(8, 1, generator=generator)
    noise = 0.05 * torch.randn(samples, 1, generator=generator)
    return TensorDataset(inputs, torch.tanh(inputs @ weights) + noise)


def train(model, loader, sampler, optimizer, epochs):
    """Returns the mean loss of every epoch, averaged over all ranks."""
    loss_function = nn.MSELoss()
    losses = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        loss_sum = torch.zeros(1)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = loss_function(model(inputs), targets)
            loss.backward()
            optimizer.step()
            loss_sum += loss.detach()
        loss_sum /= len(loader) * dist.get_world_size()
        dist.all_reduce(loss_sum)
        losses.append(loss_sum)
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}/{epochs}: loss {loss_sum.item():.4f}", flush=True)
    return losses


def gather_weights(model):
    """Returns the weights of every rank, in the order of ranks."""
    mine = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    weights = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(weights, mine)
    return weights, mine


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.05)
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    # Each rank starts from weights of its own; DDP sends out those of rank 0.
    torch.manual_seed(dist.get_rank())
    model = DDP(nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)

    dataset = make_dataset(samples=4096)
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=arguments.batch_size, sampler=sampler)
    losses = train(model, loader, sampler, optimizer, arguments.epochs)
    assert arguments.epochs < 2 or losses[-1] < losses[0], f"the loss did not fall: {losses}"

    weights, mine = gather_weights(model)
    for rank, theirs in enumerate(weights):
        assert torch.equal(mine, theirs), f"rank {dist.get_rank()} and rank {rank} differ"
    print(
        f"rank {dist.get_rank()} of {dist.get_world_size()}: weights equal on all ranks,"
        f" checksum {mine.double().sum().item():.6f}",
        flush=True,
    )
    # Tensors that took part in a collective are kept until here: Gloo's threads in PyTorch 1.13
    # can deadlock with the end of the process group when theirs is the last reference.
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
