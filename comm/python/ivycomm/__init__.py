# SPDX-License-Identifier: Apache-2.0
"""ivycomm: rank, world size and collectives inside a worker.

    import ivycomm as ic
    ic.init()                          # Under ivyrun, torchrun, mpirun or srun; without a launcher: a world of one.
    y = ic.all_reduce(x)               # NumPy array in, NumPy array out; likewise for torch, JAX, TensorFlow and others.
    ic.all_reduce_(x, "mean")          # In place.
    work = ic.all_gather(x, async_op=True)
    z = work.wait(timeout=30)

The arguments that all calls share are described in `help(ivycomm.collectives)`.
"""

from __future__ import annotations

import importlib as _importlib
from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING

from . import collectives as _collectives
from . import gradients as _gradients
from .collectives import *
from .compat import originals as _originals
from .element_types import ReduceOp
from .errors import (Aborted, FailedPrecondition, HostLost, InvalidArgument, IvyError, Mismatch, MissingRanks, NotFound,
                     NotInitialized, RankDied, ResourceExhausted, StillRunning, Timeout, TransportError,
                     Unauthenticated)
from .futures import wait_all, wait_any
from .groups import (Group, device, group_of_members, is_initialized, is_main_process, local_rank, local_world_size,
                     new_group, node_rank, num_nodes, prepare_device, rank, source, split, world, world_size)
from .job_store import Store, store
from .library import load as _load_library
from .lifetime import abort, finalize, grow, init, restart_count, shrink
from .mesh import Mesh, mesh
from .messages import P2POp, batch_isend_irecv, irecv, isend, recv, recv_, send, sendrecv
from .modules import no_such_name as _no_such_name
from .monitored import monitored_barrier
from .objects import all_gather_object, broadcast_object, gather_object, scatter_object
from .registered import empty_registered
from .store_watch import Change, Watch
from .work import Message, Timing, Work


def _derivatives() -> _ModuleType:
    from .torch import operations
    return operations


_gradients.import_derivatives_by(_derivatives)  # Operations on tensors that require grad use them.
_originals.serve()  # Makes `import ivy.distributed` and `import neurenix` work if these are not installed.

# Public submodules, and other public names with the modules that define them. __getattr__ imports them on first use:
# they are rarely needed, or in need of a framework.
_LATER_MODULES = ("compat", "i_dist", "rpc", "sim")
_LATER = {
    "CudaContext": ".compat.cuda_context",
    "DaskCluster": ".compat.dask_cluster",
    "DataParallel": ".torch.data_parallel",
    "DistributedContext": ".compat.context",
    "RpcContext": ".rpc.context",
    "SyncBatchNorm": ".torch.moments",
    "average_gradients": ".gradient_average",
    "dask_to_tensor": ".compat.dask_cluster",
    "get_rank": ".compat.context",
    "get_world_size": ".compat.context",
    "gpu_to_tensor": ".compat.cuda_context",
    "init_distributed": ".compat.context",
    "init_rpc": ".rpc",
    "register_function": ".rpc",
    "rpc_async": ".rpc",
    "rpc_sync": ".rpc",
    "scatter_to_sharding": ".sharding",
    "shard_indices": ".shards",
    "spawn": ".compat.spawning",
    "sync_moments": ".moments",
    "tensor_to_dask": ".compat.dask_cluster",
    "tensor_to_gpu": ".compat.cuda_context",
}

# Type checkers would otherwise accept any attribute, because of __getattr__. They find submodules themselves, so this lists
# the names in _LATER; test_ivycomm_api.py compares them.
if TYPE_CHECKING:
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
        if name == "__version__":
            try:
                value = _load_library().ivy_version().decode()
            except ImportError as error:
                raise AttributeError(f"ivycomm.__version__ is the library's: {error}") from error
        elif name in _LATER_MODULES:
            value = _importlib.import_module(f".{name}", __name__)
        elif name in _LATER:
            value = getattr(_importlib.import_module(_LATER[name], __name__), name)
        else:
            raise _no_such_name(__name__, name, [*globals(), *_LATER_MODULES, *_LATER])
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER_MODULES, *_LATER, "__version__"})


__version__: str  # The library's, which __getattr__ loads for it.

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
