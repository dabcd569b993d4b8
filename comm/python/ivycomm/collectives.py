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
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, Union, cast

from . import arrays, calls, docstrings, gradients, trees
from .arrays import ArrayKind
from .counts import Counts, counts_of, exchanged, number_of_each
from .element_types import ReduceOp, op_number
from .library import IN_PLACE
from .groups import Group, checked_rank, resolve
from .objects import broadcast_object
from .operands import (Finish, Operands, in_place, input_of, normal_axis, nothing, operands_of, row_counts, row_elements,
                       rows_of_ranks, shape_of)
from .work import Work, start

if TYPE_CHECKING:
    from typing import Concatenate, ParamSpec  # Python 3.10

    P = ParamSpec("P")

ArrayT = TypeVar("ArrayT")  # An array, in the types of its framework.
Op = Union[str, ReduceOp]

# All of them are in the package, too.
__all__ = [
    "all_gather", "all_gather_", "all_gather_list", "all_reduce", "all_reduce_", "all_reduce_coalesced",
    "all_reduce_coalesced_", "all_to_all", "all_to_all_", "barrier", "broadcast", "broadcast_", "exscan", "exscan_",
    "gather", "gather_", "reduce", "reduce_", "reduce_scatter", "reduce_scatter_", "scan", "scan_", "scatter",
    "scatter_",
]

# Each collective first calls the extension, which handles common arrays; NotImplemented: use the general path, _Call.run().


class _Call:
    """One call that the extension does not handle. Holds the arguments that all collectives share.

    rank: of this process in the group. op, factor: of a reduction.
    """

    def __init__(self, group: Group | None, async_op: bool, timeout: float | None, op: Op = ReduceOp.SUM,
                 factor: float = 0.0) -> None:
        self.group, self.op = resolve(group), op_number(op)
        self.rank = cast(int, self.group.rank)  # None only if run() calls nothing.
        self.async_op, self.timeout, self.factor = async_op, timeout, factor

    @property
    def how(self) -> dict[str, Any]:
        """Arguments for functions that take them by name."""
        return {"group": self.group, "async_op": self.async_op, "timeout": self.timeout}

    @property
    def reduction(self) -> dict[str, Any]:
        """As `how`, for functions that reduce."""
        return {**self.how, "op": ReduceOp(self.op), "factor": self.factor}

    def run(self, operation: Callable[Concatenate[_Call, P], Any], *arguments: P.args, **named: P.kwargs) -> Any:
        """Returns operation(self, ...). Does nothing on a rank that is not a member of the group."""
        return operation(self, *arguments, **named) if self.group.is_member else nothing(self.async_op)

    def start(self, name: str, arguments: tuple[Any, ...], keep: Any, finish: Finish | None) -> Any:
        """Calls the C function `name` through work.start(). arguments: those between the communicator and the ivy_call."""
        return start(name, (self.group.handle, *arguments), keep, finish, self.async_op, self.timeout, self.factor)


def _is_tree(x: Any, out: Any = None) -> bool:
    if not trees.is_tree(x):
        return False
    if out is not None:
        raise TypeError("out= takes one array; for a tree use the function with a trailing underscore, which works in place")
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
    return _Call(group, async_op, timeout, op, factor).run(_all_reduce, x, out, writes_x=False)


@docstrings.collective
def all_reduce_(x: ArrayT, op: Op = "sum", *, group: Group | None = None, async_op: bool = False,
                timeout: float | None = None, factor: float = 1.0) -> ArrayT:
    """all_reduce in place; returns x."""
    result = calls.extension.all_reduce_(x, op, group, async_op, timeout, factor)
    if result is not NotImplemented:
        return result
    return _Call(group, async_op, timeout, op, factor).run(_all_reduce, x, None, writes_x=True)


def _all_reduce(call: _Call, x: Any, out: Any, writes_x: bool) -> Any:
    if _is_tree(x, out):
        coalesced = all_reduce_coalesced_ if writes_x else all_reduce_coalesced
        return trees.all_reduce(coalesced, x, call.reduction, writes_x)
    return _combine(call, "ivy_all_reduce", x, out, writes_x)


def _combine(call: _Call, name: str, x: Any, out: Any, writes_x: bool) -> Any:
    """all_reduce, scan and exscan: their C functions take the same arguments, and the result has the shape of x."""
    if gradients.is_recorded(x) and not writes_x:
        derivative = getattr(gradients.derivatives(), name[len("ivy_"):])
        return derivative(x, out=out, **call.reduction)
    operands = in_place(x) if writes_x else operands_of(x, out).in_place_or_separate()
    return call.start(name, (operands.send, operands.recv, operands.output.count, operands.output.dtype, call.op),
                      operands.keep, operands.finish())


@docstrings.collective
def all_reduce_coalesced(xs: Iterable[ArrayT], op: Op = "sum", *, group: Group | None = None, async_op: bool = False,
                         timeout: float | None = None, factor: float = 1.0) -> list[ArrayT]:
    """all_reduce of several arrays of one type as one operation; returns the list of results."""
    result = calls.extension.all_reduce_coalesced(xs, op, group, async_op, timeout, factor, False)
    if result is not NotImplemented:
        return result
    return _Call(group, async_op, timeout, op, factor).run(_all_reduce_coalesced, xs, writes_xs=False)


@docstrings.collective
def all_reduce_coalesced_(xs: Iterable[ArrayT], op: Op = "sum", *, group: Group | None = None, async_op: bool = False,
                          timeout: float | None = None, factor: float = 1.0) -> list[ArrayT]:
    """all_reduce_coalesced in place; returns the list of the same arrays."""
    result = calls.extension.all_reduce_coalesced(xs, op, group, async_op, timeout, factor, True)
    if result is not NotImplemented:
        return result
    return _Call(group, async_op, timeout, op, factor).run(_all_reduce_coalesced, xs, writes_xs=True)


def _all_reduce_coalesced(call: _Call, xs: Iterable[Any], writes_xs: bool) -> Any:
    xs = list(xs)
    if any(map(gradients.is_recorded, xs)) and not writes_xs:
        return gradients.derivatives().all_reduce_coalesced(xs, **call.reduction)
    if not xs:
        return Work.done([]) if call.async_op else []
    parts = [in_place(x) if writes_xs else operands_of(x) for x in xs]
    outputs = [part.output for part in parts]
    if len({output.dtype for output in outputs}) != 1:
        raise TypeError("the arrays have different types: " + ", ".join(str(output.owner.dtype) for output in outputs))
    send, recv = counts_of(part.send for part in parts), counts_of(cast(int, part.recv) for part in parts)
    counts = counts_of([output.count for output in outputs])
    finish_each = [part.finish() for part in parts]
    return call.start("ivy_all_reduce_coalesced", (len(parts), send, recv, counts, outputs[0].dtype, call.op),
                      ([part.keep for part in parts], send, recv, counts), lambda work: [finish(work) for finish in finish_each])


@docstrings.collective
def reduce(x: ArrayT, dst: int = 0, op: Op = "sum", *, group: Group | None = None, out: ArrayT | None = None,
           async_op: bool = False, timeout: float | None = None, factor: float = 1.0) -> ArrayT | None:
    """As all_reduce, but only rank dst gets the result; the others get None."""
    result = calls.extension.reduce(x, dst, op, group, out, async_op, timeout, factor)
    if result is not NotImplemented:
        return result
    return _Call(group, async_op, timeout, op, factor).run(_reduce, x, dst, out)


@docstrings.collective
def reduce_(x: ArrayT, dst: int = 0, op: Op = "sum", *, group: Group | None = None, async_op: bool = False,
            timeout: float | None = None, factor: float = 1.0) -> ArrayT:
    """reduce in place: x changes on rank dst only. Returns x on every rank."""
    result = calls.extension.reduce_(x, dst, op, group, async_op, timeout, factor)
    if result is not NotImplemented:
        return result
    return _Call(group, async_op, timeout, op, factor).run(_reduce_in_place, x, dst)


def _reduce(call: _Call, x: Any, dst: int, out: Any) -> Any:
    gradients.refuse_at_one_rank(x, "reduce")
    dst = checked_rank(call.group, dst)
    if call.rank != dst:
        return _start_reduce(call, input_of(*arrays.adopt(x)), dst, None)
    operands = operands_of(x, out).in_place_or_separate()
    return _start_reduce(call, operands, dst, operands.finish())


def _reduce_in_place(call: _Call, x: Any, dst: int) -> Any:
    operands = in_place(x)
    dst = checked_rank(call.group, dst)
    if call.rank == dst:
        return _start_reduce(call, operands, dst, operands.finish())
    operands.send, operands.recv = operands.input.pointer, None  # x is only read.
    return _start_reduce(call, operands, dst, lambda _work: x)


def _start_reduce(call: _Call, operands: Operands, dst: int, finish: Finish | None) -> Any:
    return call.start("ivy_reduce", (operands.send, operands.recv, operands.input.count, operands.input.dtype, call.op, dst),
                      operands.keep, finish)


@docstrings.collective
def scan(x: ArrayT, op: Op = "sum", *, group: Group | None = None, out: ArrayT | None = None, async_op: bool = False,
         timeout: float | None = None, factor: float = 1.0) -> ArrayT:
    """Returns op, element by element, over x of all ranks up to and including this one. Same shape as x."""
    result = calls.extension.scan(x, op, group, out, async_op, timeout, factor)
    if result is not NotImplemented:
        return result
    return _Call(group, async_op, timeout, op, factor).run(_combine, "ivy_scan", x, out, writes_x=False)


@docstrings.collective
def scan_(x: ArrayT, op: Op = "sum", *, group: Group | None = None, async_op: bool = False,
          timeout: float | None = None, factor: float = 1.0) -> ArrayT:
    """scan in place; returns x."""
    result = calls.extension.scan_(x, op, group, async_op, timeout, factor)
    if result is not NotImplemented:
        return result
    return _Call(group, async_op, timeout, op, factor).run(_combine, "ivy_scan", x, None, writes_x=True)


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
    return _Call(group, async_op, timeout, op, factor).run(_combine, "ivy_exscan", x, out, writes_x=False)


@docstrings.collective
def exscan_(x: ArrayT, op: Op = "sum", *, group: Group | None = None, async_op: bool = False,
            timeout: float | None = None, factor: float = 1.0) -> ArrayT:
    """exscan in place; returns x."""
    result = calls.extension.exscan_(x, op, group, async_op, timeout, factor)
    if result is not NotImplemented:
        return result
    return _Call(group, async_op, timeout, op, factor).run(_combine, "ivy_exscan", x, None, writes_x=True)


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
    return _Call(group, async_op, timeout, op, factor).run(_reduce_scatter, x, split, out)


@docstrings.collective
def reduce_scatter_(x: ArrayT, op: Op = "sum", *, split: Sequence[int] | None = None, group: Group | None = None,
                    async_op: bool = False, timeout: float | None = None, factor: float = 1.0) -> ArrayT:
    """reduce_scatter in place; returns the first rows of x, as many as this rank's part has.

    These rows hold the result; the contents of the other rows are undefined afterwards.
    """
    return _Call(group, async_op, timeout, op, factor).run(_reduce_scatter_in_place, x, split)


def _reduce_scatter(call: _Call, x: Any, split: Sequence[int] | None, out: Any) -> Any:
    if gradients.is_recorded(x):
        return gradients.derivatives().reduce_scatter(x, split=split, out=out, **call.reduction)
    operands = input_of(*arrays.adopt(x))
    shape = shape_of(operands.array)
    rows, counts = row_counts(shape, split, call.group, "reduce_scatter")
    operands.receive(out, (rows[call.rank], *shape[1:])).separate()
    return call.start("ivy_reduce_scatter" if split is None else "ivy_reduce_scatter_v",
                      (operands.send, operands.recv, counts, operands.input.dtype, call.op),
                      (operands.keep, counts), operands.finish())


def _reduce_scatter_in_place(call: _Call, x: Any, split: Sequence[int] | None) -> Any:
    operands = in_place(x)
    rows, counts = row_counts(shape_of(operands.array), split, call.group, "reduce_scatter_")
    finish = operands.finish()

    def own_part(work: Work[Any] | None) -> Any:
        finish(work)
        return operands.result[:rows[call.rank]]

    return call.start("ivy_reduce_scatter" if split is None else "ivy_reduce_scatter_v",
                      (operands.send, operands.recv, counts, operands.input.dtype, call.op), (operands.keep, counts), own_part)


@docstrings.collective
def broadcast(x: ArrayT, src: int = 0, *, group: Group | None = None, out: ArrayT | None = None, async_op: bool = False,
              timeout: float | None = None) -> ArrayT:
    """Returns rank src's x on every rank. On the other ranks x only specifies shape and type, and is unchanged."""
    result = calls.extension.broadcast(x, src, group, out, async_op, timeout)
    if result is not NotImplemented:
        return result
    return _Call(group, async_op, timeout).run(_broadcast, x, src, out, writes_x=False)


@docstrings.collective
def broadcast_(x: ArrayT, src: int = 0, *, group: Group | None = None, async_op: bool = False,
               timeout: float | None = None) -> ArrayT:
    """broadcast in place; returns x."""
    result = calls.extension.broadcast_(x, src, group, async_op, timeout)
    if result is not NotImplemented:
        return result
    return _Call(group, async_op, timeout).run(_broadcast, x, src, None, writes_x=True)


def _broadcast(call: _Call, x: Any, src: int, out: Any, writes_x: bool) -> Any:
    if gradients.is_recorded(x) and not writes_x:
        return gradients.derivatives().broadcast(x, src, out=out, **call.how)
    src = checked_rank(call.group, src)
    if _is_tree(x, out):
        return trees.broadcast(broadcast_ if writes_x else broadcast, x, src, call.how, writes_x)
    operands = in_place(x) if writes_x else operands_of(x, out)
    if call.rank == src and operands.input.pointer != operands.output.pointer:
        operands.kind.copy(operands.output, operands.input)
    return call.start("ivy_broadcast", (operands.recv, operands.output.count, operands.output.dtype, src),
                      operands.keep, operands.finish())


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
    return _Call(group, async_op, timeout).run(_all_gather, x, axis, uneven, out)


@docstrings.collective
def all_gather_(x: ArrayT, *, split: Sequence[int] | None = None, group: Group | None = None, async_op: bool = False,
                timeout: float | None = None) -> ArrayT:
    """all_gather in place: x is divided along axis 0, and this rank's part is already at its position. Returns x.

    split: rows of each rank's part, the same list on all ranks; None: equal parts.
    """
    result = calls.extension.all_gather_(x, split, group, async_op, timeout)
    if result is not NotImplemented:
        return result
    return _Call(group, async_op, timeout).run(_all_gather_in_place, x, split)


@docstrings.collective
def all_gather_list(x: ArrayT, *, group: Group | None = None, async_op: bool = False,
                    timeout: float | None = None) -> list[ArrayT]:
    """Returns [x of rank 0, x of rank 1, ...], all of one shape. The arrays are views of one block."""
    return _Call(group, async_op, timeout).run(_all_gather_list, x)


@docstrings.collective
def gather(x: ArrayT, dst: int = 0, axis: int = 0, *, uneven: bool = False, group: Group | None = None,
           out: ArrayT | None = None, async_op: bool = False, timeout: float | None = None) -> ArrayT | None:
    """As all_gather, but only rank dst gets the result; the others get None. uneven: the same on every rank."""
    result = calls.extension.gather(x, dst, axis, uneven, group, out, async_op, timeout)
    if result is not NotImplemented:
        return result
    return _Call(group, async_op, timeout).run(_gather, x, dst, axis, uneven, out)


@docstrings.collective
def gather_(x: ArrayT, dst: int = 0, *, split: Sequence[int] | None = None, group: Group | None = None,
            async_op: bool = False, timeout: float | None = None) -> ArrayT:
    """gather in place: as all_gather_ on rank dst; on the others x is the rank's part and is unchanged. Returns x.

    split: as for all_gather_, on every rank.
    """
    return _Call(group, async_op, timeout).run(_gather_in_place, x, dst, split)


def _all_gather(call: _Call, x: Any, axis: int, uneven: bool, out: Any) -> Any:
    if gradients.is_recorded(x):
        return gradients.derivatives().all_gather(x, axis, uneven=uneven, out=out, **call.how)
    return _gather_along(call, x, axis, uneven, None, out)


def _gather(call: _Call, x: Any, dst: int, axis: int, uneven: bool, out: Any) -> Any:
    gradients.refuse_at_one_rank(x, "gather")
    return _gather_along(call, x, axis, uneven, dst, out)


def _gather_along(call: _Call, x: Any, axis: int, uneven: bool, dst: int | None, out: Any) -> Any:
    """Joins x of all ranks along `axis`, on rank dst, or on every rank if dst is None."""
    kind, array = arrays.adopt(x)
    axis = normal_axis(axis, max(1, len(shape_of(array))))
    if axis and out is not None:
        raise ValueError("out= is supported only for axis=0")
    if axis:
        kind.refuse_axis(array)
    dst = None if dst is None else checked_rank(call.group, dst)
    lengths = number_of_each(call.group, shape_of(array)[axis], call.timeout) if uneven and shape_of(array) else None
    if lengths is not None and axis:
        array = kind.move_axis_first(array, axis)
    if dst is not None and call.rank != dst:
        return _send_to_root(call, kind, array, lengths is not None, dst, None)
    if lengths is not None:
        return _gather_uneven(call, array, axis, lengths, dst, out)

    # The library gathers along axis 0; other axes are joined when the parts have arrived.
    shape = shape_of(array)
    operands = input_of(kind, array).receive(out, (call.group.size * shape[0], *shape[1:]) if shape and not axis else
                                             (call.group.size, *shape)).separate()
    finish = operands.finish(lambda: kind.concatenate(operands.result, axis)) if axis else operands.finish()
    return _start_gather(call, dst, operands, operands.input.count, finish)


def _gather_uneven(call: _Call, array: Any, axis: int, lengths: list[int], dst: int | None, out: Any) -> Any:
    """lengths: rows of each rank. array: with the axis to join as axis 0; the result has it at `axis` again."""
    kind, array = arrays.adopt(array)
    shape = shape_of(array)
    operands = input_of(kind, array).receive(out, (sum(lengths), *shape[1:])).separate()
    counts = counts_of([length * row_elements(shape) for length in lengths])
    finish = (operands.finish(lambda: kind.input(kind.move_axis_back(operands.result, axis)).owner) if axis else
              operands.finish())
    return _start_gather(call, dst, operands, counts, finish)


def _all_gather_list(call: _Call, x: Any) -> Any:
    if gradients.is_recorded(x):
        return gradients.derivatives().all_gather_list(x, **call.how)
    operands = input_of(*arrays.adopt(x))
    operands.receive(None, (call.group.size, *shape_of(operands.array)))

    def views() -> list[Any]:
        return [operands.result[rank, ...] for rank in range(call.group.size)]

    return _start_gather(call, None, operands, operands.input.count, operands.finish(views))


def _all_gather_in_place(call: _Call, x: Any, split: Sequence[int] | None) -> Any:
    operands = in_place(x)
    _, counts = row_counts(shape_of(operands.array), split, call.group, "all_gather_")
    return _start_gather(call, None, operands, counts, operands.finish())


def _gather_in_place(call: _Call, x: Any, dst: int, split: Sequence[int] | None) -> Any:
    dst = checked_rank(call.group, dst)
    if call.rank != dst:
        kind, array = arrays.adopt(x)
        return _send_to_root(call, kind, array, split is not None, dst, lambda _work: x)
    operands = in_place(x)
    _, counts = row_counts(shape_of(operands.array), split, call.group, "gather_")
    return _start_gather(call, dst, operands, counts, operands.finish())


def _start_gather(call: _Call, dst: int | None, operands: Operands, counts: Counts, finish: Finish) -> Any:
    """The part in a gather of a rank that gets the result: rank dst, or every rank if dst is None."""
    send, recv, dtype, keep = operands.send, operands.recv, operands.input.dtype, (operands.keep, counts)
    if isinstance(counts, int):
        if dst is None:
            return call.start("ivy_all_gather", (send, recv, counts, dtype), keep, finish)
        return call.start("ivy_gather", (send, recv, counts, dtype, dst), keep, finish)
    if dst is None:
        return call.start("ivy_all_gather_v", (send, recv, counts, None, dtype), keep, finish)
    return call.start("ivy_gather_v", (send, operands.input.count, recv, counts, None, dtype, dst), keep, finish)


def _send_to_root(call: _Call, kind: ArrayKind, array: Any, is_uneven: bool, dst: int, finish: Finish | None) -> Any:
    """The part in a gather of a rank other than dst."""
    memory = kind.input(array)
    if is_uneven:
        return call.start("ivy_gather_v", (memory.pointer, memory.count, None, None, None, memory.dtype, dst),
                          (array, memory), finish)
    return call.start("ivy_gather", (memory.pointer, None, memory.count, memory.dtype, dst), (array, memory), finish)


@docstrings.collective
def scatter(x: ArrayT | None = None, src: int = 0, *, split: Sequence[int] | None = None, group: Group | None = None,
            out: ArrayT | None = None, async_op: bool = False, timeout: float | None = None) -> ArrayT:
    """Returns this rank's part of rank src's x: part r, along axis 0, goes to rank r. Only rank src must pass x.

    split (on rank src): rows of each rank's part; None: equal parts. The result has the framework of `out`, else of x
    on this rank, else of rank src's x; it is NumPy's if that framework is not installed here or is only known through
    DLPack. Shape and type are sent first, as a separate operation.
    """
    return _Call(group, async_op, timeout).run(_scatter, x, src, split, out)


@docstrings.collective
def scatter_(x: ArrayT, src: int = 0, *, split: Sequence[int] | None = None, group: Group | None = None,
             async_op: bool = False, timeout: float | None = None) -> ArrayT:
    """scatter into x, whose shape every rank knows, so that no header is sent.

    On rank src x is the array to divide; it is unchanged, and a view of its own part is returned. On the others x
    receives this rank's part and is returned. split: as for scatter.
    """
    return _Call(group, async_op, timeout).run(_scatter_in_place, x, src, split)


class _ScatterHeader(NamedTuple):
    """Facts about rank src's x, which every rank receives ahead of a scatter."""

    kind: str  # The name of its ArrayKind.
    dtype: str
    shape: tuple[int, ...]
    rows: list[int]  # The rows that each rank gets.
    place: str
    requires_grad: bool


def _scatter(call: _Call, x: Any, src: int, split: Sequence[int] | None, out: Any) -> Any:
    src = checked_rank(call.group, src)
    if call.rank == src:
        return _scatter_own(call, x, src, split, out)
    array = None
    if x is not None:
        kind, array = arrays.adopt(x)
    if out is not None:
        result_kind, result = arrays.adopt_output(out, "out")
        result_kind.output(result, "out")  # Raises if nothing can be received into it.
    header: Any = broadcast_object(None, src, group=call.group, timeout=call.timeout)
    if not isinstance(header, _ScatterHeader):  # Rank src's error.
        name, text = header
        raise (TypeError if name == "TypeError" else ValueError)(f"rank {src} of the group: {text}")
    shape = (header.rows[call.rank], *header.shape[1:])
    if out is not None:
        kind, result = _scatter_output(out, header, shape)
    else:
        kind = arrays.kind_by_name(header.kind) if x is None else kind
        result = kind.by_name(header.dtype, shape, header.place)
    output = kind.output(result, "out")
    return call.start("ivy_scatter_v", (None, None, None, output.pointer, output.count, output.dtype, src),
                      (array, result, output), _scattered(kind, result, array, out, header, src, call.group))


def _scatter_own(call: _Call, x: Any, src: int, split: Sequence[int] | None, out: Any) -> Any:
    """Rank src's part in a scatter. If its x, split or out is invalid, every rank raises the same error."""
    try:
        if x is None:
            raise ValueError("rank src must pass x")
        kind, array = arrays.adopt(x)
        rows = rows_of_ranks(shape_of(array), split, call.group, "scatter")
        whole = kind.input(array)
        header = _ScatterHeader(kind.name, kind.dtype_name(array), shape_of(array), rows, kind.place(array),
                                gradients.is_recorded(x))
        shape = (rows[src], *header.shape[1:])
        result_kind, result = (kind, kind.empty(shape, array)) if out is None else _scatter_output(out, header, shape)
        output = result_kind.output(result, "out")
        if out is not None and whole.overlaps(output):
            raise ValueError("out must not overlap x")
    except (TypeError, ValueError) as error:
        broadcast_object((type(error).__name__, str(error)), src, group=call.group, timeout=call.timeout)
        raise
    broadcast_object(header, src, group=call.group, timeout=call.timeout)
    counts = counts_of([n * row_elements(shape) for n in rows])
    return call.start("ivy_scatter_v", (whole.pointer, counts, None, output.pointer, output.count, output.dtype, src),
                      (array, whole, result, output, counts), _scattered(result_kind, result, array, out, header, src, call.group))


def _scatter_output(out: Any, header: _ScatterHeader, shape: tuple[int, ...]) -> tuple[ArrayKind, Any]:
    kind, result = arrays.adopt_output(out, "out")
    if shape_of(result) != shape or kind.dtype_name(result) != header.dtype:
        raise ValueError(f"out is {kind.dtype_name(result)} of shape {shape_of(result)}, "
                         f"but the result is {header.dtype} of shape {shape}")
    return kind, result


def _scattered(kind: ArrayKind, result: Any, array: Any, out: Any, header: _ScatterHeader, src: int, group: Group) -> Finish:
    """Returns the function that ends a scatter. array: this rank's x, or None."""
    def finish(_work: Work[Any] | None) -> Any:
        kind.changed(result)
        made = kind.in_form_of(result, array) if out is None else out
        return gradients.of_scatter(made, array, src, header.rows, group) if header.requires_grad else made
    return finish


def _scatter_in_place(call: _Call, x: Any, src: int, split: Sequence[int] | None) -> Any:
    src = checked_rank(call.group, src)
    if call.rank != src:
        operands = in_place(x)
        return call.start("ivy_scatter_v", (None, None, None, operands.recv, operands.output.count, operands.output.dtype, src),
                          operands.keep, operands.finish())
    kind, array = arrays.adopt(x)
    memory = kind.input(array)
    rows = rows_of_ranks(shape_of(array), split, call.group, "scatter_")
    counts = counts_of([n * row_elements(shape_of(array)) for n in rows])
    begin = sum(rows[:src])
    return call.start("ivy_scatter_v", (memory.pointer, counts, None, IN_PLACE, 0, memory.dtype, src),
                      (array, memory, counts), lambda _work: array[begin:begin + rows[src]])


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
    return _Call(group, async_op, timeout).run(_all_to_all, x, split, output_split, out)


@docstrings.collective
def all_to_all_(x: ArrayT, *, group: Group | None = None, async_op: bool = False,
                timeout: float | None = None) -> ArrayT:
    """all_to_all in place, in equal parts; returns x."""
    result = calls.extension.all_to_all_(x, group, async_op, timeout)
    if result is not NotImplemented:
        return result
    return _Call(group, async_op, timeout).run(_all_to_all_in_place, x)


def _all_to_all(call: _Call, x: Any, split: Sequence[int] | None, output_split: Sequence[int] | None, out: Any) -> Any:
    group = call.group
    if gradients.is_recorded(x):
        return gradients.derivatives().all_to_all(x, split, output_split=output_split, out=out, **call.how)
    kind, array = arrays.adopt(x)
    shape = shape_of(array)
    rows = rows_of_ranks(shape, split, group, "all_to_all")
    if split is None and output_split is None:
        operands = input_of(kind, array).receive(out, shape).separate()
        return call.start("ivy_all_to_all",
                          (operands.send, operands.recv, operands.input.count // group.size, operands.input.dtype),
                          operands.keep, operands.finish())
    received = exchanged(group, rows, call.timeout) if output_split is None else [int(n) for n in output_split]
    if len(received) != group.size or min(received) < 0:
        raise ValueError(f"output_split={received} must be {group.size} non-negative numbers")
    each = row_elements(shape)
    operands = input_of(kind, array).receive(out, (sum(received), *shape[1:])).separate()
    send_counts, recv_counts = counts_of([n * each for n in rows]), counts_of([n * each for n in received])
    return call.start("ivy_all_to_all_v",
                      (operands.send, send_counts, None, operands.recv, recv_counts, None, operands.input.dtype),
                      (operands.keep, send_counts, recv_counts), operands.finish())


def _all_to_all_in_place(call: _Call, x: Any) -> Any:
    operands = in_place(x)
    rows_of_ranks(shape_of(operands.array), None, call.group, "all_to_all")
    return call.start("ivy_all_to_all",
                      (operands.send, operands.recv, operands.input.count // call.group.size, operands.input.dtype),
                      operands.keep, operands.finish())


@docstrings.collective
def barrier(*, group: Group | None = None, async_op: bool = False, timeout: float | None = None) -> None:
    """Returns when every rank of the group has called it."""
    result = calls.extension.barrier(group, async_op, timeout)
    if result is not NotImplemented:
        return result
    return _Call(group, async_op, timeout).run(_barrier)


def _barrier(call: _Call) -> Any:
    return call.start("ivy_barrier", (), (), None)
