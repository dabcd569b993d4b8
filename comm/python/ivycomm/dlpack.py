# SPDX-License-Identifier: Apache-2.0
"""DLPack: converts another framework's array in host memory to a NumPy array, and back.

DLPack's DLManagedTensor and DLManagedTensorVersioned are read through ctypes instead of numpy.from_dlpack, which
supports neither bfloat16 nor the 8-bit types, nor, before 2.1, read-only arrays.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import weakref
from ctypes import POINTER, Structure, c_char, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from collections.abc import Sequence
from typing import Any

MAX_VERSION = (1, 1)
CPU, CUDA, ROCM, CUDA_MANAGED = 1, 2, 10, 13
GPUS = {CUDA, ROCM, CUDA_MANAGED}
_HOST_DEVICES = {CPU, 3, 11}  # Memory of the CPU, and such that CUDA or ROCm has pinned.
_BOOL, _BFLOAT, _COMPLEX = 6, 4, 5
_READ_ONLY, _IS_COPY = 1, 2


class Device(Structure):
    _fields_ = [("type", c_int32), ("id", c_int32)]


class DataType(Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class Tensor(Structure):
    _fields_ = [("data", c_void_p), ("device", Device), ("ndim", c_int32), ("dtype", DataType),
                ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)), ("byte_offset", c_uint64)]


class Managed(Structure):
    _fields_ = [("tensor", Tensor), ("context", c_void_p), ("deleter", c_void_p)]


class ManagedVersioned(Structure):
    _fields_ = [("major", c_uint32), ("minor", c_uint32), ("context", c_void_p), ("deleter", c_void_p),
                ("flags", c_uint64), ("tensor", Tensor)]


# Name of a fresh capsule: name of a consumed one, and layout. PyCapsule keeps the pointers to the names.
_FORMS = {b"dltensor_versioned": (b"used_dltensor_versioned", ManagedVersioned),
          b"dltensor": (b"used_dltensor", Managed)}
_FLOAT8 = ("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
           "float8_e5m2fnuz", "float8_e8m0fnu")
_TYPES = {(_BFLOAT, 16): "bfloat16", (_BOOL, 8): "bool", (_COMPLEX, 64): "complex64", (_COMPLEX, 128): "complex128",
          **{(code, bits): f"{word}{bits}" for code, word in enumerate(("int", "uint", "float"))
             for bits in (8, 16, 32, 64) if (code, bits) != (2, 8)},
          **{(7 + index, 8): name for index, name in enumerate(_FLOAT8)}}
_CODES = {name: code for code, name in _TYPES.items()}

_api = ctypes.pythonapi
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_pointer_of = ctypes.PYFUNCTYPE(c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", _api))
_Deleter = ctypes.CFUNCTYPE(None, c_void_p)  # Without the GIL, as the protocol has it.


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
    managed, give_back = _asked(x)
    try:
        _check_version(managed)
        dtype, low, size, begin, shape, strides = _extent(managed.tensor)
    except BaseException:
        give_back()
        raise
    writable = _is_writable(managed)  # Before an array without elements is given back.
    array = _over(low, size, begin, dtype, shape, strides, give_back)
    array.flags.writeable = writable
    return array, writable


class DeviceTensor:
    """An array in GPU memory, lent by its framework until this object is destroyed. strides are in elements.

    TypeError: it is elsewhere, or of a type that cannot be sent. BufferError and others: the framework does not export
    it.
    """

    def __init__(self, x: Any, stream: int = 0) -> None:
        """stream: the driver's number of the stream that uses the memory next; it waits for the framework's work."""
        managed, self.give_back = _asked(x, stream=stream_for(x.__dlpack_device__()[0], stream))
        try:
            _check_version(managed)
            tensor = managed.tensor
            self.dtype, self.device = _type_name(tensor), (tensor.device.type, tensor.device.id)
            if self.device[0] not in GPUS:
                raise TypeError(f"a {type(x).__name__} exported memory on DLPack's device {self.device[0]}, which is not a GPU")
            self.shape = tuple(tensor.shape[:tensor.ndim]) if tensor.ndim else ()
            self.strides = tuple(tensor.strides[:tensor.ndim]) if tensor.ndim and tensor.strides else _compact(self.shape, 1)
            self.pointer = (tensor.data or 0) + tensor.byte_offset
            self.is_writable = _is_writable(managed)
        except BaseException:
            self.give_back()
            raise
        weakref.finalize(self, self.give_back).atexit = False

    def is_dense(self) -> Any:
        return not math.prod(self.shape) or all(
            length == 1 or stride == compact
            for length, stride, compact in zip(self.shape, self.strides, _compact(self.shape, 1)))


def stream_for(device_type: Any, number: int) -> Any:
    """Converts a driver's stream to the protocol's number: CUDA's default stream is 1, ROCm's is 0."""
    return 1 if number == 0 and device_type != ROCM else number


def _is_writable(managed: Any) -> Any:
    return isinstance(managed, ManagedVersioned) and not managed.flags & (_READ_ONLY | _IS_COPY)


def _asked(x: Any, **options: Any) -> Any:
    """Returns (the exported object, the function that returns it)."""
    try:
        capsule = x.__dlpack__(max_version=MAX_VERSION, **options)
    except TypeError:  # A producer of before version 1.
        capsule = x.__dlpack__(**options)
    managed, address = _consume(capsule)
    return managed, _giver_back(managed, address)


def _consume(capsule: Any) -> Any:
    for name, (used, form) in _FORMS.items():
        if _is_valid(capsule, name):
            address = _pointer_of(capsule, name)
            _set_name(capsule, used)  # Its destructor leaves the tensor to us now.
            return form.from_address(address), address
    raise TypeError(f"__dlpack__ returned {capsule!r} instead of an unused DLPack capsule")


def _giver_back(managed: Any, address: Any) -> Any:
    """Returns a function that calls the producer's deleter, once, however often it is called."""
    deleters = [_Deleter(managed.deleter)] if managed.deleter else []

    def give_back() -> None:
        if deleters:
            deleters.pop()(address)
    return give_back


def _check_version(managed: Any) -> None:
    if isinstance(managed, ManagedVersioned) and managed.major != MAX_VERSION[0]:
        raise TypeError(f"this is version {managed.major}.{managed.minor} of DLPack; "
                        f"only version {MAX_VERSION[0]} is supported")


def _type_name(tensor: Any) -> Any:
    code = (tensor.dtype.code, tensor.dtype.bits)
    if code not in _TYPES or tensor.dtype.lanes != 1:
        raise TypeError(f"arrays of DLPack's type code {code[0]} with {code[1]} bits in {tensor.dtype.lanes} lanes "
                        "cannot be sent")
    return _TYPES[code]


def _extent(tensor: Any) -> Any:
    """Returns (type, lowest address, size in bytes, offset of element 0, shape, strides in bytes)."""
    dtype = type_named(_type_name(tensor))
    shape = tuple(tensor.shape[:tensor.ndim]) if tensor.ndim else ()
    if tensor.ndim and tensor.strides:
        strides = tuple(step * dtype.itemsize for step in tensor.strides[:tensor.ndim])
    else:
        strides = _compact(shape, dtype.itemsize)
    if not math.prod(shape):
        return dtype, 0, 0, 0, shape, strides
    reach = [(length - 1) * step for length, step in zip(shape, strides)]
    below = -sum(step for step in reach if step < 0)
    above = sum(step for step in reach if step > 0)
    return (dtype, tensor.data + tensor.byte_offset - below, below + above + dtype.itemsize, below, shape, strides)


def _compact(shape: Sequence[int], item_bytes: Any) -> Any:
    products = itertools.accumulate(reversed(shape), lambda a, b: a * b, initial=1)
    return tuple(item_bytes * product for product in list(products)[:len(shape)])[::-1]


def _over(low: Any, size: int, begin: Any, dtype: Any, shape: Sequence[int], strides: Any, give_back: Any) -> Any:
    import numpy
    if not size:
        give_back()
        return numpy.empty(shape, dtype)
    memory: Any = (c_char * size).from_address(low)
    # Every view keeps the memory alive through its base. Nothing is returned while the interpreter exits.
    weakref.finalize(memory, give_back).atexit = False
    return numpy.ndarray(shape, dtype, memory, begin, strides)


class Lent:
    """A NumPy array of any type for other frameworks' from_dlpack, including bfloat16 and the 8-bit types."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack_device__(self) -> Any:
        return (CPU, 0)

    def __dlpack__(self, **_asked: Any) -> Any:
        """Returns a capsule of the protocol before version 1, which every version permits."""
        dtype = self._array.dtype
        if dtype.isbuiltin == 1 and dtype.kind != "b":  # Before 1.25 NumPy did not lend bools.
            return self._array.__dlpack__()
        # NumPy's capsule, with its deleter, of integers of the same size: nothing else has seen it yet.
        capsule = self._array.view(f"u{self._array.itemsize}").__dlpack__()
        _set_type(_lent_tensor(capsule), "bool" if dtype.kind == "b" else dtype.name)
        return capsule


def _lent_tensor(capsule: Any) -> Any:
    return Managed.from_address(_pointer_of(capsule, b"dltensor")).tensor


def _set_type(tensor: Any, name: str) -> None:
    tensor.dtype.code, tensor.dtype.bits = _CODES[name]


def lend(pointer: int, shape: Sequence[int], name: str, device: tuple[int, int], owner: Any) -> Any:
    """Returns a capsule of dense GPU memory of the type `name`; its holder keeps `owner` alive.

    It is NumPy's capsule of an unused array, for the sake of its deleter, which may be called at any time, on any
    thread, and after the interpreter has ended. BufferError: NumPy is not installed.
    """
    try:
        import numpy
    except ImportError:
        raise BufferError("exporting GPU arrays by DLPack requires NumPy") from None
    integers = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}[_CODES[name][1] // 8]
    size = math.prod(shape) * _CODES[name][1] // 8
    memory: Any = (c_char * max(1, size)).from_address(pointer)
    memory.owner = owner
    capsule = numpy.ndarray(shape, integers, memory).__dlpack__()
    tensor = _lent_tensor(capsule)
    _set_type(tensor, name)
    tensor.device = Device(*device)
    return capsule
