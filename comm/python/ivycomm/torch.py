# SPDX-License-Identifier: Apache-2.0
"""Torch's backend "ivy", its repair in place, and collectives with derivatives.

Importing this module registers torch.distributed's backend "ivy" with every torch from 1.13 on; from 2.14 on no import
is needed. reconfigure and rendezvous_reconfigure are the rendezvous of torch's repair in place.

Collectives with derivatives, in eager mode and, from torch 2.4 on, inside torch.compile.

    import ivycomm.torch as ict
    y = ict.all_reduce(x)                    # As ivycomm.all_reduce; y.backward() runs the adjoint on every rank.
    y = ict.all_reduce(x, grad="identity")   # The loss is the same on every rank, and counts once.

ivycomm's own functions call these for a tensor that requires grad. Arguments mean the same as there.

| operation | its adjoint |
|---|---|
| all_reduce, all_reduce_coalesced ("sum", "mean", "premul_sum") | all_reduce, or with grad="identity" nothing |
| all_gather, all_gather_list | reduce_scatter |
| reduce_scatter ("sum", "mean", "premul_sum") | all_gather |
| broadcast | reduce to src |
| reduce ("sum", "mean", "premul_sum") | broadcast from dst |
| scatter, gather | gather, scatter |
| all_to_all | all_to_all with both splits exchanged |
| scan, exscan ("sum", "premul_sum") | the same from the last rank to the first |
| sendrecv | sendrecv in the other direction |

The differentiated value is the sum of all ranks' losses. So every rank must call `backward()`, for results in the same
order, and x must require grad on every rank or on none: otherwise a rank waits for missing adjoints until its timeout.
Adjoints have the timeout of the world. Derivatives of derivatives work, by the same operations.

RuntimeError: the reduction has no derivative ("product", "min", "max" and those of bits); `out=` with a tensor that
requires grad. Inside torch.compile the operations are custom operators (`torch.ops.ivycomm`), so nothing breaks the
graph; every rank compiles the same function, and `async_op`, `timeout`, `uneven` and `scatter` are for eager mode.
"""

from .torch_backend.registration import register
from .torch_operations import (all_gather, all_gather_list, all_reduce, all_reduce_coalesced, all_to_all, broadcast, exscan,
                               gather, reduce, reduce_scatter, scan, scatter, sendrecv)
from .torch_reconfigure import reconfigure, rendezvous_reconfigure

register()

__all__ = ["all_gather", "all_gather_list", "all_reduce", "all_reduce_coalesced", "all_to_all", "broadcast", "exscan", "gather",
           "reconfigure", "reduce", "reduce_scatter", "register", "rendezvous_reconfigure", "scan", "scatter", "sendrecv"]
