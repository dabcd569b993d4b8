# SPDX-License-Identifier: Apache-2.0
"""Every name of Neurenix's module `neurenix.distributed`, implemented with ivycomm."""

from typing import Any

from ivycomm.compat.context import (DistributedContext, barrier, get_rank, get_world_size, init_distributed,  # noqa: F401
                             is_main_process)
from ivycomm.compat.cuda_context import CudaContext, gpu_to_tensor, tensor_to_gpu  # noqa: F401
from ivycomm.compat.dask_cluster import DaskCluster, tensor_to_dask  # noqa: F401
from ivycomm.modules import no_such_name
from ivycomm.rpc import rpc_async, rpc_sync  # noqa: F401
from ivycomm.rpc.context import RpcContext, init_rpc  # noqa: F401


def dask_to_tensor(dask_array: Any) -> Any:
    """Computes a Dask array, and returns its values as a Tensor of the same shape and dtype."""
    from .tensor import Tensor
    return Tensor(dask_array.compute())


def __getattr__(name: str) -> Any:
    # These names import torch, which programs that use only remote calls and Dask do not need.
    if name == "DataParallel":
        from ivycomm.torch.data_parallel import DataParallel
        return DataParallel
    if name == "SyncBatchNorm":
        from ivycomm.torch.moments import SyncBatchNorm
        return SyncBatchNorm
    raise no_such_name(__name__, name, [*globals(), "DataParallel", "SyncBatchNorm"])
