# SPDX-License-Identifier: Apache-2.0
"""Groups of ranks: their properties, how they are made and freed, and which of them is the world.

lifetime.py makes, repairs and ends the world. Its state is here, because every group depends on it.
"""

from __future__ import annotations

import array
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
from .library import find_world_by, whole_number
from .waiting import call_in_slices
from .work import milliseconds

on_free: list[Callable[[Group], object]] = []  # Called with a group before it is freed.

_world: Group | None = None
# Number of worlds that have ended in this process. A Group stores the value at its creation; a different value now means
# that its world has ended.
_worlds_ended = 0
# Weak references to the handles of the world's groups, in the order of creation.
_handles: dict[weakref.ReferenceType[_OwningHandle], None] = {}
_named: weakref.WeakValueDictionary[str, Group] = weakref.WeakValueDictionary()  # Groups of which this process is a member.
# Communicators to free, with the _worlds_ended of their world: their handles were garbage-collected or never returned.
_dropped: deque[tuple[int, int]] = deque()
_freeing = threading.RLock()  # Held while the communicators in _dropped are freed or aborted.
_LEAVE_SECONDS = 5.0  # An abort wakes every wait within 10 ms; this is for an overloaded machine.

find_world_by(lambda: world().handle)


class Handle:
    """The address of a communicator, with the extension's group handle, which counts the calls in progress."""

    address = 0  # Remains 0 if a signal handler interrupts __init__().
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

    _worlds_ended = -1  # Matches no world: a signal handler may raise before __init__() sets it.

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
        for function in on_free:
            function(self)
        handle = self._handle
        if handle is None or not calls.extension.close(self._group_handle):
            return  # Another thread is freeing it.
        handle.is_freed, self._handle = True, None

        if calls.inside(self._group_handle):
            abort_quietly(handle.address, b"another thread has freed the group")
            await_no_calls(lambda: calls.inside(self._group_handle),
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


def begin_world(new: Group, repaired: Group | None = None) -> None:
    """Makes `new` the world of this process, in place of the one that was repaired, if any."""
    global _world
    _world, errors.world_pid = new, os.getpid()
    if repaired is not None:
        repaired._handle = None
    calls.extension.begin_world(new._group_handle, threading.main_thread().ident)


def end_world() -> None:
    """Ends the world and all its groups. The extension has closed their handles."""
    global _world, _worlds_ended
    _world, errors.world_pid = None, None
    _handles.clear()
    _worlds_ended += 1


def end_groups_of(broken: Group) -> None:
    """Ends the groups of the world `broken`, which itself can still be repaired or finalized."""
    global _worlds_ended
    _handles.clear()
    _worlds_ended += 1
    broken._worlds_ended = _worlds_ended


def await_no_calls(count_calls: Callable[[], int], problem: str) -> None:
    """Calls count_calls() until it returns 0. Raises FailedPrecondition, with the number and the problem, after 5 s."""
    end = time.monotonic() + _LEAVE_SECONDS
    while (count := count_calls()):
        if time.monotonic() >= end:
            raise IvyError(f"{count} calls of other threads {problem}", code="FailedPrecondition")
        time.sleep(0.001)


def abort_quietly(handle: Handle | int, reason: bytes) -> None:
    """Breaks a group unless it has ended, or another thread has freed it."""
    with contextlib.suppress(IvyError):
        calls.extension.ivy_comm_abort(handle, reason)


def abort_all(reason: str) -> None:
    """Breaks the world and all its groups, including dropped ones, whose operations may still be in progress."""
    text = reason.encode(errors="replace")
    for handle in [world().handle, *filter(None, [reference() for reference in _handles.copy()])]:
        abort_quietly(handle, text)
    with _freeing:
        for address, worlds_ended in list(_dropped):
            if worlds_ended == _worlds_ended:
                abort_quietly(address, text)


def is_open(group: Group) -> bool:
    """Returns whether operations on the group are possible: this process is a member, and neither the group nor its world
    has ended."""
    return group._handle is not None and group._worlds_ended == _worlds_ended


def worlds_ended() -> int:
    """Returns the number of worlds that this process has finalized or repaired. It distinguishes the objects of one world
    from those of the next."""
    return _worlds_ended


def is_initialized() -> bool:
    """Returns whether this process has a world. A forked child has none."""
    return _world is not None and errors.world_pid == os.getpid()


def world() -> Group:
    """Returns the Group of all ranks. Raises NotInitialized before init()."""
    if _world is None:
        raise NotInitialized("there is no world: call ivycomm.init() first")
    return _world


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
    """Returns the Group of that name, of which this process is a member. Raises NotInitialized if it has ended."""
    try:
        return _named[name]
    except KeyError:
        raise NotInitialized(f"the group {name!r} no longer exists") from None


def checked_rank(group: Group, rank: SupportsIndex) -> int:
    """Returns a rank of the group, given as any integer type (NumPy's and torch's included), as an int. Raises ValueError
    if it is not in the group."""
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
    """Calls a function of the library that makes a group, and returns the group's handle; None: this rank is not in it.

    may_abort: if a signal handler raises, the parent is aborted, so that the call returns.
    """
    _free_dropped()
    made, is_interrupted = calls.handle_place(), False
    handle: _OwningHandle | None = None

    def abort_made() -> None:  # The other members have the group, and would wait in it.
        abort_quietly(made[0], b"interrupted while the group was made")

    def make() -> None:
        call(made)
        if is_interrupted:
            abort_made()

    try:
        call_in_slices(make, on_interrupt=(lambda: parent.abort("interrupted")) if may_abort else None)
        if not made[0]:
            return None
        handle = _OwningHandle(made[0])
        _handles[weakref.ref(handle, _forget_handle)] = None
        return handle
    except BaseException:
        is_interrupted = True
        if made[0]:
            abort_made()
            if handle is None:
                _dropped.append((made[0], _worlds_ended))
        raise
