# SPDX-License-Identifier: Apache-2.0
"""Averages gradients that are trees of arrays over the ranks."""

from __future__ import annotations

from typing import TypeVar, cast

from . import collectives, trees
from .groups import Group

T = TypeVar("T")


def average_gradients(gradients: T, samples: float | None = None, *, group: Group | None = None) -> T:
    """Returns the mean over all ranks of a tree of arrays, which must have the same structure, shapes and types on all
    ranks.

    samples: number of samples over which this rank's gradients are averaged, used as the rank's weight. None: all ranks
    have the same weight. Arrays may be of any framework; arrays of one type are reduced as one operation.

    Collective: every rank of the group (None: the world) calls it, all with `samples` or all without. Blocks and raises
    as all_reduce() does, with the world's timeout; ValueError if the ranks together have no samples.
    """
    if samples is None:
        return collectives.all_reduce(gradients, "avg", group=group)
    import numpy
    total = float(collectives.all_reduce(numpy.array([float(samples)]), group=group)[0])
    if total <= 0:
        raise ValueError("no rank has any samples")
    weighted = trees.rebuilt(gradients, iter([leaf * (samples / total) for leaf in trees.leaves_of(gradients)]))
    return cast(T, collectives.all_reduce(weighted, "sum", group=group))
