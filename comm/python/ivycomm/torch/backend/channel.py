# SPDX-License-Identifier: Apache-2.0
"""A c10d group's state: ivycomm's group, and the order of its collectives."""

import os
import threading

import torch

from ...errors import Aborted, HostLost, IvyError, Mismatch, NotInitialized, RankDied, Timeout, TransportError
from .errors import torch_error
from .turns import Turns

_BREAKING = (RankDied, HostLost, Mismatch, Timeout, Aborted, TransportError)  # After these no operation goes well.
_DRAIN_SECONDS = 10.0  # How long destroy_process_group() waits for collectives that nobody has waited for.


class Followers:
    """Threads that wait for messages with futures; one for each, as they end in any order."""

    @staticmethod
    def add(wait):
        threading.Thread(target=wait, daemon=True, name="ivy-message").start()


class Channel:
    """Lifetime: until close(), which destroy_process_group() calls. `timeout`: seconds, of every operation."""

    def __init__(self, group, timeout, on_close=None):
        self._group, self._timeout, self._on_close = group, timeout, on_close
        self._pid, self._guard = os.getpid(), threading.Lock()
        self.turns = Turns(group.name, lambda: self.abort("a signal handler interrupted a collective before it began"))
        self.followers = Followers
        self.operations = 0  # Collectives that this rank has called.
        self.rank, self.size, self.handle = group.rank, group.size, group.handle
        self.is_open, self._streams = True, {}
        self.failure = None  # The error that broke the group, or None.

    @property
    def name(self):
        return self._group.name

    @property
    def ranks(self):
        """World ranks of the group's ranks."""
        return self._group.ranks

    def side_stream(self, device):
        """Returns the device's stream for the group's operations that are not waited for immediately."""
        stream = self._streams.get(device)
        if stream is None:
            # Before the tensors' next kernels: those wait for the operation, not the other way round.
            stream = self._streams[device] = torch.cuda.Stream(device, priority=-1)
        return stream

    def check(self):
        if not self.is_open or not self._group._is_open():
            raise torch_error(NotInitialized(f"process group {self.name} was destroyed"))
        if self._pid != os.getpid():
            raise torch_error(NotInitialized("this process was forked from a rank, and has no place in the job"))

    def count_operation(self):
        with self._guard:
            self.operations += 1

    def note(self, error):
        """Records that an operation has failed with this error."""
        if self.failure is None and isinstance(error, _BREAKING):
            self.failure = error

    def set_timeout(self, seconds):
        self._timeout = seconds

    def seconds_of(self, opts):
        """Returns the timeout of a call; c10d passes a negative one if none was given."""
        given = getattr(opts, "timeout", None)
        seconds = given.total_seconds() if given is not None else 0
        return seconds if seconds > 0 else self._timeout

    def abort(self, reason="torch called abort"):
        """Breaks the group on every rank."""
        if self.is_open and self._group._is_open():
            try:
                self._group.abort(reason)
            except IvyError as error:
                raise torch_error(error) from None

    def close(self):
        """Ends this rank's part after its operations in progress; waits for no other rank."""
        if not self.is_open or self._pid != os.getpid():
            return
        if not self.turns.drain(_DRAIN_SECONDS):
            self.abort("the process group is destroyed, and a collective of it has not ended")
            self.turns.drain(_DRAIN_SECONDS)
        self.is_open = False
        self.turns.stop()
        try:
            self._group.free()
        except IvyError as error:
            # torch destroys broken groups, too; the failed operation has reported the reason.
            if error.code == "Aborted":
                raise torch_error(error) from None
        finally:
            if self._on_close is not None:
                self._on_close()


