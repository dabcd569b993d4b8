"""Arrays of every framework as memory: pointer, count, type; and new arrays like them.

One class per framework (`NumpyArrays`, `TorchArrays`); `kind_of` finds the one an array belongs to.
Nothing here imports a framework that the caller has not imported, but NumPy for scalars and lists.
Another framework is another class with the same methods, in `_KINDS`.
"""

import sys

from .element_types import dtype_number


class Memory:
    """Dense memory of an array: what the C interface needs, and who keeps it alive."""

    __slots__ = ("owner", "pointer", "count", "dtype", "item_bytes")

    def __init__(self, owner, pointer, count, dtype, item_bytes):
        self.owner, self.pointer, self.count, self.dtype = owner, pointer, count, dtype
        self.item_bytes = item_bytes

    @property
    def bytes(self):
        return self.count * self.item_bytes

    def overlaps(self, other):
        return (self.pointer < other.pointer + other.bytes and other.pointer < self.pointer + self.bytes)


class NumpyArrays:
    name = "numpy"

    @staticmethod
    def module():
        return sys.modules.get("numpy")

    @classmethod
    def owns(cls, x):
        numpy = cls.module()
        return numpy is not None and isinstance(x, (numpy.ndarray, numpy.generic))

    @staticmethod
    def dtype_name(x):
        return "bool" if x.dtype.kind == "b" else x.dtype.name

    @classmethod
    def input(cls, x):
        """`x` as dense memory; a copy where it is not."""
        numpy = cls.module()
        if isinstance(x, numpy.ma.MaskedArray):
            raise TypeError("a masked array has two parts; send .data and .mask one after the other")
        number = dtype_number(cls.dtype_name(x))
        if not isinstance(x, numpy.ndarray):
            x = numpy.asarray(x)
        if not x.dtype.isnative:
            x = x.astype(x.dtype.newbyteorder("="))
        if not x.flags.c_contiguous:
            x = numpy.array(x, order="C")
        return Memory(x, x.__array_interface__["data"][0], x.size, number, x.itemsize)

    @classmethod
    def output(cls, x, what):
        """`x` itself, to be written into. ValueError says why that cannot be."""
        numpy = cls.module()
        if not isinstance(x, numpy.ndarray):
            raise TypeError(f"{what} must be an array, not a {type(x).__name__}")
        if not x.flags.writeable:
            raise ValueError(f"{what} is read-only; use the function without the trailing underscore or a copy")
        if not x.flags.c_contiguous:
            raise ValueError(f"{what} is not contiguous (strides {x.strides} of shape {x.shape}); "
                             "numpy.ascontiguousarray makes it so")
        if not x.dtype.isnative:
            raise ValueError(f"{what} has foreign byte order ({x.dtype.str})")
        return cls.input(x)

    @classmethod
    def empty(cls, shape, like):
        numpy = cls.module()
        dtype = like.dtype if like.dtype.isnative else like.dtype.newbyteorder("=")
        return numpy.empty(shape, dtype)

    @classmethod
    def by_name(cls, name, shape):
        """A new array by the type's name, for a rank that has none to show."""
        import numpy
        try:
            dtype = numpy.dtype(name)
        except TypeError:
            import ml_dtypes  # Gives NumPy the small floating point types.
            dtype = numpy.dtype(getattr(ml_dtypes, name))
        return numpy.empty(shape, dtype)

    @classmethod
    def concatenate(cls, parts, axis):
        return cls.module().concatenate(parts, axis)

    @classmethod
    def move_axis_first(cls, x, axis):
        return cls.module().moveaxis(x, axis, 0)

    @classmethod
    def move_axis_back(cls, x, axis):
        return cls.module().moveaxis(x, 0, axis)

    @staticmethod
    def changed(x):
        """Told after `x` was written behind the framework's back."""


class TorchArrays:
    name = "torch"

    @staticmethod
    def module():
        return sys.modules.get("torch")

    @classmethod
    def owns(cls, x):
        torch = cls.module()
        return torch is not None and isinstance(x, getattr(torch, "Tensor", ()))

    @staticmethod
    def dtype_name(x):
        return str(x.dtype).split(".")[-1]

    @classmethod
    def _dense(cls, x):
        torch = cls.module()
        if x.device.type != "cpu":
            raise TypeError(f"the tensor is on {x.device}; only tensors on the CPU can be sent so far: x.cpu()")
        if x.layout != torch.strided or x.is_quantized:
            raise TypeError(f"a tensor of layout {x.layout} is not dense memory: x.to_dense()")
        return x.detach()

    @classmethod
    def _memory(cls, x):
        return Memory(x, x.data_ptr(), x.numel(), dtype_number(cls.dtype_name(x)), x.element_size())

    @classmethod
    def input(cls, x):
        return cls._memory(cls._dense(x).resolve_conj().resolve_neg().contiguous())

    @classmethod
    def output(cls, x, what):
        if not cls.owns(x):
            raise TypeError(f"{what} must be a tensor, not a {type(x).__name__}")
        dense = cls._dense(x)
        if dense.is_conj() or dense.is_neg():
            raise ValueError(f"{what} is a lazy conjugate or negative; use x.resolve_conj().resolve_neg()")
        if not dense.is_contiguous():
            raise ValueError(f"{what} is not contiguous (strides {tuple(x.stride())} of shape "
                             f"{tuple(x.shape)}); x.contiguous() makes it so")
        return cls._memory(dense)

    @classmethod
    def empty(cls, shape, like):
        return cls.module().empty(shape, dtype=like.dtype)

    @classmethod
    def by_name(cls, name, shape):
        import torch
        return torch.empty(shape, dtype=getattr(torch, name))

    @classmethod
    def concatenate(cls, parts, axis):
        return cls.module().cat(list(parts), axis)

    @classmethod
    def move_axis_first(cls, x, axis):
        return x.movedim(axis, 0)

    @classmethod
    def move_axis_back(cls, x, axis):
        return x.movedim(0, axis)

    @staticmethod
    def changed(x):
        # An empty write raises the tensor's version, so that autograd notices the change.
        x.detach().reshape(-1)[:0].zero_()


_KINDS = (TorchArrays, NumpyArrays)
_BY_NAME = {kind.name: kind for kind in _KINDS}


def kind_by_name(name):
    return _BY_NAME[name]


def adopt(x):
    """(kind, array): scalars, lists and anything else with an array in it become NumPy's."""
    for kind in _KINDS:
        if kind.owns(x):
            return kind, x
    inner = getattr(x, "data", None)  # ivy.Array keeps the framework's array there.
    if inner is not None and not isinstance(x, (bytes, bytearray, memoryview)):
        for kind in _KINDS:
            if kind.owns(inner):
                return kind, inner
    try:
        import numpy
    except ImportError:
        raise TypeError(f"a {type(x).__name__} is no array, and NumPy is not installed to make one of it; "
                        "see the *_object functions") from None
    made = numpy.asarray(x)
    if made.dtype.kind in "OSUVMm" and NumpyArrays.dtype_name(made) not in ("bfloat16",):
        raise TypeError(f"a {type(x).__name__} makes no array of numbers (dtype {made.dtype}); "
                        "the *_object functions send any object")
    return NumpyArrays, made
