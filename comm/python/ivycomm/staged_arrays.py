# SPDX-License-Identifier: Apache-2.0
"""Arrays that only their own framework can make: JAX's, TensorFlow's, Ivy's, and all others with DLPack.

They are read in place (or copied from a device); a result is received into NumPy memory and passed to the framework
when it is complete. Immutable arrays are never written.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from . import dlpack
from .dense_arrays import ArrayKind, CudaArrays, NumpyArrays, TorchArrays
from .device_arrays import DeviceExportedArrays, places_of
from .element_types import dtype_number

_ALIGNMENT = 64  # Frameworks take memory over without a copy when it begins at such an address.


def _is_staged(x: Any) -> Any:
    return NumpyArrays.owns(x)


class StagedArrays(NumpyArrays):
    """Common base of the frameworks here. Each defines how an array is read (`view`) and made (`made`)."""

    @classmethod
    def view(cls, x: Any) -> Any:
        """Returns a NumPy array over the memory of x, or a copy of an array on a device."""
        raise NotImplementedError

    @classmethod
    def made(cls, array: Any, like: Any) -> Any:
        """Makes the framework's array from a NumPy array that has no other owner; on the device of `like`, which may
        be None."""
        raise NotImplementedError

    @classmethod
    def dtype_name(cls, x: Any) -> Any:
        return NumpyArrays.dtype_name(x if _is_staged(x) else cls.view(x))

    @classmethod
    def input(cls, x: Any) -> Any:
        return NumpyArrays.input(x if _is_staged(x) else cls.view(x))

    @classmethod
    def for_output(cls, x: Any, what: str) -> Any:
        raise TypeError(f"{what}, a {_full_name(x)}, is read-only: use the function without the "
                        "trailing underscore, which returns a new one, and no out=")

    @classmethod
    def empty(cls, shape: Sequence[int], like: Any) -> Any:
        return _aligned(shape, dlpack.type_named(cls.dtype_name(like)))

    @classmethod
    def by_name(cls, name: str, shape: Sequence[int], place: Any) -> Any:
        return _aligned(shape, dlpack.type_named(name))

    @classmethod
    def concatenate(cls, parts: Any, axis: int) -> Any:
        import numpy
        parts = list(parts)
        whole = numpy.concatenate([part if _is_staged(part) else cls.view(part) for part in parts], axis)
        return whole if _is_staged(parts[0]) else cls.made(whole, parts[0])

    @classmethod
    def move_axis_first(cls, x: Any, axis: int) -> Any:
        return cls._moved(x, axis, 0)

    @classmethod
    def move_axis_back(cls, x: Any, axis: int) -> Any:
        return cls._moved(x, 0, axis)

    @classmethod
    def _moved(cls, x: Any, from_: Any, to: Any) -> Any:
        import numpy
        if _is_staged(x):
            return numpy.moveaxis(x, from_, to)
        return cls.made(numpy.array(numpy.moveaxis(cls.view(x), from_, to), order="C"), x)

    @classmethod
    def in_form_of(cls, result: Any, x: Any) -> Any:
        return cls.made(result, x)


def _aligned(shape: Sequence[int], dtype: Any) -> Any:
    import numpy
    size = dtype.itemsize
    for length in (shape,) if isinstance(shape, int) else shape:
        size *= length
    memory = numpy.empty(size + _ALIGNMENT, "u1")
    begin = -memory.__array_interface__["data"][0] % _ALIGNMENT
    return memory[begin:begin + size].view(dtype).reshape(shape)


def _full_name(x: Any) -> str:
    return f"{type(x).__module__}.{type(x).__qualname__}"


def _is_aligned(array: Any) -> bool:
    return not array.__array_interface__["data"][0] % _ALIGNMENT


class JaxArrays(StagedArrays):
    name = "jax"

    @staticmethod
    def owns(x: Any) -> Any:
        jax = sys.modules.get("jax")
        return jax is not None and isinstance(x, getattr(jax, "Array", ()))

    @staticmethod
    def dtype_name(x: Any) -> Any:
        return NumpyArrays.dtype_name(x)

    @staticmethod
    def view(x: Any) -> Any:
        import numpy
        jax = sys.modules["jax"]
        if isinstance(x, jax.core.Tracer):
            raise TypeError(f"a {type(x).__name__} has no values yet: use the functions of ivycomm.jax inside jit, grad "
                            "and vmap")
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):
            raise TypeError(f"arrays of {x.dtype} cannot be sent: use jax.random.key_data(x) for the numbers of a key")
        devices = len(x.sharding.device_set)
        if devices > 1:
            raise TypeError(f"the array is sharded over {devices} devices ({x.sharding}); send its parts, "
                            "[part.data for part in x.addressable_shards], or one device's copy, "
                            "jax.device_put(x, jax.local_devices()[0])")
        dtype_number(JaxArrays.dtype_name(x))  # Before anything is copied from a device.
        return numpy.asarray(x)

    @classmethod
    def place(cls, x: Any) -> str:
        return "cpu"  # A device's memory is copied to the host and back.

    @classmethod
    def for_output(cls, x: Any, what: str) -> NoReturn:
        raise TypeError(f"{what} is a JAX array, which is read-only: x = ivycomm.all_reduce(x), without the "
                        "trailing underscore, returns a new one")

    @classmethod
    def made(cls, array: Any, like: Any) -> Any:
        import jax
        device = None if like is None else next(iter(like.sharding.device_set))
        made = None
        if array.size and (device is None or device == jax.local_devices(backend="cpu")[0]):
            with contextlib.suppress(BufferError, NotImplementedError, RuntimeError, TypeError, ValueError):
                made = jax.dlpack.from_dlpack(dlpack.Lent(array))  # Versions differ in the types that they take so.
        if made is None:
            made = jax.device_put(array, device)
        if like is not None and type(like.sharding) is not type(made.sharding):
            made = jax.device_put(made, like.sharding)  # One device, but with a mesh or a kind of memory.
        return made


def _tensorflow_errors() -> Any:
    """Returns the exceptions that TensorFlow raises for types that it does not exchange by DLPack."""
    errors = sys.modules["tensorflow"].errors
    return errors.InvalidArgumentError, errors.UnimplementedError


class TensorFlowArrays(StagedArrays):
    """Tensors of TensorFlow, and variables as what they hold."""

    name = "tensorflow"

    @staticmethod
    def owns(x: Any) -> Any:
        tensorflow = sys.modules.get("tensorflow")
        return tensorflow is not None and isinstance(x, (getattr(tensorflow, "Tensor", ()),
                                                         getattr(tensorflow, "Variable", ())))

    @staticmethod
    def dtype_name(x: Any) -> Any:
        return NumpyArrays.dtype_name(x) if _is_staged(x) else x.dtype.name

    @classmethod
    def view(cls, x: Any) -> Any:
        import numpy
        dtype_number(cls.dtype_name(x))
        if isinstance(x, sys.modules["tensorflow"].Variable):
            x = x.value()
        if not hasattr(x, "numpy"):
            raise TypeError("a tensor of a tf.function's graph has no values yet: call ivycomm outside tf.function, "
                            "or use tf.py_function(ivycomm.all_reduce, [x], x.dtype)")
        if "CPU" in x.device and x.shape.num_elements():
            with contextlib.suppress(*_tensorflow_errors()):
                return dlpack.view(x)[0]
        return numpy.asarray(x)  # A copy.

    @classmethod
    def for_output(cls, x: Any, what: str) -> Any:
        if isinstance(x, sys.modules["tensorflow"].Variable):
            return AssignedVariables, Assigned(x)
        raise TypeError(f"{what} is a TensorFlow tensor, which is read-only: use a tf.Variable, or the function "
                        "without the trailing underscore, which returns a new one")

    @classmethod
    def made(cls, array: Any, like: Any) -> Any:
        import tensorflow
        on_cpu = like is None or "CPU" in like.device
        # Unaligned memory crashes the process in some of TensorFlow's kernels.
        if on_cpu and array.size and array.dtype.kind != "b" and _is_aligned(array):
            with contextlib.suppress(*_tensorflow_errors()):
                return tensorflow.experimental.dlpack.from_dlpack(dlpack.Lent(array).__dlpack__())
        with tensorflow.device(None if like is None else like.device):
            return tensorflow.convert_to_tensor(array)


class Assigned:
    """A variable that is written: its value is copied to NumPy memory, and assigned to the variable at the end."""

    def __init__(self, variable: Any) -> None:
        self.variable, self.shape = variable, tuple(variable.shape)
        self.dtype = variable.dtype
        self.staged = _aligned(self.shape, dlpack.type_named(TensorFlowArrays.dtype_name(variable)))
        self.staged[...] = TensorFlowArrays.view(variable)

    def __getitem__(self, rows: Any) -> Any:
        return self.variable[rows]


class AssignedVariables(StagedArrays):
    name = "tensorflow variables"

    @staticmethod
    def dtype_name(x: Any) -> Any:
        return TensorFlowArrays.dtype_name(x.variable)

    @staticmethod
    def output(x: Any, what: str) -> Any:
        return NumpyArrays.output(x.staged, what)

    @staticmethod
    def changed(x: Any) -> None:
        x.variable.assign(x.staged)


def native_of(x: Any) -> Any:
    """Returns the framework's array inside an ivy.Array; None for anything else.

    Other objects with `data` are more than that attribute: a sparse matrix, or values with labels.
    """
    if any(base.__module__.partition(".")[0] == "ivy" for base in type(x).__mro__):
        return getattr(x, "data", None)
    return None


class IvyArrays(StagedArrays):
    """ivy.Array: all calls are forwarded to the framework's array inside; the result is wrapped again."""

    name = "ivy"

    @staticmethod
    def owns(x: Any) -> bool:
        return native_of(x) is not None

    @staticmethod
    def _inner(x: Any) -> Any:
        """Returns (kind, array) of the array inside an ivy.Array, or of an array that is not wrapped yet."""
        native = native_of(x)
        native = x if native is None else native
        for kind in INSIDE_OTHERS:
            if kind.owns(native):
                return kind, native
        raise TypeError(f"a {type(x).__name__} that contains a {type(native).__name__} cannot be sent")

    @staticmethod
    def _of_inner(name: str) -> Any:
        """Returns the function of that name, applied to the array inside the ivy.Array."""
        def call(cls: Any, x: Any, *others: Any) -> Any:
            kind, native = cls._inner(x)
            return getattr(kind, name)(native, *others)

        return classmethod(call)

    dtype_name, input, place = _of_inner("dtype_name"), _of_inner("input"), _of_inner("place")
    output, for_output = _of_inner("output"), _of_inner("for_output")
    refuse_gradient, refuse_axis = _of_inner("refuse_gradient"), _of_inner("refuse_axis")

    @classmethod
    def empty(cls, shape: Sequence[int], like: Any) -> Any:
        kind, native = cls._inner(like)
        return kind.empty(shape, native)

    @classmethod
    def copy(cls, to: Any, from_: Any) -> None:
        kind, _ = cls._inner(to.owner)
        kind.copy(to, from_)

    @classmethod
    def concatenate(cls, parts: Any, axis: int) -> Any:
        wrapper = parts[0] if hasattr(parts, "__getitem__") else None
        natives = [cls._inner(part) for part in parts]
        whole = natives[0][0].concatenate([native for _, native in natives], axis)
        return cls._wrapped(whole, wrapper) if native_of(wrapper) is not None else whole

    @classmethod
    def _moved(cls, x: Any, from_: Any, to: Any) -> Any:
        kind, native = cls._inner(x)
        moved = kind.move_axis_first(native, from_) if to == 0 else kind.move_axis_back(native, to)
        return moved if native is x else cls._wrapped(moved, x)

    @classmethod
    def in_form_of(cls, result: Any, x: Any) -> Any:
        if x is None:
            return cls.made(result, None)
        kind, native = cls._inner(x)
        return cls._wrapped(kind.in_form_of(result, native), x)

    @classmethod
    def made(cls, array: Any, like: Any) -> Any:
        return sys.modules["ivy"].array(array) if "ivy" in sys.modules else array

    @staticmethod
    def _wrapped(native: Any, like: Any) -> Any:
        return type(like)(native)


class Exported:
    """An array in host memory that is only known through DLPack."""

    def __init__(self, source: Any) -> None:
        self.source, self.array = source, _lent(source)[0]
        self.shape, self.dtype = self.array.shape, self.array.dtype


class ExportedArrays(StagedArrays):
    """Arrays in host memory of any framework with DLPack: MLX, PaddlePaddle, and others."""

    name = "dlpack"

    @staticmethod
    def owns(x: Any) -> Any:
        return isinstance(x, Exported) or dlpack.is_exporter(x)

    @staticmethod
    def adopted(x: Any) -> Any:
        return x if hasattr(x, "shape") and hasattr(x, "dtype") else Exported(x)

    @staticmethod
    def view(x: Any) -> Any:
        return x.array if isinstance(x, Exported) else _lent(x)[0]

    @classmethod
    def for_output(cls, x: Any, what: str) -> Any:
        """Written in place, if its framework permits it."""
        x = x.source if isinstance(x, Exported) else x
        array, writable = _lent(x)
        if not writable:
            return super().for_output(x, what)
        return NumpyArrays, array

    @classmethod
    def made(cls, array: Any, like: Any) -> Any:
        """Makes an array of the framework of `like`; NumPy's if the framework offers no way."""
        like = like.source if isinstance(like, Exported) else like
        for maker in _makers(like):
            try:
                made = maker(array)
                if type(made) is type(like):
                    return made
            except (AttributeError, BufferError, NotImplementedError, RuntimeError, TypeError, ValueError):
                continue
        return array


def _lent(x: Any) -> Any:
    """As dlpack.view. TypeError also for arrays that the framework does not export."""
    try:
        return dlpack.view(x)
    except BufferError as error:
        is_sparse = getattr(x, "is_sparse", False)
        if is_sparse() if callable(is_sparse) else is_sparse:
            raise TypeError(f"a sparse {type(x).__name__} is not dense memory: x.to_dense()") from None
        raise TypeError(f"a {type(x).__name__} does not export its memory: {error}") from None


def _makers(like: Any) -> Iterator[Any]:
    """Returns the ways in which a framework may import an array, the best first."""
    if like is None:
        return
    places = places_of(like)
    for place in places:
        if hasattr(place, "from_dlpack"):
            yield lambda array, place=place: place.from_dlpack(dlpack.Lent(array))
    for place in places:
        for name in ("asarray", "array", "to_tensor"):
            if hasattr(place, name):
                yield getattr(place, name)


# An ivy.Array's own array is one of these.
INSIDE_OTHERS: tuple[ArrayKind, ...] = (TorchArrays, NumpyArrays, JaxArrays, TensorFlowArrays, DeviceExportedArrays, CudaArrays,
                                        ExportedArrays)
# In this order: arrays of JAX show __cuda_array_interface__ too, and CuPy's and JAX's speak DLPack.
KINDS: tuple[ArrayKind, ...] = (JaxArrays, TensorFlowArrays, IvyArrays, DeviceExportedArrays, CudaArrays, ExportedArrays)
