# SPDX-License-Identifier: Apache-2.0
"""Differentiable mean and variance over the JAX arrays of all ranks, inside jax.jit and outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .. import jax as collectives
from ..groups import Group
from ..merging import merged


def moments(x: Any, axes: int | Sequence[int], group: Group | None) -> tuple[Any, Any, Any]:
    """Returns (mean, variance, count), as ivycomm.sync_moments(). Inside jit, where nothing can be raised, mean and variance
    are NaN if no rank has any values."""
    axes = (axes,) if isinstance(axes, int) else tuple(axes)
    kind = jnp.promote_types(x.dtype, jnp.float32)
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    # Computed from x even if it has no rows, so that every rank takes part in the collectives of the derivative.
    mean = x.sum(axes, dtype=kind) / max(count, 1)
    deviations = jnp.square(x - jnp.expand_dims(mean, axes)).sum(axes, dtype=kind)
    rows = collectives.all_gather(jnp.concatenate([jnp.array([count], kind), mean.ravel(), deviations.ravel()])[None],
                                  group=group)
    columns = mean.size
    total, whole, spread = merged(rows[:, :1], rows[:, 1:1 + columns], rows[:, 1 + columns:],
                                  is_checked=not isinstance(rows, jax.core.Tracer))
    return whole.reshape(mean.shape).astype(x.dtype), (spread / total).reshape(mean.shape).astype(x.dtype), total
