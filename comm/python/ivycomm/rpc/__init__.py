# SPDX-License-Identifier: Apache-2.0
"""Calls of functions on other ranks, by name.

    import ivycomm as ic
    from ivycomm import rpc

    @rpc.register
    def add(a, b):
        return a + b

    ic.init()
    rpc.init_rpc()
    if ic.rank() == 0:
        print(rpc.rpc_sync(1, "add", 2, 3))
        future = rpc.rpc_async(1, add, numpy_array, 1)  # A registered function stands for its name.
        print(future.result(timeout=10))
    rpc.shutdown()

Only registered functions can be called. Arguments and results are pickled (protocol 5); the memory of NumPy arrays and
of torch tensors on the CPU is sent separately, without a copy. Unpickling runs code that the sender chooses: all
senders are ranks of this job, which know its secret. Messages use a separate group, through shared memory inside a host
and authenticated TCP between hosts; no additional port is opened.

Threads: any thread may call. Functions run on threads of this module, several at the same time, and may call other
ranks.

Errors: the call raises the function's exception, with the other rank's traceback as its cause (RemoteError if it cannot
be pickled). UnknownFunction; RpcTimeout, after which the function continues on the other rank; RankDied and HostLost as
soon as the callee's process exits; NotInitialized before init_rpc and after shutdown.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from .. import collectives, errors, groups, lifetime, objects
from ..errors import IvyError, NotInitialized, Timeout
from ..modules import nearest, no_such_name
from . import frames
from .large_requests import LargeRequests, is_large
from .memory import Messages, Room, room_of
from .servers import Servers
from .taker import Taker

if TYPE_CHECKING:
    from typing_extensions import Buffer

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

# Tags: requests share one; the reply to a call, and parts that follow its request, have a tag for that call. Messages
# about abandoned calls have a separate tag, because they must be able to overtake requests.
_REQUESTS = 0
_LAST_TAG = 2**30 - 2
_CANCELS = _LAST_TAG + 1
_DEFAULT_TIMEOUT = 60.0
BACKENDS = ("tensorpipe", "gloo", "nccl", "mpi")

_functions: dict[str, Callable[..., Any]] = {}  # By name.
_names: dict[Callable[..., Any], str] = {}  # By function.
_service: _Service | None = None


class RemoteError(IvyError):
    """A function on another rank raised an exception that cannot be pickled. Also the cause of every exception that a
    remote call raises: its text is the other rank's traceback."""


class UnknownFunction(IvyError, LookupError):
    """The called rank has no registered function of this name."""


class RpcTimeout(Timeout):
    """A call's timeout expired. The function continues on the other rank; its result is dropped."""


@overload
def register(function: FunctionT, *, name: str | None = None) -> FunctionT: ...
@overload
def register(function: None = None, *, name: str | None = None) -> Callable[[FunctionT], FunctionT]: ...
def register(function: Callable[..., Any] | None = None, *, name: str | None = None) -> Callable[..., Any]:
    """Makes a function callable from other ranks, by its name or by `name`. Also a decorator. Returns the function.

    Works before and after init_rpc(). Raises ValueError if another function has the name, and TypeError if `function` is
    not a function with a name.
    """
    if function is None:
        return lambda made: register(made, name=name)
    if isinstance(function, str):
        raise TypeError(f'register("{function}") is not a function: use register(function, name="{function}")')
    name = name or getattr(function, "__name__", None)
    if not callable(function) or not name:
        raise TypeError(f"{function!r} is not a function with a name")
    # Running a notebook cell again creates the same function again.
    former = _functions.get(name, function)
    if getattr(former, "__qualname__", former) != getattr(function, "__qualname__", function):
        raise ValueError(f'"{name}" is already registered for {former!r}')
    _functions[name], _names[function] = function, name
    return function


def register_function(name: str, func: FunctionT) -> FunctionT:
    """Makes `func` callable from other ranks by `name`; register() with another order of arguments."""
    return register(func, name=name)


def options_of(backend: str = "tensorpipe", init_method: str | None = None, world_size: int | None = -1,
               rank: int | None = -1) -> dict[str, Any]:
    """Returns the arguments for ivycomm.init. Raises ValueError if the backend is unknown."""
    if str(backend).lower() not in BACKENDS:
        raise ValueError(f'backend "{backend}" is unknown; known: {", ".join(BACKENDS)}')
    return {"init_method": init_method, "rank": None if rank in (None, -1) else rank,
            "world_size": None if world_size in (None, -1) else world_size}


def init_rpc(name: str | None = None, *, group: groups.Group | None = None, timeout: float | None = _DEFAULT_TIMEOUT,
             **joining: Any) -> None:
    """Starts the service. Collective: every rank of the group calls it; blocks until all have. A second call does nothing.

    name: a name for this rank, by which it can be called as well as by its number. group: its ranks can call each other;
    None: all ranks of the job; ivycomm.init() is called if necessary. timeout: default timeout of calls in seconds; None:
    no limit. joining: backend, init_method, world_size and rank, as for RpcContext; if `name` is the name of a backend, it
    is used as `backend`. Raises ValueError if two ranks have the same name, and the errors of new_group().
    """
    global _service
    if name in BACKENDS:
        joining, name = {"backend": name, **joining}, None
    options = options_of(**joining)
    if _service is not None and _service.is_open():
        return
    if group is None:
        lifetime.init(**options)
    _service = _Service(groups.resolve(group), name, timeout)


def shutdown(graceful: bool = True, timeout: float | None = None) -> None:
    """Stops the service. Does nothing if it is not running.

    graceful: collective; blocks until every rank of the group calls shutdown and all calls are answered. timeout: seconds,
    for each call of this rank that is still in progress; None: no limit. Raises RpcTimeout, which names the function.
    """
    global _service
    service = _service
    if service is not None and service.is_open():
        service.close(graceful, timeout)
    _service = None


def is_initialized() -> bool:
    """Returns whether the service is running: after init_rpc() and before shutdown()."""
    return _service is not None and _service.is_open()


def rpc_sync(dst_rank: int | str, function_name: str | Callable[..., Any], *args: Any, timeout: Any = ...,
             **kwargs: Any) -> Any:
    """Calls a function with args and kwargs on another rank, or on this one. Blocks until it returns, and returns its
    result.

    dst_rank: a rank of the group, or its name. function_name: a registered name, or a function that is registered here.
    Arguments and result must be picklable. timeout: seconds; None: no limit; by default that of init_rpc(). May be called
    from any thread, also from a function that another rank called.

    Raises the function's exception; UnknownFunction if it is not registered there; RpcTimeout; RankDied or HostLost if
    the other rank is lost; NotInitialized before init_rpc() and after shutdown(); ValueError and TypeError for an invalid
    rank.
    """
    return _running().call(dst_rank, _name_of(function_name), (args, kwargs), timeout, is_awaited=True).result()


def rpc_async(dst_rank: int | str, function_name: str | Callable[..., Any], *args: Any, timeout: Any = ...,
              **kwargs: Any) -> RpcFuture:
    """As rpc_sync, but does not block: returns an RpcFuture, whose result() raises the errors. The timeout (seconds) is
    the default of result(). The arguments' memory must not change until the call is done."""
    return _running().call(dst_rank, _name_of(function_name), (args, kwargs), timeout)


def _running() -> _Service:
    if _service is None:
        raise NotInitialized("call init_rpc() before any remote call")
    return _service


def _name_of(function: str | Callable[..., Any]) -> str:
    if isinstance(function, str):
        return function
    try:
        return _names[function]
    except (KeyError, TypeError):
        raise UnknownFunction(f"{function!r} is not registered: decorate it with @ivycomm.rpc.register on every rank that "
                              "is called") from None


class RpcFuture:
    """A call in progress, as rpc_async() returns it. Methods may be called from any thread."""

    def __init__(self, service: _Service, to: int, name: str, number: int, timeout: float | None) -> None:
        self._service, self._to, self._name, self._call, self._timeout = service, to, name, number, timeout
        self._lock = threading.Lock()  # Held by the thread that receives the reply.
        self._is_done = self._is_cancelled = False
        self._value: Any = None
        self._error: Exception | None = None

    def result(self, timeout: Any = ...) -> Any:
        """Blocks until the function has returned, and returns its result, or raises its exception. timeout: seconds; None:
        no limit; default: the call's own. Raises RpcTimeout, and Aborted if the call was cancelled."""
        self._await(self._timeout if timeout is ... else timeout)
        if self._error is not None:
            raise self._error
        return self._value

    wait = result

    def exception(self, timeout: Any = ...) -> BaseException | None:
        """Blocks until the function has returned, and returns its exception, or None. timeout (seconds) and errors as for
        result()."""
        self._await(self._timeout if timeout is ... else timeout)
        return self._error

    def done(self) -> bool:
        """Returns whether there is a result or an error. Blocks only for the rest of a reply that has started to
        arrive."""
        if not self._is_done and self._lock.acquire(blocking=False):  # Otherwise another thread is receiving it.
            try:
                self._take(0)
            finally:
                self._lock.release()
        return self._is_done

    def cancel(self) -> bool:
        """Abandons the call: its result is dropped, and the function is not started if it has not been yet. Returns False if
        the call is done already."""
        if self._is_cancelled:
            return True
        if self.done():
            return False
        self._is_cancelled = True
        if self._withdraw():
            return True
        self._service.cancel(self._to, self._call)
        if self._is_done:  # The reply has arrived in the meantime.
            self._service.end_cancel(self._to, self._call)
        else:
            self._service.leave_to_others(self)
        return True

    # Returns True if the request has not left this rank, so that there will be no reply.
    def _withdraw(self) -> bool:
        if not self._lock.acquire(blocking=False):  # Another thread is receiving the reply.
            return False
        try:
            if not self._service.withdraw(self._to, self._call):
                return False
            self._end(frames.CANCELLED)
        finally:
            self._lock.release()
        return True

    def cancelled(self) -> bool:
        """Returns whether cancel() has abandoned the call."""
        return self._is_cancelled

    def add_done_callback(self, function: Callable[[RpcFuture], object]) -> None:
        """Calls function(future) when the call is done, on a separate thread; immediately, in this thread, if it is done
        already."""
        if self._is_done:
            function(self)
            return

        def wait() -> None:
            self.settle()
            function(self)

        threading.Thread(target=wait, name="ivy-rpc-callback", daemon=True).start()

    def _await(self, timeout: float | None) -> None:
        if self._is_cancelled:
            raise errors.Aborted(f'the call of "{self._name}" was cancelled')
        self.settle(timeout)

    def settle(self, timeout: float | None = None) -> None:
        """Blocks until the call is done, whether or not it was abandoned or fails. timeout: seconds; None: no limit. Raises
        RpcTimeout."""
        if self._is_done:
            return
        if not self._lock.acquire(timeout=-1 if timeout is None else timeout):
            raise self._too_late(timeout)
        try:
            if self._is_done or self._take(timeout):
                return
        except BaseException:
            self._service.leave_to_others(self)
            raise
        finally:
            self._lock.release()
        self._service.leave_to_others(self)
        raise self._too_late(timeout)

    # Receives the reply; the caller holds the lock. Returns False if none has started to arrive after `timeout` seconds.
    def _take(self, timeout: float | None) -> bool:
        if self._is_done:
            return True
        try:
            reply = self._service.reply(self._to, _reply_tag(self._call), timeout)
            if reply is None:
                return False
            kind, parts = reply
            value: Any = None if kind == frames.CANCELLED else frames.load(parts)
            if kind == frames.RAISED:
                value = _raised(value, self._name, self._to)
        except Exception as error:  # noqa: BLE001 - result() raises it.
            kind, value = frames.RAISED, error
        self._end(kind, value)
        return True

    def _end(self, kind: int, value: Any = None) -> None:
        if kind == frames.REPLY:
            self._value = value
        elif kind == frames.RAISED:
            self._error = value
        else:
            self._error = errors.Aborted(f'the call of "{self._name}" was cancelled before it started')
        self._is_done = True
        if self._is_cancelled:
            self._service.end_cancel(self._to, self._call, kind == frames.CANCELLED)
        self._service.forget(self)

    def _too_late(self, timeout: float | None) -> RpcTimeout:
        return RpcTimeout(f'rank {self._to} did not answer the call of "{self._name}" within {timeout:g} s; '
                          "it may still run there", rank=self._service.group.world_rank(self._to))


def _reply_tag(call: int) -> int:
    return 2 + 2 * (call % (_LAST_TAG // 2))


def _request_tag(call: int) -> int:
    return _reply_tag(call) - 1


def _raised(value: tuple[Exception | None, str, str], name: str, to: int) -> Exception:
    error, kind, text = value
    if error is None:
        return RemoteError(f'"{name}" on rank {to} raised {kind}:\n{text}')
    error.__cause__ = RemoteError(f'\n"{name}" on rank {to}:\n{text}')
    return error


class _Service:
    """One rank's service: the threads that execute requests, and this rank's calls in progress."""

    def __init__(self, group: groups.Group, name: str | None, timeout: float | None) -> None:
        self.group = groups.new_group([group.world_rank(rank) for rank in range(group.size)])
        self._messages = Messages(self.group)
        self._timeout = timeout
        self._ranks_by_name = self._learn_names(name)
        self._rank = cast(int, self.group.rank)
        self._numbers = itertools.count(self._rank)  # Of calls.
        self._closing = False
        self._rooms: list[Room] = []  # Unused receive buffers for the frames of replies.
        # (caller, call) of abandoned calls: until the function would start, or the caller has the reply.
        self._cancelled: set[tuple[int, int]] = set()
        self._cancelling, self._cancels = threading.Lock(), Room(room_of(frames.FRAME_BYTES))
        self._under_way: set[RpcFuture] = set()  # Without a result yet.
        self._sending = [threading.Lock() for _ in range(self.group.size)]  # By rank; see _send().
        self._taker = Taker(self._under_way)
        self._large = LargeRequests(self._announce, self._send_parts)
        self._servers = Servers(self._next_request, self._serve)

    def _learn_names(self, name: str | None) -> dict[str, int]:
        names = objects.all_gather_object(name, group=self.group)
        given = [each for each in names if each is not None]
        if len(set(given)) != len(given):
            raise ValueError(f"two ranks have the same name: {names}")
        return {each: rank for rank, each in enumerate(names) if each is not None}

    def is_open(self) -> bool:
        return not self._closing and groups.is_open(self.group)

    def rank_of(self, to: Any) -> int:
        if isinstance(to, str):
            if to not in self._ranks_by_name:
                raise ValueError(f'no rank is named "{to}"; {nearest(to, self._ranks_by_name)}')
            return self._ranks_by_name[to]
        if isinstance(to, bool) or not hasattr(type(to), "__index__"):
            raise TypeError(f"{to!r} is not a rank: pass a number from 0 to {self.group.size - 1}, or a name from init_rpc()")
        if not 0 <= to < self.group.size:
            raise ValueError(f"rank {to} is not from 0 to {self.group.size - 1}")
        return int(to)

    def call(self, to: Any, name: str, arguments: tuple[Any, ...], timeout: Any, is_awaited: bool = False) -> RpcFuture:
        if not self.is_open():
            raise NotInitialized("the service has been shut down")
        to, timeout = self.rank_of(to), self._timeout if timeout is ... else timeout
        self._servers.pass_turn_on()  # If a remote call made this thread run, it is about to wait for the reply.
        parts = frames.dump((name, *arguments))
        future = RpcFuture(self, to, name, next(self._numbers), timeout)
        self._under_way.add(future)
        self._taker.wake()
        if is_large(parts):
            self._large.add(frames.AWAITED if is_awaited else frames.ANNOUNCED, to, future._call, parts)
        else:
            self._send(to, _REQUESTS, _request_tag(future._call), frames.CALL, future._call, parts)
        return future

    def _announce(self, kind: int, to: int, call: int, parts: Sequence[Buffer]) -> None:
        self._messages.send(frames.pack_ahead(kind, call, parts), to, _REQUESTS)

    def _send_parts(self, to: int, call: int, parts: Sequence[Buffer]) -> None:
        for part in parts:
            self._messages.send(part, to, _request_tag(call))

    def cancel(self, to: int, call: int) -> None:
        self._send(to, _CANCELS, _CANCELS, frames.CANCEL, call, [])

    def withdraw(self, to: int, call: int) -> bool:
        """Drops a request that has not been announced yet. Returns False if there is none."""
        return self._large.withdraw(to, call)

    def end_cancel(self, to: int, call: int, was_not_started: bool = False) -> None:
        """Lets the callee forget an abandoned call, whose reply has arrived."""
        if was_not_started:  # The callee has forgotten it, and has not asked for its parts.
            self._large.end(to, call)
            return
        with contextlib.suppress(Exception):  # The callee has exited, or the group is broken.
            self._send(to, _CANCELS, _CANCELS, frames.ENDED, call, [])

    def forget(self, future: RpcFuture) -> None:
        self._under_way.discard(future)

    def leave_to_others(self, future: RpcFuture) -> None:
        """Receives the reply on another thread, for a caller that no longer waits: if the parts of the reply stayed
        unreceived, they would block other replies."""
        threading.Thread(target=future.settle, name="ivy-rpc-late", daemon=True).start()

    def reply(self, source: int, tag: int, timeout: float | None) -> tuple[int, Sequence[Buffer]] | None:
        """Returns (kind, parts) of the reply with that tag; None if it has not started to arrive after `timeout` seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        room = self._room()
        try:
            while True:
                left = None if until is None else max(0.0, until - time.monotonic())
                if not self._messages.receive(room, source, tag, left):
                    return None
                kind, call, parts, lengths = frames.unpack(room.bytes())
                if kind != frames.ASKED:
                    break
                self._large.asked(source, call)
        finally:
            self._rooms.append(room)
        return kind, self._parts(source, tag, lengths) if parts is None else parts

    def _room(self) -> Room:
        try:
            return self._rooms.pop()
        except IndexError:
            return Room(room_of(frames.FRAME_BYTES))

    # Receives the parts that follow a frame.
    def _parts(self, source: int, tag: int, lengths: list[int]) -> list[Buffer]:
        rooms = [Room(room_of(length)) for length in lengths]
        for room in rooms:
            self._messages.receive(room, source, tag)
        return [room.memory for room in rooms]

    def _send(self, to: int, tag: int, tag_of_parts: int, kind: int, call: int, parts: Sequence[Buffer]) -> None:
        frame, following = frames.pack(kind, call, parts)
        if not following:
            self._messages.send(frame, to, tag)
            return
        # No message between a frame and its parts: the thread that receives the parts receives nothing else from here.
        with self._sending[to]:
            self._messages.send(frame, to, tag)
            for part in following:
                self._messages.send(part, to, tag_of_parts)

    # Blocks until a request arrives; returns the arguments for _serve, or None if this thread must stop.
    def _next_request(self, room: Room) -> tuple[int, int, int, list[Buffer] | None, list[int]] | None:
        self._messages.receive(room, None, _REQUESTS)
        kind, call, parts, lengths = frames.unpack(room.bytes())
        return None if kind == frames.STOP else (kind, room.source, call, parts, lengths)

    def _is_cancelled(self, source: int, call: int) -> bool:
        with self._cancelling:
            while self._messages.is_there(self._cancels, None, _CANCELS):
                kind, other, _, _ = frames.unpack(self._cancels.bytes())
                which = (self._cancels.source, other)
                (self._cancelled.add if kind == frames.CANCEL else self._cancelled.discard)(which)
            if (source, call) not in self._cancelled:
                return False
            self._cancelled.discard((source, call))
            return True

    def _serve(self, kind: int, source: int, call: int, parts: list[Buffer] | None, lengths: list[int]) -> None:
        if kind == frames.ASKED:
            self._large.asked(source, call)
            return
        try:
            parts = self._request(kind, source, call, parts, lengths)
            if parts is None:
                kind, reply = frames.CANCELLED, cast("list[Buffer]", [])
            else:
                kind, reply = frames.REPLY, frames.dump(self._run(*frames.load(parts)))
        except BaseException as error:  # noqa: BLE001 - the caller raises it. SystemExit must not stop this thread.
            kind, reply = frames.RAISED, _as_reply(error)
        self._send(source, _reply_tag(call), _reply_tag(call), kind, call, reply)

    # Returns the parts of a request, or None if the caller has abandoned it.
    def _request(self, kind: int, source: int, call: int, parts: list[Buffer] | None,
                 lengths: list[int]) -> list[Buffer] | None:
        if kind == frames.CALL and parts is None:  # They follow the frame.
            parts = self._parts(source, _request_tag(call), lengths)
        if self._is_cancelled(source, call):
            return None
        if kind == frames.AWAITED:
            # The caller blocks for the reply and sends the parts immediately, so this thread may keep the turn.
            self._send(source, _reply_tag(call), _reply_tag(call), frames.ASKED, call, [])
            return self._parts(source, _request_tag(call), lengths)
        return self._announced_parts(source, call, lengths) if kind == frames.ANNOUNCED else parts

    def _run(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        function = _functions.get(name)
        if function is None:
            raise UnknownFunction(f'no function "{name}" is registered on rank {self.group.rank}; '
                                  f"{nearest(name, _functions)}")
        return function(*args, **kwargs)

    def _announced_parts(self, source: int, call: int, lengths: list[int]) -> list[Buffer]:
        # Passes the turn: the caller may at the same time ask this rank for parts.
        with self._servers.waiting():
            self._send(source, _REQUESTS, _REQUESTS, frames.ASKED, call, [])
            return self._parts(source, _request_tag(call), lengths)

    def close(self, graceful: bool, timeout: float | None) -> None:
        try:
            # Twice, because functions that were still running before the first barrier may have made calls.
            for _ in range(2 if graceful else 0):
                for future in list(self._under_way):
                    future.settle(timeout)
                collectives.barrier(group=self.group, timeout=timeout)
        finally:
            self._stop()

    def _stop(self) -> None:
        self._closing = True
        may_free = self._taker.stop()

        def stop_one() -> None:
            self._send(self._rank, _REQUESTS, _REQUESTS, frames.STOP, 0, [])

        # Not freed while a thread, which is a daemon, still uses it.
        if self._servers.stop(stop_one) and may_free and groups.is_open(self.group):
            self.group.free()


def _as_reply(error: BaseException) -> list[Buffer]:
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()
    kind = f"{type(error).__module__}.{type(error).__qualname__}: {error}"
    if not isinstance(error, Exception):  # SystemExit would stop the caller, too.
        return frames.dump((None, kind, text))
    try:
        parts = frames.dump((error, kind, text))
        frames.load([bytes(part) for part in parts])  # Some exceptions can be pickled, but not unpickled.
        return parts
    except Exception:  # noqa: BLE001 - a user's class may raise anything.
        return frames.dump((None, kind, text))


def _end_at_exit() -> None:
    # Threads that receive requests would keep finalize() waiting. Does not wait for other ranks: this one may exit because
    # of an exception.
    if _service is not None and groups.is_initialized() and _service.is_open():
        shutdown(graceful=False)


atexit.register(_end_at_exit)
lifetime.before_end.append(_end_at_exit)


def __getattr__(name: str) -> Any:
    raise no_such_name(__name__, name, globals())
