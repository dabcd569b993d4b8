# SPDX-License-Identifier: Apache-2.0
"""The original's ParallelContext and init_dist: a process's view of its job."""

import collections.abc
import os
import sys

from ... import groups
from ...modules import nearest

_OURS = ("auto", "ivy", "shm", "tcp")
_ORIGINALS = ("nccl", "gloo", "mpi")
_backend = None


def init_dist(backend=None, **options):
    """Joins the job; a second call does nothing. Returns the ParallelContext. Collective: blocks until every rank has
    joined.

    backend: None, "nccl", "gloo" or "mpi". Data is transferred by ivycomm in any case: shared memory inside a host, TCP
    between hosts, NCCL for GPU memory. "nccl" sets up NCCL immediately, on the current device; if that fails on some
    rank, every rank raises FailedPrecondition with the reason. options: those of ivycomm.init (timeout: seconds). Raises
    ValueError for an unknown backend, and the errors of ivycomm.init().
    """
    global _backend
    name = str(backend or "auto").lower()
    if name not in _OURS + _ORIGINALS:
        raise ValueError(f"backend {backend!r} is unknown; {nearest(name, _ORIGINALS + _OURS)}")
    world = groups.init(**options)
    if name == "nccl" and _backend != "nccl":
        groups.prepare_device_or_leave(options.get("timeout"))
    if name in ("gloo", "mpi") and _backend is None and world.rank == 0:
        print(f'ivycomm: backend "{name}" is provided by ivycomm itself', file=sys.stderr)
    _backend = _backend or name
    return ParallelContext()


def is_initialized():
    """Returns whether this process has joined a job."""
    return groups.is_initialized()


def _device():
    return "cuda" if _backend == "nccl" else "cpu"


class ParallelContext(collections.abc.MutableMapping):
    """A process's view of its job, as attributes and as items: rank, local_rank, world_size, local_world_size, node_rank,
    num_nodes, default_group, backend, device, run_id, restart_count and others. One object is shared by the process.

    Programs may store other names in it. Setting one of these raises AttributeError, or KeyError for an item; reading a
    rank or size before init_dist() raises NotInitialized.
    """

    _only = None
    _questions = {
        "rank": lambda: groups.rank(), "global_rank": lambda: groups.rank(),
        "local_rank": lambda: groups.local_rank(), "world_size": lambda: groups.world_size(),
        "local_world_size": lambda: groups.local_world_size(), "node_rank": lambda: groups.node_rank(),
        "num_nodes": lambda: groups.num_nodes(), "default_group": lambda: groups.world(),
        "world_comm": lambda: groups.world(), "backend": lambda: _backend, "device": _device,
        "xla_token": lambda: None, "run_id": lambda: os.environ.get("IVY_JOB_ID"),
        "restart_count": lambda: int(os.environ.get("IVY_GENERATION") or 0),
        # The original's spelling, and the correct one.
        "is_initized": is_initialized, "is_initialized": is_initialized,
    }

    def __new__(cls):
        if cls._only is None:
            cls._only = super().__new__(cls)
        return cls._only

    def __getattr__(self, name):
        if name not in self._questions:
            raise AttributeError(f"ParallelContext has no {name}; {nearest(name, self)}")
        return self._questions[name]()

    def __setattr__(self, name, value):
        if name in self._questions:
            raise AttributeError(f"ParallelContext.{name} is determined by the launcher and cannot be set")
        super().__setattr__(name, value)

    def __getitem__(self, name):
        if name in self._questions:
            return self._questions[name]()
        return self.__dict__[name]

    def __setitem__(self, name, value):
        if name in self._questions:
            raise KeyError(f"{name} is determined by the launcher and cannot be set")
        self.__dict__[name] = value

    def __delitem__(self, name):
        del self.__dict__[name]

    def __iter__(self):
        return iter([*self._questions, *self.__dict__])

    def __len__(self):
        return len(self._questions) + len(self.__dict__)

    def __repr__(self):
        place = f"rank {self.rank} of {self.world_size}" if groups.is_initialized() else "which has not joined a job"
        return f"<ParallelContext: {place}>"

    __hash__ = object.__hash__

    def __eq__(self, other):
        return self is other

    def initilize(self, backend=None, **options):
        """Joins the job, as init_dist() does. The original spells it this way; `initialize` is the same."""
        return init_dist(backend, **options)

    initialize = initilize

    def reset_context(self):
        """Leaves the job, as ivycomm.finalize(), and removes the values that programs have stored."""
        global _backend
        _backend = None
        self.__dict__.clear()
        groups.finalize()

    def get_global_rank(self):
        """Returns this process's rank. Raises NotInitialized before init_dist(), as do the next two."""
        return self.rank

    def get_local_rank(self):
        """Returns this process's rank among those of its host."""
        return self.local_rank

    def get_world_size(self):
        """Returns the number of ranks."""
        return self.world_size


def print0(*values, group=None, **options):
    """print on rank 0 of the group (None: of the world); options are print's."""
    if (groups.rank() if group is None else group.rank) == 0:
        print(*values, **options)
