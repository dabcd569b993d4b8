# SPDX-License-Identifier: Apache-2.0
"""DLPack: converts another framework's array in host memory to a NumPy array, and back.

Not by numpy.from_dlpack, which supports neither bfloat16 nor the 8-bit types, nor, before 2.1, read-only arrays.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

from . import calls
from .library import load

MAX_VERSION = (1, 1)
CPU, CUDA, ROCM, CUDA_MANAGED = 1, 2, 10, 13
GPUS = {CUDA, ROCM, CUDA_MANAGED}
_HOST_DEVICES = {CPU, 3, 11}  # Memory of the CPU, and such that CUDA or ROCm has pinned.
_BOOL, _BFLOAT, _COMPLEX = 6, 4, 5
_READ_ONLY, _IS_COPY = 1, 2
_FLOAT8 = ("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
           "float8_e5m2fnuz", "float8_e8m0fnu")
_TYPES = {(_BFLOAT, 16): "bfloat16", (_BOOL, 8): "bool", (_COMPLEX, 64): "complex64", (_COMPLEX, 128): "complex128",
          **{(code, bits): f"{word}{bits}" for code, word in enumerate(("int", "uint", "float"))
             for bits in (8, 16, 32, 64) if (code, bits) != (2, 8)},
          **{(7 + index, 8): name for index, name in enumerate(_FLOAT8)}}
_CODES = {name: code for code, name in _TYPES.items()}


class Exported(NamedTuple):
    """The memory in a capsule, as the extension returns it. The exporter gets it back with the last reference to `owner`, or
    by release_dlpack(owner), but not while the interpreter exits.

    version: (0, 0) before version 1. address: of element 0. device: (type, number). element: (type code, bits, lanes).
    strides: in elements; None: dense, in C order.
    """

    owner: Any
    version: tuple[int, int]
    flags: int
    address: int
    device: tuple[int, int]
    element: tuple[int, int, int]
    shape: tuple[int, ...]
    strides: Optional[tuple[int, ...]]


def type_named(name: str) -> Any:
    """Returns NumPy's type of that name, or ml_dtypes' if NumPy lacks it. TypeError: unknown type."""
    import numpy
    try:
        return numpy.dtype(name)
    except TypeError:
        try:
            import ml_dtypes
            return numpy.dtype(getattr(ml_dtypes, name))
        except (ImportError, AttributeError):
            raise TypeError(f"NumPy has no type {name}; the package ml_dtypes adds the small floating-point "
                            "types: pip install ml_dtypes") from None


def is_exporter(x: Any) -> Any:
    kind = type(x)
    return hasattr(kind, "__dlpack__") and hasattr(kind, "__dlpack_device__")


def is_on_gpu(x: Any) -> bool:
    try:
        return int(x.__dlpack_device__()[0]) in GPUS
    except Exception:  # noqa: BLE001 - whatever a framework raises for what it does not lend.
        return False


def view(x: Any) -> Any:
    """Returns (NumPy array over the memory of x, whether it may be written). x lends it until the last view is gone.

    TypeError: x is on a device, or has a type that NumPy and ml_dtypes lack. Before version 1 the protocol does not say
    whether the memory may be written: then it may not.
    """
    device = x.__dlpack_device__()[0]
    if int(device) not in _HOST_DEVICES:
        raise TypeError(f"a {type(x).__name__} on DLPack's device {int(device)} is not in host memory: "
                        "copy it to the CPU first")
    exported = _asked(x)
    try:
        _check_version(exported)
        array = _array_over(exported)
    except BaseException:
        calls.extension.release_dlpack(exported.owner)  # The exception's traceback refers to it.
        raise
    array.flags.writeable = writable = _is_writable(exported)
    return array, writable


class DeviceTensor:
    """An array in GPU memory, lent by its framework until this object is destroyed. strides are in elements.

    The constructor raises TypeError if the memory is not on a GPU or its type cannot be sent, and the framework's own
    error, such as BufferError, if it does not export the array.
    """

    def __init__(self, x: Any, stream: int = 0) -> None:
        """stream: the driver's number of the stream that uses the memory next; it waits for the framework's work."""
        exported = _asked(x, stream=stream_for(x.__dlpack_device__()[0], stream))
        self._owner, self.device, self.shape = exported.owner, exported.device, exported.shape
        try:
            _check_version(exported)
            self.dtype = _type_name(exported)
            if self.device[0] not in GPUS:
                raise TypeError(f"a {type(x).__name__} exported memory on DLPack's device {self.device[0]}, which is not a GPU")
        except BaseException:
            self.give_back()
            raise
        self.strides = _compact(self.shape, 1) if exported.strides is None else exported.strides
        self.pointer, self.is_writable = exported.address, _is_writable(exported)

    def give_back(self) -> None:
        """Gives the memory back before this object is destroyed."""
        calls.extension.release_dlpack(self._owner)

    def is_dense(self) -> Any:
        return not math.prod(self.shape) or all(
            length == 1 or stride == compact
            for length, stride, compact in zip(self.shape, self.strides, _compact(self.shape, 1)))


def stream_for(device_type: Any, number: int) -> Any:
    """Converts a driver's stream to the protocol's number: CUDA's default stream is 1, ROCm's is 0."""
    return 1 if number == 0 and device_type != ROCM else number


def _is_writable(exported: Exported) -> bool:
    return exported.version[0] > 0 and not exported.flags & (_READ_ONLY | _IS_COPY)


def _asked(x: Any, **options: Any) -> Exported:
    """Returns the memory that x exports. Raises TypeError if x does not return a capsule of DLPack."""
    try:
        capsule = x.__dlpack__(max_version=MAX_VERSION, **options)
    except TypeError:  # A producer of before version 1.
        capsule = x.__dlpack__(**options)
    return Exported(*load().take_dlpack(capsule))


def _check_version(exported: Exported) -> None:
    major, minor = exported.version
    if major > MAX_VERSION[0]:
        raise TypeError(f"this is version {major}.{minor} of DLPack; only version {MAX_VERSION[0]} is supported")


def _type_name(exported: Exported) -> str:
    code, bits, lanes = exported.element
    if (code, bits) not in _TYPES or lanes != 1:
        raise TypeError(f"arrays of DLPack's type code {code} with {bits} bits in {lanes} lanes cannot be sent")
    return _TYPES[code, bits]


def _array_over(exported: Exported) -> Any:
    """Returns a NumPy array over the memory."""
    import numpy

    dtype, shape = type_named(_type_name(exported)), exported.shape
    if not math.prod(shape):
        return numpy.empty(shape, dtype)
    strides = tuple(step * dtype.itemsize for step in exported.strides or _compact(shape, 1))
    reach = [(length - 1) * step for length, step in zip(shape, strides)]
    below = -sum(step for step in reach if step < 0)
    above = sum(step for step in reach if step > 0)
    region = Region(exported.address - below, below + above + dtype.itemsize, exported.owner)
    return numpy.ndarray(shape, dtype, numpy.asarray(region), below, strides)


def _compact(shape: Sequence[int], item_bytes: Any) -> Any:
    products = itertools.accumulate(reversed(shape), lambda a, b: a * b, initial=1)
    return tuple(item_bytes * product for product in list(products)[:len(shape)])[::-1]


class Region:
    """Memory for numpy.asarray(), whose array and all its views keep `owner` alive."""

    def __init__(self, address: int, size: int, owner: Any) -> None:
        self.owner = owner
        self.__array_interface__ = {"version": 3, "shape": (size,), "typestr": "|u1", "data": (address, False)}


class Lent:
    """A NumPy array of any type for other frameworks' from_dlpack, including bfloat16 and the 8-bit types."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack_device__(self) -> Any:
        return (CPU, 0)

    def __dlpack__(self, **_asked: Any) -> Any:
        """Returns a capsule of the protocol before version 1, which every version permits."""
        array = self._array
        code = _CODES.get("bool" if array.dtype.kind == "b" else array.dtype.name)
        if code is None or not array.dtype.isnative:
            raise BufferError(f"DLPack has no type for {array.dtype}")
        if not array.flags.writeable:
            raise BufferError("a read-only array cannot be exported by DLPack")
        strides = tuple(step // array.itemsize for step in array.strides)
        return load().make_dlpack(array.__array_interface__["data"][0], array.shape, strides, *code, CPU, 0, array)


def lend(pointer: int, shape: Sequence[int], name: str, device: tuple[int, int], owner: Any) -> Any:
    """Returns a capsule of dense GPU memory of the type `name`; its holder keeps `owner` alive."""
    shape = tuple(shape)
    return load().make_dlpack(pointer, shape, _compact(shape, 1), *_CODES[name], *device, owner)
