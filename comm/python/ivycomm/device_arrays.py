# SPDX-License-Identifier: Apache-2.0
"""GPU memory without a framework: arrays that are only known through DLPack, and ivycomm's own arrays.

The stream of a framework that is only known through DLPack is unknown. Its work is therefore synchronized with a known
stream, and an operation on its arrays returns only when the result is complete.
"""

from __future__ import annotations

import contextlib
import math
import sys
import weakref
from collections.abc import Sequence
from typing import Any

from . import calls, device_driver, dlpack
from .dense_arrays import CudaArrays, Memory, NumpyArrays, find_stream, let_borrowed_end
from .element_types import DTYPES, dtype_number
from .library import world_handle


class DeviceMemory:
    """An array on a GPU in C order. ivycomm's functions take it directly, and other frameworks without a copy:
    torch.from_dlpack(it), cupy.from_dlpack(it), torch.as_tensor(it, device="cuda"), cupy.asarray(it).

    shape; dtype, a name. it[1] and it[1:3] are parts of axis 0 in the same memory, which lives as long as any of them,
    or an array made from them. as_tensor and asarray support neither bfloat16 nor 8-bit floats; from_dlpack does.
    """

    WORDS = {name: ("|" if word[1:] == "1" else "<") + word for word, name in CudaArrays.TYPES.items()}

    def __init__(self, pointer: int, shape: Sequence[int], dtype: str, owner: Any,
                 device: tuple[int, int] | None = None) -> None:
        """device: (DLPack's type, number); None: the pointer's device."""
        self.shape, self.dtype, self.pointer = tuple(shape), dtype, pointer
        self._owner, self._device = owner, device

    @classmethod
    def new(cls, shape: Sequence[int], dtype: str, number: int, device: tuple[int, int] | None = None) -> DeviceMemory:
        """Allocates memory with NCCL if it has an allocator; not zeroed. number: the GPU, -1 for the current one."""
        place, size = calls.handle_place(), math.prod(shape) * DTYPES[dtype][1]
        calls.extension.ivy_mem_alloc_device(world_handle(), number, size, place)
        return cls(place[0], shape, dtype, _Region(place[0]), device)

    @property
    def __cuda_array_interface__(self) -> Any:
        if self.dtype not in self.WORDS:
            raise AttributeError(f"__cuda_array_interface__ cannot express {self.dtype}: use from_dlpack")
        # Version 3; there is no stream to wait for.
        return {"version": 3, "shape": self.shape, "typestr": self.WORDS[self.dtype], "strides": None, "stream": None,
                "data": (self.pointer if math.prod(self.shape) else 0, False)}

    def __dlpack_device__(self) -> Any:
        if self._device is None:
            self._device = device_driver.device_of(self.pointer)
        return self._device

    def __dlpack__(self, *, stream: int | None = None, **_asked: Any) -> Any:
        device = self.__dlpack_device__()
        if stream is not None and stream not in (-1, dlpack.stream_for(device[0], 0)):
            device_driver.wait_for_default_stream(stream, device[1])
        return dlpack.lend(self.pointer, self.shape, self.dtype, device, self)

    def __getitem__(self, key: Any) -> Any:
        begin, shape = part_of(self.shape, key)
        each = math.prod(self.shape[1:]) * DTYPES[self.dtype][1]
        return DeviceMemory(self.pointer + begin * each, shape, self.dtype, self, self._device)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"DeviceMemory(shape={self.shape}, dtype={self.dtype})"


class _Region:
    """Memory from ivy_mem_alloc_device, freed with the last array that uses it."""

    def __init__(self, pointer: int) -> None:
        weakref.finalize(self, calls.extension.ivy_mem_free, pointer).atexit = False


def part_of(shape: Sequence[int], key: Any) -> Any:
    """Returns (first row, shape) of x[key] for an array x. Raises IndexError if x[key] is not one block."""
    if isinstance(key, tuple) and len(key) == 2 and key[1] is Ellipsis:
        key = key[0]
    if isinstance(key, slice) and shape:
        begin, end, step = key.indices(shape[0])
        if step == 1:
            return begin, (max(0, end - begin), *shape[1:])
    elif isinstance(key, int) and shape and -shape[0] <= key < shape[0]:
        return key % shape[0], shape[1:]
    raise IndexError(f"[{key!r}] is not a contiguous part of an array of shape {shape}: use an index or a range of axis 0")


class Borrowed:
    """An array on a GPU that its framework exports by DLPack. It is requested on first use, and returned when this
    object is destroyed: an operation keeps it until it is done."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self._tensor: dlpack.DeviceTensor | None = None

    @property
    def tensor(self) -> dlpack.DeviceTensor:
        if self._tensor is None:
            try:
                tensor = dlpack.DeviceTensor(self.source)
            except BufferError as error:
                raise TypeError(f"a {type(self.source).__name__} does not export its memory: {error}") from None
            if not tensor.is_dense():
                raise ValueError(f"the {type(self.source).__name__} is not contiguous (strides {tensor.strides} of shape "
                                 f"{tensor.shape}): make a contiguous copy of it")
            self._tensor = tensor
        return self._tensor

    @property
    def shape(self) -> Any:
        return self.tensor.shape

    @property
    def dtype(self) -> Any:
        return self.tensor.dtype

    def let_end_before(self, stream: int) -> None:
        """Makes that stream wait for the framework's work on it."""
        if stream != 0:
            dlpack.DeviceTensor(self.source, stream).give_back()

    @staticmethod
    def copy(to: Any, from_: Any) -> None:
        """Copies the contents of one Memory to another of the same size, one of them borrowed."""
        stream = find_stream((to, from_))
        let_borrowed_end((to, from_), stream)
        device_driver.copy(to.pointer, from_.pointer, from_.bytes, stream)

    def __getitem__(self, key: Any) -> Any:
        whole = DeviceMemory(self.tensor.pointer, self.shape, self.dtype, self, self.tensor.device)
        return DeviceExportedArrays.in_form_of(whole[key], self)


class DeviceExportedArrays:
    """Arrays on a GPU of any framework that exports them only by DLPack. A result is made in ivycomm's memory, which
    the framework's from_dlpack imports; without that function the result is a DeviceMemory, as it is for inputs of
    that class."""

    name = "dlpack_device"

    @staticmethod
    def owns(x: Any) -> Any:
        if isinstance(x, (Borrowed, DeviceMemory)):
            return True
        return dlpack.is_exporter(x) and dlpack.is_on_gpu(x) and not CudaArrays.owns(x)

    @staticmethod
    def adopted(x: Any) -> Any:
        return x if isinstance(x, (Borrowed, DeviceMemory)) else Borrowed(x)

    @classmethod
    def dtype_name(cls, x: Any) -> Any:
        return cls.adopted(x).dtype

    @classmethod
    def input(cls, x: Any) -> Any:
        x = cls.adopted(x)
        number, item_bytes = dtype_number(x.dtype), DTYPES[x.dtype][1]
        if isinstance(x, DeviceMemory):
            return Memory(x, x.pointer, math.prod(x.shape), number, item_bytes, 0)
        memory = Memory(x, x.tensor.pointer, math.prod(x.shape), number, item_bytes, 0)
        memory.is_borrowed = Memory.any_borrowed = True
        return memory

    @classmethod
    def for_output(cls, x: Any, what: str) -> Any:
        return cls, cls.adopted(x)

    @classmethod
    def output(cls, x: Any, what: str) -> Any:
        if not isinstance(x, (Borrowed, DeviceMemory)):
            raise TypeError(f"{what} must be an array on a GPU, not a {type(x).__name__}")
        if isinstance(x, Borrowed) and not x.tensor.is_writable:
            source = type(x.source)
            raise TypeError(f"{what}, a {source.__module__}.{source.__qualname__}, is read-only: use the function "
                            "without the trailing underscore, which returns a new one, and no out=")
        return cls.input(x)

    @classmethod
    def empty(cls, shape: Sequence[int], like: Any) -> Any:
        like = cls.adopted(like)
        device = like.__dlpack_device__() if isinstance(like, DeviceMemory) else like.tensor.device
        return DeviceMemory.new((shape,) if isinstance(shape, int) else shape, like.dtype, device[1], device)

    @staticmethod
    def place(x: Any) -> str:
        return "cuda"

    @staticmethod
    def by_name(name: str, shape: Sequence[int], place: Any) -> Any:
        return DeviceMemory.new((shape,) if isinstance(shape, int) else shape, name, -1)  # This thread's GPU.

    copy = staticmethod(Borrowed.copy)

    @staticmethod
    def refuse_axis(x: Any) -> None:
        raise ValueError("a GPU array that supports only DLPack can be divided only along axis 0: pass axis=0")

    # Not called, because refuse_axis() rejects all axes but the first.
    move_axis_first: Any = None
    move_axis_back: Any = None
    concatenate: Any = None
    changed, refuse_gradient = NumpyArrays.changed, NumpyArrays.refuse_gradient

    @staticmethod
    def in_form_of(result: Any, x: Any) -> Any:
        """Returns an array of x's framework over the memory of `result`, or `result` itself."""
        if x is None or isinstance(x, DeviceMemory):
            return result
        like = x.source if isinstance(x, Borrowed) else x
        for place in places_of(like):
            with contextlib.suppress(AttributeError, BufferError, NotImplementedError, RuntimeError, TypeError, ValueError):
                made = place.from_dlpack(result)
                if type(made) is type(like):
                    return made
        return result


def places_of(like: Any) -> Any:
    """Returns the places where a framework may have functions that make arrays: its namespace, the class, its
    modules."""
    names = [type(like).__module__, type(like).__module__.partition(".")[0]]
    places = [type(like), *(sys.modules[name] for name in names if name in sys.modules)]
    if hasattr(like, "__array_namespace__"):
        places.insert(0, like.__array_namespace__())
    return places
