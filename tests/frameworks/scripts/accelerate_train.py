# SPDX-License-Identifier: Apache-2.0
"""accelerate as in its quick tour: prepare(), backward(), gather()."""
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
torch.manual_seed(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rows = torch.rand(64, 4)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows, rows.sum(1, keepdim=True)), batch_size=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for inputs, targets in loader:
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    accelerator.backward(loss)
    optimizer.step()
weights = accelerator.unwrap_model(model).weight.detach().sum().item()
batches = int(accelerator.reduce(torch.tensor(float(len(loader))), "sum"))
print(f"rank {accelerator.process_index} of {accelerator.num_processes} local {accelerator.local_process_index} "
      f"model {weights:.6f} batches {batches}", flush=True)
accelerator.end_training()
