# SPDX-License-Identifier: Apache-2.0
"""Lightning's first example, on several nodes."""
import os

import lightning
import torch


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        inputs, targets = batch
        return torch.nn.functional.mse_loss(self.layer(inputs), targets)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


lightning.seed_everything(1)
rows = torch.rand(64, 4)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows, rows.sum(1, keepdim=True)), batch_size=4)
trainer = lightning.Trainer(accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]),
                            num_nodes=int(os.environ["GROUP_WORLD_SIZE"]), strategy="ddp", max_epochs=1, logger=False,
                            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
model = Line()
trainer.fit(model, loader)
print(f"rank {trainer.global_rank} of {trainer.world_size} local {trainer.local_rank} "
      f"model {model.layer.weight.sum().item():.6f} node {trainer.node_rank}", flush=True)
