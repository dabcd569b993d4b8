# SPDX-License-Identifier: Apache-2.0
"""The extension ivycomm_calls, through which the package calls the C library. Its source is comm/python/extension.

Each function of the C interface that the package uses is a method of the extension, under the same name. It takes what
the C function takes, and raises the exception for the C function's code:

- a communicator is a Group or its `handle`, which stays valid during the call, or an address;
- memory is an address, None for null, or an object with a contiguous buffer, such as bytes or an array;
- text is bytes; several texts or values are a tuple of bytes; ivy_options and ivy_members are a tuple of their fields;
- a pointer to a number or a struct that the function sets is no argument but a result: `ivy_store_add` returns the sum;
- the place for a handle is an array of one address, handle_place();
- the last argument, an ivy_call, is up to four arguments: timeout in milliseconds (0: the group's), factor, stream (None:
  host memory), and the place for the handle of an asynchronous operation (None: the call blocks).

The collectives and messages have a second method, without "ivy_": `extension.all_reduce_(x, ...)` does the whole call in
one step if the arguments are the usual ones. It takes every argument of the Python function of its name, by position, and
returns NotImplemented if it cannot handle one of them; then the Python function prepares the arguments, and work.start()
passes them to `extension.ivy_all_reduce`.
"""

from __future__ import annotations

import array
import sys
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from typing import Any, Protocol, cast

from .element_types import DTYPES, ReduceOp

INTERFACE = 10  # kInterface of the extension: both must come from one build.
GROUP_ENDED = -1  # kGroupEnded: passed to the function that raises errors instead of a code.


class Extension(Protocol):
    """The functions of the extension. Any thread may call them; they release the interpreter's lock while they wait.

    A group handle is the object that a Group keeps as `_group_handle`: its communicator, and the number of calls in
    progress on it.
    """

    INTERFACE: int

    def open_library(self, path: str) -> None: ...
    def connect(self, reductions: dict[str | ReduceOp, int], reduce_op: type[ReduceOp],
                raise_error: Callable[[int], None]) -> None: ...
    def load_numpy(self, ndarray: Any, empty: Any, empty_like: Any) -> None: ...
    def load_torch(self, tensor: Any, strided: Any, numbers: dict[Any, int], empty_like: Any, increment_version: Any,
                    current_stream: Any) -> None: ...
    def group_handle(self, communicator: int, rank: int, size: int) -> Any: ...
    def close(self, handle: Any) -> bool: ...
    def inside(self, handle: Any) -> int: ...
    def begin_world(self, handle: Any, main_thread: int | None) -> None: ...
    def end_world(self) -> int: ...
    def call_inside(self, handle: Any, function: Callable[[], Any]) -> Any: ...
    def take_dlpack(self, capsule: Any) -> tuple[Any, ...]: ...
    def release_dlpack(self, owner: Any) -> None: ...
    def make_dlpack(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], code: int, bits: int, device_type: int,
                    device: int, owner: Any) -> Any: ...
    def copy_memory(self, to: Any, from_: Any, count: int) -> None: ...
    def __getattr__(self, operation: str) -> Callable[..., Any]: ...  # ivy_all_reduce, ...; all_reduce, all_reduce_, ...


def _not_implemented(*_: object) -> Any:
    return NotImplemented


class _NotLoaded:
    """In place of the extension until library.load() has loaded it. Handles no operation, so that the Python functions go
    on and raise NotInitialized."""

    def inside(self, handle: Any) -> int:
        return 0

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        return _not_implemented


extension: Extension = cast(Extension, _NotLoaded())
_knows_numpy = _knows_torch = False


def is_loaded() -> bool:
    return not isinstance(extension, _NotLoaded)


def load(path: str) -> Extension:
    """Returns the extension in that file. Raises ImportError if it is from another build."""
    loader = ExtensionFileLoader("ivycomm_calls", path)
    module = cast(Extension, loader.create_module(ModuleSpec("ivycomm_calls", loader, origin=path)))
    loader.exec_module(cast(Any, module))
    if module.INTERFACE != INTERFACE:
        raise ImportError(f"{path} is from a different build than {__file__}: both must come from the same build")
    return module


def use(loaded: Extension) -> None:
    """Makes this the extension of all calls."""
    global extension
    extension = loaded


def load_array_types() -> None:
    """Passes NumPy's and torch's types and functions to the extension, once the program has imported them."""
    global _knows_numpy, _knows_torch
    if not is_loaded() or _knows_numpy and _knows_torch:
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


def handle_place() -> array.array[int]:
    """Returns a place for one handle: the library writes it there itself, so that an exception of a signal handler cannot
    lose it. `place[0]` is the address, 0 at first."""
    return array.array("Q", [0])


def inside(handle: Any = None) -> int:
    """Returns the number of threads that are inside a call of the extension on a group handle; None: on any of them."""
    return extension.inside(handle)


def try_to_close_all() -> int:
    """Closes every group handle, so that no call can use them, unless calls are in progress. Returns the number of these
    calls; 0: the handles are closed."""
    return extension.end_world()
