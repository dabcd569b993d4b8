# SPDX-License-Identifier: Apache-2.0
"""Lifetime of the world, groups of ranks, and their properties."""

from __future__ import annotations

import array
import atexit
import contextlib
import operator
import os
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, SupportsIndex, cast

from . import calls, errors
from .errors import IvyError, NotInitialized
from .library import find_world_by, load, whole_number
from .waiting import call_in_slices
from .work import milliseconds, sweep

_world: Group | None = None
# Weak references to the handles of the world's groups, in the order of creation.
_handles: dict[weakref.ReferenceType[_OwningHandle], None] = {}
# (address, _worlds_ended) of handles that no object holds any longer. Only destructors add to it.
_dropped: deque[tuple[int, int]] = deque()
_freeing = threading.RLock()  # Held while what is in _dropped is freed or aborted.
_named: weakref.WeakValueDictionary[str, Group] = weakref.WeakValueDictionary()  # Groups of which this process is a member.
_LEAVE_SECONDS = 5.0  # An abort wakes every wait within 10 ms; this is for a machine that hardly moves.
before_end: list[Callable[[], object]] = []  # Functions that let what runs outside the interpreter end, while there is a world.
on_free: list[Callable[[Group], object]] = []  # Called with a group that is about to be freed.
on_new_world: list[Callable[[], object]] = []  # Called when a world begins.
_worlds_ended = 0  # In this process; a group knows by it whether its world is among them.


class Handle:
    """The address of a communicator, with the extension's group handle, which counts the calls in progress."""

    address = 0  # Of a handle whose __init__() a signal handler has interrupted.
    is_freed = False

    def __init__(self, address: int) -> None:
        self.address = address
        self.reopen(calls.extension.ivy_comm_rank(address), calls.extension.ivy_comm_size(address))

    def reopen(self, rank: int, size: int) -> None:
        """Lets calls use the handle, also if the extension has closed it with its world."""
        self._group_handle: Any = calls.extension.group_handle(self.address, rank, size)


class _OwningHandle(Handle):
    """The handle of a group other than the world, held by its Group and by operations in progress: the last holder frees
    it."""

    _worlds_ended = -1  # A signal handler may raise before it is set: no world's.

    def __init__(self, address: int) -> None:
        super().__init__(address)
        self._worlds_ended = _worlds_ended

    def __del__(self) -> None:
        # A destructor may run in any thread: call the library later. None: the interpreter is shutting down.
        if not self.is_freed and _dropped is not None:
            _dropped.append((self.address, self._worlds_ended))


def _free_dropped() -> None:
    """Frees the communicators of Groups that were garbage-collected and have no operation in progress."""
    with _freeing:
        while _dropped:
            address, worlds_ended = _dropped.popleft()
            if worlds_ended == _worlds_ended and errors.world_pid == os.getpid():
                try:
                    calls.extension.ivy_comm_free(address)
                except IvyError as error:
                    warnings.warn(f"freeing an abandoned group failed: {error}", RuntimeWarning, stacklevel=4)


class Group:
    """An ordered subset of the job's ranks. new_group(), split() and group_of_members() make one; world() is all ranks.

    `with new_group(ranks) as group:` frees the group at the end, as free() does; if the block raises, the group is
    aborted first. A Group that is garbage-collected is freed when the next one is made, after its operations are done.

    rank: of this process in the group, 0 to size - 1; None if it is not a member: operations on such a group return None
    and send nothing. size: the number of ranks. ranks: their world ranks, in order. local_rank, local_size, node_rank,
    node_count: position among the group's ranks on this host and among its hosts (members only). name: for messages.
    len(group), group[rank] and `world_rank in group` work as on `ranks`.

    Methods may be called from any thread. None of them is collective.
    """

    rank: int | None
    ranks: tuple[int, ...]
    local_rank: int
    local_size: int
    node_rank: int
    node_count: int

    def __init__(self, handle: Handle | None, ranks: Sequence[int] = ()) -> None:
        self._handle, self._worlds_ended = handle, _worlds_ended
        if handle is None:
            self.rank, self.size, self._group_handle = None, len(ranks), None
            self.ranks = tuple(ranks)
            self.name = "not a member"
            return
        library = calls.extension
        self._group_handle = handle._group_handle
        self.rank = int(library.ivy_comm_rank(handle))
        self.size = int(library.ivy_comm_size(handle))
        self.ranks = tuple(library.ivy_comm_world_rank(handle, rank) for rank in range(self.size))
        self.name = str(library.ivy_comm_name(handle).decode())
        _named[self.name] = self
        self.local_rank = int(library.ivy_comm_local_rank(handle))
        self.local_size = int(library.ivy_comm_local_size(handle))
        self.node_rank = int(library.ivy_comm_node_rank(handle))
        self.node_count = int(library.ivy_comm_node_count(handle))

    @property
    def is_member(self) -> bool:
        """Whether this process is one of the group's ranks."""
        return self.rank is not None

    @property
    def handle(self) -> Handle:
        """The C interface's communicator. Raises NotInitialized after the group has ended."""
        if not is_open(self):
            raise NotInitialized(f"group {self.name!r} is freed, or its world is finalized or repaired")
        return cast(Handle, self._handle)

    def world_rank(self, rank: int) -> int:
        """Returns the world rank of a rank of this group. Raises IndexError if there is no such rank."""
        return self.ranks[rank]

    def group_rank(self, world_rank: int) -> int | None:
        """Returns the rank in this group of a world rank, or None if it is not a member."""
        return self.ranks.index(world_rank) if world_rank in self.ranks else None

    def abort(self, reason: str = "") -> None:
        """Breaks the group on every rank, without waiting for them: calls in progress and later ones raise Aborted with
        this reason. Does nothing on a rank that is not a member. Raises NotInitialized if the group is freed."""
        if self.is_member:
            calls.extension.ivy_comm_abort(self.handle, reason.encode())

    def free(self) -> None:
        """Frees the group on this rank; waits for no other rank. Does nothing if it is freed already, and for the world.

        If another thread is inside a call on the group, the group is aborted, so that the call returns. Raises
        FailedPrecondition if the call has not returned after 5 s (as when a signal handler frees the group of the call
        that it interrupted), and Mismatch if this rank's last operation differs from another rank's. Wait for asynchronous
        collectives first: an unfinished one breaks the group on every rank.
        """
        if not is_open(self) or self is _world:
            return
        for tell in on_free:
            tell(self)
        handle = self._handle
        if handle is None or not calls.extension.close(self._group_handle):
            return  # Another thread frees it.
        handle.is_freed, self._handle = True, None

        if calls.inside(self._group_handle):
            _abort_quietly(handle.address, b"another thread has freed the group")
            _wait_until_none(lambda: calls.inside(self._group_handle),
                             "are still inside this group, so it remains until finalize()")
        calls.extension.ivy_comm_free(handle.address)

    def __enter__(self) -> Group:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 _trace: TracebackType | None) -> None:
        try:
            # Other ranks may wait for operations that this rank no longer performs.
            if error is not None and is_open(self) and self is not _world:
                self.abort(f"its with block raised {type(error).__name__}: {error}")
        finally:
            self.free()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, rank: int) -> int:
        return self.ranks[rank]

    def __contains__(self, world_rank: object) -> bool:
        return world_rank in self.ranks

    def __repr__(self) -> str:
        return f"<ivycomm.Group {self.name}: rank {self.rank} of {self.size}>"


def init(init_method: str | None = None, *, rank: int | None = None, world_size: int | None = None,
         timeout: float | None = None) -> Group:
    """Joins the job and returns the world's Group. Blocks until every rank has joined; a later call returns the same
    Group immediately.

    Under ivyrun, torchrun, mpirun, mpiexec and srun no arguments are needed; without a launcher the world has one rank.
    init_method: None or "env://"; "tcp://HOST:PORT", where rank 0 listens, or "file:///PATH", a path that all ranks can
    access (both with rank and world_size, unless a launcher provides them); "self://" (a world of one). timeout:
    seconds, for this call and as the default of all operations; None: 600.

    Raises Timeout, which names the missing ranks; FailedPrecondition if the environment contradicts itself, or if the
    launcher's variables were removed from it; ImportError if libivycomm or the extension is not found or does not match.
    """
    global _world
    if _world is not None and errors.world_pid == os.getpid():
        return _world
    if init_method in (None, "env://") and rank is None and world_size is None:
        _check_environment()
    library, place = load(), calls.handle_place()
    options = (init_method, -1 if rank is None else rank, -1 if world_size is None else world_size, milliseconds(timeout))
    call_in_slices(lambda: library.ivy_init(options, place), on_interrupt=None)
    made = Group(Handle(place[0]))
    _begin(made)
    return made


_RANK_VARIABLES = ("IVY_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def _check_environment() -> None:
    """Rejects a worker that has lost its launcher's variables: it would be a world of one, while other ranks wait
    for it."""
    if any(name in os.environ for name in _RANK_VARIABLES):
        return
    try:
        with open("/proc/self/environ", "rb") as file:
            began_with = {entry.partition(b"=")[0].decode(errors="replace") for entry in file.read().split(b"\0")}
    except OSError:
        return
    lost = [name for name in _RANK_VARIABLES if name in began_with]
    if lost:
        raise errors.FailedPrecondition(
            f"this process was started with {lost[0]}, which is no longer in its environment: keep the launcher's "
            "variables until ivycomm.init() has returned, or use init(\"self://\") for a world of one")


def _begin(world: Group) -> None:
    global _world
    _world, errors.world_pid = world, os.getpid()
    calls.extension.begin_world(world._group_handle, threading.main_thread().ident)
    _watch_for_uncaught()
    for tell in on_new_world:
        tell()


def shrink(timeout: float | None = None) -> Group:
    """Continues after a rank has died, with the survivors as a smaller world in the same processes. Returns its Group.

    Collective: every survivor calls it, whatever it was doing. The first call makes the operations of the others, and
    pending works, raise Aborted. Blocks until all survivors have called it. Ranks are dense, in their old order; every
    Group and Mesh of the old world has ended and must be made again. If no rank has died, the ranks stay the same. A rank
    that dies during the call is left out as well. timeout: seconds, for the whole repair; None: the world's.

    Raises, on all survivors alike, Timeout, which names the missing ranks; Mismatch if some ranks called grow(); Aborted
    if one was interrupted. Raises FailedPrecondition if the others believed this rank dead and have continued without it.
    After an error no world exists until shrink() or grow() is called again. One thread calls it; other threads of the
    process must not be inside a call.
    """
    return _repair("ivy_comm_shrink", timeout)


def grow(timeout: float | None = None) -> Group:
    """Continues after a rank has died, with restarted processes in place of the lost ones.

    Collective: every survivor calls it; a process that `ivyrun --on-failure replace` has restarted calls init(), which
    waits for it. The world then has all ranks of the job again, each with its original number. The program must send its
    state to the new processes: they are the ranks with restart_count() > 0. Otherwise as shrink(), which may be called
    before. timeout: seconds, for the whole repair; None: the world's. Raises the errors of shrink(), Mismatch if some
    ranks called shrink().
    """
    return _repair("ivy_comm_grow", timeout)


def restart_count() -> int:
    """Returns how many times this process's rank was restarted; 0 in the first process. Works before init()."""
    return int(load().ivy_restart_count())


def _repair(function: str, timeout: float | None) -> Group:
    global _world, _worlds_ended
    broken, limit = world(), milliseconds(timeout)
    handle = broken.handle
    _end_calls()
    _handles.clear()
    _worlds_ended += 1
    # After a failed repair it can be called again, or finalize().
    broken._worlds_ended = _worlds_ended
    repairing = Handle(handle.address)  # `handle` is closed to calls of other threads.
    try:
        call_in_slices(lambda: getattr(calls.extension, function)(repairing, limit),
                       on_interrupt=lambda: _abort_quietly(handle.address, b"interrupted"))
    except BaseException:
        # Calls get the library's error, which says that the world is not repaired.
        handle.reopen(cast(int, broken.rank), broken.size)
        raise
    finally:
        sweep()
    repaired = _world = Group(Handle(handle.address))
    broken._handle = None
    calls.extension.begin_world(repaired._group_handle, threading.main_thread().ident)
    for tell in on_new_world:
        tell()
    return repaired


def _end_calls() -> None:
    """Interrupts other threads inside a call on the world or its groups, waits until they have left, and blocks
    further calls."""
    if not calls.extension.end_world():
        return
    _abort_all("another thread is repairing the world")
    _wait_until_none(calls.extension.end_world, "are in progress; join them first")


def _wait_until_none(count: Callable[[], int], what: str) -> None:
    """Waits until the aborted calls have returned. FailedPrecondition: they have not."""
    end = time.monotonic() + _LEAVE_SECONDS
    while (left := count()):
        if time.monotonic() >= end:
            raise IvyError(f"{left} calls of other threads {what}", code="FailedPrecondition")
        time.sleep(0.001)


def prepare_device(device: int | None = None, *, group: Group | None = None, timeout: float | None = None) -> None:
    """Sets up NCCL for the group ahead of the first collective on GPU memory, which would otherwise do it.

    Collective: every rank of the group calls it, in the same order among the group's operations; blocks until all have.
    device: the GPU's number; None: torch's current one. timeout: seconds; None: the world's. If NCCL cannot be used on
    some rank, every rank raises FailedPrecondition, which names that rank and the fix.
    """
    group = resolve(group)
    if not group.is_member:
        return
    if device is None:
        torch = sys.modules.get("torch")
        device = torch.cuda.current_device() if torch is not None and torch.cuda.is_available() else -1
    limit, handle = milliseconds(timeout), group.handle
    call_in_slices(lambda: calls.extension.ivy_prepare_device(handle, device, limit), lambda: group.abort("interrupted"))


def prepare_device_or_leave(timeout: float | None = None) -> None:
    """prepare_device() for a program that joins only to use its GPU: if it raises, which it does on all ranks, the world
    is finalized."""
    try:
        prepare_device(timeout=timeout)
    except Exception:
        finalize()
        raise


def finalize() -> None:
    """Leaves the job: frees the world and every group. Does nothing without a world. Called automatically when the
    interpreter exits.

    Blocks for operations on devices' streams, and for the receivers of unfinished isends as long as they make progress
    (10 s without progress is an error). Waits for other ranks only if the last operation was one that this rank could
    leave before they started (broadcast, reduce, gather, scatter, scan). Raises the errors of these operations, and
    FailedPrecondition if other threads are inside a call; abort() and Group.abort() interrupt them.
    """
    global _world, _worlds_ended
    if _world is None or errors.world_pid != os.getpid():
        return
    for let_end in before_end:
        let_end()
    left = calls.extension.end_world()
    if left:
        raise IvyError(f"{left} calls of other threads are in progress; abort() and join them first",
                       code="FailedPrecondition")
    handle, _world, errors.world_pid = _world.handle, None, None
    _handles.clear()
    _worlds_ended += 1  # Handles of this world and its groups are invalid from now on.
    try:
        calls.extension.ivy_finalize(handle.address)
    finally:
        sweep(wait=True)  # Finalizing ended them all.


_uncaught: str | None = None  # The exception that ends this program, as text.
_former_hook: Callable[[type[BaseException], BaseException, TracebackType | None], object] | None = None


def _watch_for_uncaught() -> None:
    """Installs the hook once: a hook that was installed later already calls this one, and must not be called by it."""
    global _former_hook, _uncaught
    _uncaught = None  # A program that begins another world has gone on.
    if _former_hook is None:
        _former_hook, sys.excepthook = sys.excepthook, _note_uncaught


def _note_uncaught(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
    global _uncaught
    import traceback  # Slow to import, and needed only here.

    try:
        # At an interactive prompt the program continues.
        if not (hasattr(sys, "ps1") or sys.flags.interactive):
            _uncaught = "".join(traceback.format_exception_only(kind, value)).strip()
    finally:
        if _former_hook is not None:
            _former_hook(kind, value, trace)


def _abort_quietly(handle: Handle | int, reason: bytes) -> None:
    """Breaks a group unless it has ended, or another thread has freed it."""
    with contextlib.suppress(IvyError):
        calls.extension.ivy_comm_abort(handle, reason)


def _abort_all(reason: str) -> None:
    text = reason.encode(errors="replace")
    for handle in [world().handle, *filter(None, [each() for each in _handles.copy()])]:
        _abort_quietly(handle, text)
    with _freeing:
        for address, worlds_ended in list(_dropped):
            if worlds_ended == _worlds_ended:
                _abort_quietly(address, text)


def _finalize_at_exit() -> None:
    if _uncaught is not None and is_initialized():
        # Ranks that wait for this rank see the reason, instead of a message that it has finalized.
        _abort_all(f"it exits because of an uncaught {_uncaught}")
    # Threads that still wait need their resources; the process's exit ends them.
    if not calls.inside():
        finalize()


atexit.register(_finalize_at_exit)


def is_open(group: Group) -> bool:
    """Returns whether this process is a member of the group, which is not freed, and the group's world still exists."""
    return group._handle is not None and group._worlds_ended == _worlds_ended


def worlds_ended() -> int:
    """Returns the number of worlds that this process has finalized, to distinguish objects of one world from those
    of the next."""
    return _worlds_ended


def is_initialized() -> bool:
    """Returns whether this process has a world. A forked child has none."""
    return _world is not None and errors.world_pid == os.getpid()


def world() -> Group:
    """Returns the Group of all ranks. Raises NotInitialized before init()."""
    if _world is None:
        raise NotInitialized("there is no world: call ivycomm.init() first")
    return _world


find_world_by(lambda: world().handle)


def resolve(group: Group | None) -> Group:
    """Returns the Group that a call uses; None is the world."""
    if group is None:
        return world()
    if isinstance(group, Group):
        return group
    inner = getattr(group, "group", None)
    if isinstance(inner, Group):
        return inner
    raise TypeError(f"group must be a Group, not a {type(group).__name__}")


def group_named(name: str) -> Group:
    """Returns the Group of that name, of which this process is a member. NotInitialized: it has ended."""
    try:
        return _named[name]
    except KeyError:
        raise NotInitialized(f"the group {name!r} no longer exists") from None


def checked_rank(group: Group, rank: SupportsIndex) -> int:
    """Returns a rank of the group, given as any integer type (NumPy's and torch's included), as an int. ValueError: it is
    not in the group."""
    try:
        number = operator.index(rank)
    except TypeError:
        number = -1
    if not 0 <= number < group.size:
        raise ValueError(f"rank {rank!r} is not in {group!r}: 0 to {group.size - 1}")
    return number


def rank() -> int:
    """Returns this process's rank, 0 to world_size() - 1. Raises NotInitialized before init()."""
    return cast(int, world().rank)


def world_size() -> int:
    """Returns the number of ranks of the world. Raises NotInitialized before init()."""
    return world().size


def local_rank() -> int:
    """Returns the rank among the world's processes on this host. Raises NotInitialized before init()."""
    return world().local_rank


def local_world_size() -> int:
    """Returns the number of ranks on this host. Raises NotInitialized before init()."""
    return world().local_size


def node_rank() -> int:
    """Returns the index of this host, 0 to num_nodes() - 1. Raises NotInitialized before init()."""
    return world().node_rank


def num_nodes() -> int:
    """Returns the number of hosts of the world. Raises NotInitialized before init()."""
    return world().node_count


def source() -> str:
    """Returns a text that names what assigned this rank: "ivyrun (IVY_RANK=1, IVY_WORLD_SIZE=4)", "torchrun (RANK=...)".
    Raises NotInitialized before init()."""
    return str(calls.extension.ivy_comm_source(world().handle).decode())


def device() -> int | None:
    """Returns the number of the accelerator that ivyrun chose for this rank (the first of several), as
    torch.cuda.set_device takes it; None if it chose none. Works before init()."""
    numbers = os.environ.get("IVY_DEVICE_ORDINAL")
    return int(numbers.split(",")[0]) if numbers else None


def is_main_process() -> bool:
    """Returns whether this is rank 0. Raises NotInitialized before init()."""
    return world().rank == 0


def new_group(ranks: Iterable[int], *, group: Group | None = None) -> Group:
    """Makes a Group of these ranks of `group` (None: the world), in this order.

    Collective: every rank of `group` calls it with the same ranks, also those that are not in it, in the same order among
    the operations of `group`. Blocks until all have. Raises ValueError, TypeError or InvalidArgument for invalid ranks,
    and the errors of a collective: Mismatch, RankDied, HostLost, Timeout, Aborted.
    """
    parent = resolve(group)
    ranks = [whole_number(rank, "rank") for rank in ranks]
    if not parent.is_member:
        return Group(None, [])
    numbers = array.array("i", ranks)
    handle = _make(parent, lambda made: calls.extension.ivy_comm_group(parent.handle, numbers, len(ranks), made))
    return Group(handle, [parent.ranks[rank] for rank in ranks])


def group_of_members(name: str, ranks: Iterable[int], *, group: Group | None = None,
                     timeout: float | None = None) -> Group:
    """Makes a Group of these ranks of `group` (None: the world), in this order; only the members call it.

    `group` may be broken: the members synchronize through the job's store. Blocks until all members have called it. name:
    at most 40 bytes, the same on all members, and never used by a group of this world before. timeout: seconds, for this
    call and the new group's operations; None: as for `group`. Raises FailedPrecondition if the members named different
    ranks, and Timeout, which names the missing members.
    """
    parent = resolve(group)
    ranks = [whole_number(rank, "rank") for rank in ranks]
    members = (name, array.array("i", ranks), milliseconds(timeout))
    handle = _make(parent, lambda made: calls.extension.ivy_comm_group_of_members(parent.handle, members, made),
                   may_abort=False)
    return Group(handle)


def split(color: int | None, key: int = 0, *, group: Group | None = None) -> Group:
    """Makes one Group per color, ordered by key, then by rank. Returns this rank's; one without it if color is None.

    Collective: every rank of `group` (None: the world) calls it, in the same order among the operations of `group`;
    blocks until all have. color: 0 or more. Raises TypeError and ValueError for numbers beyond 32 bits, and the errors of
    a collective: Mismatch, RankDied, HostLost, Timeout, Aborted.
    """
    parent = resolve(group)
    if not parent.is_member:
        return Group(None, [])
    number, key = -1 if color is None else whole_number(color, "color"), whole_number(key, "key")
    return Group(_make(parent, lambda made: calls.extension.ivy_comm_split(parent.handle, number, key, made)))


def _forget_handle(reference: weakref.ReferenceType[_OwningHandle]) -> None:
    _handles.pop(reference, None)


def _make(parent: Group, call: Callable[[array.array[int]], object], may_abort: bool = True) -> _OwningHandle | None:
    _free_dropped()
    made, given_up = calls.handle_place(), False
    handle: _OwningHandle | None = None

    def make() -> None:
        call(made)
        if given_up:
            _abort_quietly(made[0], b"interrupted while the group was made")

    try:
        call_in_slices(make, on_interrupt=(lambda: parent.abort("interrupted")) if may_abort else None)
        if not made[0]:
            return None
        handle = _OwningHandle(made[0])
        _handles[weakref.ref(handle, _forget_handle)] = None
        return handle
    except BaseException:
        given_up = True
        if made[0]:  # The others have the group, and would wait in it.
            _abort_quietly(made[0], b"interrupted while the group was made")
            if handle is None:
                _dropped.append((made[0], _worlds_ended))
        raise


def abort(reason: str = "") -> None:
    """Breaks the world and every group of this rank, on every rank: calls in progress and later ones raise Aborted with
    this reason. Does not block, and may be called from any thread. Raises NotInitialized before init()."""
    world().abort(reason)
    _abort_all(reason)
