"""Arrays of every framework as memory: pointer, count, type; and new arrays like them.

One class per framework (`NumpyArrays`, `TorchArrays`); `kind_of` finds the one an array belongs to.
Nothing here imports a framework that the caller has not imported, but NumPy for scalars and lists.
Another framework is another class with the same methods, in `_KINDS`.
"""

import ctypes
import os
import sys
import warnings

from .element_types import dtype_number


class Memory:
    """Dense memory of an array: what the C interface needs, and who keeps it alive.

    stream: None for host memory; of a device's memory the stream (a number) on which it is used.
    """

    __slots__ = ("owner", "pointer", "count", "dtype", "item_bytes", "stream")
    any_on_device = False  # Has this process ever sent a device's memory?

    def __init__(self, owner, pointer, count, dtype, item_bytes, stream=None):
        self.owner, self.pointer, self.count, self.dtype = owner, pointer, count, dtype
        self.item_bytes, self.stream = item_bytes, stream
        if stream is not None:
            Memory.any_on_device = True

    @property
    def bytes(self):
        return self.count * self.item_bytes

    def overlaps(self, other):
        return (self.pointer < other.pointer + other.bytes and other.pointer < self.pointer + self.bytes)


def find_stream(kept):
    """The stream of the first device memory among what an operation keeps; None: host memory."""
    if not Memory.any_on_device:
        return None
    for part in kept if isinstance(kept, (tuple, list)) else (kept,):
        if isinstance(part, Memory):
            found = part.stream
        else:
            part = getattr(part, "keep", part)  # _Operands
            found = find_stream(part) if isinstance(part, (tuple, list)) else None
        if found is not None:
            return found
    return None


def _outside():
    """How many frames above the caller the program is, which called a function of this package."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and os.path.dirname(frame.f_code.co_filename) == os.path.dirname(__file__):
        level, frame = level + 1, frame.f_back
    return level


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
    def place(cls, x):
        """Where the array is, for by_name on another rank."""
        return "cpu"

    @classmethod
    def copy(cls, to, from_):
        """Contents of one Memory to another of the same size."""
        ctypes.memmove(to.pointer, from_.pointer, from_.bytes)

    @classmethod
    def by_name(cls, name, shape, place):
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

    @staticmethod
    def warn_of_gradient(x):
        """There are none."""

    @staticmethod
    def in_form_of(result, x):
        return result


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
        if x.device.type not in ("cpu", "cuda"):
            raise TypeError(f"the tensor is on {x.device}; only tensors on the CPU and on GPUs can be sent: x.cpu()")
        if x.layout != torch.strided or x.is_quantized:
            raise TypeError(f"a tensor of layout {x.layout} is not dense memory: x.to_dense()")
        return x.detach()

    @classmethod
    def _memory(cls, x):
        stream = None
        if x.device.type == "cuda":
            stream = cls.module().cuda.current_stream(x.device).cuda_stream
        return Memory(x, x.data_ptr(), x.numel(), dtype_number(cls.dtype_name(x)), x.element_size(), stream)

    @classmethod
    def input(cls, x):
        return cls._memory(cls._dense(x).resolve_conj().resolve_neg().contiguous())

    @classmethod
    def output(cls, x, what):
        if not cls.owns(x):
            raise TypeError(f"{what} must be a tensor, not a {type(x).__name__}")
        dense = cls._dense(x)
        if dense.is_inference() and not cls.module().is_inference_mode_enabled():
            raise ValueError(f"{what} is an inference tensor, which may be written into only in "
                             "torch.inference_mode(); use x.clone()")
        if dense.is_conj() or dense.is_neg():
            raise ValueError(f"{what} is a lazy conjugate or negative; use x.resolve_conj().resolve_neg()")
        if not dense.is_contiguous():
            raise ValueError(f"{what} is not contiguous (strides {tuple(x.stride())} of shape "
                             f"{tuple(x.shape)}); x.contiguous() makes it so")
        return cls._memory(dense)

    @classmethod
    def empty(cls, shape, like):
        return cls.module().empty(shape, dtype=like.dtype, device=like.device)

    @classmethod
    def place(cls, x):
        return x.device.type

    @classmethod
    def copy(cls, to, from_):
        to.owner.view(-1).copy_(from_.owner.view(-1))

    @classmethod
    def by_name(cls, name, shape, place):
        import torch
        return torch.empty(shape, dtype=getattr(torch, name), device=place)

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
        # An empty write raises the tensor's version, so that autograd notices the change. Inference tensors have none.
        if not x.is_inference():
            x.detach().reshape(-1)[:0].zero_()

    @classmethod
    def warn_of_gradient(cls, x):
        """Told of an input whose result autograd will know nothing of."""
        if x.requires_grad and cls.module().is_grad_enabled():
            warnings.warn("the result carries no gradient: no ivycomm operation is differentiable; x.detach() or "
                          "torch.no_grad() says that this is meant", stacklevel=_outside())

    @classmethod
    def in_form_of(cls, result, x):
        """The result of x's shape, in memory as x is: channels_last stays so."""
        if result.shape == x.shape and not x.is_contiguous():
            for form in (cls.module().channels_last, cls.module().channels_last_3d):
                if x.dim() == (4 if form is cls.module().channels_last else 5) and x.is_contiguous(memory_format=form):
                    return result.contiguous(memory_format=form)
        return result


class CudaArrays:
    """What shows `__cuda_array_interface__` (CuPy, Numba): in place or with `out=`, because only its
    own framework can make another. Not JAX's, which nobody may write into."""

    name = "cuda"
    _TYPES = {"f2": "float16", "f4": "float32", "f8": "float64", "c8": "complex64", "c16": "complex128",
              "b1": "bool", **{f"{sign}{bytes_}": f"{word}int{8 * bytes_}".replace("sint", "int")
                               for sign, word in (("i", "s"), ("u", "u")) for bytes_ in (1, 2, 4, 8)}}

    @classmethod
    def owns(cls, x):
        try:  # JAX's arrays have it too, and raise where they are no GPU's.
            return x.__cuda_array_interface__ is not None
        except Exception:  # noqa: B902: whatever a framework raises there.
            return False

    @classmethod
    def dtype_name(cls, x):
        text = x.__cuda_array_interface__["typestr"]
        if text[0] == ">" or text[1:] not in cls._TYPES:
            raise TypeError(f"arrays of type {text} cannot be sent")
        return cls._TYPES[text[1:]]

    @classmethod
    def input(cls, x):
        shown = x.__cuda_array_interface__
        count, item_bytes = 1, int(shown["typestr"][2:])
        dense = []
        for length in reversed(shown["shape"]):
            dense.insert(0, count * item_bytes)
            count *= length
        strides = shown.get("strides")
        if strides is not None and count and tuple(strides) != tuple(dense):
            raise ValueError(f"the array is not contiguous (strides {tuple(strides)} of shape {shown['shape']})")
        # 1 and 2 stand for the default streams; None: nothing has to be waited for.
        stream = shown.get("stream") or 0
        return Memory(x, shown["data"][0], count, dtype_number(cls.dtype_name(x)), item_bytes, stream)

    @classmethod
    def output(cls, x, what):
        if not cls.owns(x):
            raise TypeError(f"{what} must be an array on a device, not a {type(x).__name__}")
        if x.__cuda_array_interface__["data"][1]:
            raise ValueError(f"{what} is read-only")
        return cls.input(x)

    @classmethod
    def empty(cls, shape, like):
        raise TypeError(f"ivycomm cannot make another {type(like).__name__}: give out=, or use the function with "
                        "a trailing underscore")

    @classmethod
    def place(cls, x):
        return "cuda"

    by_name = copy = concatenate = move_axis_first = move_axis_back = empty

    @staticmethod
    def changed(x):
        """These arrays keep no count of changes."""

    warn_of_gradient, in_form_of = NumpyArrays.warn_of_gradient, NumpyArrays.in_form_of


_KINDS = (TorchArrays, NumpyArrays, CudaArrays)
_BY_NAME = {kind.name: kind for kind in _KINDS}


def kind_by_name(name):
    return _BY_NAME[name]


def kind_of(x):
    """(kind, array) of an array or of an ivy.Array; None for all else."""
    for kind in _KINDS:
        if kind.owns(x):
            return kind, x
    inner = native_of(x)
    if inner is not None:
        for kind in _KINDS:
            if kind.owns(inner):
                return kind, inner
    return None


def native_of(x):
    """The framework's array that an ivy.Array holds; None for all else.

    Of other things that have `data` it is a part only: the nonzeros of a sparse matrix, values without their labels.
    """
    if any(base.__module__.partition(".")[0] == "ivy" for base in type(x).__mro__):
        return getattr(x, "data", None)
    return None


def adopt(x):
    """(kind, array): scalars, lists and what NumPy can make an array of become NumPy's."""
    found = kind_of(x)
    if found is not None:
        return found
    if hasattr(x, "toarray") and hasattr(x, "nnz"):
        raise TypeError(f"a {type(x).__name__} is sparse, not dense memory: x.toarray()")
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
