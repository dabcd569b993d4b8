# SPDX-License-Identifier: Apache-2.0
"""torch's DistributedDataParallel on backend ivy, in one line.

    model = ivycomm.DataParallel(model)         # Rank 0's parameters and buffers, everywhere.
    loss = criterion(model(x), y)
    loss.backward()                             # Gradients are the mean of all ranks' gradients.

For frameworks whose gradients are trees of arrays: ivycomm.average_gradients(tree, samples).
"""

import contextlib
import secrets

import torch
import torch.distributed as dist

from .. import groups, objects
from ..job_store import store as job_store
from .backend import registration

_INSTEAD = {
    "weighting": "every rank counts once, as in torch's DistributedDataParallel; for uneven batches multiply the loss "
                 "by len(batch) * world_size / (all ranks' samples)",
    "group": "give process_group=torch.distributed.new_group(ranks)",
}
_made_here = None  # The default process group, if this module has made it.


class DataParallel(torch.nn.parallel.DistributedDataParallel):
    """torch.nn.parallel.DistributedDataParallel, which averages gradients while the backward pass runs.

    Collective: every rank makes one, in the same order among its operations; blocks until rank 0's parameters have
    arrived. device_ids: at most one GPU, to which the module is moved (a rank is one process with one device). All other
    arguments, methods and errors are torch's. If there is no default process group, one with backend "ivy" is made from
    the job's ranks (ivycomm.init(); a world of one without a launcher); it ends with the world. Raises ValueError for
    several device_ids, and TypeError for `group` and `weighting`, which earlier versions had.
    """

    def __init__(self, module, device_ids=None, **options):
        for name, instead in _INSTEAD.items():
            if name in options:
                raise TypeError(f"DataParallel no longer takes {name}: {instead}")
        device_ids = list(device_ids or [])
        if len(device_ids) > 1:
            raise ValueError(f"device_ids={device_ids}: a rank has one device; ivyrun --nproc_per_node "
                             f"{len(device_ids)} starts a rank for each")
        _make_default_group()
        if device_ids:
            module = module.to(torch.device("cuda", device_ids[0]))
        super().__init__(module, device_ids or None, **options)


class _JobStore(dist.Store):
    """The job's store as a c10d store. torch before 2.1 uses it to synchronize when a group is made."""

    def set(self, key, value):
        job_store().set(key, value)

    def get(self, key):
        return job_store().get(key)

    def add(self, key, delta):
        return job_store().add(key, delta)

    def check(self, keys):
        return job_store().check(keys)

    def wait(self, keys, timeout=None):
        job_store().wait(keys, timeout.total_seconds() if timeout is not None else None)

    def delete_key(self, key):
        return job_store().delete(key)


# Never collected: torch calls its methods from C++, which does not keep the Python object.
_job_store = _JobStore()


def _make_default_group():
    global _made_here
    if dist.is_initialized():
        return
    groups.init()
    registration.register()
    world = groups.world()
    # The job's store keeps the keys of earlier process groups, so each gets its own prefix.
    store = dist.PrefixStore(objects.broadcast_object(f"ivycomm/torch/{secrets.token_hex(8)}"), _job_store)
    dist.init_process_group("ivy", store=store, rank=world.rank, world_size=world.size)
    _made_here = dist.group.WORLD


def _destroy_default_group():
    global _made_here
    made_here, _made_here = _made_here, None
    if made_here is not None and dist.is_initialized() and dist.group.WORLD is made_here:
        # A group that a dead rank has broken has reported that through its operations.
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()


groups.before_end.append(_destroy_default_group)
