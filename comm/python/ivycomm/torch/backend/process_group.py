# SPDX-License-Identifier: Apache-2.0
"""The process groups that torch gets: c10d's classes with the calls of calls.py.

torch calls a ProcessGroup written in Python directly, not through C++, and every version supports it. torch 2.14 and newer
also have backends written in Python: for one device of several ("cpu:ivy,cuda:nccl"), and for code that requests the
backend of a group.
"""

from __future__ import annotations

import collections
import itertools
import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from ... import groups
from ...errors import IvyError
from . import joining
from .calls import Calls, Coalescing
from .channel import Channel
from .errors import torch_error

NAME = "ivy"
_FIRST_WITH_PYTHON_BACKENDS = (2, 14)


def torch_version() -> tuple[int, ...]:
    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])


class _Default:
    """State with the lifetime of the default group: the names of its groups, and whether the backend has created the
    world."""

    numbers = itertools.count()
    current: _Default | None = None

    def __init__(self, was_made_here: bool, world_ranks: Sequence[int]) -> None:
        self.number, self.was_made_here = next(self.numbers), was_made_here
        self.pid, self.world_ranks = os.getpid(), world_ranks
        self.names: collections.Counter[str] = collections.Counter()

    def name_of(self, group_id: str) -> str:
        """Returns a unique name that is the same on all members. c10d may use one group_id for several groups."""
        self.names[group_id] += 1
        return f"torch/{self.number}/{group_id[-20:]}/{self.names[group_id]}"

    def end(self) -> None:
        if _Default.current is self:
            _Default.current = None
            joining.leave(self.was_made_here)


def _make_channel(opts: Any) -> Channel:
    seconds = opts.timeout.total_seconds()
    if not dist.is_initialized():
        if _Default.current is not None and _Default.current.pid == os.getpid():
            _Default.current.end()  # torch before 2.0 does not report that a group is destroyed.
        was_made_here = joining.join(opts.store, opts.group_rank, opts.group_size, seconds)
        world = groups.world()
        ranks = tuple(world.ranks) if opts.group_size > 1 else (cast(int, world.rank),)
        life = _Default.current = _Default(was_made_here, ranks)
        group = joining.make_group(life.name_of(opts.group_id or "0"), ranks, seconds)
        return Channel(group, seconds, life.end)
    current = _Default.current
    if current is None:
        raise RuntimeError('backend ivy: call init_process_group("ivy"), or "cpu:ivy,...", before creating a group of it')
    members = opts.global_ranks_in_group or range(len(current.world_ranks))
    world_ranks = [current.world_ranks[rank] for rank in members]
    return Channel(joining.make_group(current.name_of(opts.group_id or "0"), world_ranks, seconds), seconds)


class IvyProcessGroup(Calls, c10d.ProcessGroup):
    """A process group of backend ivy. ivycomm_group: the same ranks as a Group of ivycomm."""

    def __init__(self, channel: Channel, opts: Any) -> None:
        if torch_version() < _FIRST_WITH_PYTHON_BACKENDS:
            # The constructor with a store, of torch 2.6 and newer, creates no Python object before 2.14.
            c10d.ProcessGroup.__init__(self, opts.group_rank, opts.group_size)
        else:
            c10d.ProcessGroup.__init__(self, opts.store, opts.group_rank, opts.group_size)
        # If it is garbage-collected without shutdown(), its collectives in progress keep the channel's Group, which is freed
        # with the next one that is created. torch before 2.0 never calls shutdown().
        self._channel, self._coalescing = channel, Coalescing()

    @property
    def ivycomm_group(self) -> groups.Group:
        return self._channel.group

    def getBackendName(self) -> str:
        return NAME

    def name(self) -> str:
        return NAME

    _get_backend_name = name

    def set_timeout(self, timeout: timedelta) -> None:
        self._channel.set_timeout(timeout.total_seconds())

    _set_default_timeout = set_timeout
    # The methods of the C++ class would call the backend of a device instead of this group.
    _start_coalescing, _end_coalescing = Calls.start_coalescing, Calls.end_coalescing
    if torch_version() >= _FIRST_WITH_PYTHON_BACKENDS:
        _attached: dict[str, Any]  # The backend of each device type.

        def _get_backend(self, device: Any) -> Any:
            found = self._attached.get(torch.device(device).type)
            return found if found is not None else c10d.ProcessGroup._get_backend(self, device)
    else:
        _given_name = ""

        @property
        def group_name(self) -> str:
            return self._given_name

        def _set_group_name(self, name: str) -> None:
            self._given_name = name

    def abort(self) -> None:
        self._channel.abort()

    def shutdown(self) -> None:
        """Called by destroy_process_group(), for the default group last: its shutdown finalizes the world."""
        self._channel.close()

    def _set_sequence_number_for_group(self) -> None:
        """Does nothing: the library numbers a group's operations itself."""

    def _get_sequence_number_for_group(self) -> int:
        """Returns the number of collectives that this rank has called. It is the same on all ranks at the same point of the
        program."""
        return self._channel.operations


def _make_backend_class() -> Any:
    class IvyBackend(Calls, c10d.Backend):
        """The backend of one device type in a process group of torch's own class."""

        def __init__(self, channel: Channel, opts: Any) -> None:
            c10d.Backend.__init__(self, opts.group_rank, opts.group_size)
            self._channel, self._coalescing, self._does_coalesce = channel, Coalescing(), False
            self._options = c10d.Backend.Options(NAME, timeout=opts.timeout)
            self._options.global_ranks_in_group = opts.global_ranks_in_group
            self._options.group_name = opts.group_id

        @property
        def options(self) -> Any:
            return self._options

        @property
        def supports_coalescing(self) -> bool:
            """Whether the messages of one batch_isend_irecv() are one group of NCCL."""
            return self._does_coalesce

        # Overridden, because the property of torch's class would call itself without end.
        @property
        def supports_splitting(self) -> bool:
            return False

        getBackendName = IvyProcessGroup.getBackendName
        name = _get_backend_name = IvyProcessGroup.name
        set_timeout = IvyProcessGroup.set_timeout
        abort = IvyProcessGroup.abort

        def shutdown(self) -> None:
            self._channel.close()

        _set_sequence_number_for_group = IvyProcessGroup._set_sequence_number_for_group
        _get_sequence_number_for_group = IvyProcessGroup._get_sequence_number_for_group

    return IvyBackend


_backend_class: Any = None


def backend_class() -> Any:
    """Returns the class IvyBackend, or None before torch 2.14."""
    global _backend_class
    if _backend_class is None and torch_version() >= _FIRST_WITH_PYTHON_BACKENDS:
        _backend_class = _make_backend_class()
    return _backend_class


def _is_one_of_several() -> bool:
    """Returns whether torch will combine this backend with another one. Only a local variable of the calling function of
    torch has this information."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_new_process_group_helper":
        frame = frame.f_back
    config: Any = frame.f_locals.get("backend_config") if frame is not None else None
    return hasattr(config, "get_device_backend_map") and len(set(config.get_device_backend_map().values())) > 1


def create(opts: Any, _options: Any = None) -> Any:
    """Creates a process group, or a backend for one. torch calls it on every member (c10d's extended interface)."""
    try:
        channel = _make_channel(opts)
    except IvyError as error:
        raise torch_error(error) from None
    kind = backend_class()
    if kind is not None and _is_one_of_several():
        return kind(channel, opts)
    group = IvyProcessGroup(channel, opts)
    if kind is not None:
        # C++ supports one backend per type for all devices; in Python _get_backend() returns that of the device.
        attached = group._attached = {device: kind(channel, opts) for device in ("cpu", "cuda")}
        attached["cuda"]._does_coalesce = True
        group._set_default_backend(c10d.ProcessGroup.BackendType.CUSTOM)
        for device in attached:
            group._register_backend(torch.device(device), c10d.ProcessGroup.BackendType.CUSTOM, attached["cpu"])
    return group
