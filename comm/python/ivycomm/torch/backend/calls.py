# SPDX-License-Identifier: Apache-2.0
"""Implements c10d's calls on a group with the library. The names and arguments are c10d's, of torch 1.13 to 2.15.

Each call checks its tensors in the caller's thread and makes a body, body(keep, timeout), which calls the library when it
is its turn (turns.py). As in c10d, `opts` may be missing, and a tensor may be passed instead of a list with one tensor.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, Union, cast

import torch

from ...arrays import Memory
from ...counts import Counts, counts_of
from ...errors import IvyError, Timeout
from ...library import ANY, IN_PLACE
from ...messages import together
from ...work import read_message, start
from ...work import Work as InnerWork
from .channel import Channel
from .dense import Dense, Row
from .errors import torch_error
from .streams import await_event, let_follow, mark_current_stream, on_stream
from .works import JoinedWork, MessageWork, OrderedWork, StreamWork, handed

Tensor = Any  # A torch.Tensor; torch is not installed where the types are checked.
Body = Callable[[Any, float], object]
BegunWork = Union[OrderedWork, StreamWork, MessageWork, JoinedWork]
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


class Piece(NamedTuple):
    """One operation of a call: its body, the output tensors, all objects whose memory it uses, and those of them that may
    have to copy the result back."""

    body: Body
    outputs: Sequence[Tensor]
    operands: Sequence[Any]
    take_back: Sequence[Dense | Row] = ()


def _listed(tensors: Any) -> Sequence[Tensor]:
    return tensors if isinstance(tensors, (list, tuple)) else [tensors]


def _reduction(opts: Any) -> tuple[int, float]:
    """Returns (number, factor) of the reduction. ivycomm's numbers are the same as c10d's."""
    op = getattr(opts, "reduceOp", opts)
    if op is None:
        return 0, 1.0
    number, factor = int(getattr(op, "op", op)), 1.0
    if number == 8:  # PREMUL_SUM
        given = getattr(op, "factor", None)
        if given is None:
            raise ValueError("backend ivy: this torch does not pass the factor of PREMUL_SUM")
        factor = float(given)
    return number, factor


def _root(opts: Any) -> int:
    return opts.rootRank if opts is not None else 0


def _row_counts(tensor: Tensor, splits: Sequence[int], size: int, what: str) -> list[int]:
    """Returns the number of elements for each rank. c10d's splits are rows; an empty list means equal parts."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if not splits:
        if rows % size:
            raise ValueError(f"backend ivy: the {what}'s {rows} rows cannot be divided equally among {size} ranks")
        splits = [rows // size] * size
    if len(splits) != size or sum(splits) != rows:
        raise ValueError(f"backend ivy: the {what}'s splits {list(splits)} are not {size} numbers whose sum is {rows}")
    each = tensor.numel() // rows if rows else 0
    return [n * each for n in splits]


def _check_lists(what: str, lists: Sequence[Any], length: int, each: int) -> None:
    """Raises ValueError unless there are `length` lists of `each` tensors; zip() would silently drop the rest."""
    lengths = [len(part) for part in lists]
    if lengths != [each] * length:
        raise ValueError(f"backend ivy: {what} must be {length} lists of {each} tensors, not {len(lengths)} lists of "
                         f"{lengths} tensors")


def _check_list(what: str, tensors: Sequence[Tensor], length: int) -> None:
    if len(tensors) != length:
        raise ValueError(f"backend ivy: {what} must be {length} tensors, not {len(tensors)}")


def _check_types(what: str, output: Dense, input_: Dense) -> None:
    """Raises ValueError if the types differ: elements are not converted."""
    if output.tensor.dtype != input_.tensor.dtype:
        raise ValueError(f"backend ivy: {what}'s output is {output.tensor.dtype}, but the input is {input_.tensor.dtype}")


class Coalescing(threading.local):
    """The works, and the functions that start messages of device memory, since this thread's start_coalescing(). None:
    outside of a block."""

    works: list[BegunWork] | None = None
    messages: list[Callable[[], MessageWork]] | None = None


def _recorded(name: str) -> Callable[[FunctionT], FunctionT]:
    """Makes torch's profiler record a call under c10d's name, as it does for a group written in C++."""
    def decorate(function: FunctionT) -> FunctionT:
        @functools.wraps(function)
        def call(self: Any, *arguments: Any, **named: Any) -> Any:
            if not torch.autograd._profiler_enabled():
                return function(self, *arguments, **named)
            with torch.autograd.profiler.record_function("c10d::" + name):
                return function(self, *arguments, **named)
        return cast(FunctionT, call)
    return decorate


class Calls:
    """A mixin for c10d's ProcessGroup and Backend, which set these members. Every call returns a work."""

    _channel: Channel
    _coalescing: Coalescing

    def _begin(self, opts: Any, piece: Piece) -> BegunWork:
        """Starts an operation and returns its work. When it is done, copies results back where necessary."""
        body, outputs, operands, take_back = piece
        channel = self._channel
        channel.check()
        channel.count_operation()
        timeout = channel.timeout_of(opts)
        keep, on_device, copied = [], [], [each for each in take_back if each.is_copied]
        for each in operands:
            if type(each) is Dense:
                if each.has_stream:
                    on_device.append(each)
                each = each.keep
            keep.append(each)

        def carry_out() -> None:
            try:
                body(keep, timeout)
            except IvyError as error:
                channel.record_failure(error)
                raise
            for each in copied:
                each.take_back()

        # If the call is not asynchronous, torch waits for the work immediately.
        is_blocking = getattr(opts, "asyncOp", True) is False and self._coalescing.works is None
        if is_blocking:
            return self._done_in_turn(carry_out, StreamWork(outputs))
        if on_device:
            return self._noted(self._put_on_stream(carry_out, bool(copied), outputs, on_device))
        return self._noted(OrderedWork(channel.turns, channel.turns.add(carry_out), outputs))

    # Runs in this thread, which knows the current streams. The operation gets a side stream, so that the device can do other
    # work until the caller waits. The side stream is torch's current stream only during copies.
    def _put_on_stream(self, carry_out: Callable[[], object], does_copy: bool, outputs: Sequence[Tensor],
                       denses: list[Dense]) -> StreamWork:
        device = denses[0].tensor.device
        stream = self._channel.side_stream(device)
        let_follow(stream, device)
        for dense in denses:
            dense.use_stream(stream)
        work = StreamWork(outputs, [dense.tensor for dense in denses])
        with on_stream(stream) if does_copy else contextlib.nullcontext():
            self._done_in_turn(carry_out, work)
        work.mark(stream)
        return work

    def _done_in_turn(self, carry_out: Callable[[], object], work: StreamWork) -> StreamWork:
        try:
            self._channel.turns.perform(carry_out)
        except BaseException as error:  # noqa: BLE001 - wait() raises it.
            work.error = error
        return work

    def _noted(self, work: BegunWork) -> BegunWork:
        if self._coalescing.works is not None:
            self._coalescing.works.append(work)
        return work

    # Starts the operations in order and returns one work for all. The library could coalesce only operations of one type.
    def _begin_each(self, opts: Any, pieces: Sequence[Piece]) -> Any:
        channel = self._channel
        if len(pieces) == 1:
            return handed(self._begin(opts, pieces[0]), channel)
        return handed(JoinedWork([self._begin(opts, piece) for piece in pieces]), channel)

    def start_coalescing(self, _device: Any = None) -> None:
        """Collects the works of this thread until end_coalescing()."""
        self._coalescing.works, self._coalescing.messages = [], []

    def end_coalescing(self, _device: Any = None) -> Any:
        begun = self._coalescing
        works, begun.works = begun.works or [], None
        messages, begun.messages = begun.messages or [], None
        with together(may_use_device=bool(messages) and Memory.any_on_device):
            works += [begin() for begin in messages]
        return handed(JoinedWork(works), self._channel)

    def _call(self, function: str, *arguments: Any, factor: float = 0.0) -> Body:
        """Returns the body that calls this C function."""
        handle = self._channel.handle

        def body(keep: Any, timeout: float) -> None:
            start(function, (handle, *arguments), keep, timeout=timeout, factor=factor)

        return body

    @_recorded("allreduce_")
    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        return self._begin_each(opts, [self._reduced_in_place(tensor, opts) for tensor in _listed(tensors)])

    def _reduced_in_place(self, tensor: Tensor, opts: Any) -> Piece:
        dense, (op, factor) = Dense(tensor, True), _reduction(opts)
        body = self._call("ivy_all_reduce", IN_PLACE, dense.pointer, dense.count, dense.number, op, factor=factor)
        return Piece(body, [tensor], (dense,), (dense,))

    @_recorded("allreduce_coalesced_")
    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        tensors = _listed(tensors)
        if len({(tensor.dtype, tensor.device.type) for tensor in tensors}) != 1:
            return self.allreduce(tensors, opts)
        denses, (op, factor) = [Dense(tensor, True) for tensor in tensors], _reduction(opts)
        send, recv = counts_of([IN_PLACE] * len(denses)), counts_of(dense.pointer for dense in denses)
        counts, number = counts_of([dense.count for dense in denses]), denses[0].number
        body = self._call("ivy_all_reduce_coalesced", len(denses), send, recv, counts, number, op, factor=factor)
        return self._begin_each(opts, [Piece(body, tensors, denses, denses)])

    @_recorded("broadcast_")
    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        return self._begin_each(opts, [self._broadcast(tensor, _root(opts)) for tensor in _listed(tensors)])

    def _broadcast(self, tensor: Tensor, root: int) -> Piece:
        dense = Dense(tensor)
        body = self._call("ivy_broadcast", dense.pointer, dense.count, dense.number, root)
        return Piece(body, [tensor], (dense,), () if root == self._channel.rank else (dense,))

    @_recorded("reduce_")
    def reduce(self, tensors: Any, opts: Any = None) -> Any:
        return self._begin_each(opts, [self._reduce(tensor, opts) for tensor in _listed(tensors)])

    def _reduce(self, tensor: Tensor, opts: Any) -> Piece:
        dense, (op, factor), root = Dense(tensor, True), _reduction(opts), _root(opts)
        is_root = root == self._channel.rank
        send, recv = (IN_PLACE, dense.pointer) if is_root else (dense.pointer, None)
        body = self._call("ivy_reduce", send, recv, dense.count, dense.number, op, root, factor=factor)
        return Piece(body, [tensor], (dense,), (dense,) if is_root else ())

    def _gathered(self, output: Row, input_: Tensor, outputs: Sequence[Tensor]) -> Piece:
        """output: the outputs as one block; their lengths may differ."""
        dense = Dense(input_)
        function = "ivy_all_gather" if output.is_even else "ivy_all_gather_v"
        counts: tuple[Any, ...] = (dense.count,) if output.is_even else (counts_of(output.counts), None)
        _check_types("all_gather", output.dense, dense)
        if output.counts[self._channel.rank] != dense.count:
            raise ValueError(f"backend ivy: rank {self._channel.rank}'s input has {dense.count} elements, but its "
                             f"part of the output has {output.counts[self._channel.rank]}")
        body = self._call(function, dense.pointer, output.dense.pointer, *counts, dense.number)
        return Piece(body, outputs, (dense, output.dense, counts), (output,))

    @_recorded("allgather_")
    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """outputs[tensor][rank]"""
        inputs = _listed(inputs)
        _check_lists("all_gather's output", outputs, len(inputs), self._channel.size)
        pieces = []
        for output, input_ in zip(outputs, inputs):
            pieces.append(self._gathered(Row(output, is_input=False), input_, output))
        return self._begin_each(opts, pieces)

    @_recorded("allgather_coalesced_")
    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """outputs[rank][tensor]"""
        inputs = _listed(inputs)
        _check_lists("all_gather_coalesced's output", outputs, self._channel.size, len(inputs))
        return self.allgather([list(row) for row in zip(*outputs)], inputs, opts)

    @_recorded("_allgather_base_")
    def all_gather_single(self, output: Tensor, input_: Tensor, opts: Any = None) -> Any:
        return self._begin_each(opts, [self._gathered_single(output, input_)])

    def _gathered_single(self, output: Tensor, input_: Tensor) -> Piece:
        whole, dense = Dense(output), Dense(input_)
        if whole.count != dense.count * self._channel.size:
            raise ValueError(f"backend ivy: the output has {whole.count} elements, but {self._channel.size} inputs of "
                             f"{dense.count} have {dense.count * self._channel.size}")
        _check_types("all_gather", whole, dense)
        own = whole.pointer + dense.tensor.numel() * dense.tensor.element_size() * self._channel.rank
        send = IN_PLACE if dense.pointer == own else dense.pointer
        body = self._call("ivy_all_gather", send, whole.pointer, dense.count, dense.number)
        return Piece(body, [output], (dense, whole), (whole,))

    @_recorded("allgather_into_tensor_coalesced_")
    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        _check_list("all_gather's output", outputs, len(inputs))
        return self._begin_each(opts, [self._gathered_single(*pair) for pair in zip(outputs, inputs)])

    @_recorded("gather_")
    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        root, pieces, inputs = _root(opts), [], _listed(inputs)
        if root == self._channel.rank:
            _check_lists("gather's output", outputs, len(inputs), self._channel.size)
        for i, input_ in enumerate(inputs):
            row = Row(outputs[i], is_input=False) if root == self._channel.rank else None
            dense = Dense(input_)
            if row and set(row.counts) != {dense.count}:
                raise ValueError(f"backend ivy: gather's outputs have {row.counts} elements, but the input has {dense.count}")
            pieces.append(self._gather(row, outputs[i] if row else [], dense, root))
        return self._begin_each(opts, pieces)

    @_recorded("gather_single_")
    def gather_single(self, output: Tensor, input_: Tensor, opts: Any = None) -> Any:
        root, dense = _root(opts), Dense(input_)
        whole = Row([output], is_input=False) if root == self._channel.rank else None
        return self._begin_each(opts, [self._gather(whole, [output] if whole else [], dense, root)])

    gather_into_tensor = gather_single

    def _gather(self, row: Row | None, outputs: Sequence[Tensor], dense: Dense, root: int) -> Piece:
        recv = row.dense.pointer if row else None
        if row:
            _check_types("gather", row.dense, dense)
            if sum(row.counts) != dense.count * self._channel.size:
                raise ValueError(f"backend ivy: gather's output has {sum(row.counts)} elements, but the input has {dense.count}")
        body = self._call("ivy_gather", dense.pointer, recv, dense.count, dense.number, root)
        return Piece(body, outputs, (dense, row.dense) if row else (dense,), (row,) if row else ())

    @_recorded("scatter_")
    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        root, pieces, outputs = _root(opts), [], _listed(outputs)
        if root == self._channel.rank:
            _check_lists("scatter's input", inputs, len(outputs), self._channel.size)
        for i, output in enumerate(outputs):
            row = Row(inputs[i], is_input=True) if root == self._channel.rank else None
            pieces.append(self._scatter(Dense(output), row, output, root))
        return self._begin_each(opts, pieces)

    def _scatter(self, dense: Dense, row: Row | None, output: Tensor, root: int) -> Piece:
        send = row.dense.pointer if row else None
        if row:
            _check_types("scatter", dense, row.dense)
        if row and (not row.is_even or row.counts[0] != dense.count or len(row.counts) != self._channel.size):
            raise ValueError(f"backend ivy: scatter's inputs have {row.counts} elements, but this rank's output "
                             f"has {dense.count}, in a group of {self._channel.size}")
        body = self._call("ivy_scatter", send, dense.pointer, dense.count, dense.number, root)
        return Piece(body, [output], (dense, row.dense) if row else (dense,), (dense,))

    @_recorded("reduce_scatter_")
    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        pieces, outputs = [], _listed(outputs)
        _check_lists("reduce_scatter's input", inputs, len(outputs), self._channel.size)
        for output, parts in zip(outputs, inputs):
            row = Row(parts, is_input=True, does_reduce=True)
            pieces.append(self._reduce_scattered(output, row.dense, row.counts, opts))
        return self._begin_each(opts, pieces)

    def _reduce_scattered(self, output: Tensor, whole: Dense, counts: list[int], opts: Any) -> Piece:
        dense, (op, factor) = Dense(output, True), _reduction(opts)
        if len(counts) != self._channel.size or counts[self._channel.rank] != dense.count:
            raise ValueError(f"backend ivy: reduce_scatter's inputs have {counts} elements, but the output of rank "
                             f"{self._channel.rank} has {dense.count}, in a group of {self._channel.size}")
        _check_types("reduce_scatter", dense, whole)
        is_even = len(set(counts)) == 1
        function = "ivy_reduce_scatter" if is_even else "ivy_reduce_scatter_v"
        each: Counts = dense.count if is_even else counts_of(counts)
        # The output may be this rank's part of the input.
        kept = whole.tensor.clone() if _overlap(dense.tensor, whole.tensor) else whole.tensor
        body = self._call(function, kept.data_ptr(), dense.pointer, each, dense.number, op, factor=factor)
        return Piece(body, [output], (whole, dense, kept, each), (dense,))

    @_recorded("_reduce_scatter_base_")
    def reduce_scatter_single(self, output: Tensor, input_: Tensor, opts: Any = None) -> Any:
        return self.reduce_scatter_single_coalesced([output], [input_], opts)

    @_recorded("reduce_scatter_tensor_coalesced_")
    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        _check_list("reduce_scatter's output", outputs, len(inputs))
        pieces = []
        for output, input_ in zip(outputs, inputs):
            whole, size = Dense(input_, True), self._channel.size
            if whole.count % size:
                raise ValueError(f"backend ivy: {whole.count} elements cannot be divided equally among {size} ranks")
            pieces.append(self._reduce_scattered(output, whole, [whole.count // size] * size, opts))
        return self._begin_each(opts, pieces)

    @_recorded("alltoall_base_")
    def all_to_all_single(self, output: Tensor, input_: Tensor, output_splits: Sequence[int], input_splits: Sequence[int],
                          opts: Any = None) -> Any:
        size = self._channel.size
        send, recv = Dense(input_), Dense(output)
        send_counts = _row_counts(input_, input_splits, size, "input")
        recv_counts = _row_counts(output, output_splits, size, "output")
        is_even = not (input_splits or output_splits)
        if is_even and send_counts != recv_counts:
            raise ValueError(f"backend ivy: all_to_all's input has {send.count} elements, but the output has {recv.count}: "
                             "pass splits if they differ")
        return self._begin_each(opts, [self._exchanged(send, recv, send_counts, recv_counts, [output], (recv,),
                                                       is_even)])

    @_recorded("alltoall_")
    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        _check_list("all_to_all's input", inputs, self._channel.size)
        _check_list("all_to_all's output", outputs, self._channel.size)
        send, recv = Row(inputs, is_input=True), Row(outputs, is_input=False)
        return self._begin_each(opts, [self._exchanged(send.dense, recv.dense, send.counts, recv.counts, outputs,
                                                       (recv,), False)])

    # is_even: all ranks were called without splits. It does not follow from the counts: those of one rank may be equal by
    # chance, and all ranks must call the same C function.
    def _exchanged(self, send: Dense, recv: Dense, send_counts: list[int], recv_counts: list[int], outputs: Sequence[Tensor],
                   take_back: Sequence[Dense | Row], is_even: bool) -> Piece:
        _check_types("all_to_all", recv, send)
        scale = send.tensor.element_size() if send.count != send.tensor.numel() else 1
        if isinstance(take_back[0], Dense) and scale != 1:
            send_counts, recv_counts = [n * scale for n in send_counts], [n * scale for n in recv_counts]
        kept = send.tensor.clone() if _overlap(send.tensor, recv.tensor) else send.tensor
        function = "ivy_all_to_all" if is_even else "ivy_all_to_all_v"
        arguments: tuple[Any, ...] = (kept.data_ptr(), recv.pointer, send_counts[0]) if is_even else (
            kept.data_ptr(), counts_of(send_counts), None, recv.pointer, counts_of(recv_counts), None)
        return Piece(self._call(function, *arguments, send.number), outputs, (send, recv, kept, arguments), take_back)

    @_recorded("barrier")
    def barrier(self, opts: Any = None) -> Any:
        """Also waits for the work that is now on the current streams of the devices, as NCCL's barrier does."""
        events, wait_for_all = mark_current_stream(getattr(opts, "device_ids", None)), self._call("ivy_barrier")

        def body(keep: Any, timeout: float) -> None:
            deadline = time.monotonic() + timeout
            for event in events:
                if not await_event(event, timeout):
                    raise Timeout(f"barrier timed out: the device's current stream has not finished after {timeout:g} s")
            wait_for_all(keep, max(0.001, deadline - time.monotonic()) if events else timeout)

        return self._begin_each(opts, [Piece(body, [], ())])

    @_recorded("send")
    def send(self, tensors: Any, dst: int, tag: int = 0) -> BegunWork:
        return self._message(tensors, "ivy_send", (dst, tag))

    @_recorded("recv_")
    def recv(self, tensors: Any, src: int, tag: int = 0) -> BegunWork:
        return self._message(tensors, "ivy_recv", (src, tag), is_receive=True)

    @_recorded("recv_any_source_")
    def recv_anysource(self, tensors: Any, tag: int = 0) -> BegunWork:
        return self.recv(tensors, ANY, tag)

    def _message(self, tensors: Any, function: str, arguments: tuple[Any, ...], is_receive: bool = False) -> BegunWork:
        channel = self._channel
        works: list[BegunWork] = []
        channel.check()
        for tensor in _listed(tensors):
            dense = Dense(tensor)

            def finish(inner: InnerWork[Any], dense: Dense = dense) -> None:
                if is_receive:
                    read_message(inner)
                    dense.take_back()

            def begin(dense: Dense = dense, finish: Callable[[Any], None] = finish, tensor: Tensor = tensor) -> MessageWork:
                try:
                    inner = start(function, (channel.handle, dense.pointer, dense.count, dense.number, *arguments),
                                  (dense.keep, dense.tensor), finish, True, channel.timeout_of(None),
                                  has_message=is_receive)
                except Exception as error:  # noqa: BLE001 - raised again, as torch's.
                    raise torch_error(error) from error.__cause__
                return MessageWork(inner, [tensor])

            if dense.has_stream and self._coalescing.messages is not None:
                self._coalescing.messages.append(begin)
            else:
                works.append(begin())
        return self._noted(works[0] if len(works) == 1 else JoinedWork(works))

    def allreduce_sparse(self, _tensors: Any, _opts: Any = None) -> Any:
        raise ValueError("backend ivy sends only dense tensors: x.to_dense()")

    # The names in other versions of torch.
    _allgather_base = allgather_base = all_gather_single
    all_gather_into_tensor_coalesced = allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single
    recvAnysource = recv_anysource


def _overlap(one: Tensor, other: Tensor) -> bool:
    begin, end = one.data_ptr(), one.data_ptr() + one.numel() * one.element_size()
    return begin < other.data_ptr() + other.numel() * other.element_size() and other.data_ptr() < end
