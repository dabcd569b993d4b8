# SPDX-License-Identifier: Apache-2.0
"""ParallelContext and init_dist of ivy.distributed: a process's view of its job."""

from __future__ import annotations

import collections.abc
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from ... import groups, lifetime
from ...modules import nearest

_BACKENDS = ("nccl", "gloo", "mpi", "auto", "ivy", "shm", "tcp")
_backend: str | None = None  # As init_dist() got it; None until then, and again when the process has left the job.


def init_dist(backend: str | None = None, **options: Any) -> ParallelContext:
    """Joins the job and returns the ParallelContext. Collective: blocks until every rank has joined. A second call only
    returns the ParallelContext, whatever its arguments.

    backend: None, "auto", "nccl", "gloo", "mpi", "ivy", "shm" or "tcp". Data is transferred by ivycomm in any case:
    shared memory inside a host, TCP between hosts, NCCL for GPU memory. "nccl" sets up NCCL immediately, on the current
    device; if that fails on some rank, every rank raises FailedPrecondition with the reason, and has left the job.
    options: those of ivycomm.init (timeout: seconds). Raises ValueError for an unknown backend, and the errors of
    ivycomm.init().
    """
    global _backend
    name = str(backend or "auto").lower()
    if name not in _BACKENDS:
        raise ValueError(f"backend {backend!r} is unknown; {nearest(name, _BACKENDS)}")
    if _backend is not None and groups.is_initialized():
        return ParallelContext()
    world = lifetime.init(**options)
    if name == "nccl":
        lifetime.prepare_device_or_leave(options.get("timeout"))
    if name in ("gloo", "mpi") and world.rank == 0:
        print(f'ivycomm: backend "{name}" is provided by ivycomm itself', file=sys.stderr)
    _backend = name
    return ParallelContext()


def is_initialized() -> bool:
    """Returns whether this process has joined a job."""
    return groups.is_initialized()


def _forget_backend() -> None:
    global _backend
    _backend = None


lifetime.before_end.append(_forget_backend)

# The names that every ParallelContext has, and the function that returns the value of each.
_VALUES: dict[str, Callable[[], Any]] = {
    "rank": groups.rank, "global_rank": groups.rank, "local_rank": groups.local_rank, "world_size": groups.world_size,
    "local_world_size": groups.local_world_size, "node_rank": groups.node_rank, "num_nodes": groups.num_nodes,
    "default_group": groups.world, "world_comm": groups.world,
    "backend": lambda: _backend, "device": lambda: "cuda" if _backend == "nccl" else "cpu", "xla_token": lambda: None,
    "run_id": lambda: os.environ.get("IVY_JOB_ID"), "restart_count": lambda: int(os.environ.get("IVY_GENERATION") or 0),
    # The spelling of ivy.distributed, and the correct one.
    "is_initized": is_initialized, "is_initialized": is_initialized,
}


class ParallelContext(collections.abc.MutableMapping[str, Any]):
    """A process's view of its job, as attributes and as items: rank, local_rank, world_size, local_world_size, node_rank,
    num_nodes, default_group, backend, device, run_id, restart_count and others. One object is shared by the process.

    Programs may store other names in it. Setting one of these raises AttributeError, or KeyError for an item; reading a
    rank or size before init_dist() raises NotInitialized.
    """

    _instance: ParallelContext | None = None

    def __new__(cls) -> ParallelContext:
        if cls._instance is None:
            cls._instance = super().__new__(cls)
        return cls._instance

    # Programs may store their own values, as attributes or as items: both are kept in __dict__.
    def __getitem__(self, name: str) -> Any:
        return _VALUES[name]() if name in _VALUES else self.__dict__[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if name in _VALUES:
            raise KeyError(f"{name} is determined by the launcher and cannot be set")
        self.__dict__[name] = value

    def __delitem__(self, name: str) -> None:
        del self.__dict__[name]

    def __iter__(self) -> Iterator[str]:
        return iter([*_VALUES, *self.__dict__])

    def __len__(self) -> int:
        return len(_VALUES) + len(self.__dict__)

    def __getattr__(self, name: str) -> Any:
        if name not in _VALUES:
            raise AttributeError(f"ParallelContext has no {name}; {nearest(name, self)}")
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _VALUES:
            raise AttributeError(f"ParallelContext.{name} is determined by the launcher and cannot be set")
        self[name] = value

    # There is one object, so it is compared and hashed by identity, unlike other mappings.
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        place = f"rank {self.rank} of {self.world_size}" if groups.is_initialized() else "which has not joined a job"
        return f"<ParallelContext: {place}>"

    def initilize(self, backend: str | None = None, **options: Any) -> ParallelContext:
        """Joins the job, as init_dist() does. ivy.distributed spells it this way; `initialize` is the same."""
        return init_dist(backend, **options)

    initialize = initilize

    def reset_context(self) -> None:
        """Leaves the job, as ivycomm.finalize(), and removes the values that programs have stored."""
        self.__dict__.clear()
        lifetime.finalize()

    def get_global_rank(self) -> Any:
        """Returns this process's rank. Raises NotInitialized before init_dist()."""
        return self.rank

    def get_local_rank(self) -> Any:
        """Returns this process's rank among those of its host. Raises NotInitialized before init_dist()."""
        return self.local_rank

    def get_world_size(self) -> Any:
        """Returns the number of ranks. Raises NotInitialized before init_dist()."""
        return self.world_size


def print0(*values: object, group: groups.Group | None = None, **options: Any) -> None:
    """print on rank 0 of the group (None: of the world); options are print's."""
    if (groups.rank() if group is None else group.rank) == 0:
        print(*values, **options)
