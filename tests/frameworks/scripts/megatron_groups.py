# SPDX-License-Identifier: Apache-2.0
"""Megatron-Core's quick start: groups of two ranks that share a model, and groups that share the data."""
import torch
from megatron.core import parallel_state

torch.distributed.init_process_group("gloo")
parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
rank = torch.distributed.get_rank()
total = torch.tensor([float(rank)])
torch.distributed.all_reduce(total, group=parallel_state.get_tensor_model_parallel_group())
print(f"rank {rank} of {torch.distributed.get_world_size()} tensor {parallel_state.get_tensor_model_parallel_rank()} "
      f"data {parallel_state.get_data_parallel_rank()} sum {int(total)}", flush=True)
torch.distributed.destroy_process_group()
