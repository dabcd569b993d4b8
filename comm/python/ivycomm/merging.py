# SPDX-License-Identifier: Apache-2.0
"""Counts, means and sums of squared deviations of parts, merged into those of the whole. Pure.

By the rule of Chan, Golub and LeVeque ("Updating formulae and a pairwise algorithm for computing sample variances", 1979):
sums of squares would cancel where the mean is large beside the deviation, and means alone cannot be merged when parts have
different counts.
"""

from __future__ import annotations

from typing import Any


def merged(counts: Any, means: Any, sums: Any, is_checked: bool = True) -> tuple[Any, Any, Any]:
    """Returns (count, mean, sum of squared deviations) of the union of the rows' values. Any array type with sum and
    `*`.

    counts: (rows, 1); means, sums: (rows, columns). ValueError if there are no values at all. is_checked=False: for
    arrays whose values are not known yet.
    """
    total = counts.sum()
    if is_checked and not total > 0:
        raise ValueError("no rank has any values")
    mean = (counts * means).sum(0) / total
    return total, mean, (sums + counts * (means - mean) ** 2).sum(0)
