# SPDX-License-Identifier: Apache-2.0
"""Messages between two ranks. See collectives.py for `group`, `out` and `timeout`.

Ranks are ranks of the group. Tags are 0 to 2^30. Messages of one pair with one tag arrive in order. The receiver gets
an error if a message is longer than its array. A receive raises immediately if no message can arrive any longer: src
has left, or, without a src, all other ranks have. On a rank that is not a member the call does nothing.

GPU memory is transferred by NCCL, on the current stream, in one order with the group's other operations on GPUs. It
requires a src, tag 0 (None for a receive), and a previous operation of the group on a GPU, or prepare_device(). Ranks
that send to each other must use sendrecv or batch_isend_irecv; otherwise each would wait for the other's receive.
"""

import contextlib
from collections import namedtuple

from . import arrays, calls, docstrings, gradients
from .arrays import Memory
from .errors import check
from .library import ANY, load, whole_number
from .work import start
from .groups import checked_rank, resolve
from .operands import Operands, in_place, nothing, written


TAG_MAX = 2**30


def _peer(group, rank):
    return ANY if rank is None else checked_rank(group, rank)


def _tag(tag):
    number = whole_number(tag, "tag")
    if not 0 <= number <= TAG_MAX:
        raise ValueError(f"tag {number} is not possible: 0 to {TAG_MAX}")
    return number


def send(x, dst, tag=0, *, group=None, timeout=None):
    """Sends x to rank dst; returns when x may be changed."""
    done = calls.send(x, dst, tag, group, False, timeout)
    if done is not NotImplemented:
        return done
    return _send(x, dst, tag, group, False, timeout)


def isend(x, dst, tag=0, *, group=None, timeout=None):
    """As send, but returns a Work immediately; x must not change until it is done."""
    return _send(x, dst, tag, group, True, timeout)


def _send(x, dst, tag, group, async_op, timeout):
    group = resolve(group)
    if not group.is_member:
        return nothing(async_op)
    kind, array = arrays.adopt(x)
    memory = kind.input(array)
    return start(load().ivy_send, (group.handle, memory.pointer, memory.count, memory.dtype, checked_rank(group, dst),
                                   _tag(tag)),
                 (array, memory), None, async_op, timeout)


def recv(like, src=None, tag=None, *, group=None, out=None, timeout=None, with_message=False):
    """Receives a new array with the shape and type of `like` from rank src (None: any) with this tag (None: any).

    with_message: returns (array, Message(source, tag, bytes)).
    """
    done = calls.recv(like, src, tag, group, out, timeout, with_message)
    if done is not NotImplemented:
        return done
    group = resolve(group)
    if not group.is_member:
        return None
    with_ = Operands(like, out, lambda shape: shape, is_form=True)
    return _recv(group, with_.output, src, tag, with_.keep, with_.finish(), False, timeout, with_message)


def recv_(x, src=None, tag=None, *, group=None, timeout=None, with_message=False):
    """recv into x; returns x."""
    done = calls.recv_(x, src, tag, group, False, timeout, with_message)
    if done is not NotImplemented:
        return done
    return _recv_into(x, src, tag, group, False, timeout, with_message)


def irecv(x, src=None, tag=None, *, group=None, timeout=None):
    """As recv into x, but returns a Work immediately; its message() has the source."""
    return _recv_into(x, src, tag, group, True, timeout, True)


def _recv_into(x, src, tag, group, async_op, timeout, with_message):
    group = resolve(group)
    if not group.is_member:
        return nothing(async_op)
    kind, array, memory = in_place(x)
    return _recv(group, memory, src, tag, (x, memory), written(kind, array, x), async_op, timeout, with_message)


def _recv(group, memory, src, tag, keep, finish, async_op, timeout, with_message):
    def finish_with_message(work):
        message = work._read_message()
        result = finish(work)
        return result if async_op else (result, message)

    return start(load().ivy_recv, (group.handle, memory.pointer, memory.count, memory.dtype,
                                   _peer(group, src), ANY if tag is None else _tag(tag), None),
                 keep, finish_with_message if with_message else finish, async_op, timeout,
                 has_message=with_message)


P2POp = namedtuple("P2POp", "op x peer tag group", defaults=(0, None))
P2POp.__doc__ = """One message of batch_isend_irecv: op is `isend` or `irecv`, peer the other rank of the group.

peer None: irecv from anyone; tag None: irecv of any tag.
"""


def batch_isend_irecv(operations, *, timeout=None):
    """Starts several sends and receives together; returns their Works, in order.

    operations: P2POp objects, of any groups. All are checked before the first is started: TypeError or ValueError names
    the invalid one, and nothing is sent. The order of the operations may differ between ranks. wait_all() waits for
    all.
    """
    operations = [P2POp(*operation) for operation in operations]
    planned = []
    for index, (op, x, peer, tag, group) in enumerate(operations):
        if op is not isend and op is not irecv:
            raise TypeError(f"operation {index} of batch_isend_irecv is {op!r}, not ivycomm.isend or ivycomm.irecv")
        try:
            _check_message(op, x, peer, tag, resolve(group))
        except (TypeError, ValueError) as error:
            raise type(error)(f"operation {index} of batch_isend_irecv: {error}") from None
        planned.append((op, x, peer, tag, group))
    works = []
    try:
        with together(planned):
            # Receives first: a message for a posted receive needs no buffer.
            for index in sorted(range(len(planned)), key=lambda index: planned[index][0] is isend):
                op, x, peer, tag, group = planned[index]
                works.append((index, op(x, peer, tag, group=group, timeout=timeout)))
    except BaseException:
        for _, work in works:
            work.give_up()
        raise
    return [work for _, work in sorted(works, key=lambda each: each[0])]


@contextlib.contextmanager
def together(any_on_device):
    """Passes messages of device memory inside it to NCCL as one group, so that ranks may send to each other."""
    if not any_on_device or not Memory.any_on_device:
        yield
        return
    check(load().ivy_group_begin())
    try:
        yield
    finally:
        code = load().ivy_group_end()
    check(code)


def _check_message(op, x, peer, tag, group):
    if not group.is_member:
        return
    if op is irecv:
        in_place(x)
        _peer(group, peer)
    else:
        kind, array = arrays.adopt(x)
        kind.input(array)
        checked_rank(group, peer)
    if tag is not None or op is not irecv:
        _tag(tag)


def sendrecv(x, dst, like=None, src=None, *, send_tag=0, recv_tag=None, group=None, out=None, timeout=None):
    """Sends x to dst and receives from src at the same time; the received array has the shape and type of `like`
    (None: x)."""
    group = resolve(group)
    if not group.is_member:
        return None
    if gradients.is_recorded(x):
        return gradients.derivatives().sendrecv(x, dst, like, src, send_tag=send_tag, recv_tag=recv_tag, group=group,
                                                out=out, timeout=timeout)
    kind, array = arrays.adopt(x)
    memory = kind.input(array)
    dst, send_tag = checked_rank(group, dst), _tag(send_tag)  # Before the receive is under way.
    with_ = Operands(x if like is None else like, out, lambda shape: shape, is_form=True)
    if with_.output.overlaps(memory):
        raise ValueError("out must not share memory with x")
    under_way = []
    try:
        with together(memory.stream is not None):
            under_way.append(_recv(group, with_.output, src, recv_tag, with_.keep, with_.finish(), True, timeout, False))
            sending = start(load().ivy_send, (group.handle, memory.pointer, memory.count, memory.dtype, dst,
                                              send_tag), (array, memory), None, memory.is_borrowed, timeout)
            under_way.extend([sending] if sending is not None else [])
        return [work.wait() for work in under_way][0]
    except BaseException:
        for work in under_way:
            work.give_up()
        raise


docstrings.complete((batch_isend_irecv, irecv, isend, recv, recv_, send, sendrecv))
