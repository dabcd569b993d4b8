"""Trains a small network as a program of Neurenix does: a context, DataParallel, progress from the main process.

    ivyrun -n 2 neurenix_training.py

Where Neurenix is not installed, torch's modules stand in for its layers.
"""

import ivycomm  # noqa: F401  Serves the name neurenix where ivyrun is not the launcher.
import neurenix
from neurenix.distributed import DataParallel, get_rank, get_world_size, init_distributed, is_main_process
from neurenix.nn import Linear, Module, functional
from neurenix.optim import SGD


class SimpleModel(Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = Linear(16, 32), Linear(32, 4)

    def forward(self, x):
        return self.fc2(self.fc1(x).relu())


def batches(count, size=32):
    """This rank's own samples: which of four corners of a square a point is nearest to."""
    import torch
    generator = torch.Generator().manual_seed(get_rank())
    for _ in range(count):
        data = torch.randn(size, 16, generator=generator)
        yield data, (data[:, 0] > 0).long() + 2 * (data[:, 1] > 0).long()


def main():
    context = init_distributed(backend="nccl")  # On hosts without GPUs the data goes through memory and TCP.
    device = neurenix.get_device(f"cuda:{get_rank()}")
    model = DataParallel(SimpleModel().to(device))
    optimizer = SGD(model.parameters(), lr=0.2)
    losses = []
    for epoch in range(4):
        for data, target in batches(40):
            loss = functional.cross_entropy(model(data.to(device)), target.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
        if is_main_process():
            print(f"Epoch: {epoch}, Loss: {losses[-1]:.3f}, {get_world_size()} processes", flush=True)
    assert losses[-1] < losses[0] and losses[-1] < 0.7, losses
    context.shutdown()


if __name__ == "__main__":
    main()
