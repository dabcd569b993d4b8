# SPDX-License-Identifier: Apache-2.0
"""Collectives on arrays.

Arguments: `x` is an array of NumPy, torch, JAX, TensorFlow, CuPy, Ivy or another framework that supports DLPack, or
anything that NumPy can convert to an array. The result has the same framework, type and device (NumPy for lists,
scalars and buffers). Functions leave `x` unchanged; functions with a trailing underscore write to it and return it.
`out`: a contiguous array of the result's type and shape that receives the result and is returned. `group`: a Group,
None for the world; on a rank that is not a member the call does nothing and returns None. `timeout`: seconds, None for
the world's. `async_op=True` returns a Work, whose wait() returns the result. Ranks such as `src` and `dst` are ranks of
the group. all_reduce and broadcast also take tuples, lists and dicts of arrays (trees), without `out`: the result has
the same structure, and arrays of one type are reduced as one operation. Every rank of the group must make the same
calls in the same order.

GPU memory is transferred by NCCL on the current stream: a call returns when the operation is on the stream, as torch's
own operations do. A torch tensor that requires grad is differentiated (see ivycomm.torch); operations that would write
to it raise RuntimeError.

Errors: TypeError and ValueError before anything is sent; RuntimeError for a tensor that requires grad in an operation
without a derivative; Mismatch on every rank if the ranks disagree about operation, type, count or root; RankDied,
HostLost, Timeout, Aborted. Mismatch and the errors listed after it break the group.
"""

from __future__ import annotations

from ctypes import c_void_p
from typing import TYPE_CHECKING

from . import arrays, calls, docstrings, gradients, trees
from .counts import counts_of, exchanged, number_of_each
from .element_types import ReduceOp, op_number
from .library import IN_PLACE, load
from .work import Work, start
from .groups import checked_rank, resolve
from .objects import broadcast_object
from .operands import (Operands, in_place, normal_axis, nothing, row_counts, row_elements, rows_of_ranks, shape_of, written)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TypeVar, Union

    from .groups import Group

    ArrayT = TypeVar("ArrayT")
    Op = Union[str, ReduceOp]

# All of them are in the package, too.
__all__ = [
    "all_gather", "all_gather_", "all_gather_list", "all_reduce", "all_reduce_", "all_reduce_coalesced",
    "all_reduce_coalesced_", "all_to_all", "all_to_all_", "barrier", "broadcast", "broadcast_", "exscan", "exscan_",
    "gather", "gather_", "reduce", "reduce_", "reduce_scatter", "reduce_scatter_", "scan", "scan_", "scatter",
    "scatter_",
]


def _is_tree(x, out=None):
    if not trees.is_tree(x):
        return False
    if out is not None:
        raise TypeError("out is for one array; a tree is reduced and broadcast in place by the trailing underscore")
    return True


def all_reduce(x: ArrayT, op: Op = "sum", group: Group | None = None, out: ArrayT | None = None, async_op: bool = False,
               *, timeout: float | None = None, factor: float = 1.0) -> ArrayT:
    """Returns op, element by element, over x of all ranks; bitwise identical on all ranks. Same shape as x.

    op: "sum", "mean" (integers are rounded towards zero), "product", "min", "max", "band", "bor", "bxor", or
    "premul_sum" (each rank's x times its own `factor`). For bool, sum is "or" and product is "and".
    """
    done = calls.all_reduce(x, op, group, out, async_op, timeout, factor)
    if done is not NotImplemented:
        return done
    group, op = resolve(group), op_number(op)
    if not group.is_member:
        return nothing(async_op)
    if gradients.is_recorded(x):
        return gradients.derivatives().all_reduce(x, ReduceOp(op), group, out, async_op, timeout=timeout, factor=factor)
    if _is_tree(x, out):
        return trees.all_reduce(all_reduce_coalesced, x, op, group, async_op, timeout, factor, in_place=False)
    with_ = Operands(x, out, lambda shape: shape).joined()
    return start(load().ivy_all_reduce, (group.handle, with_.send, with_.recv, with_.output.count,
                                         with_.output.dtype, op),
                 with_.keep, with_.finish(), async_op, timeout, factor)


def all_reduce_(x: ArrayT, op: Op = "sum", *, group: Group | None = None, async_op: bool = False,
                timeout: float | None = None, factor: float = 1.0) -> ArrayT:
    """all_reduce in place; returns x."""
    done = calls.all_reduce_(x, op, group, async_op, timeout, factor)
    if done is not NotImplemented:
        return done
    group, op = resolve(group), op_number(op)
    if not group.is_member:
        return nothing(async_op)
    if _is_tree(x):
        return trees.all_reduce(all_reduce_coalesced_, x, op, group, async_op, timeout, factor, in_place=True)
    kind, array, memory = in_place(x)
    return start(load().ivy_all_reduce, (group.handle, IN_PLACE, memory.pointer, memory.count,
                                         memory.dtype, op),
                 (x, memory), written(kind, array, x), async_op, timeout, factor)


def all_reduce_coalesced(xs: Iterable[ArrayT], op: Op = "sum", *, group: Group | None = None, async_op: bool = False,
                         timeout: float | None = None, factor: float = 1.0) -> list[ArrayT]:
    """all_reduce of several arrays of one type as one operation; returns the list of results."""
    done = calls.all_reduce_coalesced(xs, op, group, async_op, timeout, factor, False)
    if done is not NotImplemented:
        return done
    group, op = resolve(group), op_number(op)
    if not group.is_member:
        return nothing(async_op)
    xs = list(xs)
    if any(map(gradients.is_recorded, xs)):
        return gradients.derivatives().all_reduce_coalesced(xs, ReduceOp(op), group=group, async_op=async_op,
                                                            timeout=timeout, factor=factor)
    parts = [Operands(x, None, lambda shape: shape) for x in xs]
    return _reduce_parts([part.send for part in parts], [part.output for part in parts], parts, op, group,
                         lambda: [part.kind.in_form_of(part.result, part.array) for part in parts],
                         async_op, timeout, factor)


def all_reduce_coalesced_(xs: Iterable[ArrayT], op: Op = "sum", *, group: Group | None = None, async_op: bool = False,
                          timeout: float | None = None, factor: float = 1.0) -> list[ArrayT]:
    """all_reduce_coalesced in place; returns the list of the same arrays."""
    done = calls.all_reduce_coalesced(xs, op, group, async_op, timeout, factor, True)
    if done is not NotImplemented:
        return done
    group, op = resolve(group), op_number(op)
    if not group.is_member:
        return nothing(async_op)
    xs = list(xs)
    parts = [in_place(x) for x in xs]

    def finish():
        for kind, array, _ in parts:
            kind.changed(array)
        return xs

    return _reduce_parts([IN_PLACE] * len(parts), [memory for _, _, memory in parts], (xs, parts), op, group, finish,
                         async_op, timeout, factor)


def _reduce_parts(sends, outputs, keep, op, group, result, async_op, timeout, factor):
    if not outputs:
        return Work.done([]) if async_op else []
    if len({output.dtype for output in outputs}) != 1:
        raise TypeError("the arrays have different types: " + ", ".join(str(output.owner.dtype) for output in outputs))
    pointers = c_void_p * len(outputs)
    send, recv = pointers(*sends), pointers(*(output.pointer for output in outputs))
    counts = counts_of([output.count for output in outputs])
    # Create the memories first: they determine whether a stream is needed.
    return start(load().ivy_all_reduce_coalesced,
                 (group.handle, len(outputs), send, recv, counts, outputs[0].dtype, op),
                 (*outputs, keep, send, recv, counts), lambda _work: result(), async_op, timeout, factor)


def reduce(x: ArrayT, dst: int = 0, op: Op = "sum", *, group: Group | None = None, out: ArrayT | None = None,
           async_op: bool = False, timeout: float | None = None, factor: float = 1.0) -> ArrayT | None:
    """As all_reduce, but only rank dst gets the result; the others get None."""
    done = calls.reduce(x, dst, op, group, out, async_op, timeout, factor)
    if done is not NotImplemented:
        return done
    group, op = resolve(group), op_number(op)
    if not group.is_member:
        return nothing(async_op)
    gradients.refuse_at_one_rank(x, "reduce")
    dst = checked_rank(group, dst)
    if group.rank == dst:
        with_ = Operands(x, out, lambda shape: shape).joined()
        send, recv, count, dtype = with_.send, with_.recv, with_.output.count, with_.output.dtype
        keep, finish = with_.keep, with_.finish()
    else:
        kind, array = arrays.adopt(x)
        memory = kind.input(array)
        send, recv, count, dtype = memory.pointer, None, memory.count, memory.dtype
        keep, finish = (array, memory), None
    return start(load().ivy_reduce, (group.handle, send, recv, count, dtype, op, dst), keep, finish,
                 async_op, timeout, factor)


def reduce_(x: ArrayT, dst: int = 0, op: Op = "sum", *, group: Group | None = None, async_op: bool = False,
            timeout: float | None = None, factor: float = 1.0) -> ArrayT:
    """reduce in place: x changes on rank dst only. Returns x on every rank."""
    done = calls.reduce_(x, dst, op, group, async_op, timeout, factor)
    if done is not NotImplemented:
        return done
    group, op = resolve(group), op_number(op)
    if not group.is_member:
        return nothing(async_op)
    kind, array, memory = in_place(x)
    dst = checked_rank(group, dst)
    at_root = group.rank == dst
    send, recv = (IN_PLACE, memory.pointer) if at_root else (memory.pointer, None)
    return start(load().ivy_reduce, (group.handle, send, recv, memory.count, memory.dtype, op, dst),
                 (x, memory), written(kind, array, x) if at_root else lambda _work: x,
                 async_op, timeout, factor)


def _running(name, x, op, group, out, async_op, timeout, factor):
    group, op = resolve(group), op_number(op)
    if not group.is_member:
        return nothing(async_op)
    if gradients.is_recorded(x):
        return getattr(gradients.derivatives(), name)(x, ReduceOp(op), group=group, out=out, async_op=async_op,
                                                      timeout=timeout, factor=factor)
    with_ = Operands(x, out, lambda shape: shape).joined()
    return start(getattr(load(), f"ivy_{name}"),
                 (group.handle, with_.send, with_.recv, with_.output.count, with_.output.dtype, op),
                 with_.keep, with_.finish(), async_op, timeout, factor)


def _running_in_place(name, x, op, group, async_op, timeout, factor):
    group, op = resolve(group), op_number(op)
    if not group.is_member:
        return nothing(async_op)
    kind, array, memory = in_place(x)
    return start(getattr(load(), name), (group.handle, IN_PLACE, memory.pointer, memory.count, memory.dtype, op),
                 (x, memory), written(kind, array, x), async_op, timeout, factor)


def scan(x: ArrayT, op: Op = "sum", *, group: Group | None = None, out: ArrayT | None = None, async_op: bool = False,
         timeout: float | None = None, factor: float = 1.0) -> ArrayT:
    """Returns op, element by element, over x of all ranks up to and including this one. Same shape as x."""
    done = calls.scan(x, op, group, out, async_op, timeout, factor)
    if done is not NotImplemented:
        return done
    return _running("scan", x, op, group, out, async_op, timeout, factor)


def scan_(x: ArrayT, op: Op = "sum", *, group: Group | None = None, async_op: bool = False,
          timeout: float | None = None, factor: float = 1.0) -> ArrayT:
    """scan in place; returns x."""
    done = calls.scan_(x, op, group, async_op, timeout, factor)
    if done is not NotImplemented:
        return done
    return _running_in_place("ivy_scan", x, op, group, async_op, timeout, factor)


def exscan(x: ArrayT, op: Op = "sum", *, group: Group | None = None, out: ArrayT | None = None, async_op: bool = False,
           timeout: float | None = None, factor: float = 1.0) -> ArrayT:
    """Returns op, element by element, over x of all ranks before this one. Same shape as x.

    Rank 0 gets the operation's identity: 0 for "sum", "mean", "bor", "bxor" and "premul_sum", 1 for "product", all bits
    set for "band", the greatest value (infinity) for "min", the least for "max".
    """
    done = calls.exscan(x, op, group, out, async_op, timeout, factor)
    if done is not NotImplemented:
        return done
    return _running("exscan", x, op, group, out, async_op, timeout, factor)


def exscan_(x: ArrayT, op: Op = "sum", *, group: Group | None = None, async_op: bool = False,
            timeout: float | None = None, factor: float = 1.0) -> ArrayT:
    """exscan in place; returns x."""
    done = calls.exscan_(x, op, group, async_op, timeout, factor)
    if done is not NotImplemented:
        return done
    return _running_in_place("ivy_exscan", x, op, group, async_op, timeout, factor)


def reduce_scatter(x: ArrayT, op: Op = "sum", *, split: Sequence[int] | None = None, group: Group | None = None,
                   out: ArrayT | None = None, async_op: bool = False, timeout: float | None = None,
                   factor: float = 1.0) -> ArrayT:
    """Returns this rank's part, along axis 0, of op over x of all ranks: rank r gets the r-th part.

    split: rows of each rank's part, the same list on all ranks; None: equal parts, and the length of x's first axis
    must be divisible by the group's size.
    """
    done = calls.reduce_scatter(x, op, split, group, out, async_op, timeout, factor)
    if done is not NotImplemented:
        return done
    group, op = resolve(group), op_number(op)
    if not group.is_member:
        return nothing(async_op)
    if gradients.is_recorded(x):
        return gradients.derivatives().reduce_scatter(x, ReduceOp(op), split=split, group=group, out=out,
                                                      async_op=async_op, timeout=timeout, factor=factor)
    rows = []

    def shape_of_result(shape):
        rows.extend(rows_of_ranks(shape, split, group, "reduce_scatter"))
        return (rows[group.rank], *shape[1:])

    with_ = Operands(x, out, shape_of_result).separate()
    each = row_elements(shape_of(with_.array))
    if split is None:
        return start(load().ivy_reduce_scatter,
                     (group.handle, with_.send, with_.recv, with_.output.count, with_.input.dtype, op),
                     with_.keep, with_.finish(), async_op, timeout, factor)
    counts = counts_of([n * each for n in rows])
    return start(load().ivy_reduce_scatter_v,
                 (group.handle, with_.send, with_.recv, counts, with_.input.dtype, op),
                 (with_.keep, counts), with_.finish(), async_op, timeout, factor)


def reduce_scatter_(x: ArrayT, op: Op = "sum", *, split: Sequence[int] | None = None, group: Group | None = None,
                    async_op: bool = False, timeout: float | None = None, factor: float = 1.0) -> ArrayT:
    """reduce_scatter in place; returns the first rows of x, as many as this rank's part has.

    These rows hold the result; the contents of the other rows are undefined afterwards.
    """
    group, op = resolve(group), op_number(op)
    if not group.is_member:
        return nothing(async_op)
    kind, array, memory = in_place(x)
    rows, counts = row_counts(shape_of(array), split, group, "reduce_scatter_")
    function = load().ivy_reduce_scatter if split is None else load().ivy_reduce_scatter_v
    return start(function, (group.handle, IN_PLACE, memory.pointer, counts, memory.dtype, op),
                 (x, memory, counts), written(kind, array, x, rows[group.rank]), async_op, timeout, factor)


def broadcast(x: ArrayT, src: int = 0, *, group: Group | None = None, out: ArrayT | None = None, async_op: bool = False,
              timeout: float | None = None) -> ArrayT:
    """Returns rank src's x on every rank. On the other ranks x only specifies shape and type, and is unchanged."""
    done = calls.broadcast(x, src, group, out, async_op, timeout)
    if done is not NotImplemented:
        return done
    group = resolve(group)
    if not group.is_member:
        return nothing(async_op)
    if gradients.is_recorded(x):
        return gradients.derivatives().broadcast(x, src, group=group, out=out, async_op=async_op, timeout=timeout)
    src = checked_rank(group, src)
    if _is_tree(x, out):
        return trees.broadcast(broadcast, x, src, group, async_op, timeout, in_place=False)
    with_ = Operands(x, out, lambda shape: shape)
    if group.rank == src and with_.input.pointer != with_.output.pointer:
        with_.kind.copy(with_.output, with_.input)
    return start(load().ivy_broadcast, (group.handle, with_.recv, with_.output.count, with_.output.dtype, src),
                 with_.keep, with_.finish(), async_op, timeout)


def broadcast_(x: ArrayT, src: int = 0, *, group: Group | None = None, async_op: bool = False,
               timeout: float | None = None) -> ArrayT:
    """broadcast in place; returns x."""
    done = calls.broadcast_(x, src, group, async_op, timeout)
    if done is not NotImplemented:
        return done
    group = resolve(group)
    if not group.is_member:
        return nothing(async_op)
    src = checked_rank(group, src)
    if _is_tree(x):
        return trees.broadcast(broadcast_, x, src, group, async_op, timeout, in_place=True)
    kind, array, memory = in_place(x)
    return start(load().ivy_broadcast, (group.handle, memory.pointer, memory.count, memory.dtype, src),
                 (x, memory), written(kind, array, x), async_op, timeout)


def _joined_axis(kind, array, axis, out):
    axis = normal_axis(axis, max(1, len(shape_of(array))))
    if axis and out is not None:
        raise ValueError("out is filled along axis 0 only")
    if axis:
        kind.refuse_axis(array)
    return axis


def all_gather(x: ArrayT, axis: int = 0, *, uneven: bool = False, group: Group | None = None, out: ArrayT | None = None,
               async_op: bool = False, timeout: float | None = None) -> ArrayT:
    """Returns x of all ranks, concatenated along `axis` in rank order; 0-d arrays form a vector.

    uneven: the ranks' lengths along `axis` may differ, which takes one more small operation; the other axes must be
    equal on all ranks. out: only with axis=0.
    """
    done = calls.all_gather(x, axis, uneven, group, out, async_op, timeout)
    if done is not NotImplemented:
        return done
    group = resolve(group)
    if not group.is_member:
        return nothing(async_op)
    if gradients.is_recorded(x):
        return gradients.derivatives().all_gather(x, axis, uneven=uneven, group=group, out=out,
                                                  async_op=async_op, timeout=timeout)
    return _gathered(x, axis, uneven, None, group, out, async_op, timeout)


def _gathered(x, axis, uneven, dst, group, out, async_op, timeout):
    """Returns x of all ranks on rank dst; None: on every rank."""
    kind, array = arrays.adopt(x)
    axis = _joined_axis(kind, array, axis, out)
    root = () if dst is None else (checked_rank(group, dst),)
    lengths = number_of_each(group, shape_of(array)[axis], timeout) if uneven and shape_of(array) else None
    if lengths is not None and axis:
        array = kind.move_axis_first(array, axis)
    if root and group.rank != root[0]:
        memory = kind.input(array)
        function, arguments = ((load().ivy_gather, (None, memory.count)) if lengths is None else
                               (load().ivy_gather_v, (memory.count, None, None, None)))
        return start(function, (group.handle, memory.pointer, *arguments, memory.dtype, *root), (array, memory), None,
                     async_op, timeout)

    def shape_of_result(shape):
        if lengths is not None:
            return (sum(lengths), *shape[1:])
        return (group.size * shape[0], *shape[1:]) if shape and not axis else (group.size, *shape)

    with_ = Operands(array, out, shape_of_result).separate()
    if lengths is None:
        function, counts = load().ivy_gather if root else load().ivy_all_gather, None
        arguments = (with_.send, with_.recv, with_.input.count)
        finish = with_.finish(lambda: kind.concatenate(with_.result, axis)) if axis else with_.finish()
    else:
        function = load().ivy_gather_v if root else load().ivy_all_gather_v
        counts = counts_of([length * row_elements(shape_of(array)) for length in lengths])
        arguments = (with_.send, *([with_.input.count] if root else []), with_.recv, counts, None)
        finish = with_.finish(lambda: kind.input(kind.move_axis_back(with_.result, axis)).owner) if axis else with_.finish()
    return start(function, (group.handle, *arguments, with_.input.dtype, *root), (with_.keep, counts), finish, async_op,
                 timeout)


def all_gather_(x: ArrayT, *, split: Sequence[int] | None = None, group: Group | None = None, async_op: bool = False,
                timeout: float | None = None) -> ArrayT:
    """all_gather in place: x is divided along axis 0, and this rank's part is already at its position. Returns x.

    split: rows of each rank's part, the same list on all ranks; None: equal parts.
    """
    done = calls.all_gather_(x, split, group, async_op, timeout)
    if done is not NotImplemented:
        return done
    group = resolve(group)
    if not group.is_member:
        return nothing(async_op)
    kind, array, memory = in_place(x)
    _, counts = row_counts(shape_of(array), split, group, "all_gather_")
    function, counts_ = (load().ivy_all_gather, (counts,)) if split is None else (load().ivy_all_gather_v, (counts, None))
    return start(function, (group.handle, IN_PLACE, memory.pointer, *counts_, memory.dtype),
                 (x, memory, counts), written(kind, array, x), async_op, timeout)


def all_gather_list(x: ArrayT, *, group: Group | None = None, async_op: bool = False,
                    timeout: float | None = None) -> list[ArrayT]:
    """Returns [x of rank 0, x of rank 1, ...], all of one shape. The arrays are views of one block."""
    group = resolve(group)
    if not group.is_member:
        return nothing(async_op)
    if gradients.is_recorded(x):
        return gradients.derivatives().all_gather_list(x, group=group, async_op=async_op, timeout=timeout)
    with_ = Operands(x, None, lambda shape: (group.size, *shape))
    return start(load().ivy_all_gather, (group.handle, with_.send, with_.recv, with_.input.count,
                                         with_.input.dtype),
                 with_.keep, with_.finish(lambda: _views(with_.result, group.size)), async_op, timeout)


def _views(stacked, size):
    return [stacked[rank, ...] for rank in range(size)]


def gather(x: ArrayT, dst: int = 0, axis: int = 0, *, uneven: bool = False, group: Group | None = None,
           out: ArrayT | None = None, async_op: bool = False, timeout: float | None = None) -> ArrayT | None:
    """As all_gather, but only rank dst gets the result; the others get None. uneven: the same on every rank."""
    done = calls.gather(x, dst, axis, uneven, group, out, async_op, timeout)
    if done is not NotImplemented:
        return done
    group = resolve(group)
    if not group.is_member:
        return nothing(async_op)
    gradients.refuse_at_one_rank(x, "gather")
    return _gathered(x, axis, uneven, dst, group, out, async_op, timeout)


def gather_(x: ArrayT, dst: int = 0, *, split: Sequence[int] | None = None, group: Group | None = None,
            async_op: bool = False, timeout: float | None = None) -> ArrayT:
    """gather in place: as all_gather_ on rank dst; on the others x is the rank's part and is unchanged. Returns x.

    split: as for all_gather_, on every rank.
    """
    group = resolve(group)
    if not group.is_member:
        return nothing(async_op)
    dst = checked_rank(group, dst)
    at_root = group.rank == dst
    if at_root:
        kind, array, memory = in_place(x)
        _, counts = row_counts(shape_of(array), split, group, "gather_")
        finish = written(kind, array, x)
    else:
        kind, array = arrays.adopt(x)
        memory, counts = kind.input(array), None
        finish = lambda _work: x  # noqa: E731
    send, recv = (IN_PLACE, memory.pointer) if at_root else (memory.pointer, None)
    if split is None:
        return start(load().ivy_gather, (group.handle, send, recv, counts if at_root else memory.count, memory.dtype, dst),
                     (x, array, memory), finish, async_op, timeout)
    return start(load().ivy_gather_v, (group.handle, send, memory.count, recv, counts, None, memory.dtype, dst),
                 (x, array, memory, counts), finish, async_op, timeout)


def _scatter_header(x, src, split, group, timeout):
    """Returns (kind, array, its Memory on rank src, the header to send first). An error in rank src's x is raised on
    all ranks."""
    kind = array = input_ = header = None
    try:
        if x is not None:
            kind, array = arrays.adopt(x)
        if group.rank == src:
            if x is None:
                raise ValueError("rank src has to give x")
            rows = rows_of_ranks(shape_of(array), split, group, "scatter")
            input_ = kind.input(array)
            header = (kind.name, kind.dtype_name(array), shape_of(array), rows, kind.place(array), gradients.is_recorded(x))
    except (TypeError, ValueError) as error:
        if group.rank == src:
            broadcast_object((type(error).__name__, str(error)), src, group=group, timeout=timeout)
        raise
    header = broadcast_object(header, src, group=group, timeout=timeout)
    if len(header) == 2:
        name, text = header
        raise (TypeError if name == "TypeError" else ValueError)(f"rank {src} of the group: {text}")
    return kind, array, input_, header


def scatter(x: ArrayT | None = None, src: int = 0, *, split: Sequence[int] | None = None, group: Group | None = None,
            out: ArrayT | None = None, async_op: bool = False, timeout: float | None = None) -> ArrayT:
    """Returns this rank's part of rank src's x: part r, along axis 0, goes to rank r. Only rank src must pass x.

    split (on rank src): rows of each rank's part; None: equal parts. The result has the framework of `out`, else of x
    on this rank, else of rank src's x; it is NumPy's if that framework is not installed here or is only known through
    DLPack. Shape and type are sent first, as a separate operation.
    """
    group = resolve(group)
    if not group.is_member:
        return nothing(async_op)
    src = checked_rank(group, src)
    at_root = group.rank == src
    kind, array, input_, header = _scatter_header(x, src, split, group, timeout)
    kind_name, dtype_name, shape, rows, place, is_recorded = header
    shape = (rows[group.rank], *shape[1:])
    if out is None:
        kind = kind or arrays.kind_by_name(kind_name)
        result = kind.empty(shape, array) if at_root else kind.by_name(dtype_name, shape, place)
    else:
        kind, result = arrays.adopt_output(out, "out")
        if shape_of(result) != shape or kind.dtype_name(result) != dtype_name:
            raise ValueError(f"out is {kind.dtype_name(result)} of shape {shape_of(result)}, "
                             f"the result is {dtype_name} of shape {shape}")
    output = kind.output(result, "out")
    if at_root and out is not None and input_.overlaps(output):
        raise ValueError("out lies inside x")
    each = row_elements(shape)
    counts = counts_of([n * each for n in rows]) if at_root else None

    def finish(_work):
        kind.changed(result)
        made = kind.in_form_of(result, array) if out is None else out
        return gradients.of_scatter(made, array, src, rows, group) if is_recorded else made

    return start(load().ivy_scatter_v, (group.handle, input_.pointer if at_root else None, counts, None,
                                        output.pointer, output.count, output.dtype, src),
                 (array, input_, result, output, counts), finish, async_op, timeout)


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
        return start(load().ivy_scatter_v,
                     (group.handle, None, None, None, memory.pointer, memory.count, memory.dtype, src),
                     (x, memory), written(kind, array, x), async_op, timeout)
    kind, array = arrays.adopt(x)
    memory = kind.input(array)
    rows = rows_of_ranks(shape_of(array), split, group, "scatter_")
    counts = counts_of([n * row_elements(shape_of(array)) for n in rows])
    begin = sum(rows[:src])
    return start(load().ivy_scatter_v, (group.handle, memory.pointer, counts, None, IN_PLACE, 0, memory.dtype, src),
                 (array, memory, counts), lambda _work: array[begin:begin + rows[src]], async_op, timeout)


def all_to_all(x: ArrayT, split: Sequence[int] | None = None, *, output_split: Sequence[int] | None = None,
               group: Group | None = None, out: ArrayT | None = None, async_op: bool = False,
               timeout: float | None = None) -> ArrayT:
    """Sends part r of x, along axis 0, to rank r; returns the parts received from ranks 0, 1, ..., concatenated.

    split: rows for each rank; output_split: rows from each rank (None with a split: exchanged by one more small
    operation). If both are None, x's first axis is divided equally.
    """
    done = calls.all_to_all(x, split, output_split, group, out, async_op, timeout)
    if done is not NotImplemented:
        return done
    group = resolve(group)
    if not group.is_member:
        return nothing(async_op)
    if gradients.is_recorded(x):
        return gradients.derivatives().all_to_all(x, split, output_split=output_split, group=group, out=out,
                                                  async_op=async_op, timeout=timeout)
    kind, array = arrays.adopt(x)
    rows = rows_of_ranks(shape_of(array), split, group, "all_to_all")
    if split is None and output_split is None:
        with_ = Operands(array, out, lambda shape: shape).separate()
        return start(load().ivy_all_to_all, (group.handle, with_.send, with_.recv,
                                             with_.input.count // group.size, with_.input.dtype),
                     with_.keep, with_.finish(), async_op, timeout)
    came = exchanged(group, rows, timeout) if output_split is None else [int(n) for n in output_split]
    if len(came) != group.size or min(came) < 0:
        raise ValueError(f"output_split={came} is not {group.size} numbers")
    each = row_elements(shape_of(array))
    with_ = Operands(array, out, lambda shape: (sum(came), *shape[1:])).separate()
    send_counts, recv_counts = counts_of([n * each for n in rows]), counts_of([n * each for n in came])
    return start(load().ivy_all_to_all_v, (group.handle, with_.send, send_counts, None, with_.recv,
                                           recv_counts, None, with_.input.dtype),
                 (with_.keep, send_counts, recv_counts), with_.finish(), async_op, timeout)


def all_to_all_(x: ArrayT, *, group: Group | None = None, async_op: bool = False,
                timeout: float | None = None) -> ArrayT:
    """all_to_all in place, in equal parts; returns x."""
    done = calls.all_to_all_(x, group, async_op, timeout)
    if done is not NotImplemented:
        return done
    group = resolve(group)
    if not group.is_member:
        return nothing(async_op)
    kind, array, memory = in_place(x)
    rows_of_ranks(shape_of(array), None, group, "all_to_all")
    return start(load().ivy_all_to_all, (group.handle, IN_PLACE, memory.pointer, memory.count // group.size,
                                         memory.dtype),
                 (x, memory), written(kind, array, x), async_op, timeout)


def barrier(*, group: Group | None = None, async_op: bool = False, timeout: float | None = None) -> None:
    """Returns when every rank of the group has called it."""
    done = calls.barrier(group, async_op, timeout)
    if done is not NotImplemented:
        return done
    group = resolve(group)
    if not group.is_member:
        return nothing(async_op)
    return start(load().ivy_barrier, (group.handle,), (), None, async_op, timeout)


docstrings.complete([globals()[name] for name in __all__])
