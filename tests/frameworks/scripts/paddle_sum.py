# SPDX-License-Identifier: Apache-2.0
"""As in Paddle's guide to collective communication: a parallel environment and a sum over all ranks."""
import paddle
import paddle.distributed as dist

paddle.set_device("cpu")
dist.init_parallel_env()
data = paddle.to_tensor([float(dist.get_rank() + 1)])
dist.all_reduce(data)
print(f"rank {dist.get_rank()} of {dist.get_world_size()} sum {float(data[0])}", flush=True)
