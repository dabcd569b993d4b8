# SPDX-License-Identifier: Apache-2.0
"""The state of a c10d group: ivycomm's group, and the order of its collectives."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, cast

import torch

from ...groups import Group, is_open
from ...errors import Aborted, HostLost, IvyError, Mismatch, NotInitialized, RankDied, Timeout, TransportError
from .errors import torch_error
from .turns import Turns

_BREAKING = (RankDied, HostLost, Mismatch, Timeout, Aborted, TransportError)  # These break the group.
_DRAIN_SECONDS = 10.0  # How long destroy_process_group() waits for unfinished collectives.


class Channel:
    """One of torch's process groups on this rank: the ivycomm group that carries out its operations, and its state.

    Lifetime: until close(), which destroy_process_group() calls. timeout: seconds, for each operation. on_close: called
    at the end of close().
    """

    def __init__(self, group: Group, timeout: float, on_close: Callable[[], object] | None = None) -> None:
        self._group = group
        self._timeout = timeout
        self._on_close = on_close
        self._pid = os.getpid()
        self._operations_lock = threading.Lock()
        self.turns = Turns(group.name, lambda: self.abort("a signal handler interrupted a collective before it started"))
        self.operations = 0  # The number of collectives that this rank has called.
        self.rank, self.size, self.handle = cast(int, group.rank), group.size, group.handle
        self.is_open = True
        self._streams: dict[Any, Any] = {}  # By device.
        self.failure: IvyError | None = None  # The error that broke the group.

    @property
    def group(self) -> Group:
        return self._group

    @property
    def name(self) -> str:
        return self._group.name

    @property
    def ranks(self) -> tuple[int, ...]:
        """World ranks of the group's ranks."""
        return self._group.ranks

    def side_stream(self, device: Any) -> Any:
        """Returns the group's stream on a device, for operations that the caller does not wait for immediately."""
        stream = self._streams.get(device)
        if stream is None:
            # With priority over later kernels of the current stream, which will wait for the operation.
            stream = self._streams[device] = torch.cuda.Stream(device, priority=-1)
        return stream

    def check(self) -> None:
        """Raises torch's error if the group cannot be used: destroyed, or in a forked process."""
        if not self.is_open or not is_open(self._group):
            raise torch_error(NotInitialized(f"process group {self.name} was destroyed"))
        if self._pid != os.getpid():
            raise torch_error(NotInitialized("this process was forked from a rank, so it does not belong to the job"))

    def count_operation(self) -> None:
        with self._operations_lock:
            self.operations += 1

    def record_failure(self, error: IvyError) -> None:
        """Records the error of a failed operation."""
        if self.failure is None and isinstance(error, _BREAKING):
            self.failure = error

    def set_timeout(self, seconds: float) -> None:
        self._timeout = seconds

    def timeout_of(self, opts: Any) -> float:
        """Returns the timeout of a call in seconds. c10d passes a negative one if the caller gave none."""
        given = getattr(opts, "timeout", None)
        seconds: float = given.total_seconds() if given is not None else 0
        return seconds if seconds > 0 else self._timeout

    def abort(self, reason: str = "torch called abort") -> None:
        """Breaks the group on every rank."""
        if self.is_open and is_open(self._group):
            try:
                self._group.abort(reason)
            except IvyError as error:
                raise torch_error(error) from None

    def close(self) -> None:
        """Frees the group on this rank, after its operations in progress. Waits for no other rank. After 10 s it
        aborts the group, and waits at most 10 s more."""
        if not self.is_open or self._pid != os.getpid():
            return
        if not self.turns.drain(_DRAIN_SECONDS):
            self.abort("the process group was destroyed before one of its collectives had finished")
            self.turns.drain(_DRAIN_SECONDS)
        self.is_open = False
        self.turns.stop()
        try:
            self._group.free()
        except IvyError as error:
            # A mismatch is new: free() has found that ranks called different operations. Any other error was raised by
            # the operation that broke the group.
            if isinstance(error, Mismatch):
                raise torch_error(error) from None
        finally:
            if self._on_close is not None:
                self._on_close()


