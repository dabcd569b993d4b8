# SPDX-License-Identifier: Apache-2.0
"""Meshes under the names of the original ivy.distributed."""

from __future__ import annotations

from collections.abc import Sequence

from ... import groups
from ...mesh import Mesh as Grid


class Mesh:
    """The ranks of a group in a grid; the last axis varies fastest. group: a Group; None: the world. axis_names: None:
    the axes have indices. Sends nothing. Raises ValueError if the shape does not fit the group.

    shape, group: as given. coord: this rank's position, one index for each axis; None if it is not a member.
    """

    def __init__(self, shape: Sequence[int], group: groups.Group | None = None,
                 axis_names: Sequence[str] | None = None) -> None:
        self.group = groups.resolve(group)
        self._mesh = Grid(shape, axis_names, self.group)
        self.shape, self.coord = self._mesh.shape, self._mesh.coord

    def axis_group(self, axis: int | str) -> groups.Group:
        """Returns the Group of the ranks that differ from this one only along `axis` (its index or its name).

        The first request for an axis makes the group, and is collective, as in ivycomm.Mesh.group(). Raises ValueError for
        an unknown axis.
        """
        return self._mesh.group(axis)


class NamedMesh(Mesh):
    """A Mesh whose axes have names, axis_names: one for each axis, else ValueError."""

    def __init__(self, shape: Sequence[int], group: groups.Group | None = None,
                 axis_names: Sequence[str] | None = None) -> None:
        if axis_names is None or len(axis_names) != len(shape):
            raise ValueError(f"a mesh of {tuple(shape)} needs {len(shape)} axis_names, not {axis_names}")
        super().__init__(shape, group, axis_names)
        self.axis_names = tuple(axis_names)


class MpDpMesh(NamedMesh):
    """A NamedMesh of two axes: "dp", along which batches are divided, and "mp", along which the model is divided. Raises
    ValueError for a shape of another length than two."""

    def __init__(self, shape: Sequence[int], group: groups.Group | None = None) -> None:
        if len(shape) != 2:
            raise ValueError(f"shape={tuple(shape)}: a mesh of dp and mp must have two axes, such as (4, 2)")
        super().__init__(shape, group, ("dp", "mp"))
