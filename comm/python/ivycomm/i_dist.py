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

from . import arrays, collectives, groups, messages
from .element_types import ReduceOp
from .groups import is_initialized

__all__ = ["Group", "IvyReduceOp", "ParallelContext", "all_gather", "all_reduce", "all_to_all", "barrier",
           "broadcast", "gather", "init_dist", "is_initialized", "pmap", "print0", "recv", "reduce",
           "reduce_scatter", "scatter", "send"]

_OURS = ("auto", "ivy", "shm", "tcp")
_backend = None


class IvyReduceOp:
    SUM, MEAN, MAX, MIN = ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MAX, ReduceOp.MIN
    PRODUCT, BAND, BOR, BXOR = ReduceOp.PRODUCT, ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR


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
        return self

    @staticmethod
    def from_native_group(group):
        return group


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


def pmap(fn, in_axes=0, out_axes=0, group=None, dst=None):
    """fn for every position of an axis, divided among the ranks.

    The returned function takes the whole arrays on every rank. Each rank takes its part along in_axes (one
    number, or one for each argument; None: the whole argument), calls fn once for every position, as
    vmap does, and the results are put together along out_axes: on every rank, or at `dst` alone
    (None on the others). Arguments and results may be lists, tuples and dicts of arrays.
    """

    def mapped(*arguments):
        members = groups.resolve(group)
        if not members.is_member:
            return None
        axes = list(in_axes) if isinstance(in_axes, (list, tuple)) else [in_axes] * len(arguments)
        if len(axes) != len(arguments):
            raise ValueError(f"in_axes has {len(axes)} numbers for {len(arguments)} arguments")
        lengths = {leaf.shape[axis] for argument, axis in zip(arguments, axes) if axis is not None
                   for leaf in _leaves(argument)}
        if len(lengths) != 1:
            raise ValueError(f"the arguments' mapped axes have lengths {sorted(lengths)}; they must be one")
        length = lengths.pop()
        if length < members.size:
            raise ValueError(f"pmap over {length} positions needs as many ranks at most, not {members.size}")
        begin, end = (length * (members.rank + i) // members.size for i in (0, 1))
        results = [fn(*(argument if axis is None else _each(argument, lambda a: _at(a, axis, position))
                        for argument, axis in zip(arguments, axes))) for position in range(begin, end)]
        whole = _together(results, lambda parts: _gathered(parts, out_axes, members))
        return whole if dst is None or members.rank == dst else None

    return mapped


def _at(array, axis, position):
    return array[(slice(None),) * (axis % len(array.shape)) + (position,)]


def _gathered(parts, axis, group):
    kind, _ = arrays.adopt(parts[0])
    stacked = kind.concatenate([arrays.adopt(part)[1][None] for part in parts], 0)
    whole = collectives.all_gather(stacked, uneven=True, group=group)
    return kind.move_axis_back(whole, axis) if axis else whole


def _leaves(tree):
    if isinstance(tree, dict):
        return [leaf for key in tree for leaf in _leaves(tree[key])]
    if isinstance(tree, (list, tuple)):
        return [leaf for branch in tree for leaf in _leaves(branch)]
    return [arrays.adopt(tree)[1]]


def _each(tree, change):
    if isinstance(tree, dict):
        return {key: _each(branch, change) for key, branch in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(_each(branch, change) for branch in tree)
    return change(arrays.adopt(tree)[1])


def _together(trees, join):
    """One tree out of equal trees, each leaf joined from theirs."""
    first = trees[0]
    if isinstance(first, dict):
        return {key: _together([tree[key] for tree in trees], join) for key in first}
    if isinstance(first, (list, tuple)):
        return type(first)(_together([tree[i] for tree in trees], join) for i in range(len(first)))
    return join(trees)
