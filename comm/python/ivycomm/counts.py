# SPDX-License-Identifier: Apache-2.0
"""Counts of elements: as the library takes them, and as the ranks tell each other."""

from __future__ import annotations

import array
from collections.abc import Iterable, Sequence
from typing import Union

from .element_types import I64
from .groups import Group
from .work import start

# Elements of each rank, for a C function: one number if all are equal, else an array.
Counts = Union[int, "array.array[int]"]


def counts_of(values: Iterable[int]) -> array.array[int]:
    """Returns an array of size_t, or of addresses."""
    return array.array("Q", values)


def number_of_each(group: Group, number: int, timeout: float | None) -> list[int]:
    """The number that each rank gives, exchanged by a small operation of its own."""
    mine, all_ = array.array("q", [number]), array.array("q", bytes(8 * group.size))
    start("ivy_all_gather", (group.handle, mine, all_, 1, I64), (mine, all_), timeout=timeout)
    return list(all_)


def exchanged(group: Group, numbers: Sequence[int], timeout: float | None) -> list[int]:
    """Returns the number that each rank has for this one; `numbers` has one for each rank."""
    mine, theirs = array.array("q", numbers), array.array("q", bytes(8 * group.size))
    start("ivy_all_to_all", (group.handle, mine, theirs, 1, I64), (mine, theirs), timeout=timeout)
    return list(theirs)
