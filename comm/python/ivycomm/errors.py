# SPDX-License-Identifier: Apache-2.0
"""Failures as exceptions. The extension calls `check` with the code of a failed call."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, NamedTuple

from . import calls


class IvyError(Exception):
    """The base of all exceptions here. An exception can be pickled.

    code: name of the C interface's code, such as "Unavailable". rank: the world rank that caused it. host, pid, signal,
    exit_code: of that rank's process. operation, sequence: the name of the operation in which the failure was found, and
    its number in its group. All but code are None if unknown.
    """

    code = "Internal"

    def __init__(self, text: str, code: str | None = None, rank: int | None = None, host: str | None = None,
                 pid: int | None = None, signal: int | None = None, exit_code: int | None = None,
                 sequence: int | None = None, operation: str | None = None) -> None:
        super().__init__(text)
        if code is not None:
            self.code = code
        self.rank, self.host, self.pid = rank, host, pid
        self.signal, self.exit_code = signal, exit_code
        self.sequence, self.operation = sequence, operation

    def __reduce__(self) -> tuple[Any, ...]:
        return (_restored, (type(self), str(self), dict(self.__dict__)))


def _restored(kind: type[IvyError], text: str, attributes: dict[str, Any]) -> IvyError:
    error = kind(text)
    error.__dict__.update(attributes)
    return error


class RankDied(IvyError):
    """A rank's process exited; `signal` or `exit_code` has the details."""

    code = "Unavailable"


class HostLost(IvyError):
    """A host no longer responds."""

    code = "Unavailable"


class Mismatch(IvyError):
    """The ranks called different operations, types, counts or roots; the text shows both sides."""

    code = "Aborted"


class Timeout(IvyError, TimeoutError):
    """The operation's timeout expired; the text names the missing ranks."""

    code = "DeadlineExceeded"


class StillRunning(Timeout):
    """The timeout of this wait() expired; the operation continues and can be waited for again."""


class MissingRanks(Timeout):
    """Some ranks did not reach monitored_barrier in time. `missing`: their ranks in the group."""

    def __init__(self, text: str, missing: Iterable[int] = (), **what: Any) -> None:
        super().__init__(text, **what)
        self.missing = tuple(missing)


class Aborted(IvyError):
    """abort() was called, on this rank or on another one."""

    code = "Cancelled"


class TransportError(IvyError):
    """A connection or shared memory failed."""

    code = "Unavailable"


class InvalidArgument(IvyError, ValueError):
    """The arguments are invalid; nothing was sent, and the communicator remains usable."""

    code = "InvalidArgument"


class FailedPrecondition(IvyError):
    """Something must be fixed first: two launchers disagree, or a GPU or NCCL cannot be used."""

    code = "FailedPrecondition"


class NotInitialized(FailedPrecondition):
    """No world exists: before init(), after finalize(), or in a forked child."""


class NotFound(IvyError, LookupError):
    """The job's store does not have this key."""

    code = "NotFound"


class ResourceExhausted(IvyError):
    """Out of memory or descriptors, or a limit of the library was exceeded."""

    code = "ResourceExhausted"


class Unauthenticated(IvyError):
    """The peer does not know the job's secret."""

    code = "Unauthenticated"


OK, DEADLINE_EXCEEDED = 0, 4
world_pid: int | None = None  # The process that has joined the world; a forked child has not.
_BY_KIND: dict[int, type[IvyError]] = {1: RankDied, 2: HostLost, 3: Mismatch, 4: Timeout, 5: Aborted, 6: TransportError}
_BY_CODE: dict[int, type[IvyError]] = {
    1: Aborted, 3: InvalidArgument, 4: Timeout, 5: NotFound, 8: ResourceExhausted, 9: FailedPrecondition, 10: Mismatch,
    14: TransportError, 16: Unauthenticated}


class Failure(NamedTuple):
    """The C interface's ivy_failure. host and operation are text of the C interface, in bytes."""

    kind: int
    rank: int
    pid: int
    signal: int
    exit_code: int
    sequence: int
    host: bytes
    operation: bytes


def last_error(code: int) -> IvyError:
    """Returns the exception for this thread's last failed call."""
    text = (calls.extension.ivy_last_error() or b"").decode(errors="replace")
    return of_failure(code, text, Failure(*calls.extension.ivy_last_failure()))


def of_failure(code: int, text: str, failure: Failure) -> IvyError:
    """Returns the exception for a code, its text and the library's Failure."""
    kind = _BY_KIND.get(failure.kind) or _BY_CODE.get(code, IvyError)
    if kind is FailedPrecondition and world_pid not in (None, os.getpid()):
        kind = NotInitialized
    return kind(text or f"error {code}",
                code=calls.extension.ivy_code_name(code).decode(),
                rank=failure.rank if failure.rank >= 0 else None,
                host=failure.host.decode(errors="replace") or None,
                pid=failure.pid or None,
                signal=failure.signal or None,
                exit_code=failure.exit_code if failure.exit_code >= 0 else None,
                sequence=failure.sequence or None,
                operation=failure.operation.decode(errors="replace") or None)


def check(code: int) -> None:
    """Raises the exception for a code other than OK."""
    if code == calls.GROUP_ENDED:
        raise NotInitialized("another thread freed the group, or finalized or repaired its world")
    if code != OK:
        raise last_error(code)
