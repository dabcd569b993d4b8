# SPDX-License-Identifier: Apache-2.0
"""Transformers' Trainer on a model of some thousand parameters that is created here, so that nothing is downloaded."""
import sys

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

arguments = TrainingArguments(output_dir=sys.argv[1], use_cpu=True, max_steps=3, per_device_train_batch_size=2,
                              report_to=[], save_strategy="no", disable_tqdm=True)
model = BertForSequenceClassification(BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1,
                                                 num_attention_heads=2, intermediate_size=16, num_labels=2))
rows = [{"input_ids": [i % 50, 1, 2, 3], "labels": i % 2} for i in range(64)]
trainer = Trainer(model=model, args=arguments, train_dataset=rows)
trainer.train()
weights = sum(parameter.detach().sum().item() for parameter in model.parameters())
assert torch.distributed.get_world_size() == arguments.world_size
print(f"rank {arguments.process_index} of {arguments.world_size} local {arguments.local_process_index} "
      f"model {weights:.4f} steps {trainer.state.global_step}", flush=True)
