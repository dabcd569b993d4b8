# SPDX-License-Identifier: Apache-2.0
"""Ranks as threads of one process, to learn and to test collectives without a launcher.

    from ivycomm import sim

    def step(comm):
        return comm.all_reduce(np.full(2, comm.rank))

    print(sim.World(4).run(step))                     # [array of rank 0, array of rank 1, ...]
    sim.World(4, show=True).run(step)                 # Also prints each rank's array before and after every operation.

The operations have the names and meanings of ivycomm's, on NumPy arrays or anything that NumPy converts to one. This is
not fast, and nothing is shared between ranks: all inputs and outputs are copies.
"""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import numpy

from ..element_types import ReduceOp, op_number
from ..modules import no_such_name

_REDUCERS: dict[ReduceOp, Callable[[Any, Any], Any]] = {
    ReduceOp.SUM: operator.add, ReduceOp.AVG: operator.add, ReduceOp.PRODUCT: operator.mul, ReduceOp.MIN: numpy.minimum,
    ReduceOp.MAX: numpy.maximum, ReduceOp.BAND: operator.and_, ReduceOp.BOR: operator.or_, ReduceOp.BXOR: operator.xor}


class SimulationError(RuntimeError):
    """The ranks of a simulated world disagree, or one of them raised while others waited for it."""


class World:
    """A world of `size` ranks in this process. show: print a table for every operation. timeout: seconds that a rank
    waits for others before it raises SimulationError. Raises ValueError for a size below 1."""

    def __init__(self, size: int, *, show: bool = False, timeout: float = 60.0) -> None:
        if size < 1:
            raise ValueError(f"a world cannot have {size} ranks")
        self.size, self._show, self._timeout = size, show, timeout

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Calls function(comm, *args, **kwargs) for each rank, in a thread of its own; comm is the rank's Comm. Blocks until
        all have returned, and returns [result of rank 0, result of rank 1, ...]. Raises the exception of the first rank
        that failed."""
        meeting = _Meeting(self.size, self._show, self._timeout)
        results: list[Any] = [None] * self.size
        failures: dict[int, BaseException] = {}

        def body(rank: int) -> None:
            try:
                results[rank] = function(Comm(meeting, rank), *args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - raised by run().
                failures[rank] = error
            finally:
                meeting.leave(rank)

        threads = [threading.Thread(target=body, args=(rank,), name=f"rank {rank}", daemon=True)
                   for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # Omit the exceptions that the other ranks raised as a consequence.
        causes = [error for error in failures.values() if not isinstance(error, SimulationError)]
        if failures:
            raise (causes or list(failures.values()))[0]
        return results


class _Meeting:
    """Exchanges values between the ranks of a world."""

    def __init__(self, size: int, show: bool, timeout: float) -> None:
        self.size, self.show, self.timeout = size, show, timeout
        self.changed = threading.Condition()
        self._brought: dict[int, tuple[tuple[Any, ...], Any]] = {}
        self._taken = 0
        self._result: Any = None
        self._gone: set[int] = set()
        self.mail: dict[tuple[int, int, int], list[Any]] = {}  # By (source, destination, tag).

    def exchange(self, rank: int, what: tuple[Any, ...], value: Any) -> list[Any]:
        """Blocks until all ranks have called it with the same `what`; returns [value of rank 0, value of rank 1, ...]."""
        with self.changed:
            self._await(lambda: self._result is None, f"{what[0]}: rank {rank} waits for the others to leave the last operation")
            self._brought[rank] = (what, value)
            if len(self._brought) == self.size:
                kinds = {brought[0] for brought in self._brought.values()}
                if len(kinds) > 1:
                    self._result = SimulationError("the ranks call different operations: " + "; ".join(
                        f"rank {each}: {self._brought[each][0]}" for each in sorted(self._brought)))
                else:
                    self._result = [self._brought[each][1] for each in range(self.size)]
                self.changed.notify_all()
            self._await(lambda: self._result is not None, f"{what[0]}: rank {rank} waits for ranks " +
                        ", ".join(str(each) for each in range(self.size) if each not in self._brought))
            result = self._result
            self._taken += 1
            if self._taken == self.size:
                self._brought, self._taken, self._result = {}, 0, None
                self.changed.notify_all()
        if isinstance(result, SimulationError):
            raise result
        return cast("list[Any]", result)

    def _await(self, is_true: Callable[[], bool], text: str) -> None:
        def goes_on() -> bool:
            return is_true() or bool(self._gone)

        if not self.changed.wait_for(goes_on, self.timeout):
            raise SimulationError(f"{text} (timeout after {self.timeout:g} s)")
        if not is_true():
            raise SimulationError(f"{text}, but rank {min(self._gone)} has exited")

    def leave(self, rank: int) -> None:
        with self.changed:
            self._gone.add(rank)
            self.changed.notify_all()

    def put(self, key: tuple[int, int, int], array: Any) -> None:
        with self.changed:
            self.mail.setdefault(key, []).append(array)
            self.changed.notify_all()

    def get(self, rank: int, source: int | None, tag: int | None) -> Any:
        def find() -> tuple[int, int, int] | None:
            return next((key for key in self.mail if self.mail[key] and key[1] == rank and
                         source in (None, key[0]) and tag in (None, key[2])), None)

        def may_come() -> bool:
            return find() is not None or len(self._gone) == self.size - 1 or source in self._gone

        with self.changed:
            found = find() if self.changed.wait_for(may_come, self.timeout) else None
            if found is None:
                raise SimulationError(f"recv: rank {rank} received nothing from rank {'any' if source is None else source}")
            return self.mail[found].pop(0)


def _shown(operation: Callable[..., Any]) -> Callable[..., Any]:
    """Prints the ranks' arrays before and after, when all are done."""

    @functools.wraps(operation)
    def call(self: Comm, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        result = operation(self, x, *args, **kwargs)
        if self._meeting.show:
            rows = self._meeting.exchange(self.rank, ("show",), (x, result))
            if self.rank == 0:
                print(table(operation.__name__, rows), flush=True)
        return result

    return call


def table(name: str, rows: Iterable[tuple[Any, Any]]) -> str:
    """Returns the text of a table of (before, after), one row per rank."""
    cells = [("rank", "before", "after " + name)]
    cells += [(str(rank), _cell(before), _cell(after)) for rank, (before, after) in enumerate(rows)]
    widths = [max(len(line) for row in cells for line in row[column].split("\n")) for column in range(3)]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip() for row in cells)


def _cell(value: Any) -> str:
    return "-" if value is None else numpy.array2string(numpy.asarray(value), separator=", ", threshold=16).replace("\n", "")


class Comm:
    """One rank of a simulated world: rank, size. Each operation takes and returns what ivycomm's of that name does, as NumPy
    arrays, blocks until the other ranks have called it too, and raises SimulationError if they do not within the world's
    timeout, or call another one. Only the thread of the rank may call it."""

    def __init__(self, meeting: _Meeting, rank: int) -> None:
        self._meeting, self.rank, self.size = meeting, rank, meeting.size

    world_size = property(lambda self: self.size)

    def _all(self, name: str, value: Any, *facts: Any) -> list[Any]:
        return self._meeting.exchange(self.rank, (name, *facts), value)

    def _arrays(self, name: str, x: Any, *facts: Any) -> list[Any]:
        array = numpy.array(x)
        return [each.copy() for each in self._all(name, array, *facts, str(array.dtype), array.shape)]

    def _root(self, rank: int) -> int:
        if not 0 <= rank < self.size:
            raise ValueError(f"rank {rank} is not from 0 to {self.size - 1}")
        return rank

    @staticmethod
    def _reduced(parts: Sequence[Any], op: Any) -> Any:
        op = ReduceOp(op_number(op))
        if op not in _REDUCERS:
            raise ValueError(f"{op.name} is not supported by the simulation")
        total = functools.reduce(_REDUCERS[op], parts)
        if op is not ReduceOp.AVG:
            return total
        if total.dtype.kind in "iu":
            return (numpy.abs(total) // len(parts) * numpy.sign(total)).astype(total.dtype)  # Towards zero.
        return (total / len(parts)).astype(total.dtype)

    def _divided(self, array: Any, name: str) -> list[Any]:
        if not array.shape or len(array) % self.size:
            raise ValueError(f"{name}: axis 0 of {array.shape} cannot be divided among {self.size} ranks")
        return numpy.split(array, self.size)

    @_shown
    def all_reduce(self, x: Any, op: Any = "sum") -> Any:
        """Returns op, element by element, over x of all ranks."""
        return self._reduced(self._arrays("all_reduce", x, op_number(op)), op)

    @_shown
    def reduce(self, x: Any, dst: int = 0, op: Any = "sum") -> Any:
        """As all_reduce on rank dst; None on the others."""
        parts = self._arrays("reduce", x, op_number(op), self._root(dst))
        return self._reduced(parts, op) if self.rank == dst else None

    @_shown
    def broadcast(self, x: Any = None, src: int = 0) -> Any:
        """Returns rank src's x on every rank."""
        return numpy.array(self._all("broadcast", x, self._root(src))[src])

    @_shown
    def all_gather(self, x: Any, axis: int = 0) -> Any:
        """Returns x of all ranks, concatenated along `axis`; 0-d arrays form a vector."""
        return _joined(self._arrays("all_gather", x, axis), axis)

    @_shown
    def gather(self, x: Any, dst: int = 0, axis: int = 0) -> Any:
        """As all_gather on rank dst; None on the others."""
        parts = self._arrays("gather", x, self._root(dst), axis)
        return _joined(parts, axis) if self.rank == dst else None

    @_shown
    def scatter(self, x: Any = None, src: int = 0) -> Any:
        """Returns this rank's part of rank src's x: equal parts of axis 0. Raises ValueError if it cannot be divided."""
        whole = self._all("scatter", x, self._root(src))[src]
        if whole is None:
            raise ValueError("rank src must pass x")
        return self._divided(numpy.array(whole), "scatter")[self.rank]

    @_shown
    def reduce_scatter(self, x: Any, op: Any = "sum") -> Any:
        """Returns this rank's part of op over x of all ranks: equal parts of axis 0. Raises ValueError if x cannot be divided."""
        self._divided(numpy.array(x), "reduce_scatter")
        parts = self._arrays("reduce_scatter", x, op_number(op))
        return self._divided(self._reduced(parts, op), "reduce_scatter")[self.rank]

    @_shown
    def all_to_all(self, x: Any) -> Any:
        """Sends part r of x, along axis 0, to rank r; returns the received parts, concatenated. Raises ValueError if x cannot be
        divided equally."""
        self._divided(numpy.array(x), "all_to_all")
        return numpy.concatenate([self._divided(part, "all_to_all")[self.rank] for part in self._arrays("all_to_all", x)])

    @_shown
    def scan(self, x: Any, op: Any = "sum") -> Any:
        """Returns op over x of all ranks up to and including this one."""
        return self._reduced(self._arrays("scan", x, op_number(op))[:self.rank + 1], op)

    def barrier(self) -> None:
        """Returns when every rank has called it."""
        self._all("barrier", None)

    def send(self, x: Any, dst: int, tag: int = 0) -> None:
        """Sends a copy of x to rank dst; does not block."""
        self._meeting.put((self.rank, self._root(dst), tag), numpy.array(x))

    def recv(self, src: int | None = None, tag: int | None = None) -> Any:
        """Returns the next message to this rank from rank src with this tag (None: any); blocks until it is there."""
        return self._meeting.get(self.rank, None if src is None else self._root(src), tag)


def _joined(parts: Sequence[Any], axis: int) -> Any:
    return numpy.concatenate(parts, axis) if parts[0].shape else numpy.array(parts)


def __getattr__(name: str) -> Any:
    raise no_such_name(__name__, name, globals())
