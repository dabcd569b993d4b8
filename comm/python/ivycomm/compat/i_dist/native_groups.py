# SPDX-License-Identifier: Apache-2.0
"""Groups of ranks under the names of the original ivy.distributed, and the groups of the framework in use."""

from __future__ import annotations

import collections
import hashlib
import sys
from collections.abc import Sequence
from typing import Any

from ... import groups

# How many Groups these ranks have made from native groups: by (number of the world, ranks).
_adopted: collections.Counter[tuple[int, tuple[int, ...]]] = collections.Counter()


def _torch() -> Any:
    """Returns torch.distributed if the program has imported it and this build of torch contains it."""
    torch = sys.modules.get("torch.distributed")
    return torch if torch is not None and torch.is_available() else None


def _ranks_of(native: Any) -> list[int] | None:
    """Returns the world ranks of a group of torch, mpi4py or ivycomm; None for anything else."""
    mpi, torch = sys.modules.get("mpi4py.MPI"), _torch()
    if isinstance(native, groups.Group):
        return list(native.ranks)
    if mpi is not None and isinstance(native, mpi.Comm) and native != mpi.COMM_NULL:
        own, world = native.Get_group(), mpi.COMM_WORLD.Get_group()
        return list(mpi.Group.Translate_ranks(own, list(range(own.Get_size())), world))
    if torch is not None and isinstance(native, torch.ProcessGroup):
        of_default = getattr(torch, "get_process_group_ranks", None)
        return list(of_default(native)) if of_default else [
            torch.distributed_c10d._get_global_rank(native, rank) for rank in range(native.size())]
    return None


class _IsNative(type):
    def __instancecheck__(cls, candidate: object) -> bool:
        return _ranks_of(candidate) is not None


class NativeGroup(metaclass=_IsNative):
    """For isinstance and annotations: torch's process groups, mpi4py's communicators, ivycomm's groups."""


class Group(groups.Group):
    """A group of ranks. Collective: every rank of the world makes it, in the same order among its operations; blocks until
    all have.

    group: the world ranks, or a group of torch, mpi4py or ivycomm that has them. Raises TypeError for anything else, and
    the errors of ivycomm.new_group().
    """

    ranks: Any  # A list, unlike in the base class.

    def __init__(self, group: Any) -> None:
        native = _ranks_of(group)
        if native is None and not hasattr(type(group), "__iter__"):
            raise TypeError(f"a {type(group).__name__} is neither a sequence of ranks nor a group of torch, mpi4py or "
                            "ivycomm")
        self._take(groups.new_group(list(group) if native is None else native), None)

    def _take(self, made: groups.Group, native: Any) -> None:
        super().__init__(made.handle if made.is_member else None, made.ranks)
        self.ranks = list(self.ranks)
        self._native = native

    def to_native_group(self) -> Any:
        """Returns these ranks as a group of the framework in use: torch's process group if torch.distributed is
        initialized, mpi4py's communicator if MPI is; otherwise this group itself. Collective: every rank of the world
        calls it, in the same order; later calls return the same object."""
        if self._native is None:
            self._native = _made_native(self)
        return self._native

    @staticmethod
    def from_native_group(native_group: Any) -> groups.Group:
        """Returns the Group of the ranks of a torch process group or an mpi4py communicator; a Group is returned
        unchanged. Collective among its members only: other ranks have no such group to pass. Raises TypeError for anything
        else."""
        if isinstance(native_group, groups.Group):
            return native_group
        ranks = _ranks_of(native_group)
        if ranks is None:
            raise TypeError(f"a {type(native_group).__name__} is not a group of torch, mpi4py or ivycomm that contains this "
                            "rank")
        made = Group.__new__(Group)
        if len(ranks) == groups.world_size():
            made._take(groups.new_group(ranks), native_group)
        else:
            made._take(groups.group_of_members(_name_of(ranks), ranks), native_group)
            made.ranks = ranks
        return made


def _name_of(ranks: Sequence[int]) -> str:
    """Returns a name on which these ranks agree, and which no other ranks and no earlier group of theirs in this
    world use."""
    asked = (groups.worlds_ended(), tuple(ranks))
    _adopted[asked] += 1
    return f"i_dist {hashlib.sha256(repr(ranks).encode()).hexdigest()[:16]} {_adopted[asked]}"


def _made_native(group: Group) -> Any:
    torch, mpi = _torch(), sys.modules.get("mpi4py.MPI")
    if torch is not None and torch.is_initialized():
        is_world = group.ranks == list(range(torch.get_world_size()))
        return torch.group.WORLD if is_world else torch.new_group(group.ranks)
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        world = mpi.COMM_WORLD
        if group.ranks == list(range(world.Get_size())):
            return world
        if world.Get_size() > max(group.ranks):
            return world.Create(world.Get_group().Incl(group.ranks))
    return group
