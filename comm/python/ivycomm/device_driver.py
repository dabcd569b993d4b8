# SPDX-License-Identifier: Apache-2.0
"""The few functions of a GPU driver that arrays without a framework need: CUDA's, or ROCm's under its own names.

Callers have GPU memory, so the driver is initialized. A stream is a number: 0 is the default stream.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
from ctypes import byref, c_int, c_size_t, c_uint, c_void_p
from collections.abc import Iterator
from typing import Any

from . import dlpack

_NAMES = {"get_current": ("cuCtxGetCurrent", "hipCtxGetCurrent"), "set_current": ("cuCtxSetCurrent", "hipCtxSetCurrent"),
          "retain": ("cuDevicePrimaryCtxRetain", "hipDevicePrimaryCtxRetain"),
          "attributes": ("cuPointerGetAttributes", "hipDrvPointerGetAttributes"),
          "copy": ("cuMemcpyDtoDAsync_v2", "hipMemcpyDtoDAsync"),
          "make_event": ("cuEventCreate", "hipEventCreateWithFlags"), "free_event": ("cuEventDestroy_v2", "hipEventDestroy"),
          "record": ("cuEventRecord", "hipEventRecord"), "wait": ("cuStreamWaitEvent", "hipStreamWaitEvent")}
_NO_TIMING, _DEVICE_ORDINAL = 2, 9
_primary: dict[int, c_void_p] = {}  # Contexts of GPUs by their numbers, kept until the process ends.
_opened: list[tuple[ctypes.CDLL, int]] = []


class CudaError(RuntimeError):
    """A call of the GPU's driver failed, or there is no driver."""


def opened() -> Any:
    """Returns (library, the names that it provides)."""
    if not _opened:
        named, reasons = os.environ.get("IVY_CUDA_LIB"), []
        names = (named,) if named else ("libcuda.so.1", "libamdhip64.so.7", "libamdhip64.so.6")
        # A library that the process uses already precedes another release of it.
        for mode, name in itertools.product((os.RTLD_NOLOAD, os.RTLD_NOW), names):
            try:
                library = ctypes.CDLL(name, mode=mode)
            except OSError as error:
                reasons.append(error)
                continue
            _opened.append((library, 0 if hasattr(library, "cuInit") else 1))
            break
        else:
            raise CudaError(f"no GPU driver was found on this host ({reasons[len(names)]})")
    return _opened[0]


def _call(what: str, *arguments: Any) -> None:
    library, column = opened()
    name = _NAMES[what][column]
    code = getattr(library, name)(*arguments)
    if code:
        raise CudaError(f"the GPU's driver: {name} failed ({code})")


def device_of(pointer: int) -> Any:
    """Returns (DLPack's type, number) of the GPU that owns this memory."""
    number = c_int()
    _call("attributes", c_uint(1), byref(c_int(_DEVICE_ORDINAL)), byref(ctypes.cast(byref(number), c_void_p)), c_void_p(pointer))
    return (dlpack.ROCM if opened()[1] else dlpack.CUDA, number.value)


@contextlib.contextmanager
def _current(number: int) -> Iterator[Any]:
    """Makes the GPU this thread's current one inside the block."""
    before = c_void_p()
    if number not in _primary:
        context = c_void_p()
        _call("retain", byref(context), c_int(number))
        _primary[number] = context
    _call("get_current", byref(before))
    _call("set_current", _primary[number])
    try:
        yield
    finally:
        _call("set_current", before)


def copy(to: Any, from_: Any, size: int, stream: int | None) -> None:
    """Copies on the stream between two memories of one GPU."""
    with _current(device_of(to)[1]):
        _call("copy", c_void_p(to), c_void_p(from_), c_size_t(size), c_void_p(stream))


def let_wait(stream: int | None, number: int) -> None:
    """Makes the stream wait for the work on the GPU's default stream."""
    event = c_void_p()
    with _current(number):
        _call("make_event", byref(event), c_uint(_NO_TIMING))
        try:
            _call("record", event, c_void_p(0))
            _call("wait", c_void_p(stream), event, c_uint(0))
        finally:
            _call("free_event", event)
