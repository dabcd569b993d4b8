"""The names of the original ivy.distributed over ivycomm.

    from ivycomm import i_dist
    i_dist.init_dist()
    context = i_dist.ParallelContext()
    y = i_dist.pmap(gelu)(x)

Arrays are those of every framework that ivycomm takes, Ivy's among them. What the
arguments mean: ivycomm.collectives. Here all_gather and gather concatenate unless `tiled=True`, which
gives the list of the ranks' arrays.
"""

import os
import sys

from .. import arrays, collectives, groups, messages
from ..element_types import ReduceOp, op_number
from ..groups import is_initialized
from .maps import dp_pipeline, pmap, xmap
from .meshes import Mesh, MpDpMesh, NamedMesh

__all__ = ["Group", "IvyReduceOp", "Mesh", "MpDpMesh", "NamedMesh", "OpHandler", "ParallelContext", "all_gather",
           "all_reduce", "all_to_all", "barrier", "broadcast", "dp_pipeline", "gather", "init_dist", "is_initialized",
           "pmap", "print0", "recv", "reduce", "reduce_scatter", "scatter", "send", "xmap"]

_OURS = ("auto", "ivy", "shm", "tcp")
_backend = None


class IvyReduceOp:
    SUM, MEAN, MAX, MIN = ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MAX, ReduceOp.MIN
    PRODUCT, BAND, BOR, BXOR = ReduceOp.PRODUCT, ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR


class OpHandler:
    """A reduction, by name or number, as each framework names it. ValueError for unknown ones."""

    def __init__(self, op):
        self.op = ReduceOp(op_number("avg" if isinstance(op, str) and op.lower() == "mean" else op))

    def _of(self, framework, names):
        name = names.get(self.op.name)
        if name is None:
            raise ValueError(f"{framework} has no reduction {self.op.name}")
        return name

    @property
    def torch_op(self):
        """A member of torch.distributed.ReduceOp."""
        import torch.distributed
        return getattr(torch.distributed.ReduceOp,
                       self._of("torch", {name: name for name in ("SUM", "AVG", "MAX", "MIN", "PRODUCT", "BAND", "BOR",
                                                                  "BXOR")}))

    @property
    def tensorflow_op(self):
        """A member of tf.distribute.ReduceOp, which has SUM and MEAN."""
        import tensorflow
        return getattr(tensorflow.distribute.ReduceOp, self._of("TensorFlow", {"SUM": "SUM", "AVG": "MEAN"}))

    @property
    def jax_op(self):
        """A function that reduces axis 0 of an array."""
        import functools

        import jax.numpy
        names = {"SUM": "sum", "AVG": "mean", "MAX": "max", "MIN": "min", "PRODUCT": "prod"}
        return functools.partial(getattr(jax.numpy, self._of("JAX", names)), axis=0)

    @property
    def mpi_op(self):
        """A member of mpi4py.MPI; a mean is its SUM, which the caller divides."""
        from mpi4py import MPI
        names = {"SUM": "SUM", "AVG": "SUM", "MAX": "MAX", "MIN": "MIN", "PRODUCT": "PROD", "BAND": "BAND", "BOR": "BOR",
                 "BXOR": "BXOR"}
        return getattr(MPI, self._of("MPI", names))


def init_dist(backend=None, **options):
    """Joins the job; a second call changes nothing. Returns the ParallelContext.

    backend: None or one of the original's names. Data goes through ivycomm whatever it says: shared memory
    inside a host, TCP between hosts, NCCL for memory of GPUs. "nccl" makes the latter at once, on the current
    device, and raises on every rank what keeps it from working on any.
    """
    global _backend
    name = (backend or "auto").lower()
    if name not in _OURS + ("nccl", "gloo", "mpi"):
        raise ValueError(f"backend {backend!r} is not known; leave it out")
    world = groups.init(**options)
    if name == "nccl" and _backend != "nccl":
        try:
            groups.prepare_device(timeout=options.get("timeout"))
        except Exception:
            groups.finalize()  # Every rank has been told the same: there is no world to go on with.
            raise
    if name in ("gloo", "mpi") and _backend is None and world.rank == 0:
        print(f'ivycomm: backend "{name}" is served by ivycomm itself', file=sys.stderr)
    _backend = _backend or name
    return ParallelContext()


def _device():
    return "cuda" if _backend == "nccl" else "cpu"


class ParallelContext:
    """What a process knows of its job, as attributes and as items: one object for everybody."""

    _only = None
    _questions = {
        "rank": lambda: groups.rank(), "global_rank": lambda: groups.rank(),
        "local_rank": lambda: groups.local_rank(), "world_size": lambda: groups.world_size(),
        "local_world_size": lambda: groups.local_world_size(), "node_rank": lambda: groups.node_rank(),
        "num_nodes": lambda: groups.num_nodes(), "default_group": lambda: groups.world(),
        "world_comm": lambda: groups.world(), "backend": lambda: _backend, "device": _device,
        "xla_token": lambda: None, "run_id": lambda: os.environ.get("IVY_JOB_ID"),
        "restart_count": lambda: int(os.environ.get("IVY_GENERATION") or 0),
        # The original's spelling, and the usual one.
        "is_initized": is_initialized, "is_initialized": is_initialized,
    }

    def __new__(cls):
        if cls._only is None:
            cls._only = super().__new__(cls)
        return cls._only

    def __getattr__(self, name):
        try:
            question = self._questions[name]
        except KeyError:
            raise AttributeError(f"ParallelContext has no {name}; it has " +
                                 ", ".join(self._questions)) from None
        return question()

    def __getitem__(self, name):
        if name not in self._questions:
            raise KeyError(name)
        return self._questions[name]()

    def __contains__(self, name):
        return name in self._questions

    def keys(self):
        return self._questions.keys()

    def initilize(self, backend=None, **options):
        return init_dist(backend, **options)

    initialize = initilize

    def reset_context(self):
        """Leaves the job."""
        global _backend
        _backend = None
        groups.finalize()

    def get_global_rank(self):
        return self.rank

    def get_local_rank(self):
        return self.local_rank

    def get_world_size(self):
        return self.world_size


class Group(groups.Group):
    """A group of these world ranks; every rank of the world makes it, in the same order."""

    def __init__(self, ranks):
        made = groups.new_group(ranks)
        super().__init__(made._handle, made.ranks)

    def to_native_group(self):
        """These ranks as the framework in use has them: torch's process group when torch.distributed is initialized,
        mpi4py's communicator when MPI is; else this group itself. Every rank of the world asks, in the same order."""
        torch = sys.modules.get("torch.distributed")
        if torch is not None and torch.is_available() and torch.is_initialized():
            return torch.new_group(list(self.ranks))
        mpi = sys.modules.get("mpi4py.MPI")
        if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
            world = mpi.COMM_WORLD
            if world.Get_size() > max(self.ranks):
                return world.Create(world.Get_group().Incl(list(self.ranks)))
        return self

    @staticmethod
    def from_native_group(group):
        """The Group of a torch process group's or an mpi4py communicator's ranks; a Group is returned as it is."""
        if isinstance(group, groups.Group):
            return group
        mpi, torch = sys.modules.get("mpi4py.MPI"), sys.modules.get("torch.distributed")
        if mpi is not None and isinstance(group, mpi.Comm):
            own, world = group.Get_group(), mpi.COMM_WORLD.Get_group()
            return Group(mpi.Group.Translate_ranks(own, list(range(own.Get_size())), world))
        if torch is not None and torch.is_available() and isinstance(group, torch.ProcessGroup):
            of_default = getattr(torch, "get_process_group_ranks", None)
            ranks = of_default(group) if of_default else [
                torch.distributed_c10d._get_global_rank(group, rank) for rank in range(group.size())]
            return Group(ranks)
        raise TypeError(f"a {type(group).__name__} is no group of torch's, mpi4py's or ivycomm's")


def all_reduce(x, op=IvyReduceOp.SUM, *, group=None, out=None):
    return collectives.all_reduce(x, op, group=group, out=out)


def all_gather(x, axis=0, *, group=None, tiled=False, out=None):
    """x of all ranks, concatenated along axis; tiled: the list of them."""
    if tiled:
        return collectives.all_gather_list(x, group=group)
    return collectives.all_gather(x, axis, group=group, out=out)


def all_to_all(x, *, group=None, out=None):
    return collectives.all_to_all(x, group=group, out=out)


def broadcast(x, *, group=None, src=0, out=None):
    return collectives.broadcast(x, src, group=group, out=out)


def gather(x, axis=0, *, group=None, tiled=False, dst=0, out=None):
    """At dst as all_gather; None on the others."""
    if not tiled:
        return collectives.gather(x, dst, axis, group=group, out=out)
    stacked = collectives.gather(arrays.adopt(x)[1][None], dst, group=group)
    return None if stacked is None else [stacked[rank] for rank in range(len(stacked))]


def reduce(x, op=IvyReduceOp.SUM, *, group=None, dst=0, out=None):
    return collectives.reduce(x, dst, op, group=group, out=out)


def scatter(out_buffer, x=None, *, group=None, src=0):
    """Fills out_buffer with this rank's part of rank src's x, along axis 0."""
    return collectives.scatter(x, src, group=group, out=out_buffer)


def reduce_scatter(x, op=IvyReduceOp.SUM, *, group=None, out=None):
    return collectives.reduce_scatter(x, op, group=group, out=out)


def send(x, dst, *, tag=0, group=None):
    return messages.send(x, dst, tag, group=group)


def recv(x_buffer, src=None, *, tag=None, group=None):
    """Fills x_buffer."""
    return messages.recv_(x_buffer, src, tag, group=group)


def barrier(group=None):
    return collectives.barrier(group=group)


def print0(*values, **options):
    """print on rank 0."""
    if groups.rank() == 0:
        print(*values, **options)
