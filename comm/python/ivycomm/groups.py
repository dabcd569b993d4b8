"""Life of the world, groups of ranks, and questions about them."""

import atexit
import ctypes
import os
import sys
import traceback
from ctypes import byref, c_int32, c_void_p

from . import errors
from .errors import IvyError, NotInitialized, check
from .library import Call, Options, load
from .waiting import call_in_slices, calling, inside
from .work import milliseconds, sweep

_world = None
_seats = []  # Handles of the world's groups, in the order of their making.
before_end = []  # Functions that let what runs outside the interpreter end, while there is a world.
_worlds_ended = 0  # In this process; a group knows by it whether its world is among them.


class Group:
    """Some ranks of the job, this process's seat among them.

    rank, size: of this process in the group, and of the group. A process that is no member has rank
    None; every operation on such a group returns None there and sends nothing. ranks: world ranks.
    """

    def __init__(self, handle, ranks=()):
        self._handle, self._worlds_ended = handle, _worlds_ended
        if handle is None:
            self.rank, self.size = None, len(ranks)
            self.ranks = tuple(ranks)
            self.name = "not a member"
            return
        library = load()
        self.rank = library.ivy_comm_rank(handle)
        self.size = library.ivy_comm_size(handle)
        self.ranks = tuple(library.ivy_comm_world_rank(handle, rank) for rank in range(self.size))
        self.name = library.ivy_comm_name(handle).decode()
        self.local_rank = library.ivy_comm_local_rank(handle)
        self.local_size = library.ivy_comm_local_size(handle)
        self.node_rank = library.ivy_comm_node_rank(handle)
        self.node_count = library.ivy_comm_node_count(handle)

    @property
    def is_member(self):
        return self.rank is not None

    @property
    def handle(self):
        """The C interface's communicator. NotInitialized when it is gone."""
        if not self._is_open():
            raise NotInitialized(f"group {self.name!r} is freed, or its world is finalized")
        return self._handle

    def _is_open(self):
        return self._handle is not None and self._worlds_ended == _worlds_ended

    def world_rank(self, rank):
        """World rank of a rank of this group."""
        return self.ranks[rank]

    def group_rank(self, world_rank):
        """Rank in this group of a world rank, or None."""
        return self.ranks.index(world_rank) if world_rank in self.ranks else None

    def abort(self, reason=""):
        """Breaks the group on every rank; every call that waits on it ends with Aborted."""
        if self.is_member:
            check(load().ivy_comm_abort(self.handle, reason.encode()))

    def free(self):
        """Ends the group here; waits for nobody. The world ends with finalize(), and its groups with it."""
        if not self._is_open() or self is _world:
            return
        handle, self._handle = self._handle, None
        _seats[:] = [each for each in _seats if each.value != handle.value]
        check(load().ivy_comm_free(handle))

    def __len__(self):
        return self.size

    def __getitem__(self, rank):
        return self.ranks[rank]

    def __contains__(self, world_rank):
        return world_rank in self.ranks

    def __repr__(self):
        return f"<ivycomm.Group {self.name}: rank {self.rank} of {self.size}>"


def init(init_method=None, *, rank=None, world_size=None, timeout=None):
    """Joins the job and returns the world's Group; waits until every rank has come.

    Under ivyrun, torchrun, mpirun, mpiexec and srun nothing needs to be said; without a launcher this
    is a world of one rank. init_method: None or "env://"; "tcp://HOST:PORT", where rank 0 will listen,
    or "file:///PATH", which all see (both with rank and world_size, unless a launcher gives them);
    "self://" (a world of one). timeout: seconds, of this call and of every operation that names none
    (default: 600). A second call returns the same world.
    Raises Timeout (names who is missing), FailedPrecondition (the environment contradicts itself).
    """
    global _world
    if _world is not None and errors.world_pid == os.getpid():
        return _world
    options = Options(struct_bytes=ctypes.sizeof(Options),
                      init_method=None if init_method is None else init_method.encode(),
                      rank=-1 if rank is None else rank,
                      world_size=-1 if world_size is None else world_size,
                      timeout_ms=milliseconds(timeout))
    library = load()
    handle = c_void_p()

    def join():
        check(library.ivy_init(byref(options), byref(handle)))

    call_in_slices(join, on_interrupt=None)
    _begin(Group(handle))
    return _world


def _begin(world):
    global _world
    _world, errors.world_pid = world, os.getpid()
    _watch_for_uncaught()


def prepare_device(device=None, *, group=None, timeout=None):
    """Makes what the first collective on memory of a GPU would make: NCCL's part of the group.

    device: its number; None: the current one. Every rank of the group calls it; what keeps NCCL from
    working on any of them is raised on all, with what to do.
    """
    group = resolve(group)
    if not group.is_member:
        return
    if device is None:
        torch = sys.modules.get("torch")
        device = torch.cuda.current_device() if torch is not None and torch.cuda.is_available() else -1
    call = Call(struct_bytes=ctypes.sizeof(Call), timeout_ms=milliseconds(timeout))
    with calling():
        call_in_slices(lambda: check(load().ivy_prepare_device(group.handle, device, byref(call))),
                       lambda: group.abort("interrupted"))


def finalize():
    """Ends the world and every group. Done by itself when the interpreter ends.

    Waits for what was left on devices' streams; for the receivers of isends that are not done, while they take of
    them (10 s without is an error); for others only where the last operation was one that this rank could leave before
    they came (broadcast, reduce, gather, scatter, scan). Raises what these operations would have raised then. Other
    threads must not be inside a call; abort() and Group.abort() wake them.
    """
    global _world, _worlds_ended
    if _world is None or errors.world_pid != os.getpid():
        return
    for let_end in before_end:
        let_end()
    if inside:
        raise IvyError(f"{len(inside)} calls of other threads are under way; abort() and join them first",
                       code="FailedPrecondition")
    handle, _world, errors.world_pid = _world.handle, None, None
    _seats.clear()
    _worlds_ended += 1  # Of the world and of every group in it nothing is left.
    try:
        check(load().ivy_finalize(handle))
    finally:
        sweep(wait=True)  # Finalizing ended them all.


_uncaught = None  # The exception that ends this program, as text.
_former_hook = None


def _watch_for_uncaught():
    """Once: whoever has put a hook of its own over ours calls ours already, and must not be called by it."""
    global _former_hook, _uncaught
    _uncaught = None  # A program that begins another world has gone on.
    if _former_hook is None:
        _former_hook, sys.excepthook = sys.excepthook, _note_uncaught


def _note_uncaught(kind, value, trace):
    global _uncaught
    try:
        # At a prompt the program goes on.
        if not (hasattr(sys, "ps1") or sys.flags.interactive):
            _uncaught = "".join(traceback.format_exception_only(kind, value)).strip()
    finally:
        _former_hook(kind, value, trace)


def _finalize_at_exit():
    if _uncaught is not None and is_initialized():
        # Who waits for this rank reads why it does not come, instead of that it has finalized.
        for handle in [_world.handle, *_seats]:
            load().ivy_comm_abort(handle, f"it ends by an uncaught {_uncaught}".encode(errors="replace"))
    # Threads that still wait keep what they wait on; the process's end ends it all.
    if not inside:
        finalize()


atexit.register(_finalize_at_exit)


def is_initialized():
    """Has this process a world? A forked child has none."""
    return _world is not None and errors.world_pid == os.getpid()


def world():
    """The Group of all ranks. NotInitialized before init()."""
    if _world is None:
        raise NotInitialized("there is no world here: call ivycomm.init() first")
    return _world


def resolve(group):
    """The Group that a call is about; None is the world."""
    if group is None:
        return world()
    if isinstance(group, Group):
        return group
    inner = getattr(group, "group", None)
    if isinstance(inner, Group):
        return inner
    raise TypeError(f"group must be a Group, not a {type(group).__name__}")


def _root(group, rank):
    """A root is given as rank of the group."""
    if not isinstance(rank, int) or not 0 <= rank < group.size:
        raise ValueError(f"rank {rank!r} is none of {group!r}: 0 to {group.size - 1}")
    return rank


def rank():
    """This process's rank, 0 to world_size() - 1."""
    return world().rank


def world_size():
    return world().size


def local_rank():
    """Rank among the processes of this host."""
    return world().local_rank


def local_world_size():
    return world().local_size


def node_rank():
    """Index of this host."""
    return world().node_rank


def num_nodes():
    return world().node_count


def source():
    """Who said which rank this is: "ivyrun (IVY_RANK=1, IVY_WORLD_SIZE=4)", "torchrun (RANK=...)"."""
    return load().ivy_comm_source(world().handle).decode()


def device():
    """The number to give to set_device, of the accelerator that ivyrun chose (of several, the first); else None."""
    numbers = os.environ.get("IVY_DEVICE_ORDINAL")
    return int(numbers.split(",")[0]) if numbers else None


def is_main_process():
    return world().rank == 0


def new_group(ranks, *, group=None):
    """A Group of these ranks of `group` (None: the world), in this order.

    Every rank of `group` calls it, in the same order among its other operations.
    """
    parent = resolve(group)
    ranks = [int(rank) for rank in ranks]
    if not parent.is_member:
        return Group(None, [])
    numbers = (c_int32 * max(1, len(ranks)))(*ranks)
    handle = _make(parent, lambda made: load().ivy_comm_group(parent.handle, numbers, len(ranks), byref(made)))
    return Group(handle, [parent.ranks[rank] for rank in ranks])


def split(color, key=0, *, group=None):
    """One Group per color, ordered by key, then by rank; color None: this rank is in none."""
    parent = resolve(group)
    if not parent.is_member:
        return Group(None, [])
    number = -1 if color is None else int(color)
    return Group(_make(parent, lambda made: load().ivy_comm_split(parent.handle, number, int(key), byref(made))))


def _make(parent, call):
    made = c_void_p()

    def make():
        with calling():
            check(call(made))

    call_in_slices(make, on_interrupt=lambda: parent.abort("interrupted"))
    if not made.value:
        return None
    _seats.append(made)
    return made


def abort(reason=""):
    """Breaks the world on every rank; every call that waits on it ends with Aborted."""
    world().abort(reason)
