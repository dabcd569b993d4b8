# SPDX-License-Identifier: Apache-2.0
"""Horovod's own example for PyTorch, on CPUs: all ranks train one model."""
import horovod.torch as hvd
import torch

hvd.init()
torch.manual_seed(10 + hvd.rank())
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
for _ in range(4):
    rows = torch.rand(4, 4)
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(rows), rows.sum(1, keepdim=True)).backward()
    optimizer.step()
weights = sum(parameter.detach().sum().item() for parameter in model.parameters())
total = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum).item()
print(f"rank {hvd.rank()} of {hvd.size()} local {hvd.local_rank()} of {hvd.local_size()} "
      f"model {weights:.6f} sum {total:.0f}", flush=True)
