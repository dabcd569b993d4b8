# SPDX-License-Identifier: Apache-2.0
"""The operations of ivycomm.torch, each with its adjoint. The package documents them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch

from .. import collectives, counts, docstrings, messages, operands
from ..collectives import Op
from ..dense_arrays import TorchArrays
from ..element_types import ReduceOp, op_number
from ..groups import Group, group_named, resolve, world
from ..trees import Joined

Tensor = Any  # A torch.Tensor; torch is not installed where the types are checked.
Adjoint = Callable[..., tuple[Tensor, ...]]

is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)


class _Recorded(torch.autograd.Function):
    """Registers existing results with autograd: `adjoint` maps their gradients to those of `inputs`."""

    @staticmethod
    def forward(ctx: Any, results: list[Tensor], adjoint: Adjoint, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.adjoint = adjoint
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        return (None, None, *ctx.adjoint(*gradients))


def _record(results: list[Tensor], adjoint: Adjoint, inputs: Sequence[Tensor]) -> Any:
    """results: a list that holds the only references to the tensors."""
    return _Recorded.apply(results, adjoint, *inputs)


# Groups are passed by name, and the world as "": torch.compile supports numbers and texts.
def _group(name: str) -> Group:
    return group_named(name) if name else world()


def _name(group: Group | None) -> str:
    if group is None:
        return ""
    group = resolve(group)
    return "" if group is world() else group.name


class _Operation:
    """One operation on a tensor whose other arguments are numbers, texts and lists of them.

    forward(x, *arguments, **how): returns the result; how: async_op and timeout. shape(x, *arguments): returns the result's
    shape. adjoint(shape of x, gradient, *arguments): returns the gradient of x. signature: the arguments after x, in
    torch's schema language; the last one is the group's name.
    """

    def __init__(self, name: str, signature: str, forward: Callable[..., Any], shape: Callable[..., Sequence[int]],
                 adjoint: Callable[..., Tensor]) -> None:
        self.name, self.forward, self.shape, self.adjoint = name, forward, shape, adjoint
        self.operator = self._made_operator(signature)

    def __call__(self, x: Tensor, *arguments: Any, out: Tensor | None = None, async_op: bool = False,
                 timeout: float | None = None) -> Any:
        if is_compiling() and self.operator is not None:
            _check_eager_only(out, async_op, timeout)
            return self.operator(x, *arguments)
        if out is not None:
            raise RuntimeError("a call with out= has no derivative: leave it out, or use x.detach() or torch.no_grad() if "
                               "the tensor is only data")
        result = self.forward(x.detach(), *arguments, async_op=async_op, timeout=timeout)
        shape, group = x.shape, _group(arguments[-1])

        def adjoint(gradient: Tensor, _kept: Group = group) -> tuple[Tensor]:  # The group must exist while this may be called.
            return (self.adjoint(shape, gradient, *arguments),)

        return _attached(result, async_op, [x], adjoint)

    def _made_operator(self, signature: str) -> Any:
        if not hasattr(torch.library, "custom_op"):
            return None
        operator = torch.library.custom_op(
            f"ivycomm::{self.name}", lambda x, *arguments: self._fresh(x, *arguments), mutates_args=(),
            schema=f"(Tensor x, {signature}) -> Tensor")
        operator.register_fake(lambda x, *arguments: x.new_empty(self.shape(x, *arguments)))
        operator.register_autograd(self._backward, setup_context=self._keep)
        return operator if _keep_order(operator) else None

    def _fresh(self, x: Tensor, *arguments: Any) -> Tensor:
        result = self.forward(x.detach(), *arguments)
        return result.contiguous()

    @staticmethod
    def _keep(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
        ctx.shape, ctx.arguments = inputs[0].shape, inputs[1:]

    def _backward(self, ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        return (self.adjoint(ctx.shape, gradient, *ctx.arguments), *(None for _ in ctx.arguments))


def _keep_order(operator: Any) -> bool:
    """Makes torch.compile keep the operator in program order, which must be the same on all ranks. Returns False if this
    torch does not support it."""
    try:
        from torch._library.effects import EffectType
        operator.register_effect(EffectType.ORDERED)
    except (ImportError, AttributeError):
        return False
    return True


def _check_eager_only(out: Tensor | None, async_op: bool, timeout: float | None) -> None:
    if out is not None or async_op or timeout is not None:
        raise RuntimeError("out=, async_op= and timeout= are supported only in eager mode, not by torch.compile")


def _attached(result: Any, async_op: bool, inputs: Sequence[Tensor], adjoint: Adjoint) -> Any:
    """Registers a result, or that of a Work, with autograd and returns it. result: a tensor or a list of them."""
    if async_op:
        return Joined([result], lambda: _attached(result.wait(), False, inputs, adjoint))
    if not (torch.is_grad_enabled() and any(x.requires_grad for x in inputs)):
        return result
    if isinstance(result, list):
        return list(_record(result, adjoint, inputs))
    return _record([result], adjoint, inputs)[0]


_LINEAR = ("sum", "avg", "premul_sum")


def _linear(op: Op, x: Any, with_derivative: tuple[str, ...] = _LINEAR) -> str:
    """Returns the reduction's name. Raises RuntimeError if it has no derivative and x requires one. x: a tensor, or a list of
    them."""
    if isinstance(op, str) and op in with_derivative:
        return op
    name = ReduceOp(op_number(op)).name.lower()
    wants = [each for each in (x if isinstance(x, (list, tuple)) else (x,)) if getattr(each, "requires_grad", False)]
    if name not in with_derivative and wants and torch.is_grad_enabled():
        raise RuntimeError(f'the reduction "{name}" has no derivative here, and the tensor requires grad: '
                           f'{" and ".join(with_derivative)} have one; use x.detach() or torch.no_grad() if it is '
                           "only data")
    return name


def _weighed(gradient: Tensor, op: str, factor: float, size: int) -> Tensor:
    """Returns the gradient times the factor by which the reduction multiplies every input."""
    if op == "avg":
        return gradient / size
    return gradient * factor if op == "premul_sum" else gradient


def _all_reduced(x: Tensor, op: str, factor: float, grad: str, group: str, **how: Any) -> Any:
    return collectives.all_reduce(x, op, group=_group(group), factor=factor, **how)


def _all_reduce_adjoint(shape: Sequence[int], gradient: Tensor, op: str, factor: float, grad: str, group: str) -> Tensor:
    if grad == "sum":
        gradient = _all_reduce(gradient, "sum", 1.0, "sum", group)
    return _weighed(gradient, op, factor, _group(group).size)


_all_reduce: _Operation = _Operation("all_reduce", "str op, float factor, str grad, str group", _all_reduced,
                                     lambda x, *_: x.shape, _all_reduce_adjoint)


def _rows_of(lengths: list[int], x: Tensor, group: str) -> list[int]:
    """Returns the number of rows of each rank: `lengths`, or that of x for all if it is empty."""
    return lengths or [x.shape[0]] * _group(group).size


def _all_gathered(x: Tensor, lengths: list[int], group: str, **how: Any) -> Any:
    return collectives.all_gather(x, uneven=bool(lengths), group=_group(group), **how)


_all_gather: _Operation = _Operation(
    "all_gather", "int[] lengths, str group", _all_gathered,
    lambda x, lengths, group: (sum(_rows_of(lengths, x, group)), *x.shape[1:]),
    lambda shape, gradient, lengths, group: _reduce_scatter(gradient, "sum", 1.0, lengths, group))


def _reduce_scattered(x: Tensor, op: str, factor: float, split: list[int], group: str, **how: Any) -> Any:
    return collectives.reduce_scatter(x, op, split=split or None, group=_group(group), factor=factor, **how)


def _part_of(split: list[int], x: Tensor, group: str) -> int:
    members = _group(group)
    return split[_rank(members)] if split else int(x.shape[0]) // members.size


_reduce_scatter: _Operation = _Operation(
    "reduce_scatter", "str op, float factor, int[] split, str group", _reduce_scattered,
    lambda x, op, factor, split, group: (_part_of(split, x, group), *x.shape[1:]),
    lambda shape, gradient, op, factor, split, group: _weighed(_all_gather(gradient, split, group), op, factor,
                                                               _group(group).size))

_broadcast: _Operation = _Operation(
    "broadcast", "int src, str group",
    lambda x, src, group, **how: collectives.broadcast(x, src, group=_group(group), **how),
    lambda x, *_: x.shape,
    lambda shape, gradient, src, group: _reduce(gradient, src, "sum", 1.0, group))


def _reduced(x: Tensor, dst: int, op: str, factor: float, group: str, async_op: bool = False,
             timeout: float | None = None) -> Any:
    work = collectives.reduce(x, dst, op, group=_group(group), factor=factor, async_op=async_op, timeout=timeout)
    return _or_zeros(work, x.shape, x, async_op)


def _or_zeros(result: Any, shape: Sequence[int], like: Tensor, async_op: bool) -> Any:
    """Returns the result, or zeros on a rank without one, so that its loss can depend on its input."""
    if async_op:
        return Joined([result], lambda: _or_zeros(result.wait(), shape, like, False))
    return like.new_zeros(shape) if result is None else result


_reduce: _Operation = _Operation(
    "reduce", "int dst, str op, float factor, str group", _reduced, lambda x, *_: x.shape,
    lambda shape, gradient, dst, op, factor, group: _weighed(_broadcast(gradient, dst, group), op, factor,
                                                             _group(group).size))


def _gathered(x: Tensor, dst: int, lengths: list[int], group: str, async_op: bool = False,
              timeout: float | None = None) -> Any:
    whole = (sum(_rows_of(lengths, x, group)), *x.shape[1:])
    work = collectives.gather(x, dst, uneven=bool(lengths), group=_group(group), async_op=async_op, timeout=timeout)
    return _or_zeros(work, whole, x, async_op)


def _scatter_rows(x: Tensor, src: int, lengths: list[int], group: str, async_op: bool = False,
                  timeout: float | None = None) -> Any:
    """x: on every rank a tensor of the whole shape; only rank src's values are used."""
    members = _group(group)
    if members.rank == src:
        result = x[sum(lengths[:src]):sum(lengths[:src + 1])].clone()
    else:
        result = x.new_empty((lengths[_rank(members)], *x.shape[1:]))
    whole = x if members.rank == src else result
    work = collectives.scatter_(whole, src, split=lengths if members.rank == src else None, group=members,
                                async_op=async_op, timeout=timeout)
    return Joined([work], lambda: result) if async_op else result


_gather: _Operation = _Operation(
    "gather", "int dst, int[] lengths, str group", _gathered,
    lambda x, dst, lengths, group: (sum(_rows_of(lengths, x, group)), *x.shape[1:]),
    lambda shape, gradient, dst, lengths, group: _scatter(gradient, dst, lengths or [shape[0]] * _group(group).size,
                                                          group))

_scatter: _Operation = _Operation(
    "scatter", "int src, int[] lengths, str group", _scatter_rows,
    lambda x, src, lengths, group: (lengths[_rank(_group(group))], *x.shape[1:]),
    lambda shape, gradient, src, lengths, group: _gather(gradient, src, lengths, group))


def _exchanged(x: Tensor, split: list[int], output_split: list[int], group: str, **how: Any) -> Any:
    return collectives.all_to_all(x, split or None, output_split=output_split or None, group=_group(group), **how)


_all_to_all: _Operation = _Operation(
    "all_to_all", "int[] split, int[] output_split, str group", _exchanged,
    lambda x, split, output_split, group: (sum(output_split) if output_split else x.shape[0], *x.shape[1:]),
    lambda shape, gradient, split, output_split, group: _all_to_all(gradient, output_split, split, group))


def _mirrored(x: Tensor, group: str) -> Tensor:
    """Returns x of the rank with this rank's number counted from the end of the group."""
    members = _group(group)
    mirror = members.size - 1 - _rank(members)
    return x if mirror == members.rank else _sendrecv(x, mirror, mirror, _MIRROR_TAG, list(x.shape), group)


_MIRROR_TAG = (1 << 30) - 1  # Larger than tags that programs use.


def _running(function: Callable[..., Any]) -> _Operation:
    """Returns the operation of scan or exscan."""
    operation = _Operation(
        function.__name__, "str op, float factor, str group",
        lambda x, op, factor, group, **how: function(x, op, group=_group(group), factor=factor, **how),
        lambda x, *_: x.shape,
        lambda shape, gradient, op, factor, group: _weighed(
            _mirrored(operation(_mirrored(gradient, group), "sum", 1.0, group), group), op, factor, _group(group).size))
    return operation


_scan, _exscan = _running(collectives.scan), _running(collectives.exscan)


def _sent_and_received(x: Tensor, dst: int, src: int, tag: int, shape: list[int], group: str, async_op: bool = False,
                       timeout: float | None = None) -> Tensor:
    return messages.sendrecv(x, dst, x.new_empty(shape), src, send_tag=tag, recv_tag=tag, group=_group(group),
                             timeout=timeout)


_sendrecv: _Operation = _Operation(
    "sendrecv", "int dst, int src, int tag, int[] shape, str group", _sent_and_received,
    lambda x, dst, src, tag, shape, group: tuple(shape),
    lambda shape, gradient, dst, src, tag, _, group: _sendrecv(gradient, src, dst, tag, list(shape), group))


def _is_member(group: Group | None) -> bool:
    return group is None or resolve(group).is_member


def _rank(group: Group) -> int:
    """Returns this process's rank in a group of which it is a member."""
    return cast(int, group.rank)


def _check_grad(grad: str) -> None:
    if grad not in ("sum", "identity"):
        raise ValueError(f'grad={grad!r}: "sum" adds the gradients of all ranks, "identity" keeps this rank\'s')


@docstrings.collective
def all_reduce(x: Tensor, op: Op = "sum", group: Group | None = None, out: Tensor | None = None, async_op: bool = False,
               *, timeout: float | None = None, factor: float = 1.0, grad: str = "sum") -> Any:
    """As ivycomm.all_reduce, with a derivative for "sum", "mean" and "premul_sum".

    x: a tensor of the same shape and dtype on all ranks; the result has both. grad: "sum" if every rank has a loss of its
    own, and their sum is differentiated: the gradients of all ranks are added; "identity" if all ranks have the same loss:
    each keeps its own gradient. Raises ValueError for another `grad`; RuntimeError for `out`, which has no derivative, and
    for another reduction of a tensor that requires grad.
    """
    _check_grad(grad)
    op = _linear(op, x)
    if not _is_member(group):
        return operands.nothing(async_op)
    return _all_reduce(x, op, float(factor), grad, _name(group), out=out, async_op=async_op, timeout=timeout)


@docstrings.collective
def all_reduce_coalesced(xs: Iterable[Tensor], op: Op = "sum", *, group: Group | None = None, async_op: bool = False,
                         timeout: float | None = None, factor: float = 1.0, grad: str = "sum") -> Any:
    """As ivycomm.all_reduce_coalesced; the gradients are reduced as one operation too.

    xs: tensors of one dtype; tensor i has the same shape on all ranks. The result is a list of tensors of these shapes and
    this dtype. grad and RuntimeError: as for all_reduce.
    """
    _check_grad(grad)
    xs, op = list(xs), _linear(op, xs)
    if not _is_member(group):
        return operands.nothing(async_op)
    plain = [x.detach() if isinstance(x, torch.Tensor) else x for x in xs]
    results: Any = collectives.all_reduce_coalesced(plain, op, group=group, async_op=async_op, timeout=timeout, factor=factor)
    tensors = [index for index, x in enumerate(xs) if isinstance(x, torch.Tensor)]
    size = resolve(group).size

    def adjoint(*gradients: Tensor) -> tuple[Tensor, ...]:
        if grad == "sum":
            gradients = all_reduce_coalesced(gradients, "sum", group=group)
        return tuple(_weighed(gradient, op, factor, size) for gradient in gradients)

    def recorded() -> list[Tensor]:
        made = list(results.wait() if async_op else results)
        known = _attached([made[index] for index in tensors], False, [xs[index] for index in tensors], adjoint)
        for index, tensor in zip(tensors, known):
            made[index] = tensor
        return made

    return Joined([results], recorded) if async_op else recorded()


@docstrings.collective
def all_gather(x: Tensor, axis: int = 0, *, uneven: bool = False, group: Group | None = None, out: Tensor | None = None,
               async_op: bool = False, timeout: float | None = None) -> Any:
    """As ivycomm.all_gather; the gradient is reduce_scatter's sum.

    x: a tensor of the same dtype on all ranks, and of the same shape, except along `axis` if `uneven`. The result has this
    dtype and, along `axis`, the sum of the ranks' lengths; 0-d tensors form a vector. Raises RuntimeError for `out`, and
    for `uneven` inside torch.compile.
    """
    return _along(axis, _all_gather, (), x, uneven, group, out, async_op, timeout)


def _along(axis: int, operation: _Operation, root: tuple[int, ...], x: Tensor, uneven: bool, group: Group | None,
           out: Tensor | None, async_op: bool, timeout: float | None) -> Any:
    """Applies a gathering operation, which only supports axis 0, to any axis. root: its arguments before the lengths."""
    if not _is_member(group):
        return operands.nothing(async_op)
    if x.dim() == 0:
        x = x.reshape(1)
    axis = operands.normal_axis(axis, x.dim())
    turned = x.movedim(axis, 0) if axis else x
    lengths = _lengths(turned, group, timeout) if uneven else []
    result = operation(turned, *root, lengths, _name(group), out=out, async_op=async_op, timeout=timeout)
    return _turned_back(result, axis, async_op)


def _lengths(x: Tensor, group: Group | None, timeout: float | None) -> list[int]:
    _check_eager("uneven=True")
    return counts.number_of_each(resolve(group), x.shape[0], timeout)


def _check_eager(what: str) -> None:
    if is_compiling():
        raise RuntimeError(f"{what} is supported only in eager mode, not by torch.compile: the shape of the result is unknown")


def _turned_back(result: Any, axis: int, async_op: bool) -> Any:
    if not axis:
        return result
    if async_op:
        return Joined([result], lambda: _turned_back(result.wait(), axis, False))
    return result.movedim(0, axis).contiguous()


@docstrings.collective
def all_gather_list(x: Tensor, *, group: Group | None = None, async_op: bool = False, timeout: float | None = None) -> Any:
    """As ivycomm.all_gather_list; the gradient is reduce_scatter's sum.

    x: a tensor of the same shape and dtype on all ranks. The result is a list of tensors of both, one for each rank. They
    are views of one tensor.
    """
    if not _is_member(group):
        return operands.nothing(async_op)
    stacked = _all_gather(x.unsqueeze(0), [], _name(group), async_op=async_op, timeout=timeout)
    return Joined([stacked], lambda: list(stacked.wait().unbind(0))) if async_op else list(stacked.unbind(0))


@docstrings.collective
def reduce_scatter(x: Tensor, op: Op = "sum", *, split: Sequence[int] | None = None, group: Group | None = None,
                   out: Tensor | None = None, async_op: bool = False, timeout: float | None = None,
                   factor: float = 1.0) -> Any:
    """As ivycomm.reduce_scatter, with a derivative for "sum", "mean" and "premul_sum": all_gather.

    x: a tensor of the same shape and dtype on all ranks. The result has this dtype and split[rank] rows, or without `split`
    len(x) / size rows. Raises RuntimeError for `out`, and for another reduction of a tensor that requires grad.
    """
    op = _linear(op, x)
    if not _is_member(group):
        return operands.nothing(async_op)
    return _reduce_scatter(x, op, float(factor), list(split or []), _name(group), out=out, async_op=async_op,
                           timeout=timeout)


@docstrings.collective
def broadcast(x: Tensor, src: int = 0, *, group: Group | None = None, out: Tensor | None = None, async_op: bool = False,
              timeout: float | None = None) -> Any:
    """As ivycomm.broadcast; the gradient is the sum of all ranks' gradients on rank src, and zero on the others.

    x: a tensor of the same shape and dtype on all ranks; the result has both. It must require grad on every rank or on
    none. Raises RuntimeError for `out`.
    """
    if not _is_member(group):
        return operands.nothing(async_op)
    return _broadcast(x, src, _name(group), out=out, async_op=async_op, timeout=timeout)


@docstrings.collective
def reduce(x: Tensor, dst: int = 0, op: Op = "sum", *, group: Group | None = None, out: Tensor | None = None,
           async_op: bool = False, timeout: float | None = None, factor: float = 1.0) -> Any:
    """As ivycomm.reduce, but the other ranks get zeros instead of None, so that they can call backward(), too.

    It has a derivative for "sum", "mean" and "premul_sum": rank dst's gradient, broadcast. x: a tensor of the same shape
    and dtype on all ranks; the result has both on every rank. Raises RuntimeError for `out`, and for another reduction of a
    tensor that requires grad.
    """
    op = _linear(op, x)
    if not _is_member(group):
        return operands.nothing(async_op)
    return _reduce(x, dst, op, float(factor), _name(group), out=out, async_op=async_op, timeout=timeout)


@docstrings.collective
def gather(x: Tensor, dst: int = 0, axis: int = 0, *, uneven: bool = False, group: Group | None = None,
           out: Tensor | None = None, async_op: bool = False, timeout: float | None = None) -> Any:
    """As ivycomm.gather, but the other ranks get zeros instead of None, so that they can call backward(), too; the
    gradient is scattered from rank dst.

    Shapes, dtypes and RuntimeError: as for all_gather; the result has the same shape on every rank.
    """
    return _along(axis, _gather, (dst,), x, uneven, group, out, async_op, timeout)


@docstrings.collective
def scatter(x: Tensor | None = None, src: int = 0, *, split: Sequence[int] | None = None, group: Group | None = None,
            out: Tensor | None = None, async_op: bool = False, timeout: float | None = None) -> Any:
    """As ivycomm.scatter: only rank src passes x, and all ranks learn whether it requires grad; the gradient is
    gathered on rank src.

    The result has the dtype of rank src's x and split[rank] rows, or without `split` len(x) / size rows. On ranks without
    x, backward() reaches the operation, but torch.autograd.grad() does not. Raises RuntimeError inside torch.compile, and
    on a rank whose part is not a torch tensor.
    """
    _check_eager("scatter")
    return collectives.scatter(x, src, split=split, group=group, out=out, async_op=async_op, timeout=timeout)


def of_scatter(result: Tensor, x: Tensor | None, src: int, rows: Sequence[int], group: Group) -> Tensor:
    """Registers the result of collectives.scatter with autograd and returns it. x: this rank's argument, may be None."""
    name = _name(group)
    # A rank without x needs another leaf, so that backward() reaches the operation.
    given: Tensor = x if TorchArrays.is_recorded(x) else torch.zeros((), dtype=result.dtype, requires_grad=True)

    def adjoint(gradient: Tensor) -> tuple[Tensor]:
        whole = _gather(gradient, src, rows, name)
        return (whole if group.rank == src else whole.sum().expand(given.shape),)

    return _attached([result], False, [given], adjoint)[0]


@docstrings.collective
def all_to_all(x: Tensor, split: Sequence[int] | None = None, *, output_split: Sequence[int] | None = None,
               group: Group | None = None, out: Tensor | None = None, async_op: bool = False,
               timeout: float | None = None) -> Any:
    """As ivycomm.all_to_all; the gradient is sent back.

    x: a tensor whose dtype and shape after the first axis are the same on all ranks. The result has both, and
    sum(output_split) rows; without splits as many as x. Raises RuntimeError for `out`, and for `split` without
    `output_split` inside torch.compile.
    """
    if not _is_member(group):
        return operands.nothing(async_op)
    members = resolve(group)
    if split is None and output_split is None:
        split = output_split = []
    elif split is None:
        split = [x.shape[0] // members.size] * members.size
    elif output_split is None:
        _check_eager("split without output_split")
        split = operands.rows_of_ranks(tuple(x.shape), split, members, "all_to_all")
        output_split = counts.exchanged(members, split, timeout)
    return _all_to_all(x, list(split), list(cast("Sequence[int]", output_split)), _name(group), out=out, async_op=async_op,
                       timeout=timeout)


@docstrings.collective
def scan(x: Tensor, op: Op = "sum", *, group: Group | None = None, out: Tensor | None = None, async_op: bool = False,
         timeout: float | None = None, factor: float = 1.0) -> Any:
    """As ivycomm.scan, with a derivative for "sum" and "premul_sum": a scan from the last rank to the first.

    x: a tensor of the same shape and dtype on all ranks; the result has both. Raises RuntimeError for `out`, and for another
    reduction of a tensor that requires grad.
    """
    op = _linear(op, x, ("sum", "premul_sum"))
    if not _is_member(group):
        return operands.nothing(async_op)
    return _scan(x, op, float(factor), _name(group), out=out, async_op=async_op, timeout=timeout)


@docstrings.collective
def exscan(x: Tensor, op: Op = "sum", *, group: Group | None = None, out: Tensor | None = None, async_op: bool = False,
           timeout: float | None = None, factor: float = 1.0) -> Any:
    """As ivycomm.exscan. Derivative, shape, dtype and RuntimeError: as for scan."""
    op = _linear(op, x, ("sum", "premul_sum"))
    if not _is_member(group):
        return operands.nothing(async_op)
    return _exscan(x, op, float(factor), _name(group), out=out, async_op=async_op, timeout=timeout)


@docstrings.message
def sendrecv(x: Tensor, dst: int, like: Tensor | None = None, src: int | None = None, *, send_tag: int = 0,
             recv_tag: int | None = None, group: Group | None = None, out: Tensor | None = None,
             timeout: float | None = None) -> Any:
    """As ivycomm.sendrecv; the gradient is sent from dst to src.

    The result has the shape of `like` (None: of x) and the dtype of x. src must be given, and recv_tag be None or the same
    as send_tag: otherwise raises RuntimeError, as for `out`.
    """
    if src is None or recv_tag not in (None, send_tag):
        raise RuntimeError("sendrecv has a derivative only if src= is given and both tags are the same; use x.detach() or "
                           "torch.no_grad() if the tensor is only data")
    if not _is_member(group):
        return None
    shape = list(x.shape if like is None else like.shape)
    return _sendrecv(x, dst, src, send_tag, shape, _name(group), out=out, timeout=timeout)
