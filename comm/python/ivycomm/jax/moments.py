# SPDX-License-Identifier: Apache-2.0
"""Mean and variance over all ranks' JAX arrays, inside jax.jit and outside, with derivatives."""

import jax
import jax.numpy as jnp

from .. import jax as collectives
from ..merging import merged


def moments(x, axes, group):
    """Returns (mean, variance, count), as ivycomm.sync_moments(). Inside jit nothing can be raised: no values at all give
    NaN."""
    axes = (axes,) if isinstance(axes, int) else tuple(axes)
    kind = jnp.promote_types(x.dtype, jnp.float32)
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    # Computed from x even if x has no rows, so that every rank makes the calls of the derivative.
    mean = x.sum(axes, dtype=kind) / max(count, 1)
    deviations = jnp.square(x - jnp.expand_dims(mean, axes)).sum(axes, dtype=kind)
    rows = collectives.all_gather(jnp.concatenate([jnp.array([count], kind), mean.ravel(), deviations.ravel()])[None],
                                  group=group)
    columns = mean.size
    total, whole, spread = merged(rows[:, :1], rows[:, 1:1 + columns], rows[:, 1 + columns:],
                                  is_checked=not isinstance(rows, jax.core.Tracer))
    return whole.reshape(mean.shape).astype(x.dtype), (spread / total).reshape(mean.shape).astype(x.dtype), total
