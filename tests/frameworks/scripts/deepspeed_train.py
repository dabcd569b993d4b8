# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's getting-started, on CPUs: the optimizer's state is divided among the ranks (ZeRO 1)."""
import deepspeed
import torch

deepspeed.init_distributed(dist_backend="gloo")
torch.manual_seed(1)
model = torch.nn.Linear(4, 1)
engine, _, _, _ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), config={
    "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1}, "zero_allow_untested_optimizer": True})
torch.manual_seed(10 + deepspeed.comm.get_rank())
for _ in range(4):
    rows = torch.rand(4, 4)
    loss = torch.nn.functional.mse_loss(engine(rows), rows.sum(1, keepdim=True))
    engine.backward(loss)
    engine.step()
weights = sum(parameter.detach().sum().item() for parameter in model.parameters())
print(f"rank {deepspeed.comm.get_rank()} of {deepspeed.comm.get_world_size()} local {engine.local_rank} "
      f"model {weights:.6f} stage {engine.zero_optimization_stage()}", flush=True)
