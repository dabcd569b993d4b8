# SPDX-License-Identifier: Apache-2.0
"""Differentiable mean and variance over the tensors of all ranks, and batch normalization based on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .. import collectives, groups, lifetime
from ..merging import merged

Tensor = Any  # A torch.Tensor, and Module a torch.nn.Module; torch is not installed where the types are checked.
Module = Any


def moments(x: Tensor, axes: int | Sequence[int], group: groups.Group | None) -> tuple[Tensor, Tensor, Tensor]:
    """Returns (mean, variance, count), as ivycomm.sync_moments()."""
    axes = (axes,) if isinstance(axes, int) else tuple(axes)
    mean, variance, count = _exact_moments(x, axes, group)
    return mean.to(x.dtype), variance.to(x.dtype), count


def _exact_moments(x: Tensor, axes: Sequence[int], group: groups.Group | None) -> tuple[Tensor, Tensor, Tensor]:
    """As moments(), without rounding to x's type: in float32, or float64 for a float64 x."""
    return _Moments.apply(x, tuple(axis % x.dim() for axis in axes), groups.resolve(group))


class _Moments(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axes: tuple[int, ...], group: groups.Group) -> tuple[Tensor, Tensor, Tensor]:
        kind = torch.promote_types(x.dtype, torch.float32)
        count = 1
        for axis in axes:
            count *= x.shape[axis]
        if count:
            mean = x.mean(axes, dtype=kind)
            sums = (x.to(kind) - _spread(mean, axes)).square().sum(axes)
        else:
            shape = [length for axis, length in enumerate(x.shape) if axis not in axes]
            mean = sums = torch.zeros(shape, dtype=kind, device=x.device)
        mine = torch.cat([mean.new_tensor([count]), mean.reshape(-1), sums.reshape(-1)])
        rows = collectives.all_gather(mine[None], group=group)
        columns = mean.numel()
        total, whole, spread = merged(rows[:, :1], rows[:, 1:1 + columns], rows[:, 1 + columns:])
        whole = whole.reshape(mean.shape)
        ctx.save_for_backward(x, whole, total)
        ctx.axes, ctx.group = axes, group
        variance = (spread / total).reshape(mean.shape)
        ctx.mark_non_differentiable(total)
        return whole, variance, total

    @staticmethod
    def backward(ctx: Any, of_mean: Tensor, of_variance: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        x, mean, total = ctx.saved_tensors
        # Each rank has the gradients of its own results; the sum over the ranks is the gradient of the common moments.
        both = torch.stack([of_mean, of_variance]).to(mean.dtype)
        of_mean, of_variance = collectives.all_reduce(both, group=ctx.group)
        centred = x.to(mean.dtype) - _spread(mean, ctx.axes)
        gradient = _spread(of_mean, ctx.axes) / total + _spread(of_variance, ctx.axes) * 2 * centred / total
        return gradient.expand(x.shape).to(x.dtype), None, None


def _spread(values: Tensor, axes: Sequence[int]) -> Tensor:
    """Inserts the axes again, with length 1."""
    for axis in sorted(axes):
        values = values.unsqueeze(axis)
    return values


class SyncBatchNorm(torch.nn.modules.batchnorm._BatchNorm):
    """Batch normalization with the mean and the variance over the batches of all ranks.

    Input and output: (batch, num_features, ...), of any floating-point type, on the CPU or a GPU; batches may differ in
    length between ranks. Statistics are computed in float32 at least. Arguments, running statistics and behaviour in
    eval() are those of torch.nn.BatchNorm1d. group: the ranks that share the statistics; None: the world;
    ivycomm.init() is called if necessary.

    In training, forward and backward are collective: every rank of the group runs both, in the same order; they block
    like ivycomm.all_gather() and raise its errors. Raises ValueError for an input of another shape.
    """

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
                 track_running_stats: bool = True, *, group: groups.Group | None = None) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        if group is None:
            lifetime.init()  # Without a launcher: a world of one.
        self._group = groups.resolve(group)

    def _check_input_dim(self, x: Tensor) -> None:
        if x.dim() < 2 or x.shape[1] != self.num_features:
            raise ValueError(f"SyncBatchNorm of {self.num_features} features needs (batch, {self.num_features}, ...), "
                             f"not {tuple(x.shape)}")

    def forward(self, x: Tensor) -> Tensor:
        self._check_input_dim(x)
        if not self.training and self.track_running_stats:
            return super().forward(x)
        axes = (0, *range(2, x.dim()))
        # In float32 at least, as in torch's own layers; only the result has x's type.
        mean, variance, count = _exact_moments(x, axes, self._group)
        if self.training and self.track_running_stats:
            self._track(mean.detach(), variance.detach(), float(count))
        y = (x.to(mean.dtype) - _spread(mean, axes)) * torch.rsqrt(_spread(variance, axes) + self.eps)
        if self.affine:
            y = y * _spread(self.weight, axes) + _spread(self.bias, axes)
        return y.to(x.dtype)

    def _track(self, mean: Tensor, variance: Tensor, count: float) -> None:
        self.num_batches_tracked.add_(1)
        weight = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = variance * (count / max(1.0, count - 1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), weight)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), weight)

    @classmethod
    def convert(cls, module: Module, *, group: groups.Group | None = None) -> Module:
        """Returns a copy of a module, with a SyncBatchNorm for each of torch's BatchNorm layers. Sends nothing."""
        import copy
        return _converted(copy.deepcopy(module), group, {})


def _converted(module: Module, group: groups.Group | None, made_of: dict[Module, SyncBatchNorm]) -> Module:
    """made_of: the replacements that exist already, because a module may be used twice."""
    if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and not isinstance(module, SyncBatchNorm):
        if module not in made_of:
            made = SyncBatchNorm(module.num_features, module.eps, module.momentum, module.affine,
                                 module.track_running_stats, group=group)
            # The same objects, which keeps types, devices, shared weights and requires_grad.
            made._parameters, made._buffers = module._parameters, module._buffers
            made_of[module] = made.train(module.training)
        return made_of[module]
    for name, child in module._modules.items():
        if child is not None:
            module._modules[name] = _converted(child, group, made_of)
    return module
