# SPDX-License-Identifier: Apache-2.0
"""torch's backend "ivy", the rendezvous for torch's repair in place, and collectives with derivatives.

Importing this module registers the backend "ivy" of torch.distributed; with torch 2.14 and newer no import is needed.
reconfigure and rendezvous_reconfigure let processes form a torch process group again after a loss.

The collectives have derivatives in eager mode and, with torch 2.4 and newer, inside torch.compile.

    import ivycomm.torch as ict
    y = ict.all_reduce(x)                    # As ivycomm.all_reduce; y.backward() runs the adjoint on every rank.
    y = ict.all_reduce(x, grad="identity")   # The loss is the same on every rank, and counts once.

ivycomm's own functions call these for a tensor that requires grad, so arguments, blocking, threads and errors are the
same: every rank of the group calls them, in the same order; `timeout` is in seconds. x is a tensor, and the result is a
new one.

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
Adjoints have the world's timeout. Higher derivatives use the same operations.

Raises RuntimeError for a reduction without a derivative ("product", "min", "max" and the bitwise ones), and for `out=`
with a tensor that requires grad. Inside torch.compile the operations are custom operators (`torch.ops.ivycomm`), so they
do not break the graph; the first use of one of these functions, or `import ivycomm.torch.operations`, registers them.
Every rank must compile the same function, and `async_op`, `timeout`, `uneven` and `scatter` are for eager mode.
"""

from __future__ import annotations

from typing import Any

from ..modules import no_such_name
from .backend.registration import register

_OPERATIONS = ("all_gather", "all_gather_list", "all_reduce", "all_reduce_coalesced", "all_to_all", "broadcast", "exscan",
               "gather", "reduce", "reduce_scatter", "scan", "scatter", "sendrecv")
_REPAIR = ("reconfigure", "rendezvous_reconfigure")

__all__ = ["register", *_OPERATIONS, *_REPAIR]

register()


# Imported on first use: torch's start imports this package for the backend only (ivycomm_torch_entry.py), and defining
# custom operators takes longer than the rest of ivycomm.
def __getattr__(name: str) -> Any:
    if name in _OPERATIONS:
        from . import operations
        value = getattr(operations, name)
    elif name in _REPAIR:
        from . import repair
        value = getattr(repair, name)
    else:
        raise no_such_name(__name__, name, __all__)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
