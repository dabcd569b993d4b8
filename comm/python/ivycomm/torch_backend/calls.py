"""What c10d calls on a group, as calls of the library. The names and arguments are c10d's, of torch 1.13 to 2.15.

Of each call the tensors are looked at in the caller's thread; what remains is a body without arguments, which is
carried out in its turn. `opts` may be missing, and one tensor may stand for a list of one, as c10d allows.
"""

import contextlib
from ctypes import c_void_p

import torch

from ..counts import counts_of
from ..errors import IvyError
from ..library import ANY, IN_PLACE, load
from ..messages import together
from ..work import start
from .dense import Dense, Row
from .errors import torch_error
from .streams import let_follow, on_stream
from .works import JoinedWork, MessageWork, OrderedWork, StreamWork, handed


def _listed(tensors):
    return tensors if isinstance(tensors, (list, tuple)) else [tensors]


def _reduction(opts):
    """(number, factor) of the operation: ivycomm's numbers are c10d's."""
    op = getattr(opts, "reduceOp", opts)
    if op is None:
        return 0, 1.0
    number, factor = int(getattr(op, "op", op)), 1.0
    if number == 8:  # PREMUL_SUM
        factor = getattr(op, "factor", None)
        if factor is None:
            raise ValueError("backend ivy: this torch does not tell the factor of PREMUL_SUM")
        factor = float(factor)
    return number, factor


def _root(opts):
    return opts.rootRank if opts is not None else 0


def _row_counts(tensor, splits, size, what):
    """Elements for each rank: c10d's splits are rows, and none of them means equal parts."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if not splits:
        if rows % size:
            raise ValueError(f"backend ivy: the {what}'s {rows} rows cannot be divided equally among {size} ranks")
        splits = [rows // size] * size
    if len(splits) != size or sum(splits) != rows:
        raise ValueError(f"backend ivy: the {what}'s splits {list(splits)} are not {size} numbers of sum {rows}")
    each = tensor.numel() // rows if rows else 0
    return [n * each for n in splits]


class Calls:
    """Mixed into c10d's ProcessGroup and Backend. `channel` (channel.py) has the group and its turns."""

    def _begin(self, opts, body, outputs, operands, take_back=()):
        """The Work of body(keep, timeout), which is the call of the library; then take_back() of each."""
        channel = self._channel
        channel.check()
        timeout = channel.seconds_of(opts)
        keep, on_device, copied = [], [], [each for each in take_back if each.is_copied]
        for each in operands:
            if type(each) is Dense:
                if each.has_stream:
                    on_device.append(each)
                each = each.keep
            keep.append(each)

        def carry_out():
            try:
                body(keep, timeout)
            except IvyError as error:
                channel.note(error)
                raise
            for each in copied:
                each.take_back()

        # Torch waits at once for what is not asynchronous.
        is_blocking = getattr(opts, "asyncOp", True) is False and self._coalesced is None
        if is_blocking:
            return self._done_in_turn(carry_out, StreamWork(outputs))
        if on_device:
            return self._noted(self._put_on_stream(carry_out, bool(copied), outputs, on_device))
        return self._noted(OrderedWork(channel.turns, channel.turns.add(carry_out), outputs))

    # In this thread, where the streams are known. Who does not wait at once may have other things done by the device
    # meanwhile, so the operation gets a stream of its own, which is torch's current one only where something is copied.
    def _put_on_stream(self, carry_out, does_copy, outputs, denses):
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

    def _done_in_turn(self, carry_out, work):
        try:
            self._channel.turns.perform(carry_out)
        except BaseException as error:  # noqa: B902: wait() tells it.
            work.error = error
        return work

    def _noted(self, work):
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    # One after the other as one piece of work; the library's own coalescing wants one type.
    def _begin_each(self, opts, pieces):
        channel = self._channel
        if len(pieces) == 1:
            return handed(self._begin(opts, *pieces[0]), channel)
        return handed(JoinedWork([self._begin(opts, *piece) for piece in pieces]), channel)

    def start_coalescing(self, _device=None):
        """From here to end_coalescing() the works are put together."""
        self._coalesced, self._messages = [], []

    def end_coalescing(self, _device=None):
        works, self._coalesced = self._coalesced or [], None
        messages, self._messages = getattr(self, "_messages", None) or [], None
        with together(bool(messages)):  # GPUs may send to each other.
            works += [begin() for begin in messages]
        return handed(JoinedWork(works), self._channel)

    def _call(self, function, *arguments, factor=0.0):
        """The body that makes this call of the library."""
        handle = self._channel.handle

        def body(keep, timeout):
            start(function, (handle, *arguments), keep, timeout=timeout, factor=factor)

        return body

    def allreduce(self, tensors, opts=None):
        return self._begin_each(opts, [self._reduced_in_place(tensor, opts) for tensor in _listed(tensors)])

    def _reduced_in_place(self, tensor, opts):
        dense, (op, factor) = Dense(tensor, True), _reduction(opts)
        body = self._call(load().ivy_all_reduce, IN_PLACE, dense.pointer, dense.count, dense.number, op, factor=factor)
        return body, [tensor], (dense,), (dense,)

    def allreduce_coalesced(self, tensors, opts=None):
        tensors = _listed(tensors)
        if len({(tensor.dtype, tensor.device.type) for tensor in tensors}) != 1:
            return self.allreduce(tensors, opts)
        denses, (op, factor) = [Dense(tensor, True) for tensor in tensors], _reduction(opts)
        pointers = c_void_p * len(denses)
        send, recv = pointers(*[IN_PLACE] * len(denses)), pointers(*(dense.pointer for dense in denses))
        counts, number = counts_of([dense.count for dense in denses]), denses[0].number
        body = self._call(load().ivy_all_reduce_coalesced, len(denses), send, recv, counts, number, op, factor=factor)
        return self._begin_each(opts, [(body, tensors, denses, denses)])

    def broadcast(self, tensors, opts=None):
        return self._begin_each(opts, [self._broadcast(tensor, _root(opts)) for tensor in _listed(tensors)])

    def _broadcast(self, tensor, root):
        dense = Dense(tensor)
        body = self._call(load().ivy_broadcast, dense.pointer, dense.count, dense.number, root)
        return body, [tensor], (dense,), () if root == self._channel.rank else (dense,)

    def reduce(self, tensors, opts=None):
        return self._begin_each(opts, [self._reduce(tensor, opts) for tensor in _listed(tensors)])

    def _reduce(self, tensor, opts):
        dense, (op, factor), root = Dense(tensor, True), _reduction(opts), _root(opts)
        is_root = root == self._channel.rank
        send, recv = (IN_PLACE, dense.pointer) if is_root else (dense.pointer, None)
        body = self._call(load().ivy_reduce, send, recv, dense.count, dense.number, op, root, factor=factor)
        return body, [tensor], (dense,), (dense,) if is_root else ()

    def _gathered(self, output, input_):
        """output: a Row, whose parts may be of different lengths."""
        dense = Dense(input_)
        if output.is_even:
            function, counts = load().ivy_all_gather, (dense.count,)
        else:
            function, counts = load().ivy_all_gather_v, (counts_of(output.counts), None)
        if output.counts[self._channel.rank] != dense.count:
            raise ValueError(f"backend ivy: rank {self._channel.rank}'s input has {dense.count} elements, and its "
                             f"place in the output {output.counts[self._channel.rank]}")
        body = self._call(function, dense.pointer, output.dense.pointer, *counts, dense.number)
        return body, (dense, output.dense, counts)

    def allgather(self, outputs, inputs, opts=None):
        pieces = []
        for output, input_ in zip(outputs, _listed(inputs)):
            row = Row(output, is_input=False)
            body, operands = self._gathered(row, input_)
            pieces.append((body, output, operands, (row,)))
        return self._begin_each(opts, pieces)

    allgather_coalesced = allgather

    def all_gather_single(self, output, input_, opts=None):
        return self._begin_each(opts, [self._gathered_single(output, input_)])

    def _gathered_single(self, output, input_):
        whole, dense = Dense(output), Dense(input_)
        if whole.count != dense.count * self._channel.size:
            raise ValueError(f"backend ivy: the output has {whole.count} elements, and {self._channel.size} inputs of "
                             f"{dense.count} have {dense.count * self._channel.size}")
        if whole.number != dense.number:
            raise ValueError(f"backend ivy: the output is {output.dtype}, the input {input_.dtype}")
        own = whole.pointer + dense.tensor.numel() * dense.tensor.element_size() * self._channel.rank
        send = IN_PLACE if dense.pointer == own else dense.pointer
        body = self._call(load().ivy_all_gather, send, whole.pointer, dense.count, dense.number)
        return body, [output], (dense, whole), (whole,)

    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        return self._begin_each(opts, [self._gathered_single(*pair) for pair in zip(outputs, inputs)])

    def gather(self, outputs, inputs, opts=None):
        root, pieces = _root(opts), []
        for i, input_ in enumerate(_listed(inputs)):
            row = Row(outputs[i], is_input=False) if root == self._channel.rank else None
            pieces.append(self._gather(row, outputs[i] if row else [], Dense(input_), root))
        return self._begin_each(opts, pieces)

    def gather_single(self, output, input_, opts=None):
        root, dense = _root(opts), Dense(input_)
        whole = Row([output], is_input=False) if root == self._channel.rank else None
        return self._begin_each(opts, [self._gather(whole, [output] if whole else [], dense, root)])

    gather_into_tensor = gather_single

    def _gather(self, row, outputs, dense, root):
        recv = row.dense.pointer if row else None
        if row and sum(row.counts) != dense.count * self._channel.size:
            raise ValueError(f"backend ivy: gather's outputs have {row.counts} elements, the input {dense.count}")
        body = self._call(load().ivy_gather, dense.pointer, recv, dense.count, dense.number, root)
        return body, outputs, (dense, row.dense) if row else (dense,), (row,) if row else ()

    def scatter(self, outputs, inputs, opts=None):
        root, pieces = _root(opts), []
        for i, output in enumerate(_listed(outputs)):
            row = Row(inputs[i], is_input=True) if root == self._channel.rank else None
            pieces.append(self._scatter(Dense(output), row, output, root))
        return self._begin_each(opts, pieces)

    def _scatter(self, dense, row, output, root):
        send = row.dense.pointer if row else None
        if row and (not row.is_even or row.counts[0] != dense.count or len(row.counts) != self._channel.size):
            raise ValueError(f"backend ivy: scatter's inputs have {row.counts} elements, this rank's output "
                             f"{dense.count}, in a group of {self._channel.size}")
        body = self._call(load().ivy_scatter, send, dense.pointer, dense.count, dense.number, root)
        return body, [output], (dense, row.dense) if row else (dense,), (dense,)

    def reduce_scatter(self, outputs, inputs, opts=None):
        pieces = []
        for output, parts in zip(_listed(outputs), inputs):
            row = Row(parts, is_input=True, does_reduce=True)
            pieces.append(self._reduce_scattered(output, row.dense, row.counts, opts))
        return self._begin_each(opts, pieces)

    def _reduce_scattered(self, output, whole, counts, opts):
        dense, (op, factor) = Dense(output, True), _reduction(opts)
        if len(counts) != self._channel.size or counts[self._channel.rank] != dense.count:
            raise ValueError(f"backend ivy: reduce_scatter's inputs have {counts} elements, the output of rank "
                             f"{self._channel.rank} {dense.count}, in a group of {self._channel.size}")
        if whole.number != dense.number:
            raise ValueError(f"backend ivy: the output is {output.dtype}, the input {whole.tensor.dtype}")
        is_even = len(set(counts)) == 1
        function = load().ivy_reduce_scatter if is_even else load().ivy_reduce_scatter_v
        counts = dense.count if is_even else counts_of(counts)
        # The output may be the part of the input that it is the sum of.
        kept = whole.tensor.clone() if _overlap(dense.tensor, whole.tensor) else whole.tensor
        body = self._call(function, kept.data_ptr(), dense.pointer, counts, dense.number, op, factor=factor)
        return body, [output], (whole, dense, kept, counts), (dense,)

    def reduce_scatter_single(self, output, input_, opts=None):
        return self.reduce_scatter_single_coalesced([output], [input_], opts)

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=None):
        pieces = []
        for output, input_ in zip(outputs, inputs):
            whole, size = Dense(input_, True), self._channel.size
            if whole.count % size:
                raise ValueError(f"backend ivy: {whole.count} elements cannot be divided equally among {size} ranks")
            pieces.append(self._reduce_scattered(output, whole, [whole.count // size] * size, opts))
        return self._begin_each(opts, pieces)

    def all_to_all_single(self, output, input_, output_splits, input_splits, opts=None):
        size = self._channel.size
        send, recv = Dense(input_), Dense(output)
        send_counts = _row_counts(input_, input_splits, size, "input")
        recv_counts = _row_counts(output, output_splits, size, "output")
        return self._begin_each(opts, [self._exchanged(send, recv, send_counts, recv_counts, [output], (recv,))])

    def alltoall(self, outputs, inputs, opts=None):
        send, recv = Row(inputs, is_input=True), Row(outputs, is_input=False)
        return self._begin_each(opts, [self._exchanged(send.dense, recv.dense, send.counts, recv.counts, outputs,
                                                       (recv,))])

    def _exchanged(self, send, recv, send_counts, recv_counts, outputs, take_back):
        scale = send.tensor.element_size() if send.count != send.tensor.numel() else 1
        if isinstance(take_back[0], Dense) and scale != 1:
            send_counts, recv_counts = [n * scale for n in send_counts], [n * scale for n in recv_counts]
        kept = send.tensor.clone() if _overlap(send.tensor, recv.tensor) else send.tensor
        if len({*send_counts, *recv_counts}) == 1:
            function, arguments = load().ivy_all_to_all, (kept.data_ptr(), recv.pointer, send_counts[0])
        else:
            function = load().ivy_all_to_all_v
            arguments = (kept.data_ptr(), counts_of(send_counts), None, recv.pointer, counts_of(recv_counts), None)
        return self._call(function, *arguments, send.number), outputs, (send, recv, kept, arguments), take_back

    def barrier(self, opts=None):
        return self._begin_each(opts, [(self._call(load().ivy_barrier), [], (), ())])

    def send(self, tensors, dst, tag=0):
        return self._message(tensors, load().ivy_send, (dst, tag))

    def recv(self, tensors, src, tag=0):
        return self._message(tensors, load().ivy_recv, (src, tag, None), is_receive=True)

    def recv_anysource(self, tensors, tag=0):
        return self.recv(tensors, ANY, tag)

    def _message(self, tensors, function, place, is_receive=False):
        channel, works = self._channel, []
        channel.check()
        for tensor in _listed(tensors):
            dense = Dense(tensor)

            def finish(inner, dense=dense):
                if is_receive:
                    inner._read_message()
                    dense.take_back()

            def begin(dense=dense, finish=finish, tensor=tensor):
                try:
                    inner = start(function, (channel.handle, dense.pointer, dense.count, dense.number, *place),
                                  (dense.keep, dense.tensor), finish, True, channel.seconds_of(None),
                                  has_message=is_receive)
                except Exception as error:
                    raise torch_error(error) from error.__cause__
                return MessageWork(inner, [tensor], channel.followers)

            if dense.has_stream and self._coalesced is not None:
                self._messages.append(begin)
            else:
                works.append(begin())
        return self._noted(works[0] if len(works) == 1 else JoinedWork(works))

    def allreduce_sparse(self, _tensors, _opts=None):
        raise ValueError("backend ivy sends dense tensors: x.to_dense()")

    # Other versions' names of the same.
    _allgather_base = allgather_base = all_gather_single
    all_gather_into_tensor_coalesced = allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single
    recvAnysource = recv_anysource


def _overlap(one, other):
    begin, end = one.data_ptr(), one.data_ptr() + one.numel() * one.element_size()
    return begin < other.data_ptr() + other.numel() * other.element_size() and other.data_ptr() < end
