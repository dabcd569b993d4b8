"""Whose array is it? The classes of dense_arrays.py and staged_arrays.py, one for each framework, and all else that
NumPy can make an array of.

Another framework is another class with the same methods, in `KINDS` of staged_arrays.py. Nothing here imports a
framework that the caller has not imported, but NumPy for scalars and lists.
"""

import sys

from .dense_arrays import CudaArrays, Memory, NumpyArrays, TorchArrays, current_stream, find_stream, let_borrowed_end
from .element_types import DTYPES

__all__ = ["CudaArrays", "Memory", "NumpyArrays", "TorchArrays", "adopt", "adopt_output", "current_stream", "find_stream", "is_buffer",
           "kind_by_name", "kind_of", "let_borrowed_end", "refuse_parts"]

_kind_of_type = {}  # What NumPy's and torch's classes are, which is asked at every call.


def kind_by_name(name):
    """For a rank without an array of its own, which is to get one as another rank has. NumPy's, where its framework is
    not installed here."""
    from .staged_arrays import KINDS
    kind = next(kind for kind in (NumpyArrays, TorchArrays, *KINDS) if kind.name == name)
    framework = "sys" if name in ("cuda", "dlpack_device", "numpy") else name
    if name in ("dlpack", "ivy") or not _is_installed(framework):
        return NumpyArrays
    return kind


def _is_installed(module):
    if module in sys.modules:
        return True
    import importlib.util
    return importlib.util.find_spec(module) is not None


def kind_of(x):
    """(kind, array) of an array; None for all else."""
    kind = _kind_of_type.get(type(x))
    if kind is not None:
        return kind, x
    for kind in (TorchArrays, NumpyArrays):
        if kind.owns(x):
            _kind_of_type[type(x)] = kind
            return kind, x
    if type(x) in NO_ARRAYS:
        return None
    from .staged_arrays import KINDS
    for kind in KINDS:
        if kind.owns(x):
            return kind, kind.adopted(x)
    return None


# Classes that are looked at no further.
NO_ARRAYS = {int, float, complex, bool, str, bytes, list, tuple, dict, type(None)}


def refuse_parts(x):
    """TypeError for what holds an array as several parts; the message says what makes one of it."""
    name, module = type(x).__name__, type(x).__module__
    for method, attributes in (("toarray", ("toarray", "nnz")), ("todense", ("todense",))):
        if all(hasattr(x, attribute) for attribute in attributes):
            raise TypeError(f"a {name} is sparse, not dense memory: x.{method}()")
    if module.startswith("tensorflow") and name in _TENSORFLOW_PARTS:
        raise TypeError(f"a {name} is not dense memory: {_TENSORFLOW_PARTS[name]}")


_TENSORFLOW_PARTS = {"SparseTensor": "tf.sparse.to_dense(x)", "RaggedTensor": "x.to_tensor()",
                     "IndexedSlices": "tf.convert_to_tensor(x)"}


def adopt(x):
    """(kind, array): scalars, lists and what NumPy can make an array of become NumPy's."""
    found = kind_of(x)
    if found is not None:
        return found
    refuse_parts(x)
    try:
        import numpy
    except ImportError:
        raise TypeError(f"{type(x).__name__}: ivycomm knows no such array, and NumPy is not installed to make one of it; "
                        "see the *_object functions") from None
    made = numpy.asarray(x)
    if made.dtype.kind in "OSUVMm" and NumpyArrays.dtype_name(made) not in DTYPES:
        raise TypeError(f"a {type(x).__name__} makes no array of numbers (dtype {made.dtype}); "
                        "the *_object functions send any object")
    return NumpyArrays, made


def adopt_output(x, what):
    """(kind, array) by which x is written into, its own memory. TypeError says why that cannot be."""
    found = kind_of(x)
    if found is not None:
        kind, array = found
        return kind.for_output(array, what)
    if is_buffer(x) or hasattr(type(x), "__array_interface__"):
        return adopt(x)  # NumPy's array over the same memory, which may be read-only.
    refuse_parts(x)
    raise TypeError(f"{what} is a {type(x).__name__}, which cannot be written into: use an array, or the function without "
                    "the trailing underscore and without out=")


def is_buffer(x):
    """Is it memory without being an array: a bytearray, an array.array, a memoryview, an mmap?"""
    if type(x) in NO_ARRAYS:
        return False
    try:
        memoryview(x).release()
    except TypeError:
        return False
    return True
