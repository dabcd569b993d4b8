# SPDX-License-Identifier: Apache-2.0
"""Loads the extension ivycomm_calls, whose source is comm/python/extension, and calls the C library through it.

A call of `ivycomm.all_reduce_(x)` reaches the library in one of two ways:

1. `extension.all_reduce_(x, ...)` does the whole call in one step if the arguments are the usual ones. The extension has
   a function for most of the Python functions, under the same name. It takes every argument, by position, and returns
   NotImplemented if it cannot handle one of them. extension/collective_calls.h and message_calls.h list these functions.
2. Otherwise the Python function converts its arguments to those of the C function, and work.start() passes them to
   `call("ivy_all_reduce", ...)`.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterable
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from typing import Any, Protocol, cast

from .element_types import DTYPES, ReduceOp, reductions
from .errors import NotInitialized

INTERFACE = 9  # kInterface of the extension: both must come from one build.
_IS_FREE_THREADED = "t" in getattr(sys, "abiflags", "")
# Free-threaded builds have no limited API, so each of their versions needs its own file.
FILE_NAME = "ivycomm_calls" + (EXTENSION_SUFFIXES[0] if _IS_FREE_THREADED else ".abi3.so")


class Extension(Protocol):
    """The functions of the extension. Any thread may call them; they release the interpreter's lock while they wait.

    A group handle is the object that a Group keeps as `_group_handle`: its communicator, and the number of calls in
    progress on it.
    """

    INTERFACE: int

    def connect(self, address_of: Callable[[str], int | None], reductions: dict[str | ReduceOp, int],
                reduce_op: type[ReduceOp], raise_error: Callable[[int], None]) -> None: ...
    def load_numpy(self, ndarray: Any, empty: Any, empty_like: Any) -> None: ...
    def load_torch(self, tensor: Any, strided: Any, numbers: dict[Any, int], empty_like: Any, increment_version: Any,
                    current_stream: Any) -> None: ...
    def group_handle(self, communicator: int | None, rank: int | None, size: int) -> Any: ...
    def close(self, handle: Any) -> bool: ...
    def inside(self, handle: Any) -> int: ...
    def begin_world(self, handle: Any, main_thread: int | None) -> None: ...
    def end_world(self) -> int: ...
    def call_library(self, name: str, arguments: tuple[Any, ...], timeout_ms: int, factor: float, stream: int | None,
                     work: int | None) -> Any: ...
    def __getattr__(self, operation: str) -> Callable[..., Any]: ...  # all_reduce, all_reduce_, send, recv, ...


def _not_implemented(*_: object) -> Any:
    return NotImplemented


class _NotLoaded:
    """In place of the extension until connect() has loaded it. Handles no operation, so that the Python functions go on
    and raise NotInitialized."""

    def inside(self, handle: Any) -> int:
        return 0

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        return _not_implemented


extension: Extension = cast(Extension, _NotLoaded())
_is_loaded = False
_loading = threading.Lock()
_knows_numpy = _knows_torch = False


def connect(library: ctypes.CDLL, places: Iterable[str], raise_error: Callable[[int], None]) -> None:
    """Loads the extension and passes it the addresses of the library's functions. Later calls do nothing.

    The file is in the directory of `library`, in one of `places`, or in `ivyrun/` below one of these. raise_error:
    called with a code of the C interface, raises its exception. Raises ImportError if there is no such file, or if it is
    from another build.
    """
    global extension, _is_loaded
    with _loading:
        if _is_loaded:
            return
        # An installation has it in lib/ivyrun.
        folders = [folder for place in [os.path.dirname(library._name), *places] if place
                   for folder in (place, os.path.join(place, "ivyrun"))]
        loaded = _load(folders)

        def address_of(name: str) -> int | None:
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value

        loaded.connect(address_of, reductions(), ReduceOp, raise_error)
        extension, _is_loaded = loaded, True


def _load(folders: list[str]) -> Extension:
    if sys.implementation.name != "cpython":
        raise ImportError(f"ivycomm needs CPython 3.9 or later, not {sys.version.split()[0]} of {sys.implementation.name}")
    path = next(filter(os.path.exists, [os.path.join(folder, FILE_NAME) for folder in folders]), None)
    if path is None:
        advice = ("reinstall ivycomm, or build it (cmake --build build --target ivycomm, which needs python3-dev)"
                  if not _IS_FREE_THREADED else
                  f"build it for this free-threaded Python: cmake -B build -DIVY_FREE_THREADED_PYTHON={sys.executable} && "
                  "cmake --build build --target ivycomm")
        raise ImportError(f"ivycomm's extension {FILE_NAME} is missing: it must be next to libivycomm, but is in none of "
                          + ", ".join(dict.fromkeys(map(os.path.normpath, folders))) + "; " + advice)
    loader = ExtensionFileLoader("ivycomm_calls", path)
    module = cast(Extension, loader.create_module(ModuleSpec("ivycomm_calls", loader, origin=path)))
    loader.exec_module(cast(Any, module))
    if module.INTERFACE != INTERFACE:
        raise ImportError(f"{path} is from a different build than {os.path.dirname(os.path.abspath(__file__))}: both "
                          "must come from the same build")
    return module


def load_array_types() -> None:
    """Passes NumPy's and torch's types and functions to the extension, once the program has imported them."""
    global _knows_numpy, _knows_torch
    if not _is_loaded or _knows_numpy and _knows_torch:
        return
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if not _knows_numpy and numpy is not None and hasattr(numpy, "empty_like"):
        extension.load_numpy(numpy.ndarray, numpy.empty, numpy.empty_like)
        _knows_numpy = True
    if not _knows_torch and torch is not None and hasattr(torch, "empty_like"):
        _knows_torch = True
        # Before torch 2.2 no short call tells autograd of a change; complex tensors may be lazy conjugates.
        graph: Any = sys.modules.get("torch.autograd.graph")
        if hasattr(graph, "increment_version"):
            numbers = {getattr(torch, name): number for name, (number, _) in DTYPES.items()
                       if hasattr(torch, name) and not name.startswith("complex")}
            # None if torch was built without CUDA: then no device tensor is usual.
            current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
            extension.load_torch(torch.Tensor, torch.strided, numbers, torch.empty_like, graph.increment_version,
                                 current_stream)


def call(name: str, arguments: tuple[Any, ...], timeout_ms: int = 0, factor: float = 0.0, stream: int | None = None,
         work: int | None = None) -> None:
    """Calls the C function `name`, such as "ivy_all_reduce", and raises its error. Blocks if `work` is None.

    arguments: those of the C function except the last; the first is the group's handle. The others are the fields of its
    last argument, an ivy_call: timeout_ms (0: the group's), factor, stream (None: host memory), and the address that
    receives the handle of an asynchronous operation. Raises NotInitialized if another thread has freed the group, or has
    ended the world, since the caller obtained the handle.
    """
    if extension.call_library(name, arguments, timeout_ms, factor, stream, work) is NotImplemented:
        raise NotInitialized("another thread freed the group, or finalized or repaired its world")


def inside(handle: Any = None) -> int:
    """Returns the number of threads that are inside a call of the extension on a group handle; None: on any of them."""
    return extension.inside(handle)


def begin_world(handle: Any) -> None:
    """Makes this the group handle that calls without a group use."""
    extension.begin_world(handle, threading.main_thread().ident)


def end_world() -> int:
    """Closes the handles of the world and of its groups to further calls. If calls are in progress, closes none and
    returns their number."""
    return extension.end_world()
