# SPDX-License-Identifier: Apache-2.0
"""Counts of elements: as the library takes them, and as the ranks tell each other."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Union

from .element_types import I64
from .groups import Group
from .work import start

# Elements of each rank, for a C function: one number if all are equal, else an array.
Counts = Union[int, "ctypes.Array[ctypes.c_size_t]"]


def counts_of(values: Sequence[int]) -> ctypes.Array[ctypes.c_size_t]:
    return (ctypes.c_size_t * max(1, len(values)))(*values)


def number_of_each(group: Group, number: int, timeout: float | None) -> list[int]:
    """The number that each rank gives, exchanged by a small operation of its own."""
    mine, all_ = ctypes.c_int64(number), (ctypes.c_int64 * group.size)()
    start("ivy_all_gather", (group.handle, ctypes.addressof(mine), ctypes.addressof(all_), 1, I64),
          (mine, all_), timeout=timeout)
    return list(all_)


def exchanged(group: Group, numbers: Sequence[int], timeout: float | None) -> list[int]:
    """Returns the number that each rank has for this one; `numbers` has one for each rank."""
    one_each = ctypes.c_int64 * group.size
    mine, theirs = one_each(*numbers), one_each()
    start("ivy_all_to_all", (group.handle, ctypes.addressof(mine), ctypes.addressof(theirs), 1, I64),
          (mine, theirs), timeout=timeout)
    return list(theirs)
