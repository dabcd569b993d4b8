# SPDX-License-Identifier: Apache-2.0
"""Current streams and blocks of code on another stream, as in torch.cuda but faster.

torch.cuda's functions query the device's number and availability in each call, which takes about 10 us, as long as a small
operation. They are used only if torch lacks the functions that they call (before 2.1).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import torch

_current: Any = getattr(torch._C, "_cuda_getCurrentStream", None)
_choose: Any = getattr(torch._C, "_cuda_setStream", None)
_IS_QUICK = None not in (_current, _choose) and hasattr(torch.cuda.Stream, "stream_id")
_streams: dict[tuple[int, int, int], Any] = {}  # By (stream id, device index, device type).


def current_stream(device: Any) -> Any:
    """As torch.cuda.current_stream(device)."""
    if not _IS_QUICK or device.index is None:
        return torch.cuda.current_stream(device)
    name = _current(device.index)
    found = _streams.get(name)
    if found is None:
        number, index, kind = name
        found = _streams[name] = torch.cuda.Stream(stream_id=number, device_index=index, device_type=kind)
    return found


class _ThreadEvents(threading.local):
    def __init__(self) -> None:
        self.by_device: dict[Any, Any] = {}  # Reused, because creating an event takes longer than recording it.


_events = _ThreadEvents()


def let_follow(stream: Any, device: Any) -> None:
    """Makes `stream` wait for the work that is now on the device's current stream."""
    event = _events.by_device.get(device)
    if event is None:
        event = _events.by_device[device] = torch.cuda.Event()
    event.record(current_stream(device))
    stream.wait_event(event)


def mark_current_stream(indexes: Sequence[int] | None = None) -> list[Any]:
    """Records an event on the current stream of each of these devices (None: the current device) and returns the events.
    Returns an empty list in a process that uses no device."""
    if not torch.cuda.is_initialized():
        return []
    indexes = indexes or [torch.cuda.current_device()]
    return [current_stream(torch.device("cuda", index)).record_event() for index in indexes]


def await_event(event: Any, seconds: float) -> bool:
    """Blocks until the event has completed, at most that many seconds. Returns whether it has."""
    end = time.monotonic() + seconds
    while not event.query():
        if time.monotonic() > end:
            return False
        time.sleep(0.0002)
    return True


class _OnStream:
    """As torch.cuda.stream(stream)."""

    __slots__ = ("_stream", "_before", "_device")

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        stream = self._stream
        self._device, self._before = torch._C._cuda_getDevice(), _current(stream.device_index)
        _choose(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)

    def __exit__(self, *_: object) -> None:
        number, index, kind = self._before
        _choose(stream_id=number, device_index=index, device_type=kind)
        if self._device != index:  # __enter__ has made the stream's device the current one.
            torch._C._cuda_setDevice(self._device)


def on_stream(stream: Any) -> Any:
    """`with on_stream(stream):` puts the operations of the block on `stream`."""
    return _OnStream(stream) if _IS_QUICK else torch.cuda.stream(stream)


__all__ = ["await_event", "current_stream", "let_follow", "mark_current_stream", "on_stream"]
