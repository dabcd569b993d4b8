# SPDX-License-Identifier: Apache-2.0
"""Calls the operations through the extension ivycomm_calls (comm/python/extension).

connect() puts the extension's operations here. Each takes all arguments of the Python function of its name, by position,
and returns NotImplemented if they are unusual. `call_library` takes any operation with the C interface's arguments.
"""

import os
import sys
import threading
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec

from .element_types import DTYPES, ReduceOp, reductions
from .errors import NotInitialized

INTERFACE = 8  # Both must come from one build.
_IS_FREE_THREADED = "t" in getattr(sys, "abiflags", "")
# Free-threaded builds have no limited API, so each of their versions needs its own file.
FILE_NAME = "ivycomm_calls" + (EXTENSION_SUFFIXES[0] if _IS_FREE_THREADED else ".abi3.so")

_extension = None
_connecting = threading.Lock()
_is_numpy_taught = _is_torch_taught = False


def call_library(*_):
    """The extension's, after connect(): calls an operation with the C interface's arguments."""
    return NotImplemented


def __getattr__(name):
    """Stands for the extension's operations until connect() has put them here: nothing is usual then, and the Python
    function says that there is no world."""
    if _extension is None and not name.startswith("__"):
        return call_library
    raise AttributeError(f"ivycomm's extension has no operation {name}")


def connect(library, places, raise_error):
    """Loads the extension, once, from the directory of `library` or from one of `places`.

    raise_error: raises the exception for a code. ImportError: the extension cannot be loaded.
    """
    global _extension
    with _connecting:
        if _extension is not None:
            return
        # An installation has it in lib/ivyrun.
        found = _load([folder for place in [os.path.dirname(library._name), *places] if place
                       for folder in (place, os.path.join(place, "ivyrun"))])
        from ctypes import c_void_p, cast

        found.connect(lambda name: cast(getattr(library, name), c_void_p).value, reductions(), ReduceOp, raise_error)
        for name in found.OPERATIONS:
            globals()[name] = getattr(found, name)
        _extension = found


def _load(places):
    if sys.implementation.name != "cpython":
        raise ImportError(f"ivycomm needs CPython 3.9 or later, not {sys.version.split()[0]} of {sys.implementation.name}")
    path = next(filter(os.path.exists, [os.path.join(place, FILE_NAME) for place in places]), None)
    if path is None:
        advice = ("install ivycomm again, or build it (cmake --build build --target ivycomm, which needs python3-dev)"
                  if not _IS_FREE_THREADED else
                  f"build it for this free-threaded Python: cmake -B build -DIVY_FREE_THREADED_PYTHON={sys.executable} && "
                  "cmake --build build --target ivycomm")
        raise ImportError(f"ivycomm's extension {FILE_NAME} is missing: it belongs next to libivycomm, and is in none of "
                          + ", ".join(dict.fromkeys(map(os.path.normpath, places))) + "; " + advice)
    loader = ExtensionFileLoader("ivycomm_calls", path)
    module = loader.create_module(ModuleSpec("ivycomm_calls", loader, origin=path))
    loader.exec_module(module)
    if module.INTERFACE != INTERFACE:
        raise ImportError(f"{path} is of another build than {os.path.dirname(os.path.abspath(__file__))}: both must come "
                          "from one build")
    return module


def teach():
    """Gives the extension NumPy's and torch's functions, once they are imported."""
    global _is_numpy_taught, _is_torch_taught
    if _extension is None or _is_numpy_taught and _is_torch_taught:
        return
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if not _is_numpy_taught and numpy is not None and hasattr(numpy, "empty_like"):
        _extension.teach(numpy.ndarray, numpy.empty, numpy.empty_like)
        _is_numpy_taught = True
    if not _is_torch_taught and torch is not None and hasattr(torch, "empty_like"):
        _is_torch_taught = True
        # Before torch 2.2 no short call tells autograd of a change; complex tensors may be lazy conjugates.
        graph = sys.modules.get("torch.autograd.graph")
        if hasattr(graph, "increment_version"):
            numbers = {getattr(torch, name): number for name, (number, _) in DTYPES.items()
                       if hasattr(torch, name) and not name.startswith("complex")}
            # None if torch was built without CUDA: then no device tensor is usual.
            current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
            _extension.teach_torch(torch.Tensor, torch.strided, numbers, torch.empty_like, graph.increment_version,
                                   current_stream)


def call(name, arguments, timeout_ms=0, factor=0.0, stream=None, work=None):
    """Calls an operation of the C interface. NotInitialized: another thread has freed the group, or ended the world,
    since the caller obtained its handle, the first of the arguments."""
    if call_library(name, arguments, timeout_ms, factor, stream, work) is NotImplemented:
        raise NotInitialized("the group was freed, or its world finalized or repaired, by another thread")


def inside(seat_=None):
    """Returns the number of threads inside a call of the extension on a group's seat; None: on any seat."""
    return _extension.inside(seat_) if _extension is not None else 0


def seat(handle, rank, size):
    """Returns the object that a Group keeps as _seat."""
    return _extension.seat(handle, rank, size)


def close(seat_):
    """Closes the seat to further calls. Returns False if it was closed before."""
    return _extension.close(seat_)


def begin_world(seat_):
    _extension.begin_world(seat_, threading.main_thread().ident)


def end_world():
    """Closes the seats of the world and of its groups. If calls are in progress, closes none and returns their
    number."""
    return _extension.end_world()
