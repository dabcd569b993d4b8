# SPDX-License-Identifier: Apache-2.0
"""Finds the class that handles an array: one per framework in dense_arrays.py and staged_arrays.py, and one for
anything else that NumPy can convert to an array.

To support another framework, add a class with the methods of ArrayKind to `KINDS` in staged_arrays.py. Nothing here
imports a framework that the caller has not imported, except NumPy for scalars and lists.
"""

from __future__ import annotations

import sys
from typing import Any

from .dense_arrays import ArrayKind, CudaArrays, Memory, NumpyArrays, TorchArrays, current_stream, find_stream, let_borrowed_end
from .element_types import DTYPES

__all__ = ["ArrayKind", "CudaArrays", "Memory", "NumpyArrays", "TorchArrays", "adopt", "adopt_output",
           "current_stream", "find_stream", "is_buffer", "kind_by_name", "kind_of", "let_borrowed_end", "refuse_parts"]

_kind_of_type: dict[type, ArrayKind] = {}  # NumPy's and torch's classes, because every call looks them up.


def kind_by_name(name: str) -> ArrayKind:
    """Returns the class for a rank without an array of its own, which gets one like another rank's: NumPy's if that
    framework is not installed here."""
    from .staged_arrays import KINDS
    kinds: tuple[ArrayKind, ...] = (NumpyArrays, TorchArrays, *KINDS)
    kind = next(kind for kind in kinds if kind.name == name)
    framework = "sys" if name in ("cuda", "dlpack_device", "numpy") else name
    if name in ("dlpack", "ivy") or not _is_installed(framework):
        return NumpyArrays
    return kind


def _is_installed(module: str) -> bool:
    if module in sys.modules:
        return True
    import importlib.util
    return importlib.util.find_spec(module) is not None


def kind_of(x: Any) -> tuple[ArrayKind, Any] | None:
    """Returns (kind, array) of an array, or None for anything else."""
    known = _kind_of_type.get(type(x))
    if known is not None:
        return known, x
    frequent: tuple[ArrayKind, ...] = (TorchArrays, NumpyArrays)
    for kind in frequent:
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


# Classes that need no further check.
NO_ARRAYS = {int, float, complex, bool, str, bytes, list, tuple, dict, type(None)}


def refuse_parts(x: Any) -> None:
    """Raises TypeError for an object that holds an array as several parts; the message says how to join them."""
    name, module = type(x).__name__, type(x).__module__
    for method, attributes in (("toarray", ("toarray", "nnz")), ("todense", ("todense",))):
        if all(hasattr(x, attribute) for attribute in attributes):
            raise TypeError(f"a {name} is sparse, not dense memory: x.{method}()")
    if module.startswith("tensorflow") and name in _TENSORFLOW_PARTS:
        raise TypeError(f"a {name} is not dense memory: {_TENSORFLOW_PARTS[name]}")


_TENSORFLOW_PARTS = {"SparseTensor": "tf.sparse.to_dense(x)", "RaggedTensor": "x.to_tensor()",
                     "IndexedSlices": "tf.convert_to_tensor(x)"}


def adopt(x: Any) -> tuple[ArrayKind, Any]:
    """Returns (kind, array) of any argument. Scalars, lists and other objects that NumPy can convert become NumPy arrays."""
    found = kind_of(x)
    if found is not None:
        return found
    refuse_parts(x)
    try:
        import numpy
    except ImportError:
        raise TypeError(f"ivycomm cannot send a {type(x).__name__}, and NumPy is not installed to convert it to an array; "
                        "see the *_object functions") from None
    made = numpy.asarray(x)
    if made.dtype.kind in "OSUVMm" and NumpyArrays.dtype_name(made) not in DTYPES:
        raise TypeError(f"a {type(x).__name__} is not an array of numbers (dtype {made.dtype}); "
                        "the *_object functions send any object")
    return NumpyArrays, made


def adopt_output(x: Any, what: str) -> tuple[ArrayKind, Any]:
    """Returns (kind, array) to write into, sharing x's memory. Raises TypeError with the reason if x cannot be written;
    `what` is its name in the message."""
    found = kind_of(x)
    if found is not None:
        kind, array = found
        return kind.for_output(array, what)
    if is_buffer(x) or hasattr(type(x), "__array_interface__"):
        return adopt(x)  # NumPy's array over the same memory, which may be read-only.
    refuse_parts(x)
    raise TypeError(f"{what} is a {type(x).__name__}, which cannot be written to: use an array, or the function without "
                    "the trailing underscore and without out=")


def is_buffer(x: Any) -> bool:
    """Returns whether x is memory but not an array: a bytearray, an array.array, a memoryview, an mmap."""
    if type(x) in NO_ARRAYS:
        return False
    try:
        memoryview(x).release()
    except TypeError:
        return False
    return True
