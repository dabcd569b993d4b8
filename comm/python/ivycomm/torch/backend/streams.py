# SPDX-License-Identifier: Apache-2.0
"""The current stream of a device, and a block of code on another one: what torch.cuda does, without the checks.

torch.cuda's own functions query the device's number and availability each time, which takes some ten microseconds, as
long as a small operation. If torch lacks the functions beneath them (before 2.1), they are used nevertheless.
"""

import threading
import time

import torch

_current = getattr(torch._C, "_cuda_getCurrentStream", None)
_choose = getattr(torch._C, "_cuda_setStream", None)
_IS_QUICK = None not in (_current, _choose) and hasattr(torch.cuda.Stream, "stream_id")
_streams = {}  # By what names them: their number, and the device's number and type.


def current_stream(device):
    """As torch.cuda.current_stream(device)."""
    if not _IS_QUICK or device.index is None:
        return torch.cuda.current_stream(device)
    name = _current(device.index)
    found = _streams.get(name)
    if found is None:
        number, index, kind = name
        found = _streams[name] = torch.cuda.Stream(stream_id=number, device_index=index, device_type=kind)
    return found


class _Own(threading.local):
    def __init__(self):
        self.events = {}  # By their device. A new one costs more than to record it.


_own = _Own()


def let_follow(stream, device):
    """Makes `stream` wait for the work that is now on the device's current stream."""
    event = _own.events.get(device)
    if event is None:
        event = _own.events[device] = torch.cuda.Event()
    event.record(current_stream(device))
    stream.wait_event(event)


def mark_current_stream(indexes=None):
    """Returns events after the current work on the current streams of these devices (None: of the current one).

    Empty in a process that uses no device.
    """
    if not torch.cuda.is_initialized():
        return []
    indexes = indexes or [torch.cuda.current_device()]
    return [current_stream(torch.device("cuda", index)).record_event() for index in indexes]


def await_event(event, seconds):
    """Waits at most that many seconds; returns whether the event has happened."""
    end = time.monotonic() + seconds
    while not event.query():
        if time.monotonic() > end:
            return False
        time.sleep(0.0002)
    return True


class _OnStream:
    """As torch.cuda.stream(stream)."""

    __slots__ = ("_stream", "_before", "_device")

    def __init__(self, stream):
        self._stream = stream

    def __enter__(self):
        stream = self._stream
        self._device, self._before = torch._C._cuda_getDevice(), _current(stream.device_index)
        _choose(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)

    def __exit__(self, *_):
        number, index, kind = self._before
        _choose(stream_id=number, device_index=index, device_type=kind)
        if self._device != index:  # The stream's device had become the current one with it.
            torch._C._cuda_setDevice(self._device)


def on_stream(stream):
    """A block of code whose operations go to `stream`."""
    return _OnStream(stream) if _IS_QUICK else torch.cuda.stream(stream)


__all__ = ["await_event", "current_stream", "let_follow", "mark_current_stream", "on_stream"]
