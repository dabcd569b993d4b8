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

from .collectives import (all_gather, all_gather_, all_gather_list, all_reduce, all_reduce_, all_reduce_coalesced,
                          all_reduce_coalesced_, all_to_all, all_to_all_, barrier, broadcast, broadcast_, exscan,
                          exscan_, gather, gather_, reduce, reduce_, reduce_scatter, reduce_scatter_, scan, scan_,
                          scatter, scatter_)
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

from .compat import originals as _originals
from .modules import no_such_name as _unknown

_originals.serve()

# Modules that need a framework, or that few programs need, are imported on first use.
_LATER = {
    "DataParallel": "torch.data_parallel", "DaskCluster": "compat.dask_cluster", "CudaContext": "compat.cuda_context", "RpcContext": "rpc.context",
    "DistributedContext": "compat.context", "SyncBatchNorm": "torch.moments", "average_gradients": "gradient_average",
    "dask_to_tensor": "compat.dask_cluster", "get_rank": "compat.context", "get_world_size": "compat.context", "gpu_to_tensor": "compat.cuda_context",
    "init_distributed": "compat.context", "init_rpc": "rpc", "register_function": "rpc", "rpc_async": "rpc", "rpc_sync": "rpc",
    "scatter_to_sharding": "sharding", "shard_indices": "shards", "spawn": "compat.spawning", "sync_moments": "moments",
    "tensor_to_dask": "compat.dask_cluster", "tensor_to_gpu": "compat.cuda_context",
}
_MODULES = ("compat", "i_dist", "rpc", "sim")


def __getattr__(name):
    import importlib
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _LATER:
        value = getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
        globals()[name] = value
        return value
    raise _unknown(__name__, name, [*globals(), *_LATER, *_MODULES])


def __dir__():
    return sorted({*globals(), *_LATER, *_MODULES})


__version__ = "0.1.0"

__all__ = [
    "Aborted", "Change", "FailedPrecondition", "Group", "HostLost", "InvalidArgument", "IvyError", "Mesh", "Message",
    "Mismatch", "MissingRanks", "NotFound", "NotInitialized", "P2POp", "RankDied", "ReduceOp", "ResourceExhausted",
    "StillRunning", "Store", "Timeout", "Timing", "TransportError", "Unauthenticated", "Watch", "Work", "abort",
    "all_gather", "all_gather_", "all_gather_list", "all_gather_object", "all_reduce", "all_reduce_",
    "all_reduce_coalesced", "all_reduce_coalesced_", "all_to_all", "all_to_all_", "barrier", "batch_isend_irecv",
    "broadcast", "broadcast_", "broadcast_object", "device", "empty_registered", "exscan", "exscan_", "finalize",
    "gather", "gather_", "gather_object", "group_of_members", "grow", "init", "irecv", "is_initialized", "is_main_process", "isend",
    "local_rank", "local_world_size", "mesh", "monitored_barrier", "new_group", "node_rank", "num_nodes",
    "prepare_device", "rank", "recv", "recv_", "reduce", "reduce_", "reduce_scatter", "reduce_scatter_", "restart_count", "scan",
    "scan_", "scatter", "scatter_", "scatter_object", "send", "sendrecv", "shrink", "source", "split", "store", "wait_all",
    "wait_any", "world", "world_size",
]
