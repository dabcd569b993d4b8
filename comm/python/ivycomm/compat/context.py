# SPDX-License-Identifier: Apache-2.0
"""The job as one object, and queries of its ranks. The names are those of neurenix.distributed.

    from ivycomm import DistributedContext, init_distributed, get_rank, get_world_size, is_main_process

    with DistributedContext(backend="gloo") as context:
        print(context.rank, context.world_size, context.device)

Under ivyrun, torchrun, mpirun and srun no arguments are needed; without a launcher the world has one rank.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from .. import collectives, groups, lifetime
from ..errors import FailedPrecondition
from ..modules import nearest

BACKENDS = ("nccl", "gloo", "mpi")


class DistributedContext:
    """This process's membership in the job; also a context manager, which initializes and shuts down.

    backend: "nccl", "gloo" or "mpi". Data is transferred by ivycomm in any case: shared memory inside a host, TCP
    between hosts, NCCL for GPU memory. If there is no GPU, "nccl" only causes a note on rank 0. init_method,
    world_size, rank: as for ivycomm.init; detected if omitted or -1. device_id: this process's GPU; None: its rank on
    the host. timeout: seconds, the default of all operations.

    Raises ValueError for an unknown backend or a timeout that is not positive. The properties and barrier() raise
    FailedPrecondition before initialize() and after shutdown().
    """

    def __init__(self, backend: str = "nccl", init_method: str | None = None, world_size: int | None = -1,
                 rank: int | None = -1, device_id: int | None = None, timeout: float | None = 1800.0) -> None:
        name = str(backend).lower()
        if name not in BACKENDS:
            raise ValueError(f'backend "{backend}" is unknown; {nearest(name, BACKENDS)}')
        if timeout is not None and timeout <= 0:
            raise ValueError(f"timeout must be positive, not {timeout} s")
        self.backend, self.timeout = name, timeout
        self._options: dict[str, Any] = {"init_method": init_method, "timeout": timeout,
                         "world_size": None if world_size in (None, -1) else world_size,
                         "rank": None if rank in (None, -1) else rank}
        self._device_id = device_id
        self._world: groups.Group | None = None

    def initialize(self) -> DistributedContext:
        """Joins the job; collective, and blocks until every rank has joined. Returns the context; a second call does
        nothing. With backend "nccl" and a GPU, sets up NCCL. Raises as ivycomm.init() and ivycomm.prepare_device()."""
        if not self.is_initialized:
            self._world = lifetime.init(**self._options)
            if self.backend == "nccl":
                self._begin_with_gpu(self._world)
        return self

    def _begin_with_gpu(self, world: groups.Group) -> None:
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available():
            torch.cuda.set_device(self.device_index)
            groups.prepare_device(self.device_index, timeout=self.timeout)
        elif world.rank == 0 and groups.device() is None:
            print('ivycomm: no GPU was found; backend "nccl" sends through host memory', file=sys.stderr)

    def shutdown(self) -> None:
        """Leaves the job, as ivycomm.finalize(). Does nothing if it has already been left."""
        if self.is_initialized:
            self._world = None
            lifetime.finalize()

    @property
    def is_initialized(self) -> bool:
        """Whether this process has joined the job by this context, and has not left it."""
        return self._world is not None and groups.is_open(self._world)

    @property
    def is_main_process(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def _joined(self) -> groups.Group:
        if self._world is None or not self.is_initialized:
            raise FailedPrecondition("this DistributedContext was not started: call initialize(), or use it in a with statement")
        return self._world

    @property
    def rank(self) -> int | None:
        """This process's rank, 0 to world_size - 1."""
        return self._joined().rank

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self._joined().size

    @property
    def local_rank(self) -> int:
        """This process's rank among those of its host."""
        return self._joined().local_rank

    @property
    def device_index(self) -> int:
        """Number of this process's GPU: device_id, else the launcher's choice, else its rank on the host."""
        if self._device_id is not None:
            return int(self._device_id)
        chosen = groups.device()
        return self._joined().local_rank if chosen is None else chosen

    @property
    def device(self) -> str:
        """The device in torch's notation: "cuda:1", or "cpu" if no GPU was chosen."""
        self._joined()
        return "cpu" if self._device_id is None and groups.device() is None else f"cuda:{self.device_index}"

    def barrier(self) -> None:
        """Blocks until every rank has called it. Raises as ivycomm.barrier()."""
        self._joined()
        collectives.barrier()

    def __enter__(self) -> DistributedContext:
        return self.initialize()

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        # Ranks that wait for a failed rank are notified when its process exits, with its exception.
        if kind is None:
            self.shutdown()

    def __repr__(self) -> str:
        return (f"<ivycomm.DistributedContext rank {self.rank} of {self.world_size}>" if self.is_initialized
                else "<ivycomm.DistributedContext, not started>")


def init_distributed(backend: str = "nccl", init_method: str | None = None, world_size: int | None = -1,
                     rank: int | None = -1, device_id: int | None = None,
                     timeout: float | None = 1800.0) -> DistributedContext:
    """Joins the job and returns its DistributedContext, whose class describes the arguments (timeout: seconds). Blocks
    until every rank has joined. Raises the errors of DistributedContext and of ivycomm.init()."""
    return DistributedContext(backend, init_method, world_size, rank, device_id, timeout).initialize()


def get_rank() -> int:
    """Returns this process's rank; 0 if the program has not joined a job."""
    return groups.rank() if groups.is_initialized() else 0


def get_world_size() -> int:
    """Returns the number of ranks of the job; 1 if the program has not joined one."""
    return groups.world_size() if groups.is_initialized() else 1


def is_main_process() -> bool:
    """Returns whether this is rank 0; True if the program has not joined a job."""
    return get_rank() == 0


def barrier() -> None:
    """Blocks until every rank has called it; returns immediately if the program has not joined a job."""
    if groups.is_initialized():
        collectives.barrier()
