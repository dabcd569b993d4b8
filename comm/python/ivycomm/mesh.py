# SPDX-License-Identifier: Apache-2.0
"""Ranks in a grid. Each rank has a group along each axis: the ranks whose positions differ from its own on that axis only."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from .groups import Group, resolve, split


def mesh(shape: Sequence[int], names: Sequence[Hashable] | None = None, *, group: Group | None = None) -> Mesh:
    """Makes a Mesh of the ranks of `group` (None: the world), in row-major order: the last axis varies fastest. Sends nothing.

    shape: lengths of the axes, whose product must be the group's size. names: of the axes; None: their indices. Raises
    ValueError if the shape does not fit the group, or if the names are not one for each axis, all different.
    """
    return Mesh(shape, names, group)


class Mesh:
    """The ranks of a group in a grid. parent: that group. shape, names: of the axes. coord: this rank's position, one
    index per axis; None if it is not a member."""

    def __init__(self, shape: Sequence[int], names: Sequence[Hashable] | None = None,
                 group: Group | None = None) -> None:
        self.parent = resolve(group)
        self.shape = tuple(int(length) for length in shape)
        self.names: tuple[Hashable, ...] = tuple(range(len(self.shape))) if names is None else tuple(names)
        if len(self.names) != len(self.shape) or len(set(self.names)) != len(self.names):
            raise ValueError(f"names={self.names} must be {len(self.shape)} different names")
        if min(self.shape, default=1) < 1 or math.prod(self.shape) != self.parent.size:
            raise ValueError(f"a mesh of {self.shape} has {math.prod(self.shape)} positions for {self.parent.size} ranks")
        self._groups: dict[int, Group] = {}
        self.coord: tuple[int, ...] | None = None
        if self.parent.rank is not None:
            rest = self.parent.rank
            coord: list[int] = []
            for length in reversed(self.shape):
                rest, index = divmod(rest, length)
                coord.insert(0, index)
            self.coord = tuple(coord)

    def group(self, axis: Hashable) -> Group:
        """Returns the Group along an axis, given by its name or index; its ranks are the indices along the axis. If the
        names are numbers, axis is a name.

        The first request for an axis makes the group, and is collective: every rank of the mesh makes it in the same
        order among the operations of `parent`, and it blocks until all have. Raises ValueError for an unknown axis, and
        the errors of split().
        """
        index = self.names.index(axis) if axis in self.names else axis
        if not isinstance(index, int) or not 0 <= index < len(self.shape):
            raise ValueError(f"axis {axis!r} is not one of {self.names}")
        if index not in self._groups:
            color, key = self._line(index)
            self._groups[index] = split(color, key, group=self.parent)
        return self._groups[index]

    def _line(self, axis: int) -> tuple[int, int]:
        """Returns a number that the ranks in one line along the axis share, and this rank's index in the line."""
        if self.coord is None:
            return 0, 0
        number = 0
        for other, length in enumerate(self.shape):
            if other != axis:
                number = number * length + self.coord[other]
        return number, self.coord[axis]

    def __repr__(self) -> str:
        axes = ", ".join(f"{name}={length}" for name, length in zip(self.names, self.shape))
        return f"<ivycomm.Mesh {axes}>"
