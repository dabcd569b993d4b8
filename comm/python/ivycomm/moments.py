# SPDX-License-Identifier: Apache-2.0
"""Mean and variance over the values of all ranks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from . import collectives, groups
from .merging import merged


def sync_moments(x: Any, axes: int | Sequence[int] = 0, *,
                 group: groups.Group | None = None) -> tuple[Any, Any, Any]:
    """Returns (mean, variance, count) over `axes` of x of all ranks, as if their arrays were one. The variance is the sum of
    squared deviations divided by count.

    x: a NumPy array (or anything that NumPy converts to one), a torch tensor or a JAX array. axes: a number or several.
    Ranks may differ in the lengths of these axes, 0 included, and in no others. Mean and variance have x's shape without
    these axes, and x's type for torch and JAX, also inside jax.jit, and float64 or longer for NumPy. count is an int for
    NumPy, and a 0-d array otherwise.

    Collective: every rank of the group calls it; it blocks as all_gather() does and raises its errors, and ValueError if
    no rank has any values. Gradients pass through it for torch and JAX: every rank must run the backward pass too, and
    the sum of the ranks' losses is differentiated.
    """
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if jax is not None and isinstance(x, jax.Array):
        from .jax import moments as of_jax
        result: tuple[Any, Any, Any] = of_jax.moments(x, axes, group)
        return result
    if torch is not None and isinstance(x, torch.Tensor):
        from .torch import moments as of_torch
        result = of_torch.moments(x, axes, group)
        return result
    import numpy
    x = numpy.asarray(x)
    axes = (axes,) if isinstance(axes, int) else tuple(axes)
    kind = numpy.result_type(x.dtype, numpy.float64)
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    if count:
        mean = x.mean(axes, dtype=kind)
        deviations = (numpy.square(x - numpy.expand_dims(mean, axes))).sum(axes, dtype=kind)
    else:
        mean = deviations = numpy.zeros([n for axis, n in enumerate(x.shape) if axis - x.ndim not in axes and axis not in axes],
                                        kind)
    rows = collectives.all_gather(numpy.concatenate([[count], mean.ravel(), deviations.ravel()]).astype(kind)[None],
                                  group=groups.resolve(group))
    means, sums = rows[:, 1:1 + mean.size], rows[:, 1 + mean.size:]
    total, whole, spread = merged(rows[:, :1], means, sums)
    return whole.reshape(mean.shape), (spread / total).reshape(mean.shape), int(total)
