# SPDX-License-Identifier: Apache-2.0
"""Messages between two ranks. collectives.py describes `group`, `out` and `timeout`.

Ranks are ranks of the group; tags are 0 to 2^30. Messages of one pair with one tag arrive in order. The receiver gets an
error if a message is longer than its array. A receive raises immediately if no message can still arrive: src has left,
or, without a src, all other ranks have.

GPU memory is transferred by NCCL, on the current stream, in one order with the group's other operations on GPUs. It
requires a src, tag 0 (None for a receive), and a previous operation of the group on a GPU, or prepare_device(). Ranks
that send to each other must use sendrecv or batch_isend_irecv; otherwise each would wait for the other's receive.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple, SupportsIndex, TypeVar, overload

from . import arrays, calls, docstrings, gradients
from .arrays import Memory
from .errors import IvyError
from .library import ANY, whole_number
from .groups import Group, checked_rank, resolve
from .operands import Operands, in_place, nothing, operands_of
from .work import Message, Work, read_message, start

ArrayT = TypeVar("ArrayT")  # An array, in the types of its framework.
TAG_MAX = 2**30

# send(), recv() and recv_() first call the extension, which handles common arrays; NotImplemented: use the general path.


def _peer(group: Group, rank: SupportsIndex | None) -> int:
    return ANY if rank is None else checked_rank(group, rank)


def _tag(tag: Any) -> int:
    number = whole_number(tag, "tag")
    if not 0 <= number <= TAG_MAX:
        raise ValueError(f"tag {number} is not from 0 to {TAG_MAX}")
    return number


@docstrings.message
def send(x: Any, dst: int, tag: int = 0, *, group: Group | None = None, timeout: float | None = None) -> None:
    """Sends x to rank dst. Blocks until x may be changed; that may be before the other rank has called recv."""
    result = calls.extension.send(x, dst, tag, group, False, timeout)
    if result is NotImplemented:
        _send(x, dst, tag, group, async_op=False, timeout=timeout)


@docstrings.message
def isend(x: Any, dst: int, tag: int = 0, *, group: Group | None = None, timeout: float | None = None) -> Work[None]:
    """As send, but does not block: returns a Work. x must not change until the Work is done."""
    work: Work[None] = _send(x, dst, tag, group, async_op=True, timeout=timeout)
    return work


def _send(x: Any, dst: int, tag: int, group: Group | None, *, async_op: bool, timeout: float | None) -> Any:
    group = resolve(group)
    if not group.is_member:
        return nothing(async_op)
    kind, array = arrays.adopt(x)
    return _start_send(group, array, kind.input(array), checked_rank(group, dst), _tag(tag), async_op=async_op,
                       timeout=timeout)


def _start_send(group: Group, array: Any, memory: Memory, dst: int, tag: int, *, async_op: bool,
                timeout: float | None) -> Any:
    return start("ivy_send", (group.handle, memory.pointer, memory.count, memory.dtype, dst, tag), keep=(array, memory),
                 async_op=async_op, timeout=timeout)


@overload
def recv(like: ArrayT, src: int | None = None, tag: int | None = None, *, group: Group | None = None,
         out: ArrayT | None = None, timeout: float | None = None, with_message: Literal[False] = False) -> ArrayT: ...
@overload
def recv(like: ArrayT, src: int | None = None, tag: int | None = None, *, group: Group | None = None,
         out: ArrayT | None = None, timeout: float | None = None,
         with_message: Literal[True]) -> tuple[ArrayT, Message]: ...
@docstrings.message
def recv(like: ArrayT, src: int | None = None, tag: int | None = None, *, group: Group | None = None,
         out: ArrayT | None = None, timeout: float | None = None, with_message: bool = False) -> Any:
    """Receives a new array with the shape and type of `like` from rank src (None: any) with this tag (None: any). Blocks
    until it has arrived. The values of `like` are not used.

    with_message: returns (array, Message(source, tag, bytes)).
    """
    result = calls.extension.recv(like, src, tag, group, out, timeout, with_message)
    if result is not NotImplemented:
        return result
    group = resolve(group)
    if not group.is_member:
        return None
    operands = operands_of(like, out, is_sent=False)
    return _recv(group, operands, src, tag, async_op=False, timeout=timeout, with_message=with_message)


@overload
def recv_(x: ArrayT, src: int | None = None, tag: int | None = None, *, group: Group | None = None,
          timeout: float | None = None, with_message: Literal[False] = False) -> ArrayT: ...
@overload
def recv_(x: ArrayT, src: int | None = None, tag: int | None = None, *, group: Group | None = None,
          timeout: float | None = None, with_message: Literal[True]) -> tuple[ArrayT, Message]: ...
@docstrings.message
def recv_(x: ArrayT, src: int | None = None, tag: int | None = None, *, group: Group | None = None,
          timeout: float | None = None, with_message: bool = False) -> Any:
    """recv into x; returns x, or (x, Message) with `with_message`."""
    result = calls.extension.recv_(x, src, tag, group, False, timeout, with_message)
    if result is not NotImplemented:
        return result
    return _recv_into(x, src, tag, group, async_op=False, timeout=timeout, with_message=with_message)


@docstrings.message
def irecv(x: ArrayT, src: int | None = None, tag: int | None = None, *, group: Group | None = None,
          timeout: float | None = None) -> Work[ArrayT]:
    """As recv into x, but does not block: returns a Work, whose message() has the source. x must not be used until the
    Work is done."""
    work: Work[ArrayT] = _recv_into(x, src, tag, group, async_op=True, timeout=timeout, with_message=True)
    return work


def _recv_into(x: Any, src: int | None, tag: int | None, group: Group | None, *, async_op: bool,
               timeout: float | None, with_message: bool) -> Any:
    group = resolve(group)
    if not group.is_member:
        return nothing(async_op)
    return _recv(group, in_place(x), src, tag, async_op=async_op, timeout=timeout, with_message=with_message)


def _recv(group: Group, operands: Operands, src: int | None, tag: int | None, *, async_op: bool,
          timeout: float | None, with_message: bool) -> Any:
    finish = operands.finish()

    def finish_with_message(work: Work[Any]) -> Any:
        message = read_message(work)
        result = finish(work)
        return result if async_op else (result, message)

    return start("ivy_recv", (group.handle, operands.recv, operands.output.count, operands.output.dtype,
                              _peer(group, src), ANY if tag is None else _tag(tag)),
                 keep=operands.keep, finish=finish_with_message if with_message else finish, async_op=async_op,
                 timeout=timeout, has_message=with_message)


class P2POp(NamedTuple):
    """One message of batch_isend_irecv: op is `isend` or `irecv`, peer the other rank of the group.

    peer None: irecv from anyone; tag None: irecv of any tag.
    """

    op: Callable[..., Work[Any]]
    x: Any
    peer: int | None
    tag: int | None = 0
    group: Group | None = None


@docstrings.message
def batch_isend_irecv(operations: Iterable[P2POp], *, timeout: float | None = None) -> list[Work[Any]]:
    """Starts several sends and receives together; returns their Works, in order.

    operations: P2POp objects, of any groups. All are checked before the first is started: TypeError or ValueError names
    the invalid one, and nothing is sent. The order of the operations may differ between ranks. wait_all() waits for
    all.
    """
    messages = [P2POp(*operation) for operation in operations]
    for index, (op, x, peer, tag, group) in enumerate(messages):
        if op is not isend and op is not irecv:
            raise TypeError(f"operation {index} of batch_isend_irecv is {op!r}, not ivycomm.isend or ivycomm.irecv")
        try:
            _check_message(op, x, peer, tag, resolve(group))
        except (TypeError, ValueError) as error:
            raise type(error)(f"operation {index} of batch_isend_irecv: {error}") from None
    works: dict[int, Work[Any]] = {}
    try:
        with together(may_use_device=bool(messages) and Memory.any_on_device):
            # Receives first: a message for a posted receive needs no buffer.
            for index in sorted(range(len(messages)), key=lambda index: messages[index].op is isend):
                op, x, peer, tag, group = messages[index]
                works[index] = op(x, peer, tag, group=group, timeout=timeout)
    except BaseException:
        for work in works.values():
            work.give_up()
        raise
    return [works[index] for index in range(len(messages))]


@contextlib.contextmanager
def together(*, may_use_device: bool) -> Iterator[None]:
    """Passes messages of device memory inside it to NCCL as one group, so that ranks may send to each other. Starts them
    only at its end. Does nothing unless may_use_device."""
    if not may_use_device:
        yield
        return
    calls.extension.ivy_group_begin()
    try:
        yield
    except BaseException:
        with contextlib.suppress(IvyError):
            calls.extension.ivy_group_end()
        raise
    calls.extension.ivy_group_end()


def _check_message(op: Callable[..., Any], x: Any, peer: Any, tag: int | None, group: Group) -> None:
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


@docstrings.message
def sendrecv(x: ArrayT, dst: int, like: ArrayT | None = None, src: int | None = None, *, send_tag: int = 0,
             recv_tag: int | None = None, group: Group | None = None, out: ArrayT | None = None,
             timeout: float | None = None) -> ArrayT:
    """Sends x to dst and receives from src at the same time; returns the received array, which has the shape and type of
    `like` (None: of x). Blocks until both are done."""
    group = resolve(group)
    if not group.is_member:
        return nothing(False)
    if gradients.is_recorded(x):
        return gradients.derivatives().sendrecv(x, dst, like, src, send_tag=send_tag, recv_tag=recv_tag, group=group,
                                                out=out, timeout=timeout)
    kind, array = arrays.adopt(x)
    memory = kind.input(array)
    dst, send_tag = checked_rank(group, dst), _tag(send_tag)  # Errors come before the receive has started.
    operands = operands_of(x if like is None else like, out, is_sent=False)
    if operands.output.overlaps(memory):
        raise ValueError("out must not share memory with x")
    under_way: list[Work[Any]] = []
    try:
        with together(may_use_device=memory.stream is not None):
            receiving = _recv(group, operands, src, recv_tag, async_op=True, timeout=timeout, with_message=False)
            under_way.append(receiving)
            # A blocking send of borrowed memory waits for the device, which starts only at the end of together().
            sending = _start_send(group, array, memory, dst, send_tag, async_op=memory.is_borrowed, timeout=timeout)
            if memory.is_borrowed:
                under_way.append(sending)
        received: ArrayT = receiving.wait()
        if memory.is_borrowed:
            sending.wait()
        return received
    except BaseException:
        for work in under_way:
            work.give_up()
        raise
