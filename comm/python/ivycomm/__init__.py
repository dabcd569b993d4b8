"""ivycomm: rank, world size and collectives inside a worker.

    import ivycomm as ic
    ic.init()                          # Under ivyrun, torchrun, mpirun, srun; alone: a world of one.
    y = ic.all_reduce(x)               # NumPy array in, NumPy array out; torch tensor in, torch tensor out.
    ic.all_reduce_(x, "mean")          # In place.
    work = ic.all_gather(x, async_op=True)
    z = work.wait(timeout=30)

What the arguments mean everywhere: `help(ivycomm.collectives)`.
"""

from .collectives import (all_gather, all_gather_, all_gather_list, all_reduce, all_reduce_, all_reduce_coalesced,
                          all_reduce_coalesced_, all_to_all, all_to_all_, barrier, broadcast, broadcast_, gather,
                          gather_, reduce, reduce_, reduce_scatter, reduce_scatter_, scan, scan_, scatter, scatter_)
from .element_types import ReduceOp
from .errors import (Aborted, FailedPrecondition, HostLost, InvalidArgument, IvyError, Mismatch, NotInitialized, RankDied,
                     ResourceExhausted, StillRunning, Timeout, TransportError, Unauthenticated)
from .messages import irecv, isend, recv, recv_, send, sendrecv
from .objects import all_gather_object, broadcast_object, gather_object, scatter_object
from .job_store import store
from .mesh import Mesh, mesh
from .registered import empty_registered
from .work import Message, Timing, Work
from .groups import (Group, abort, device, finalize, group_of_members, init, is_initialized, is_main_process, local_rank,
                    local_world_size, new_group, node_rank, num_nodes, prepare_device, rank, source, split, world,
                     world_size)

__version__ = "0.1.0"

__all__ = [
    "Aborted", "FailedPrecondition", "Group", "HostLost", "InvalidArgument", "IvyError", "Mesh", "Message",
    "Mismatch", "NotInitialized", "RankDied", "ReduceOp", "ResourceExhausted", "StillRunning", "Timeout", "Timing", "TransportError",
    "Unauthenticated", "Work", "abort", "all_gather", "all_gather_", "all_gather_list", "all_gather_object",
    "all_reduce", "all_reduce_", "all_reduce_coalesced", "all_reduce_coalesced_", "all_to_all", "all_to_all_",
    "barrier", "broadcast", "broadcast_", "broadcast_object", "device", "empty_registered", "finalize", "gather",
    "gather_", "gather_object", "group_of_members", "init", "irecv", "is_initialized", "is_main_process", "isend", "local_rank",
    "local_world_size", "mesh", "new_group", "node_rank", "num_nodes", "prepare_device", "rank", "recv", "recv_",
    "reduce", "reduce_", "reduce_scatter", "reduce_scatter_", "scan", "scan_", "scatter", "scatter_", "scatter_object",
    "send", "sendrecv", "source", "split", "store", "world", "world_size",
]
