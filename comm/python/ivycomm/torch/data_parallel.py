# SPDX-License-Identifier: Apache-2.0
"""torch's DistributedDataParallel with the backend ivy, in one line.

    model = ivycomm.DataParallel(model)         # With rank 0's parameters and buffers on every rank.
    loss = criterion(model(x), y)
    loss.backward()                             # Gradients are the mean of all ranks' gradients.

For frameworks whose gradients are trees of arrays, use ivycomm.average_gradients(tree, samples).
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .. import groups, lifetime, objects
from ..job_store import store as job_store
from .backend import registration

_INSTEAD = {
    "weighting": "every rank has the same weight, as in torch's DistributedDataParallel; for uneven batches multiply the loss "
                 "by len(batch) * world_size / (all ranks' samples)",
    "group": "use process_group=torch.distributed.new_group(ranks)",
}
_made_here: Any = None  # The default process group, if this module has made it.


class DataParallel(torch.nn.parallel.DistributedDataParallel):
    """torch.nn.parallel.DistributedDataParallel, which averages gradients while the backward pass runs.

    Collective: every rank creates one, in the same order among its operations; blocks until rank 0's parameters have
    arrived. device_ids: at most one GPU, to which the module is moved (a rank is one process with one device). All other
    arguments, methods and errors are torch's. If there is no default process group, creates one of all ranks of the job
    with the backend "ivy" (ivycomm.init(); without a launcher a world of one), which is destroyed with the world. Raises
    ValueError for several device_ids, and TypeError for `group` and `weighting`, which earlier versions had.
    """

    def __init__(self, module: Any, device_ids: Sequence[int] | None = None, **options: Any) -> None:
        for name, instead in _INSTEAD.items():
            if name in options:
                raise TypeError(f"DataParallel no longer accepts {name}: {instead}")
        device_ids = list(device_ids or [])
        if len(device_ids) > 1:
            raise ValueError(f"device_ids={device_ids}: a rank has one device; ivyrun --nproc_per_node "
                             f"{len(device_ids)} starts a rank for each")
        _make_default_group()
        if device_ids:
            module = module.to(torch.device("cuda", device_ids[0]))
        super().__init__(module, device_ids or None, **options)


class _JobStore(dist.Store):
    """The job's store as a c10d store. torch before 2.1 uses it for a barrier when a group is created."""

    def set(self, key: str, value: Any) -> None:
        job_store().set(key, value)

    def get(self, key: str) -> bytes:
        return job_store().get(key)

    def add(self, key: str, delta: int) -> int:
        return job_store().add(key, delta)

    def check(self, keys: list[str]) -> bool:
        return job_store().check(keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        job_store().wait(keys, timeout.total_seconds() if timeout is not None else None)

    def delete_key(self, key: str) -> bool:
        return job_store().delete(key)


# Never garbage-collected: torch calls its methods from C++, which holds no reference to the Python object.
_job_store = _JobStore()


def _make_default_group() -> None:
    global _made_here
    if dist.is_initialized():
        return
    lifetime.init()
    registration.register()
    world = groups.world()
    # The job's store still has the keys of earlier process groups, so each group needs its own prefix.
    store = dist.PrefixStore(objects.broadcast_object(f"ivycomm/torch/{secrets.token_hex(8)}"), _job_store)
    dist.init_process_group("ivy", store=store, rank=world.rank, world_size=world.size)
    _made_here = dist.group.WORLD


def _destroy_default_group() -> None:
    global _made_here
    made_here, _made_here = _made_here, None
    if made_here is not None and dist.is_initialized() and dist.group.WORLD is made_here:
        # If a rank has exited, the group's operations have reported it.
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()


lifetime.before_end.append(_destroy_default_group)
