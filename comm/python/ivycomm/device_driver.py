# SPDX-License-Identifier: Apache-2.0
"""The few functions of a GPU driver that arrays without a framework need: CUDA's, or ROCm's under its own names.

Callers have GPU memory, so the driver is initialized. A stream is a number: 0 is the default stream.
"""

from __future__ import annotations

import contextlib
import ctypes
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
_loaded: list[tuple[ctypes.CDLL, int]] = []  # What load_driver() returns, once it has succeeded.


class CudaError(RuntimeError):
    """A call of the GPU's driver failed, or there is no driver."""


def load_driver() -> tuple[ctypes.CDLL, int]:
    """Returns (library, the column of its names in _NAMES: 0 for CUDA, 1 for ROCm)."""
    if not _loaded:
        named = os.environ.get("IVY_CUDA_LIB")
        names = (named,) if named else ("libcuda.so.1", "libamdhip64.so.7", "libamdhip64.so.6")
        library = _library_in_use(names) or _new_library(names)
        _loaded.append((library, 0 if hasattr(library, "cuInit") else 1))
    return _loaded[0]


def _library_in_use(names: tuple[str, ...]) -> ctypes.CDLL | None:
    """The process may have loaded one release of a library while the host has several."""
    for name in names:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name, mode=os.RTLD_NOLOAD)
    return None


def _new_library(names: tuple[str, ...]) -> ctypes.CDLL:
    reasons = []
    for name in names:
        try:
            return ctypes.CDLL(name, mode=os.RTLD_NOW)
        except OSError as error:
            reasons.append(error)
    raise CudaError(f"no GPU driver was found on this host ({reasons[0]})")


def _call(what: str, *arguments: Any) -> None:
    library, column = load_driver()
    name = _NAMES[what][column]
    code = getattr(library, name)(*arguments)
    if code:
        raise CudaError(f"the GPU's driver: {name} failed ({code})")


def device_of(pointer: int) -> Any:
    """Returns (DLPack's type, number) of the GPU that owns this memory."""
    number = c_int()
    # The driver takes arrays of attributes and of the addresses of their values; there is one of each.
    attributes = (c_int * 1)(_DEVICE_ORDINAL)
    values = (c_void_p * 1)(ctypes.addressof(number))
    _call("attributes", c_uint(1), attributes, values, c_void_p(pointer))
    return (dlpack.ROCM if load_driver()[1] else dlpack.CUDA, number.value)


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


def copy(target: int, source: int, size: int, stream: int | None) -> None:
    """Copies size bytes of a GPU's memory to another address of that GPU, on the stream."""
    with _current(device_of(target)[1]):
        _call("copy", c_void_p(target), c_void_p(source), c_size_t(size), c_void_p(stream))


def wait_for_default_stream(stream: int | None, number: int) -> None:
    """Makes the stream of GPU `number` wait for the work on its default stream."""
    event = c_void_p()
    with _current(number):
        _call("make_event", byref(event), c_uint(_NO_TIMING))
        try:
            _call("record", event, c_void_p(0))
            _call("wait", c_void_p(stream), event, c_uint(0))
        finally:
            _call("free_event", event)
