# SPDX-License-Identifier: Apache-2.0
"""ivycomm: rank, world size and collectives inside a worker.

    import ivycomm as ic
    ic.init()                          # Under ivyrun, torchrun, mpirun, srun; alone: a world of one.
    y = ic.all_reduce(x)               # NumPy array in, NumPy array out; so with torch, JAX, TensorFlow, and others.
    ic.all_reduce_(x, "mean")          # In place.
    work = ic.all_gather(x, async_op=True)
    z = work.wait(timeout=30)

The arguments that all calls share are described in `help(ivycomm.collectives)`.
"""

from __future__ import annotations

from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING

from .collectives import *
from .element_types import ReduceOp
from .errors import (Aborted, FailedPrecondition, HostLost, InvalidArgument, IvyError, Mismatch, MissingRanks, NotFound,
                     NotInitialized, RankDied, ResourceExhausted, StillRunning, Timeout, TransportError,
                     Unauthenticated)
from .futures import wait_all, wait_any
from .messages import P2POp, batch_isend_irecv, irecv, isend, recv, recv_, send, sendrecv
from .objects import all_gather_object, broadcast_object, gather_object, scatter_object
from .job_store import Store, store
from .store_watch import Change, Watch
from .mesh import Mesh, mesh
from .monitored import monitored_barrier
from .registered import empty_registered
from .work import Message, Timing, Work
from .groups import (Group, abort, device, finalize, group_of_members, grow, init, is_initialized, is_main_process, local_rank,
                    local_world_size, new_group, node_rank, num_nodes, prepare_device, rank, restart_count, shrink, source,
                     split, world, world_size)

from . import collectives as _collectives
from . import gradients as _gradients
from .compat import originals as _originals
from .modules import no_such_name as _no_such_name


def _derivatives() -> _ModuleType:
    from .torch import operations
    return operations


_gradients.import_derivatives_by(_derivatives)
_originals.serve()

# Names whose modules need a framework, or that few programs need: imported on first use.
_LATER = ("CudaContext", "DaskCluster", "DataParallel", "DistributedContext", "RpcContext", "SyncBatchNorm",
          "average_gradients", "compat", "dask_to_tensor", "get_rank", "get_world_size", "gpu_to_tensor", "i_dist",
          "init_distributed", "init_rpc", "register_function", "rpc", "rpc_async", "rpc_sync", "scatter_to_sharding",
          "shard_indices", "sim", "spawn", "sync_moments", "tensor_to_dask", "tensor_to_gpu")

if TYPE_CHECKING:  # A type checker would take __getattr__ to have every name.
    from .compat.context import DistributedContext as DistributedContext
    from .compat.context import get_rank as get_rank
    from .compat.context import get_world_size as get_world_size
    from .compat.context import init_distributed as init_distributed
    from .compat.cuda_context import CudaContext as CudaContext
    from .compat.cuda_context import gpu_to_tensor as gpu_to_tensor
    from .compat.cuda_context import tensor_to_gpu as tensor_to_gpu
    from .compat.dask_cluster import DaskCluster as DaskCluster
    from .compat.dask_cluster import dask_to_tensor as dask_to_tensor
    from .compat.dask_cluster import tensor_to_dask as tensor_to_dask
    from .compat.spawning import spawn as spawn
    from .gradient_average import average_gradients as average_gradients
    from .moments import sync_moments as sync_moments
    from .rpc import init_rpc as init_rpc
    from .rpc import register_function as register_function
    from .rpc import rpc_async as rpc_async
    from .rpc import rpc_sync as rpc_sync
    from .rpc.context import RpcContext as RpcContext
    from .sharding import scatter_to_sharding as scatter_to_sharding
    from .shards import shard_indices as shard_indices
    from .torch.data_parallel import DataParallel as DataParallel
    from .torch.moments import SyncBatchNorm as SyncBatchNorm
else:
    def __getattr__(name):
        if name not in _LATER:
            raise _no_such_name(__name__, name, [*globals(), *_LATER])
        if name == "compat":
            import ivycomm.compat as value
        elif name == "i_dist":
            import ivycomm.i_dist as value
        elif name == "rpc":
            import ivycomm.rpc as value
        elif name == "sim":
            import ivycomm.sim as value
        elif name == "RpcContext":
            from .rpc.context import RpcContext as value
        elif name == "spawn":
            from .compat.spawning import spawn as value
        elif name == "DataParallel":
            from .torch.data_parallel import DataParallel as value
        elif name == "SyncBatchNorm":
            from .torch.moments import SyncBatchNorm as value
        elif name == "average_gradients":
            from .gradient_average import average_gradients as value
        elif name == "scatter_to_sharding":
            from .sharding import scatter_to_sharding as value
        elif name == "shard_indices":
            from .shards import shard_indices as value
        elif name == "sync_moments":
            from .moments import sync_moments as value
        elif name in ("init_rpc", "register_function", "rpc_async", "rpc_sync"):
            import ivycomm.rpc
            value = getattr(ivycomm.rpc, name)
        elif name in ("DaskCluster", "dask_to_tensor", "tensor_to_dask"):
            from .compat import dask_cluster
            value = getattr(dask_cluster, name)
        elif name in ("CudaContext", "gpu_to_tensor", "tensor_to_gpu"):
            from .compat import cuda_context
            value = getattr(cuda_context, name)
        else:  # DistributedContext, get_rank, get_world_size, init_distributed
            from .compat import context
            value = getattr(context, name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})


__version__ = "0.1.0"

__all__ = [
    *_collectives.__all__,
    "Aborted", "Change", "FailedPrecondition", "Group", "HostLost", "InvalidArgument", "IvyError", "Mesh", "Message",
    "Mismatch", "MissingRanks", "NotFound", "NotInitialized", "P2POp", "RankDied", "ReduceOp", "ResourceExhausted",
    "StillRunning", "Store", "Timeout", "Timing", "TransportError", "Unauthenticated", "Watch", "Work", "abort",
    "all_gather_object", "batch_isend_irecv", "broadcast_object", "device", "empty_registered", "finalize",
    "gather_object", "group_of_members", "grow", "init", "irecv", "is_initialized", "is_main_process", "isend",
    "local_rank", "local_world_size", "mesh", "monitored_barrier", "new_group", "node_rank", "num_nodes",
    "prepare_device", "rank", "recv", "recv_", "restart_count", "scatter_object", "send", "sendrecv", "shrink",
    "source", "split", "store", "wait_all", "wait_any", "world", "world_size",
]
