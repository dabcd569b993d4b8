"""PyTorch's ways to begin: ranks made by torch.multiprocessing, which meet by tcp://, by file:// and by a TCPStore; then
DDP in mixed precision.

    python3 torch_init_methods.py [RANKS]      no launcher
"""

import gc
import os
import socket
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def meet(rank, size, how, **where):
    dist.init_process_group("gloo", rank=rank, world_size=size, **where)
    total = torch.tensor([float(rank)])
    dist.all_reduce(total)
    assert total.item() == sum(range(size))
    if rank == 0:
        print(f"{how}: {size} ranks have met", flush=True)


def scaler():
    """Before torch 2.3 there was one for GPUs only."""
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler(DEVICE)
    return torch.cuda.amp.GradScaler(enabled=DEVICE == "cuda")


def train(rank, steps=20):
    torch.manual_seed(0)
    model = DDP(torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Linear(16, 1)).to(DEVICE))
    optimizer, scale, losses = torch.optim.SGD(model.parameters(), lr=0.1), scaler(), []
    data = torch.randn(64, 4, generator=torch.Generator().manual_seed(rank)).to(DEVICE)
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast(device_type=DEVICE, dtype=torch.bfloat16):
            predicted = model(data)
            loss = (predicted.float() - data.sum(1, keepdim=True)).square().mean()
        assert predicted.dtype == torch.bfloat16
        scale.scale(loss).backward()
        scale.step(optimizer)
        scale.update()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2, losses
    if rank == 0:
        print(f"mixed precision: loss {losses[0]:.2f}, then {losses[-1]:.2f}", flush=True)


def work(rank, size, ports, folder):
    meet(rank, size, "tcp://", init_method=f"tcp://127.0.0.1:{ports[0]}")
    dist.destroy_process_group()
    meet(rank, size, "file://", init_method=f"file://{folder}/ranks")
    dist.destroy_process_group()
    store = dist.TCPStore("127.0.0.1", ports[1], size, is_master=rank == 0)
    meet(rank, size, "TCPStore", store=store)
    train(rank)
    gc.collect()  # DDP refers to itself, and would go after the group whose threads it uses.
    dist.barrier()
    dist.destroy_process_group()


def main(size):
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, args=(size, free_ports(2), folder), nprocs=size, join=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
