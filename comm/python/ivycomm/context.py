"""The job as one object, and the questions that programs ask of it. The names are those of neurenix.distributed.

    from ivycomm import DistributedContext, init_distributed, get_rank, get_world_size, is_main_process

    with DistributedContext(backend="gloo") as context:
        print(context.rank, context.world_size, context.device)

Under ivyrun, torchrun, mpirun and srun everything is known already; not launched, the world has one rank.
"""

import sys

from . import collectives, groups
from .errors import FailedPrecondition
from .modules import nearest

BACKENDS = ("nccl", "gloo", "mpi")


class DistributedContext:
    """This process's place in the job; also a context manager, which initializes and shuts down.

    backend: "nccl", "gloo" or "mpi". The data goes through ivycomm whatever it says: shared memory inside a host, TCP
    between hosts, NCCL for memory of GPUs. Where no GPU is, "nccl" is a wish that a note on rank 0 mentions.
    init_method, world_size, rank: as for ivycomm.init; left out or -1, they are found out. device_id: the GPU of this
    process; None: its rank on the host. timeout: seconds, of every operation that says none.
    """

    def __init__(self, backend="nccl", init_method=None, world_size=-1, rank=-1, device_id=None, timeout=1800.0):
        name = str(backend).lower()
        if name not in BACKENDS:
            raise ValueError(f'backend "{backend}" is not known; {nearest(name, BACKENDS)}')
        if timeout is not None and timeout <= 0:
            raise ValueError(f"a timeout of {timeout} s")
        self.backend, self.timeout = name, timeout
        self._options = {"init_method": init_method, "timeout": timeout,
                         "world_size": None if world_size in (None, -1) else world_size,
                         "rank": None if rank in (None, -1) else rank}
        self._device_id = device_id
        self._world = None

    def initialize(self):
        """Joins the job, and waits until every rank has come. Returns the context; a second call changes nothing."""
        if not self.is_initialized:
            self._world = groups.init(**self._options)
            if self.backend == "nccl":
                self._begin_with_gpu()
        return self

    def _begin_with_gpu(self):
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available():
            torch.cuda.set_device(self.device_index)
            groups.prepare_device(self.device_index, timeout=self.timeout)
        elif self._world.rank == 0 and groups.device() is None:
            print('ivycomm: no GPU is here; what backend "nccl" would send goes through host memory', file=sys.stderr)

    def shutdown(self):
        """Leaves the job. Nothing happens when it has been left."""
        if self.is_initialized:
            self._world = None
            groups.finalize()

    @property
    def is_initialized(self):
        return self._world is not None and self._world._is_open()

    @property
    def is_main_process(self):
        """Is this rank 0?"""
        return self.rank == 0

    def _joined(self):
        if not self.is_initialized:
            raise FailedPrecondition("this DistributedContext has not begun: call initialize(), or use it in a with statement")
        return self._world

    @property
    def rank(self):
        return self._joined().rank

    @property
    def world_size(self):
        return self._joined().size

    @property
    def local_rank(self):
        return self._joined().local_rank

    @property
    def device_index(self):
        """Number of this process's GPU: device_id, else what the launcher chose, else its rank on the host."""
        if self._device_id is not None:
            return int(self._device_id)
        chosen = groups.device()
        return self._joined().local_rank if chosen is None else chosen

    @property
    def device(self):
        """The device as torch names it: "cuda:1", or "cpu" where no GPU was chosen."""
        self._joined()
        return "cpu" if self._device_id is None and groups.device() is None else f"cuda:{self.device_index}"

    def barrier(self):
        """Returns when every rank has called it."""
        self._joined()
        collectives.barrier()

    def __enter__(self):
        return self.initialize()

    def __exit__(self, kind, value, trace):
        # Ranks that wait for a rank which fails are told by the end of its process, with its exception.
        if kind is None:
            self.shutdown()

    def __repr__(self):
        return (f"<ivycomm.DistributedContext rank {self.rank} of {self.world_size}>" if self.is_initialized
                else "<ivycomm.DistributedContext that has not begun>")


def init_distributed(backend="nccl", init_method=None, world_size=-1, rank=-1, device_id=None, timeout=1800.0):
    """Joins the job and returns its DistributedContext."""
    return DistributedContext(backend, init_method, world_size, rank, device_id, timeout).initialize()


def get_rank():
    """This process's rank; 0 in a program that has not joined a job."""
    return groups.rank() if groups.is_initialized() else 0


def get_world_size():
    """How many ranks the job has; 1 in a program that has not joined one."""
    return groups.world_size() if groups.is_initialized() else 1


def is_main_process():
    """Is this rank 0? Yes in a program that has not joined a job."""
    return get_rank() == 0


def barrier():
    """Returns when every rank has called it; at once in a program that has not joined a job."""
    if groups.is_initialized():
        collectives.barrier()
