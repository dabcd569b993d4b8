# SPDX-License-Identifier: Apache-2.0
"""The names of the original ivy.distributed over ivycomm.

    from ivycomm import i_dist
    i_dist.init_dist()
    context = i_dist.ParallelContext()
    y = i_dist.pmap(gelu)(x)

Arrays may be of any framework that ivycomm supports, including Ivy's. ivycomm.collectives describes the arguments;
names, order and defaults are the original's. all_gather and gather concatenate unless `tiled=True`, which returns the
list of the ranks' arrays. A rank that is not in `group` gets None. The collectives block, every rank of the group calls
them in the same order, and they raise the errors of ivycomm's functions; the timeout is the world's.
"""

from typing import Any as _Any

from ... import modules as _modules
from .calls import (all_gather, all_reduce, all_to_all, barrier, broadcast, gather, recv, reduce, reduce_scatter, scatter,
                    send)
from .maps import dp_pipeline, pmap, xmap
from .meshes import Mesh, MpDpMesh, NamedMesh
from .native_groups import Group, NativeGroup
from .parallel_context import ParallelContext, init_dist, is_initialized, print0
from .reductions import IvyReduceOp, OpHandler

__all__ = ["Group", "IvyReduceOp", "Mesh", "MpDpMesh", "NamedMesh", "NativeGroup", "OpHandler", "ParallelContext",
           "all_gather", "all_reduce", "all_to_all", "barrier", "broadcast", "dp_pipeline", "gather", "init_dist",
           "is_initialized", "pmap", "print0", "recv", "reduce", "reduce_scatter", "scatter", "send", "xmap"]


def __getattr__(name: str) -> _Any:
    raise _modules.no_such_name("ivycomm.i_dist", name, __all__)
