# SPDX-License-Identifier: Apache-2.0
"""Arrays of NumPy, torch and CuPy as memory: pointer, count, type; and new arrays like them.

One class per framework, with the class methods that ArrayKind describes. Nothing here imports a framework that the
caller has not imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Protocol

from . import calls
from .element_types import dtype_number


class Memory:
    """Dense memory of an array for the C interface, and the object that keeps it alive.

    stream: None for host memory; for device memory the stream (a number) on which it is used. is_borrowed: the
    framework's stream is unknown; owner.let_end_before(stream) synchronizes with the framework.
    """

    __slots__ = ("owner", "pointer", "count", "dtype", "item_bytes", "stream", "is_borrowed")
    any_on_device = any_borrowed = False  # Has this process ever sent such memory?

    def __init__(self, owner: Any, pointer: int, count: int, dtype: int, item_bytes: Any, stream: int | None = None) -> None:
        self.owner, self.pointer, self.count, self.dtype = owner, pointer, count, dtype
        self.item_bytes, self.stream, self.is_borrowed = item_bytes, stream, False
        if stream is not None:
            Memory.any_on_device = True

    @property
    def bytes(self) -> Any:
        return self.count * self.item_bytes

    def overlaps(self, other: Any) -> Any:
        return (self.pointer < other.pointer + other.bytes and other.pointer < self.pointer + self.bytes)


class ArrayKind(Protocol):
    """A framework's arrays, as ivycomm handles them. A class that implements it has class methods of these names; no
    objects are made of it.

    `x` is an array of the framework, in the form that adopted() returns; `what` is its name in messages.
    """

    name: str

    def owns(self, x: Any) -> bool:
        """Returns whether x, any object, is an array of this framework."""

    def adopted(self, x: Any) -> Any:
        """Returns the user's x in the form that the other methods take. It has `shape` and `dtype`."""

    def dtype_name(self, x: Any) -> str:
        """Returns the name of x's element type, as in element_types.DTYPES."""

    def place(self, x: Any) -> str:
        """Returns x's device, for by_name() on another rank: "cpu", "cuda"."""

    def input(self, x: Any) -> Memory:
        """Returns x as dense memory; that of a copy if x is not dense. Raises TypeError if it cannot be sent."""

    def for_output(self, x: Any, what: str) -> tuple[ArrayKind, Any]:
        """Returns (kind, array) to write into, sharing x's memory. Raises TypeError if x can never be written."""

    def output(self, x: Any, what: str) -> Memory:
        """Returns the memory of x itself, to write into. Raises ValueError, TypeError or RuntimeError if that is not
        possible now."""

    def empty(self, shape: Sequence[int], like: Any) -> Any:
        """Makes an array of this shape for a result, with the element type and device of `like`."""

    def by_name(self, name: str, shape: Sequence[int], place: str) -> Any:
        """Makes an array for a result from another rank's dtype_name() and place(), on a rank that has no array."""

    def copy(self, to: Memory, from_: Memory) -> None:
        """Copies the contents of one memory to another of the same size."""

    def concatenate(self, parts: Any, axis: int) -> Any:
        """Returns the arrays joined along an axis."""

    def move_axis_first(self, x: Any, axis: int) -> Any:
        """Returns x with this axis as axis 0."""

    def move_axis_back(self, x: Any, axis: int) -> Any:
        """Returns x with axis 0 as this axis."""

    def refuse_axis(self, x: Any) -> None:
        """Raises ValueError if x cannot be joined along an axis other than 0."""

    def refuse_gradient(self, x: Any) -> None:
        """Raises RuntimeError if x requires a gradient, and the operation would not be recorded."""

    def changed(self, x: Any) -> None:
        """Called after x was written without the framework's knowledge."""

    def in_form_of(self, result: Any, x: Any) -> Any:
        """Returns the user's form of a `result` that empty() or by_name() has made; x: the input, or None."""


def _on_device(kept: Any) -> Any:
    """Returns the first device memory among an operation's memories, a borrowed one only if there is no other; or
    None."""
    if not Memory.any_on_device:
        return None
    borrowed = None
    for part in kept if isinstance(kept, (tuple, list)) else (kept,):
        if isinstance(part, Memory):
            found = part if part.stream is not None else None
        else:
            part = getattr(part, "keep", part)  # Operands
            found = _on_device(part) if isinstance(part, (tuple, list)) else None
        if found is not None and not found.is_borrowed:
            return found
        borrowed = borrowed or found
    return borrowed


def _borrowed(kept: Any) -> Iterator[Any]:
    """Returns all borrowed memories among an operation's memories."""
    if not Memory.any_borrowed:
        return
    for part in kept if isinstance(kept, (tuple, list)) else (kept,):
        if isinstance(part, Memory):
            if part.is_borrowed:
                yield part
        else:
            part = getattr(part, "keep", part)
            if isinstance(part, (tuple, list)):
                yield from _borrowed(part)


def let_borrowed_end(kept: Any, stream: int | None) -> Any:
    """Makes the stream wait for the frameworks' work on borrowed memories. Returns whether there are any."""
    if not Memory.any_borrowed:
        return False
    found = list(_borrowed(kept))
    for memory in found:
        memory.owner.let_end_before(stream)
    return bool(found)


def find_stream(kept: Any) -> Any:
    """Returns the stream of the first device memory among an operation's memories; None: host memory."""
    memory = _on_device(kept)
    return None if memory is None else memory.stream


def current_stream(kept: Any) -> Any:
    """Returns the framework's current stream, which may differ. None also if it is unknown."""
    memory = _on_device(kept)
    if memory is None or any(_borrowed(kept)):
        return None
    if TorchArrays.owns(memory.owner):
        return raw_stream(memory.owner.device)
    return memory.stream


def raw_stream(device: Any) -> Any:
    """Returns the number of torch's current stream on a CUDA device; the stream object would cost some microseconds."""
    torch = sys.modules["torch"]
    number_of = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if number_of is None or device.index is None:
        return torch.cuda.current_stream(device).cuda_stream
    return number_of(device.index)


class NumpyArrays:
    name = "numpy"

    @staticmethod
    def module() -> Any:
        return sys.modules.get("numpy")

    @classmethod
    def owns(cls, x: Any) -> Any:
        numpy = cls.module()
        return numpy is not None and isinstance(x, (numpy.ndarray, numpy.generic))

    @staticmethod
    def adopted(x: Any) -> Any:
        return x

    @staticmethod
    def refuse_axis(x: Any) -> None:
        """NumPy joins along any axis."""

    @staticmethod
    def dtype_name(x: Any) -> Any:
        return "bool" if x.dtype.kind == "b" else x.dtype.name

    @classmethod
    def input(cls, x: Any) -> Any:
        numpy = cls.module()
        if isinstance(x, numpy.ma.MaskedArray):
            raise TypeError("a masked array has two parts; send .data and .mask separately")
        number = dtype_number(cls.dtype_name(x))
        if not isinstance(x, numpy.ndarray):
            x = numpy.asarray(x)
        if not x.dtype.isnative:
            x = x.astype(x.dtype.newbyteorder("="))
        if not x.flags.c_contiguous:
            x = numpy.array(x, order="C")
        return Memory(x, x.__array_interface__["data"][0], x.size, number, x.itemsize)

    @classmethod
    def for_output(cls, x: Any, what: str) -> Any:
        return cls, x

    @classmethod
    def output(cls, x: Any, what: str) -> Any:
        numpy = cls.module()
        if not isinstance(x, numpy.ndarray):
            raise TypeError(f"{what} must be an array, not a {type(x).__name__}")
        if not x.flags.writeable:
            raise ValueError(f"{what} is read-only; use the function without the trailing underscore or a copy")
        if not x.flags.c_contiguous:
            raise ValueError(f"{what} is not contiguous (strides {x.strides} of shape {x.shape}); "
                             "numpy.ascontiguousarray makes it so")
        if not x.dtype.isnative:
            raise ValueError(f"{what} has non-native byte order ({x.dtype.str})")
        return cls.input(x)

    @classmethod
    def empty(cls, shape: Sequence[int], like: Any) -> Any:
        numpy = cls.module()
        dtype = like.dtype if like.dtype.isnative else like.dtype.newbyteorder("=")
        return numpy.empty(shape, dtype)

    @classmethod
    def place(cls, x: Any) -> str:
        return "cpu"

    @classmethod
    def copy(cls, to: Any, from_: Any) -> None:
        calls.extension.copy_memory(to.pointer, from_.pointer, from_.bytes)

    @classmethod
    def by_name(cls, name: str, shape: Sequence[int], place: Any) -> Any:
        import numpy
        from .dlpack import type_named
        return numpy.empty(shape, type_named(name))

    @classmethod
    def concatenate(cls, parts: Any, axis: int) -> Any:
        return cls.module().concatenate(parts, axis)

    @classmethod
    def move_axis_first(cls, x: Any, axis: int) -> Any:
        return cls.module().moveaxis(x, axis, 0)

    @classmethod
    def move_axis_back(cls, x: Any, axis: int) -> Any:
        return cls.module().moveaxis(x, 0, axis)

    @staticmethod
    def changed(x: Any) -> None:
        """NumPy's arrays keep no count of changes."""

    @staticmethod
    def refuse_gradient(x: Any) -> None:
        """NumPy records no gradients."""

    @staticmethod
    def in_form_of(result: Any, x: Any) -> Any:
        return result


class TorchArrays:
    name = "torch"
    adopted, refuse_axis = NumpyArrays.adopted, NumpyArrays.refuse_axis
    _numbers: ClassVar[dict[Any, int]] = {}  # By the tensors' types.

    @staticmethod
    def module() -> Any:
        return sys.modules.get("torch")

    @classmethod
    def owns(cls, x: Any) -> Any:
        torch = cls.module()
        return torch is not None and isinstance(x, getattr(torch, "Tensor", ()))

    @staticmethod
    def dtype_name(x: Any) -> Any:
        return str(x.dtype).split(".")[-1]

    @classmethod
    def _dense(cls, x: Any) -> Any:
        torch = cls.module()
        if x.device.type not in ("cpu", "cuda"):
            raise TypeError(f"the tensor is on {x.device}; only tensors on the CPU and on GPUs can be sent: x.cpu()")
        if hasattr(x, "full_tensor"):
            raise TypeError(f"a {type(x).__name__} is sharded over ranks: send this rank's part, x.to_local(), or the "
                            "whole, x.full_tensor()")
        if x.layout != torch.strided or x.is_quantized:
            raise TypeError(f"a tensor of layout {x.layout} is not dense memory: x.to_dense()")
        if x.is_nested:
            raise TypeError("a nested tensor is not one block: x.to_padded_tensor(0.0), or its parts, x.unbind()")
        return x.detach()

    @classmethod
    def _memory(cls, x: Any) -> Any:
        stream = raw_stream(x.device) if x.is_cuda else None
        number = cls._numbers.get(x.dtype)
        if number is None:
            number = cls._numbers[x.dtype] = dtype_number(cls.dtype_name(x))
        try:
            pointer = x.data_ptr()
        except RuntimeError as error:  # As torch.func's transforms make them.
            raise TypeError(f"this tensor has no memory that can be sent: {error}") from None
        if pointer == 0 and x.numel() > 0:
            raise TypeError(f"a {type(x).__name__} has no memory that can be sent")
        return Memory(x, pointer, x.numel(), number, x.element_size(), stream)

    @classmethod
    def input(cls, x: Any) -> Any:
        return cls._memory(cls._dense(x).resolve_conj().resolve_neg().contiguous())

    @classmethod
    def for_output(cls, x: Any, what: str) -> Any:
        return cls, x

    @classmethod
    def output(cls, x: Any, what: str) -> Any:
        if not cls.owns(x):
            raise TypeError(f"{what} must be a tensor, not a {type(x).__name__}")
        if cls.is_recorded(x):
            raise RuntimeError(f"{what} requires grad, and autograd would not notice the write: use the "
                               "function without the trailing underscore and without out=, or torch.no_grad()")
        dense = cls._dense(x)
        if dense.is_inference() and not cls.module().is_inference_mode_enabled():
            raise ValueError(f"{what} is an inference tensor, which may be written to only in "
                             "torch.inference_mode(); use x.clone()")
        if dense.is_conj() or dense.is_neg():
            raise ValueError(f"{what} is a lazy conjugate or negative; use x.resolve_conj().resolve_neg()")
        if not dense.is_contiguous():
            raise ValueError(f"{what} is not contiguous (strides {tuple(x.stride())} of shape "
                             f"{tuple(x.shape)}); x.contiguous() makes it so")
        return cls._memory(dense)

    @classmethod
    def empty(cls, shape: Sequence[int], like: Any) -> Any:
        return cls.module().empty(shape, dtype=like.dtype, device=like.device)

    @classmethod
    def place(cls, x: Any) -> Any:
        return x.device.type

    @classmethod
    def copy(cls, to: Any, from_: Any) -> None:
        if to.stream is None:
            NumpyArrays.copy(to, from_)  # Either may be another framework's.
        elif to.is_borrowed:
            to.owner.copy(to, from_)
        else:
            to.owner.view(-1).copy_(from_.owner.view(-1))

    @classmethod
    def by_name(cls, name: str, shape: Sequence[int], place: Any) -> Any:
        import torch
        return torch.empty(shape, dtype=getattr(torch, name), device=place)

    @classmethod
    def concatenate(cls, parts: Any, axis: int) -> Any:
        return cls.module().cat(list(parts), axis)

    @classmethod
    def move_axis_first(cls, x: Any, axis: int) -> Any:
        return x.movedim(axis, 0)

    @classmethod
    def move_axis_back(cls, x: Any, axis: int) -> Any:
        return x.movedim(0, axis)

    @staticmethod
    def changed(x: Any) -> None:
        # Makes autograd notice the change. Inference tensors have no version.
        if x.is_inference():
            return
        graph: Any = sys.modules.get("torch.autograd.graph")
        if hasattr(graph, "increment_version"):
            graph.increment_version(x)
        else:  # Before torch 2.2: an empty write.
            x.detach().reshape(-1)[:0].zero_()

    @classmethod
    def is_recorded(cls, x: Any) -> Any:
        """Returns whether autograd records operations on x."""
        return cls.owns(x) and x.requires_grad and cls.module().is_grad_enabled()

    @classmethod
    def refuse_gradient(cls, x: Any) -> None:
        if cls.is_recorded(x):
            raise RuntimeError("the tensor requires grad, and this operation has no derivative: use x.detach() or "
                               "torch.no_grad() if it is only data")

    @classmethod
    def in_form_of(cls, result: Any, x: Any) -> Any:
        """Returns the result with x's shape and memory format: channels_last is kept."""
        if x is not None and result.shape == x.shape and not x.is_contiguous():
            for form in (cls.module().channels_last, cls.module().channels_last_3d):
                if x.dim() == (4 if form is cls.module().channels_last else 5) and x.is_contiguous(memory_format=form):
                    return result.contiguous(memory_format=form)
        return result


class CudaArrays:
    """Arrays with `__cuda_array_interface__`: CuPy's in every form; others, such as Numba's, only in place or with
    `out=`, because only their own framework can make another one."""

    name = "cuda"
    adopted, refuse_axis = NumpyArrays.adopted, NumpyArrays.refuse_axis
    TYPES = {"f2": "float16", "f4": "float32", "f8": "float64", "c8": "complex64", "c16": "complex128",
             "b1": "bool", **{f"{sign}{bytes_}": f"{word}int{8 * bytes_}".replace("sint", "int")
                              for sign, word in (("i", "s"), ("u", "u")) for bytes_ in (1, 2, 4, 8)}}

    @classmethod
    def owns(cls, x: Any) -> bool:
        try:  # JAX's arrays have it too, and raise where they are no GPU's.
            return x.__cuda_array_interface__ is not None
        except Exception:  # noqa: BLE001 - whatever a framework raises there.
            return False

    @classmethod
    def dtype_name(cls, x: Any) -> Any:
        text = x.__cuda_array_interface__["typestr"]
        if text[0] == ">" or text[1:] not in cls.TYPES:
            raise TypeError(f"arrays of type {text} cannot be sent")
        return cls.TYPES[text[1:]]

    @classmethod
    def input(cls, x: Any) -> Any:
        shown = x.__cuda_array_interface__
        count, item_bytes = 1, int(shown["typestr"][2:])
        dense: list[int] = []
        for length in reversed(shown["shape"]):
            dense.insert(0, count * item_bytes)
            count *= length
        strides = shown.get("strides")
        if strides is not None and count and tuple(strides) != tuple(dense):
            raise ValueError(f"the array is not contiguous (strides {tuple(strides)} of shape {shown['shape']})")
        # 1 and 2 are the default streams; None: there is nothing to wait for.
        stream = shown.get("stream") or 0
        return Memory(x, shown["data"][0], count, dtype_number(cls.dtype_name(x)), item_bytes, stream)

    @classmethod
    def output(cls, x: Any, what: str) -> Any:
        if not cls.owns(x):
            raise TypeError(f"{what} must be an array on a device, not a {type(x).__name__}")
        if x.__cuda_array_interface__["data"][1]:
            raise ValueError(f"{what} is read-only")
        return cls.input(x)

    @classmethod
    def for_output(cls, x: Any, what: str) -> Any:
        return cls, x

    @staticmethod
    def _maker(x: Any) -> Any:
        """Returns the module that makes other arrays of x's kind."""
        name = type(x).__module__.partition(".")[0]
        if name != "cupy":
            raise TypeError(f"ivycomm cannot create a {type(x).__name__}: pass out=, or use the function with "
                            "a trailing underscore")
        return sys.modules[name]

    @classmethod
    def empty(cls, shape: Sequence[int], like: Any) -> Any:
        cupy = cls._maker(like)
        with like.device:
            return cupy.empty(shape, like.dtype)

    @classmethod
    def place(cls, x: Any) -> str:
        return "cuda"

    @classmethod
    def by_name(cls, name: str, shape: Sequence[int], place: Any) -> None:
        raise TypeError("the device of the result is unknown, because this rank has no array: pass out=")

    @classmethod
    def copy(cls, to: Any, from_: Any) -> None:
        to.owner[...] = from_.owner

    @classmethod
    def concatenate(cls, parts: Any, axis: int) -> Any:
        parts = list(parts)
        return cls._maker(parts[0]).concatenate(parts, axis)

    @classmethod
    def move_axis_first(cls, x: Any, axis: int) -> Any:
        return cls._maker(x).moveaxis(x, axis, 0)

    @classmethod
    def move_axis_back(cls, x: Any, axis: int) -> Any:
        return cls._maker(x).moveaxis(x, 0, axis)

    @staticmethod
    def changed(x: Any) -> None:
        """These arrays keep no count of changes."""

    refuse_gradient, in_form_of = NumpyArrays.refuse_gradient, NumpyArrays.in_form_of
