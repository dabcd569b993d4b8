# SPDX-License-Identifier: Apache-2.0
"""The process groups that torch gets: c10d's classes with the calls of calls.py.

A ProcessGroup of Python is what torch calls without a way through C++, and what all versions know; its works tell
whether they are done. From torch 2.14 on there are Python backends beside: for one device of several
("cpu:ivy,cuda:nccl"), and for what asks a group for its backend.
"""

import collections
import itertools
import os
import sys
import weakref

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from ...errors import IvyError
from . import joining
from .calls import Calls, Coalescing
from .channel import Channel
from .errors import torch_error

NAME = "ivy"
_FIRST_WITH_PYTHON_BACKENDS = (2, 14)


def torch_version():
    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])


class _Default:
    """State with the lifetime of the default group: the names of groups, and whether the backend must end the world."""

    lives = itertools.count()
    current = None

    def __init__(self, was_made_here, channel_ranks):
        self.number, self.was_made_here = next(self.lives), was_made_here
        self.pid, self.world_ranks, self.names = os.getpid(), channel_ranks, collections.Counter()

    def name_of(self, group_id):
        """Returns a name that is equal on all members and never repeats: c10d may use a name twice."""
        self.names[group_id] += 1
        return f"torch/{self.number}/{group_id[-20:]}/{self.names[group_id]}"

    def end(self):
        if _Default.current is self:
            _Default.current = None
            joining.leave(self.was_made_here)


def _make_channel(opts):
    seconds = opts.timeout.total_seconds()
    if not dist.is_initialized():
        if _Default.current is not None and _Default.current.pid == os.getpid():
            _Default.current.end()  # torch before 2.0 does not tell that a group is destroyed.
        was_made_here = joining.join(opts.store, opts.group_rank, opts.group_size, seconds)
        world = joining.groups.world()
        ranks = tuple(world.ranks) if opts.group_size > 1 else (world.rank,)
        life = _Default.current = _Default(was_made_here, ranks)
        group = joining.make_group(life.name_of(opts.group_id or "0"), ranks, seconds)
        return Channel(group, seconds, life.end)
    life = _Default.current
    if life is None:
        raise RuntimeError('backend ivy: a group of it needs init_process_group("ivy"), or "cpu:ivy,..." before')
    members = opts.global_ranks_in_group or range(len(life.world_ranks))
    ranks = [life.world_ranks[rank] for rank in members]
    return Channel(joining.make_group(life.name_of(opts.group_id or "0"), ranks, seconds), seconds)


class IvyProcessGroup(Calls, c10d.ProcessGroup):
    """A process group of backend ivy. `ivycomm_group`: the same ranks as a Group of ivycomm."""

    def __init__(self, channel, opts):
        if torch_version() < _FIRST_WITH_PYTHON_BACKENDS:
            # From 2.6 on there is one with the store, too, which makes no object of Python's before 2.14.
            c10d.ProcessGroup.__init__(self, opts.group_rank, opts.group_size)
        else:
            c10d.ProcessGroup.__init__(self, opts.store, opts.group_rank, opts.group_size)
        self._channel, self._coalescing = channel, Coalescing()
        # torch before 2.0 drops a group without notice.
        self._closing = weakref.finalize(self, _close_quietly, channel)
        self._closing.atexit = False

    @property
    def ivycomm_group(self):
        return self._channel._group

    def getBackendName(self):
        return NAME

    def name(self):
        return NAME

    _get_backend_name = name

    def set_timeout(self, timeout):
        self._channel.set_timeout(timeout.total_seconds())

    _set_default_timeout = set_timeout
    # What C++ has there asks the backend of a device, which the calls of a group of Python's do not come to.
    _start_coalescing, _end_coalescing = Calls.start_coalescing, Calls.end_coalescing
    if torch_version() >= _FIRST_WITH_PYTHON_BACKENDS:
        def _get_backend(self, device):
            found = self._attached.get(torch.device(device).type)
            return found if found is not None else c10d.ProcessGroup._get_backend(self, device)
    else:
        _given_name = ""

        @property
        def group_name(self):
            return self._given_name

        def _set_group_name(self, name):
            self._given_name = name

    def abort(self):
        self._channel.abort()

    def shutdown(self):
        """What destroy_process_group() calls; the last is the default group, with which the world ends."""
        self._closing.detach()
        self._channel.close()

    def _set_sequence_number_for_group(self):
        """Does nothing: the library numbers a group's operations itself."""

    def _get_sequence_number_for_group(self):
        """Returns the number of collectives called by this rank: equal on all ranks at the same point of the
        program."""
        return self._channel.operations


def _close_quietly(channel):
    try:
        channel.close()
    except Exception:  # noqa: BLE001 - a finalizer has no caller to report to.
        pass


def _make_backend_class():
    class IvyBackend(Calls, c10d.Backend):
        """The same as a backend of one device in a process group of torch's own."""

        def __init__(self, channel, opts):
            c10d.Backend.__init__(self, opts.group_rank, opts.group_size)
            self._channel, self._coalescing, self._does_coalesce = channel, Coalescing(), False
            self._options = c10d.Backend.Options(NAME, timeout=opts.timeout)
            self._options.global_ranks_in_group = opts.global_ranks_in_group
            self._options.group_name = opts.group_id

        @property
        def options(self):
            return self._options

        @property
        def supports_coalescing(self):
            """Returns whether messages that batch_isend_irecv starts together are one group of NCCL's."""
            return self._does_coalesce

        # Said here, since torch would ask this class through its own property, without end.
        @property
        def supports_splitting(self):
            return False

        getBackendName = IvyProcessGroup.getBackendName
        name = _get_backend_name = IvyProcessGroup.name
        set_timeout = IvyProcessGroup.set_timeout
        abort = IvyProcessGroup.abort

        def shutdown(self):
            self._channel.close()

        _set_sequence_number_for_group = IvyProcessGroup._set_sequence_number_for_group
        _get_sequence_number_for_group = IvyProcessGroup._get_sequence_number_for_group

    return IvyBackend


_backend_class = None


def backend_class():
    """Returns the class of torch's Python backends with these calls; None before torch 2.14."""
    global _backend_class
    if _backend_class is None and torch_version() >= _FIRST_WITH_PYTHON_BACKENDS:
        _backend_class = _make_backend_class()
    return _backend_class


def _is_one_of_several():
    """Returns whether torch will combine this backend with another one, which only a variable of torch's function
    shows."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_new_process_group_helper":
        frame = frame.f_back
    config = frame.f_locals.get("backend_config") if frame is not None else None
    return hasattr(config, "get_device_backend_map") and len(set(config.get_device_backend_map().values())) > 1


def create(opts, _options=None):
    """The backend's creator, by c10d's extended interface: every member of a group calls it."""
    try:
        channel = _make_channel(opts)
    except IvyError as error:
        raise torch_error(error) from None
    kind = backend_class()
    if kind is not None and _is_one_of_several():
        return kind(channel, opts)
    group = IvyProcessGroup(channel, opts)
    if kind is not None:
        # C++ has one of a type for all devices; _get_backend() tells Python of the other.
        attached = group._attached = {device: kind(channel, opts) for device in ("cpu", "cuda")}
        attached["cuda"]._does_coalesce = True
        group._set_default_backend(c10d.ProcessGroup.BackendType.CUSTOM)
        for device in attached:
            group._register_backend(torch.device(device), c10d.ProcessGroup.BackendType.CUSTOM, attached["cpu"])
    return group
