# SPDX-License-Identifier: Apache-2.0
"""Collectives on arrays.

Arguments that the calls share:

x: an array of NumPy, torch, JAX, TensorFlow, CuPy, Ivy or another framework that supports DLPack, or anything that
    NumPy can convert to an array. The result has the same framework, type and device (NumPy for lists, scalars and
    buffers). Functions leave x unchanged. Functions with a trailing underscore write to x, which must be writable and
    contiguous, and return it. all_reduce and broadcast also take trees: tuples, lists and dicts of arrays, without
    `out`; the result has the same structure, and arrays of one type are reduced as one operation.
out: a writable, contiguous array of the result's type and shape, which receives the result and is returned.
src, dst: ranks of the group.
group: a Group; None: the world. On a rank that is not a member the call does nothing and returns None.
async_op: True: returns a Work, whose wait() returns the result.
timeout: seconds; None: the world's.

Every rank of the group must make the same calls in the same order. Any thread may call; give each thread a group of its
own, so that the order does not depend on the threads. A call blocks until this rank's result is complete. GPU memory is
transferred by NCCL on the current stream: a call returns when the operation is on the stream, as torch's own operations
do. A torch tensor that requires grad is differentiated (see ivycomm.torch).

Errors: TypeError and ValueError before anything is sent; RuntimeError for a tensor that requires grad, in an operation
that has no derivative or that would write to it; Mismatch on every rank if the ranks disagree about operation, type,
count or root; RankDied, HostLost, Timeout, Aborted. Mismatch and the errors listed after it break the group. In scatter,
uneven gathers and all_to_all with a split, ranks exchange sizes first. An `out` whose shape does not suit them raises
ValueError on its rank alone, and the other ranks wait for this rank until their timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from ctypes import c_void_p
from typing import Any, NamedTuple, TypeVar, Union

from . import arrays, calls, docstrings, gradients, trees
from .arrays import ArrayKind, Memory
from .counts import counts_of, exchanged, number_of_each
from .element_types import ReduceOp, op_number
from .library import IN_PLACE
from .work import Work, start
from .groups import Group, checked_rank, resolve
from .objects import broadcast_object
from .operands import (Operands, in_place, normal_axis, nothing, operands_of, row_counts, row_elements, rows_of_ranks, shape_of,
                       written)

ArrayT = TypeVar("ArrayT")  # An array, in the types of its framework.
Op = Union[str, ReduceOp]

# All of them are in the package, too.
__all__ = [
    "all_gather", "all_gather_", "all_gather_list", "all_reduce", "all_reduce_", "all_reduce_coalesced",
    "all_reduce_coalesced_", "all_to_all", "all_to_all_", "barrier", "broadcast", "broadcast_", "exscan", "exscan_",
    "gather", "gather_", "reduce", "reduce_", "reduce_scatter", "reduce_scatter_", "scan", "scan_", "scatter",
    "scatter_",
]


def _is_tree(x: Any, out: Any = None) -> bool:
    if not trees.is_tree(x):
        return False
    if out is not None:
        raise TypeError("out is for one array; a tree is reduced and broadcast in place by the trailing underscore")
    return True


@docstrings.collective
def all_reduce(x: ArrayT, op: Op = "sum", group: Group | None = None, out: ArrayT | None = None, async_op: bool = False,
               *, timeout: float | None = None, factor: float = 1.0) -> ArrayT:
    """Returns op, element by element, over x of all ranks; bitwise identical on all ranks. Same shape as x.

    op: "sum", "mean" (integers are rounded towards zero), "product", "min", "max", "band", "bor", "bxor", or
    "premul_sum" (each rank's x times its own `factor`). For bool, sum is "or" and product is "and".
    """
    result = calls.extension.all_reduce(x, op, group, out, async_op, timeout, factor)
    if result is not NotImplemented:
        return result
    group, number = resolve(group), op_number(op)
    if not group.is_member:
        return nothing(async_op)
    if gradients.is_recorded(x):
        return gradients.derivatives().all_reduce(x, ReduceOp(number), group, out, async_op, timeout=timeout, factor=factor)
    if _is_tree(x, out):
        return trees.all_reduce(all_reduce_coalesced, x, number, group, async_op, timeout, factor, in_place=False)
    return _combine("ivy_all_reduce", x, number, group, out, async_op, timeout, factor)


@docstrings.collective
def all_reduce_(x: ArrayT, op: Op = "sum", *, group: Group | None = None, async_op: bool = False,
                timeout: float | None = None, factor: float = 1.0) -> ArrayT:
    """all_reduce in place; returns x."""
    result = calls.extension.all_reduce_(x, op, group, async_op, timeout, factor)
    if result is not NotImplemented:
        return result
    group, number = resolve(group), op_number(op)
    if not group.is_member:
        return nothing(async_op)
    if _is_tree(x):
        return trees.all_reduce(all_reduce_coalesced_, x, number, group, async_op, timeout, factor, in_place=True)
    return _combine_in_place("ivy_all_reduce", x, number, group, async_op, timeout, factor)


def _combine(name: str, x: Any, op: int, group: Group, out: Any, async_op: bool, timeout: float | None,
             factor: float) -> Any:
    """Calls a C function whose result has the shape of x: ivy_all_reduce, ivy_scan, ivy_exscan."""
    operands = operands_of(x, out).in_place_or_separate()
    return start(name, (group.handle, operands.send, operands.recv, operands.output.count, operands.output.dtype, op),
                 operands.keep, operands.finish(), async_op, timeout, factor)


def _combine_in_place(name: str, x: Any, op: int, group: Group, async_op: bool, timeout: float | None,
                      factor: float) -> Any:
    kind, array, memory = in_place(x)
    return start(name, (group.handle, IN_PLACE, memory.pointer, memory.count, memory.dtype, op),
                 (x, memory), written(kind, array, x), async_op, timeout, factor)


@docstrings.collective
def all_reduce_coalesced(xs: Iterable[ArrayT], op: Op = "sum", *, group: Group | None = None, async_op: bool = False,
                         timeout: float | None = None, factor: float = 1.0) -> list[ArrayT]:
    """all_reduce of several arrays of one type as one operation; returns the list of results."""
    result = calls.extension.all_reduce_coalesced(xs, op, group, async_op, timeout, factor, False)
    if result is not NotImplemented:
        return result
    group, number = resolve(group), op_number(op)
    if not group.is_member:
        return nothing(async_op)
    xs = list(xs)
    if any(map(gradients.is_recorded, xs)):
        return gradients.derivatives().all_reduce_coalesced(xs, ReduceOp(number), group=group, async_op=async_op,
                                                            timeout=timeout, factor=factor)
    parts = [operands_of(x) for x in xs]

    def results() -> list[Any]:
        return [part.kind.in_form_of(part.result, part.array) for part in parts]

    return _reduce_parts([part.send for part in parts], [part.output for part in parts], parts, number, group, results,
                         async_op, timeout, factor)


@docstrings.collective
def all_reduce_coalesced_(xs: Iterable[ArrayT], op: Op = "sum", *, group: Group | None = None, async_op: bool = False,
                          timeout: float | None = None, factor: float = 1.0) -> list[ArrayT]:
    """all_reduce_coalesced in place; returns the list of the same arrays."""
    result = calls.extension.all_reduce_coalesced(xs, op, group, async_op, timeout, factor, True)
    if result is not NotImplemented:
        return result
    group, number = resolve(group), op_number(op)
    if not group.is_member:
        return nothing(async_op)
    arrays_ = list(xs)
    parts = [in_place(x) for x in arrays_]

    def results() -> list[Any]:
        for kind, array, _ in parts:
            kind.changed(array)
        return arrays_

    return _reduce_parts([IN_PLACE] * len(parts), [memory for _, _, memory in parts], (arrays_, parts), number, group,
                         results, async_op, timeout, factor)


def _reduce_parts(sends: list[int], outputs: list[Memory], keep: Any, op: int, group: Group,
                  results: Callable[[], list[Any]], async_op: bool, timeout: float | None, factor: float) -> Any:
    if not outputs:
        return Work.done([]) if async_op else []
    if len({output.dtype for output in outputs}) != 1:
        raise TypeError("the arrays have different types: " + ", ".join(str(output.owner.dtype) for output in outputs))
    pointers = c_void_p * len(outputs)
    send, recv = pointers(*sends), pointers(*(output.pointer for output in outputs))
    counts = counts_of([output.count for output in outputs])
    # Create the memories first: they determine whether a stream is needed.
    return start("ivy_all_reduce_coalesced",
                 (group.handle, len(outputs), send, recv, counts, outputs[0].dtype, op),
                 (*outputs, keep, send, recv, counts), lambda _work: results(), async_op, timeout, factor)


@docstrings.collective
def reduce(x: ArrayT, dst: int = 0, op: Op = "sum", *, group: Group | None = None, out: ArrayT | None = None,
           async_op: bool = False, timeout: float | None = None, factor: float = 1.0) -> ArrayT | None:
    """As all_reduce, but only rank dst gets the result; the others get None."""
    result = calls.extension.reduce(x, dst, op, group, out, async_op, timeout, factor)
    if result is not NotImplemented:
        return result
    group, number = resolve(group), op_number(op)
    if not group.is_member:
        return nothing(async_op)
    gradients.refuse_at_one_rank(x, "reduce")
    dst = checked_rank(group, dst)
    if group.rank != dst:
        kind, array = arrays.adopt(x)
        memory = kind.input(array)
        return start("ivy_reduce", (group.handle, memory.pointer, None, memory.count, memory.dtype, number, dst),
                     (array, memory), None, async_op, timeout, factor)
    operands = operands_of(x, out).in_place_or_separate()
    return start("ivy_reduce", (group.handle, operands.send, operands.recv, operands.output.count, operands.output.dtype,
                                number, dst),
                 operands.keep, operands.finish(), async_op, timeout, factor)


@docstrings.collective
def reduce_(x: ArrayT, dst: int = 0, op: Op = "sum", *, group: Group | None = None, async_op: bool = False,
            timeout: float | None = None, factor: float = 1.0) -> ArrayT:
    """reduce in place: x changes on rank dst only. Returns x on every rank."""
    result = calls.extension.reduce_(x, dst, op, group, async_op, timeout, factor)
    if result is not NotImplemented:
        return result
    group, number = resolve(group), op_number(op)
    if not group.is_member:
        return nothing(async_op)
    kind, array, memory = in_place(x)
    dst = checked_rank(group, dst)
    at_root = group.rank == dst
    send, recv = (IN_PLACE, memory.pointer) if at_root else (memory.pointer, None)
    return start("ivy_reduce", (group.handle, send, recv, memory.count, memory.dtype, number, dst),
                 (x, memory), written(kind, array, x) if at_root else lambda _work: x,
                 async_op, timeout, factor)


@docstrings.collective
def scan(x: ArrayT, op: Op = "sum", *, group: Group | None = None, out: ArrayT | None = None, async_op: bool = False,
         timeout: float | None = None, factor: float = 1.0) -> ArrayT:
    """Returns op, element by element, over x of all ranks up to and including this one. Same shape as x."""
    result = calls.extension.scan(x, op, group, out, async_op, timeout, factor)
    if result is not NotImplemented:
        return result
    group, number = resolve(group), op_number(op)
    if not group.is_member:
        return nothing(async_op)
    if gradients.is_recorded(x):
        return gradients.derivatives().scan(x, ReduceOp(number), group=group, out=out, async_op=async_op, timeout=timeout,
                                            factor=factor)
    return _combine("ivy_scan", x, number, group, out, async_op, timeout, factor)


@docstrings.collective
def scan_(x: ArrayT, op: Op = "sum", *, group: Group | None = None, async_op: bool = False,
          timeout: float | None = None, factor: float = 1.0) -> ArrayT:
    """scan in place; returns x."""
    result = calls.extension.scan_(x, op, group, async_op, timeout, factor)
    if result is not NotImplemented:
        return result
    group, number = resolve(group), op_number(op)
    if not group.is_member:
        return nothing(async_op)
    return _combine_in_place("ivy_scan", x, number, group, async_op, timeout, factor)


@docstrings.collective
def exscan(x: ArrayT, op: Op = "sum", *, group: Group | None = None, out: ArrayT | None = None, async_op: bool = False,
           timeout: float | None = None, factor: float = 1.0) -> ArrayT:
    """Returns op, element by element, over x of all ranks before this one. Same shape as x.

    Rank 0 gets the operation's identity: 0 for "sum", "mean", "bor", "bxor" and "premul_sum", 1 for "product", all bits
    set for "band", the greatest value (infinity) for "min", the least for "max".
    """
    result = calls.extension.exscan(x, op, group, out, async_op, timeout, factor)
    if result is not NotImplemented:
        return result
    group, number = resolve(group), op_number(op)
    if not group.is_member:
        return nothing(async_op)
    if gradients.is_recorded(x):
        return gradients.derivatives().exscan(x, ReduceOp(number), group=group, out=out, async_op=async_op, timeout=timeout,
                                              factor=factor)
    return _combine("ivy_exscan", x, number, group, out, async_op, timeout, factor)


@docstrings.collective
def exscan_(x: ArrayT, op: Op = "sum", *, group: Group | None = None, async_op: bool = False,
            timeout: float | None = None, factor: float = 1.0) -> ArrayT:
    """exscan in place; returns x."""
    result = calls.extension.exscan_(x, op, group, async_op, timeout, factor)
    if result is not NotImplemented:
        return result
    group, number = resolve(group), op_number(op)
    if not group.is_member:
        return nothing(async_op)
    return _combine_in_place("ivy_exscan", x, number, group, async_op, timeout, factor)


@docstrings.collective
def reduce_scatter(x: ArrayT, op: Op = "sum", *, split: Sequence[int] | None = None, group: Group | None = None,
                   out: ArrayT | None = None, async_op: bool = False, timeout: float | None = None,
                   factor: float = 1.0) -> ArrayT:
    """Returns this rank's part, along axis 0, of op over x of all ranks: rank r gets the r-th part.

    split: rows of each rank's part, the same list on all ranks; None: equal parts, and the length of x's first axis
    must be divisible by the group's size.
    """
    result = calls.extension.reduce_scatter(x, op, split, group, out, async_op, timeout, factor)
    if result is not NotImplemented:
        return result
    group, number = resolve(group), op_number(op)
    if group.rank is None:  # Not a member.
        return nothing(async_op)
    if gradients.is_recorded(x):
        return gradients.derivatives().reduce_scatter(x, ReduceOp(number), split=split, group=group, out=out,
                                                      async_op=async_op, timeout=timeout, factor=factor)
    operands = Operands(*arrays.adopt(x))
    shape = shape_of(operands.array)
    rows = rows_of_ranks(shape, split, group, "reduce_scatter")
    operands.receive(out, (rows[group.rank], *shape[1:])).separate()
    if split is None:
        return start("ivy_reduce_scatter",
                     (group.handle, operands.send, operands.recv, operands.output.count, operands.input.dtype, number),
                     operands.keep, operands.finish(), async_op, timeout, factor)
    counts = counts_of([n * row_elements(shape) for n in rows])
    return start("ivy_reduce_scatter_v",
                 (group.handle, operands.send, operands.recv, counts, operands.input.dtype, number),
                 (operands.keep, counts), operands.finish(), async_op, timeout, factor)


@docstrings.collective
def reduce_scatter_(x: ArrayT, op: Op = "sum", *, split: Sequence[int] | None = None, group: Group | None = None,
                    async_op: bool = False, timeout: float | None = None, factor: float = 1.0) -> ArrayT:
    """reduce_scatter in place; returns the first rows of x, as many as this rank's part has.

    These rows hold the result; the contents of the other rows are undefined afterwards.
    """
    group, number = resolve(group), op_number(op)
    if group.rank is None:  # Not a member.
        return nothing(async_op)
    kind, array, memory = in_place(x)
    rows, counts = row_counts(shape_of(array), split, group, "reduce_scatter_")
    name = "ivy_reduce_scatter" if split is None else "ivy_reduce_scatter_v"
    return start(name, (group.handle, IN_PLACE, memory.pointer, counts, memory.dtype, number),
                 (x, memory, counts), written(kind, array, x, rows[group.rank]), async_op, timeout, factor)


@docstrings.collective
def broadcast(x: ArrayT, src: int = 0, *, group: Group | None = None, out: ArrayT | None = None, async_op: bool = False,
              timeout: float | None = None) -> ArrayT:
    """Returns rank src's x on every rank. On the other ranks x only specifies shape and type, and is unchanged."""
    result = calls.extension.broadcast(x, src, group, out, async_op, timeout)
    if result is not NotImplemented:
        return result
    group = resolve(group)
    if not group.is_member:
        return nothing(async_op)
    if gradients.is_recorded(x):
        return gradients.derivatives().broadcast(x, src, group=group, out=out, async_op=async_op, timeout=timeout)
    src = checked_rank(group, src)
    if _is_tree(x, out):
        return trees.broadcast(broadcast, x, src, group, async_op, timeout, in_place=False)
    operands = operands_of(x, out)
    if group.rank == src and operands.input.pointer != operands.output.pointer:
        operands.kind.copy(operands.output, operands.input)
    return start("ivy_broadcast", (group.handle, operands.recv, operands.output.count, operands.output.dtype, src),
                 operands.keep, operands.finish(), async_op, timeout)


@docstrings.collective
def broadcast_(x: ArrayT, src: int = 0, *, group: Group | None = None, async_op: bool = False,
               timeout: float | None = None) -> ArrayT:
    """broadcast in place; returns x."""
    result = calls.extension.broadcast_(x, src, group, async_op, timeout)
    if result is not NotImplemented:
        return result
    group = resolve(group)
    if not group.is_member:
        return nothing(async_op)
    src = checked_rank(group, src)
    if _is_tree(x):
        return trees.broadcast(broadcast_, x, src, group, async_op, timeout, in_place=True)
    kind, array, memory = in_place(x)
    return start("ivy_broadcast", (group.handle, memory.pointer, memory.count, memory.dtype, src),
                 (x, memory), written(kind, array, x), async_op, timeout)


@docstrings.collective
def all_gather(x: ArrayT, axis: int = 0, *, uneven: bool = False, group: Group | None = None, out: ArrayT | None = None,
               async_op: bool = False, timeout: float | None = None) -> ArrayT:
    """Returns x of all ranks, concatenated along `axis` in rank order; 0-d arrays form a vector.

    uneven: the ranks' lengths along `axis` may differ, which takes one more small operation; the other axes must be
    equal on all ranks. out: only with axis=0.
    """
    result = calls.extension.all_gather(x, axis, uneven, group, out, async_op, timeout)
    if result is not NotImplemented:
        return result
    group = resolve(group)
    if not group.is_member:
        return nothing(async_op)
    if gradients.is_recorded(x):
        return gradients.derivatives().all_gather(x, axis, uneven=uneven, group=group, out=out,
                                                  async_op=async_op, timeout=timeout)
    return _gather(x, axis, uneven, None, group, out, async_op, timeout)


def _gather(x: Any, axis: int, uneven: bool, dst: int | None, group: Group, out: Any, async_op: bool,
            timeout: float | None) -> Any:
    """Returns x of all ranks, joined along `axis`, on rank dst, or on every rank if dst is None."""
    kind, array = arrays.adopt(x)
    axis = normal_axis(axis, max(1, len(shape_of(array))))
    if axis and out is not None:
        raise ValueError("out is filled along axis 0 only")
    if axis:
        kind.refuse_axis(array)
    root = () if dst is None else (checked_rank(group, dst),)  # The C function's last argument, if it has a root.
    lengths = number_of_each(group, shape_of(array)[axis], timeout) if uneven and shape_of(array) else None
    if lengths is not None and axis:
        array = kind.move_axis_first(array, axis)
    if root and group.rank != root[0]:
        return _send_to_root(kind, array, lengths is not None, root[0], group, None, async_op, timeout)
    if lengths is not None:
        return _gather_uneven(array, axis, lengths, root, group, out, async_op, timeout)

    # The library gathers along axis 0; other axes are joined when the parts have arrived.
    shape = shape_of(array)
    operands = Operands(kind, array).receive(out, (group.size * shape[0], *shape[1:]) if shape and not axis else
                                             (group.size, *shape)).separate()
    finish = operands.finish(lambda: kind.concatenate(operands.result, axis)) if axis else operands.finish()
    return start("ivy_gather" if root else "ivy_all_gather",
                 (group.handle, operands.send, operands.recv, operands.input.count, operands.input.dtype, *root),
                 operands.keep, finish, async_op, timeout)


def _send_to_root(kind: ArrayKind, array: Any, is_uneven: bool, dst: int, group: Group,
                  finish: Callable[[Work[Any] | None], Any] | None, async_op: bool, timeout: float | None) -> Any:
    """The part in a gather of a rank other than dst."""
    memory = kind.input(array)
    if is_uneven:
        return start("ivy_gather_v", (group.handle, memory.pointer, memory.count, None, None, None, memory.dtype, dst),
                     (array, memory), finish, async_op, timeout)
    return start("ivy_gather", (group.handle, memory.pointer, None, memory.count, memory.dtype, dst),
                 (array, memory), finish, async_op, timeout)


def _gather_uneven(array: Any, axis: int, lengths: list[int], root: tuple[int, ...], group: Group, out: Any, async_op: bool,
                   timeout: float | None) -> Any:
    """lengths: rows of each rank. array: with the axis to join as axis 0; the result has it at `axis` again."""
    kind, array = arrays.adopt(array)
    shape = shape_of(array)
    operands = Operands(kind, array).receive(out, (sum(lengths), *shape[1:])).separate()
    counts = counts_of([length * row_elements(shape) for length in lengths])
    own_count = (operands.input.count,) if root else ()
    finish = (operands.finish(lambda: kind.input(kind.move_axis_back(operands.result, axis)).owner) if axis else
              operands.finish())
    return start("ivy_gather_v" if root else "ivy_all_gather_v",
                 (group.handle, operands.send, *own_count, operands.recv, counts, None, operands.input.dtype, *root),
                 (operands.keep, counts), finish, async_op, timeout)


@docstrings.collective
def all_gather_(x: ArrayT, *, split: Sequence[int] | None = None, group: Group | None = None, async_op: bool = False,
                timeout: float | None = None) -> ArrayT:
    """all_gather in place: x is divided along axis 0, and this rank's part is already at its position. Returns x.

    split: rows of each rank's part, the same list on all ranks; None: equal parts.
    """
    result = calls.extension.all_gather_(x, split, group, async_op, timeout)
    if result is not NotImplemented:
        return result
    group = resolve(group)
    if not group.is_member:
        return nothing(async_op)
    kind, array, memory = in_place(x)
    _, counts = row_counts(shape_of(array), split, group, "all_gather_")
    if split is None:
        return start("ivy_all_gather", (group.handle, IN_PLACE, memory.pointer, counts, memory.dtype),
                     (x, memory), written(kind, array, x), async_op, timeout)
    return start("ivy_all_gather_v", (group.handle, IN_PLACE, memory.pointer, counts, None, memory.dtype),
                 (x, memory, counts), written(kind, array, x), async_op, timeout)


@docstrings.collective
def all_gather_list(x: ArrayT, *, group: Group | None = None, async_op: bool = False,
                    timeout: float | None = None) -> list[ArrayT]:
    """Returns [x of rank 0, x of rank 1, ...], all of one shape. The arrays are views of one block."""
    group = resolve(group)
    if not group.is_member:
        return nothing(async_op)
    if gradients.is_recorded(x):
        return gradients.derivatives().all_gather_list(x, group=group, async_op=async_op, timeout=timeout)
    operands = Operands(*arrays.adopt(x))
    operands.receive(None, (group.size, *shape_of(operands.array)))

    def views() -> list[Any]:
        return [operands.result[rank, ...] for rank in range(group.size)]

    return start("ivy_all_gather", (group.handle, operands.send, operands.recv, operands.input.count, operands.input.dtype),
                 operands.keep, operands.finish(views), async_op, timeout)


@docstrings.collective
def gather(x: ArrayT, dst: int = 0, axis: int = 0, *, uneven: bool = False, group: Group | None = None,
           out: ArrayT | None = None, async_op: bool = False, timeout: float | None = None) -> ArrayT | None:
    """As all_gather, but only rank dst gets the result; the others get None. uneven: the same on every rank."""
    result = calls.extension.gather(x, dst, axis, uneven, group, out, async_op, timeout)
    if result is not NotImplemented:
        return result
    group = resolve(group)
    if not group.is_member:
        return nothing(async_op)
    gradients.refuse_at_one_rank(x, "gather")
    return _gather(x, axis, uneven, dst, group, out, async_op, timeout)


@docstrings.collective
def gather_(x: ArrayT, dst: int = 0, *, split: Sequence[int] | None = None, group: Group | None = None,
            async_op: bool = False, timeout: float | None = None) -> ArrayT:
    """gather in place: as all_gather_ on rank dst; on the others x is the rank's part and is unchanged. Returns x.

    split: as for all_gather_, on every rank.
    """
    group = resolve(group)
    if not group.is_member:
        return nothing(async_op)
    dst = checked_rank(group, dst)
    if group.rank != dst:
        kind, array = arrays.adopt(x)
        return _send_to_root(kind, array, split is not None, dst, group, lambda _work: x, async_op, timeout)
    kind, array, memory = in_place(x)
    _, counts = row_counts(shape_of(array), split, group, "gather_")
    if split is None:
        return start("ivy_gather", (group.handle, IN_PLACE, memory.pointer, counts, memory.dtype, dst),
                     (x, array, memory), written(kind, array, x), async_op, timeout)
    return start("ivy_gather_v", (group.handle, IN_PLACE, memory.count, memory.pointer, counts, None, memory.dtype, dst),
                 (x, array, memory, counts), written(kind, array, x), async_op, timeout)


class _ScatterHeader(NamedTuple):
    """Facts about rank src's x, which every rank receives ahead of a scatter."""

    kind: str  # The name of its ArrayKind.
    dtype: str
    shape: tuple[int, ...]
    rows: list[int]  # The rows that each rank gets.
    place: str
    requires_grad: bool


@docstrings.collective
def scatter(x: ArrayT | None = None, src: int = 0, *, split: Sequence[int] | None = None, group: Group | None = None,
            out: ArrayT | None = None, async_op: bool = False, timeout: float | None = None) -> ArrayT:
    """Returns this rank's part of rank src's x: part r, along axis 0, goes to rank r. Only rank src must pass x.

    split (on rank src): rows of each rank's part; None: equal parts. The result has the framework of `out`, else of x
    on this rank, else of rank src's x; it is NumPy's if that framework is not installed here or is only known through
    DLPack. Shape and type are sent first, as a separate operation.
    """
    group = resolve(group)
    if group.rank is None:  # Not a member.
        return nothing(async_op)
    src = checked_rank(group, src)
    if group.rank == src:
        return _scatter_own(x, src, split, group, out, async_op, timeout)
    array = None
    if x is not None:
        kind, array = arrays.adopt(x)
    if out is not None:
        result_kind, result = arrays.adopt_output(out, "out")
        result_kind.output(result, "out")  # Raises if nothing can be received into it.
    header: Any = broadcast_object(None, src, group=group, timeout=timeout)
    if not isinstance(header, _ScatterHeader):  # Rank src's error.
        name, text = header
        raise (TypeError if name == "TypeError" else ValueError)(f"rank {src} of the group: {text}")
    shape = (header.rows[group.rank], *header.shape[1:])
    if out is not None:
        kind, result = _scatter_output(out, header, shape)
    else:
        kind = arrays.kind_by_name(header.kind) if x is None else kind
        result = kind.by_name(header.dtype, shape, header.place)
    output = kind.output(result, "out")
    return start("ivy_scatter_v", (group.handle, None, None, None, output.pointer, output.count, output.dtype, src),
                 (array, result, output), _scattered(kind, result, array, out, header, src, group), async_op, timeout)


def _scatter_own(x: Any, src: int, split: Sequence[int] | None, group: Group, out: Any, async_op: bool,
                 timeout: float | None) -> Any:
    """Rank src's part in a scatter. If its x, split or out is invalid, every rank raises the same error."""
    try:
        if x is None:
            raise ValueError("rank src has to give x")
        kind, array = arrays.adopt(x)
        rows = rows_of_ranks(shape_of(array), split, group, "scatter")
        whole = kind.input(array)
        header = _ScatterHeader(kind.name, kind.dtype_name(array), shape_of(array), rows, kind.place(array),
                                gradients.is_recorded(x))
        shape = (rows[src], *header.shape[1:])
        result_kind, result = (kind, kind.empty(shape, array)) if out is None else _scatter_output(out, header, shape)
        output = result_kind.output(result, "out")
        if out is not None and whole.overlaps(output):
            raise ValueError("out lies inside x")
    except (TypeError, ValueError) as error:
        broadcast_object((type(error).__name__, str(error)), src, group=group, timeout=timeout)
        raise
    broadcast_object(header, src, group=group, timeout=timeout)
    counts = counts_of([n * row_elements(shape) for n in rows])
    return start("ivy_scatter_v", (group.handle, whole.pointer, counts, None, output.pointer, output.count, output.dtype, src),
                 (array, whole, result, output, counts), _scattered(result_kind, result, array, out, header, src, group),
                 async_op, timeout)


def _scatter_output(out: Any, header: _ScatterHeader, shape: tuple[int, ...]) -> tuple[ArrayKind, Any]:
    kind, result = arrays.adopt_output(out, "out")
    if shape_of(result) != shape or kind.dtype_name(result) != header.dtype:
        raise ValueError(f"out is {kind.dtype_name(result)} of shape {shape_of(result)}, "
                         f"the result is {header.dtype} of shape {shape}")
    return kind, result


def _scattered(kind: ArrayKind, result: Any, array: Any, out: Any, header: _ScatterHeader, src: int,
               group: Group) -> Callable[[Work[Any] | None], Any]:
    """Returns the function that ends a scatter. array: this rank's x, or None."""
    def finish(_work: Work[Any] | None) -> Any:
        kind.changed(result)
        made = kind.in_form_of(result, array) if out is None else out
        return gradients.of_scatter(made, array, src, header.rows, group) if header.requires_grad else made
    return finish


@docstrings.collective
def scatter_(x: ArrayT, src: int = 0, *, split: Sequence[int] | None = None, group: Group | None = None,
             async_op: bool = False, timeout: float | None = None) -> ArrayT:
    """scatter into x, whose shape every rank knows, so that no header is sent.

    On rank src x is the array to divide; it is unchanged, and a view of its own part is returned. On the others x
    receives this rank's part and is returned. split: as for scatter.
    """
    group = resolve(group)
    if not group.is_member:
        return nothing(async_op)
    src = checked_rank(group, src)
    if group.rank != src:
        kind, array, memory = in_place(x)
        return start("ivy_scatter_v",
                     (group.handle, None, None, None, memory.pointer, memory.count, memory.dtype, src),
                     (x, memory), written(kind, array, x), async_op, timeout)
    kind, array = arrays.adopt(x)
    memory = kind.input(array)
    rows = rows_of_ranks(shape_of(array), split, group, "scatter_")
    counts = counts_of([n * row_elements(shape_of(array)) for n in rows])
    begin = sum(rows[:src])
    return start("ivy_scatter_v", (group.handle, memory.pointer, counts, None, IN_PLACE, 0, memory.dtype, src),
                 (array, memory, counts), lambda _work: array[begin:begin + rows[src]], async_op, timeout)


@docstrings.collective
def all_to_all(x: ArrayT, split: Sequence[int] | None = None, *, output_split: Sequence[int] | None = None,
               group: Group | None = None, out: ArrayT | None = None, async_op: bool = False,
               timeout: float | None = None) -> ArrayT:
    """Sends part r of x, along axis 0, to rank r; returns the parts received from ranks 0, 1, ..., concatenated.

    split: rows for each rank; output_split: rows from each rank (None with a split: exchanged by one more small
    operation). If both are None, x's first axis is divided equally.
    """
    result = calls.extension.all_to_all(x, split, output_split, group, out, async_op, timeout)
    if result is not NotImplemented:
        return result
    group = resolve(group)
    if not group.is_member:
        return nothing(async_op)
    if gradients.is_recorded(x):
        return gradients.derivatives().all_to_all(x, split, output_split=output_split, group=group, out=out,
                                                  async_op=async_op, timeout=timeout)
    kind, array = arrays.adopt(x)
    rows = rows_of_ranks(shape_of(array), split, group, "all_to_all")
    if split is None and output_split is None:
        operands = Operands(kind, array).receive(out, shape_of(array)).separate()
        return start("ivy_all_to_all", (group.handle, operands.send, operands.recv, operands.input.count // group.size,
                                        operands.input.dtype),
                     operands.keep, operands.finish(), async_op, timeout)
    received = exchanged(group, rows, timeout) if output_split is None else [int(n) for n in output_split]
    if len(received) != group.size or min(received) < 0:
        raise ValueError(f"output_split={received} is not {group.size} numbers")
    each = row_elements(shape_of(array))
    operands = Operands(kind, array).receive(out, (sum(received), *shape_of(array)[1:])).separate()
    send_counts, recv_counts = counts_of([n * each for n in rows]), counts_of([n * each for n in received])
    return start("ivy_all_to_all_v", (group.handle, operands.send, send_counts, None, operands.recv, recv_counts, None,
                                      operands.input.dtype),
                 (operands.keep, send_counts, recv_counts), operands.finish(), async_op, timeout)


@docstrings.collective
def all_to_all_(x: ArrayT, *, group: Group | None = None, async_op: bool = False,
                timeout: float | None = None) -> ArrayT:
    """all_to_all in place, in equal parts; returns x."""
    result = calls.extension.all_to_all_(x, group, async_op, timeout)
    if result is not NotImplemented:
        return result
    group = resolve(group)
    if not group.is_member:
        return nothing(async_op)
    kind, array, memory = in_place(x)
    rows_of_ranks(shape_of(array), None, group, "all_to_all")
    return start("ivy_all_to_all", (group.handle, IN_PLACE, memory.pointer, memory.count // group.size, memory.dtype),
                 (x, memory), written(kind, array, x), async_op, timeout)


@docstrings.collective
def barrier(*, group: Group | None = None, async_op: bool = False, timeout: float | None = None) -> None:
    """Returns when every rank of the group has called it."""
    result = calls.extension.barrier(group, async_op, timeout)
    if result is not NotImplemented:
        return result
    group = resolve(group)
    if not group.is_member:
        return nothing(async_op)
    return start("ivy_barrier", (group.handle,), (), None, async_op, timeout)
