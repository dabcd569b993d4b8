# SPDX-License-Identifier: Apache-2.0
"""Lifetime of the world: joining the job, repairs after a failure, and leaving it, also when the interpreter exits."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from types import TracebackType
from typing import cast

from . import calls, errors, groups
from .errors import IvyError
from .groups import Group, Handle, abort_all, abort_quietly, is_initialized, prepare_device, world
from .library import load
from .waiting import call_in_slices
from .work import milliseconds, sweep

on_new_world: list[Callable[[], object]] = []  # Called when a world starts.
# Called by finalize() before the world ends, to stop activity outside the interpreter.
before_end: list[Callable[[], object]] = []


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
    if is_initialized():
        return world()
    if init_method in (None, "env://") and rank is None and world_size is None:
        _check_environment()
    library, place = load(), calls.handle_place()
    options = (init_method, -1 if rank is None else rank, -1 if world_size is None else world_size, milliseconds(timeout))
    call_in_slices(lambda: library.ivy_init(options, place), on_interrupt=None)
    return _begin(Group(Handle(place[0])))


_RANK_VARIABLES = ("IVY_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def _check_environment() -> None:
    """Rejects a worker whose launcher's variables were removed: it would be a world of one, while other ranks wait for
    it."""
    if any(name in os.environ for name in _RANK_VARIABLES):
        return
    try:
        with open("/proc/self/environ", "rb") as file:
            initial = {entry.partition(b"=")[0].decode(errors="replace") for entry in file.read().split(b"\0")}
    except OSError:
        return
    removed = [name for name in _RANK_VARIABLES if name in initial]
    if removed:
        raise errors.FailedPrecondition(
            f"this process was started with {removed[0]}, which is no longer in its environment: keep the launcher's "
            "variables until ivycomm.init() has returned, or use init(\"self://\") for a world of one")


def _begin(new: Group, repaired: Group | None = None) -> Group:
    groups.begin_world(new, repaired)
    _watch_for_uncaught()
    for function in on_new_world:
        function()
    return new


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
    broken, limit = world(), milliseconds(timeout)
    handle = broken.handle
    _end_calls()
    groups.end_groups_of(broken)
    repairing = Handle(handle.address)  # `handle` is closed to calls of other threads.
    try:
        call_in_slices(lambda: getattr(calls.extension, function)(repairing, limit),
                       on_interrupt=lambda: abort_quietly(handle.address, b"interrupted"))
    except BaseException:
        # Later calls get the library's error, which says that the world is not repaired.
        handle.reopen(cast(int, broken.rank), broken.size)
        raise
    finally:
        sweep()
    return _begin(Group(Handle(handle.address)), repaired=broken)


def _end_calls() -> None:
    """Blocks further calls on the world and its groups. Interrupts calls of other threads first, and waits until they
    have returned."""
    if calls.try_to_close_all() > 0:
        abort_all("another thread is repairing the world")
        groups.await_no_calls(calls.try_to_close_all, "are in progress; join them first")


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
    if not is_initialized():
        return
    for function in before_end:
        function()
    in_progress = calls.try_to_close_all()
    if in_progress > 0:
        raise IvyError(f"{in_progress} calls of other threads are in progress; abort() and join them first",
                       code="FailedPrecondition")
    handle = world().handle
    groups.end_world()
    try:
        calls.extension.ivy_finalize(handle.address)
    finally:
        sweep(wait=True)  # ivy_finalize() has completed all works.


def abort(reason: str = "") -> None:
    """Breaks the world and every group of this rank, on every rank: calls in progress and later ones raise Aborted with
    this reason. Does not block, and may be called from any thread. Raises NotInitialized before init()."""
    world().abort(reason)  # Unlike abort_all(), raises an error if the world cannot be used.
    abort_all(reason)


_uncaught: str | None = None  # Text of the exception that ends this program.
_former_hook: Callable[[type[BaseException], BaseException, TracebackType | None], object] | None = None


def _watch_for_uncaught() -> None:
    """Installs the hook once: a hook that was installed later already calls this one, and must not be called by it."""
    global _former_hook, _uncaught
    _uncaught = None  # The program has continued, if it starts another world.
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


def _finalize_at_exit() -> None:
    if _uncaught is not None and is_initialized():
        # Ranks that wait for this rank get the reason, instead of a message that it has finalized.
        abort_all(f"it exits because of an uncaught {_uncaught}")
    # Threads inside a call still use the world; the exit of the process ends them.
    if not calls.inside():
        finalize()


atexit.register(_finalize_at_exit)
