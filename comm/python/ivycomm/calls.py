"""The usual calls in one step, by the extension ivycomm_calls (comm/python/extension).

Each function takes all arguments of the one that it belongs to, by position, and returns NotImplemented where
those are not usual. Without the extension none is: then ctypes makes every call, and the main thread leaves an
operation to a thread of its own, so that it can look for signals meanwhile. IVY_PYTHON_CALLS=ctypes asks for
that; =extension makes it an error that there is none.
"""

import os
import sys
import threading

from .element_types import DTYPES, ReduceOp, reductions

INTERFACE = 5  # Both must come from one build.
FILE_NAME = "ivycomm_calls.abi3.so"

_extension = None
_is_numpy_taught = _is_torch_taught = False


def _not_usual(*_):
    return NotImplemented


all_reduce = all_reduce_ = all_reduce_coalesced = broadcast = broadcast_ = reduce = reduce_ = _not_usual
all_gather = all_gather_ = gather = reduce_scatter = all_to_all = all_to_all_ = barrier = _not_usual
scan = scan_ = exscan = exscan_ = send = recv = recv_ = call_library = _not_usual
_FUNCTIONS = ("all_reduce", "all_reduce_", "all_reduce_coalesced", "broadcast", "broadcast_", "reduce", "reduce_", "all_gather",
              "all_gather_", "gather", "reduce_scatter", "all_to_all", "all_to_all_", "barrier", "scan", "scan_", "exscan",
              "exscan_", "send", "recv", "recv_", "call_library")
_LIBRARY = ("all_reduce", "all_reduce_coalesced", "broadcast", "all_gather", "reduce_scatter", "barrier", "reduce", "scan",
            "exscan", "gather", "all_to_all", "scatter", "all_gather_v", "reduce_scatter_v", "gather_v", "scatter_v",
            "all_to_all_v", "send", "recv")


def connect(library, places, raise_error):
    """Looks for the extension beside `library` and in the places where that is looked for; once.

    raise_error: called with a code, raises its exception.
    """
    global _extension
    if _extension is not None:
        return
    wanted = os.environ.get("IVY_PYTHON_CALLS", "")
    if wanted not in ("", "ctypes", "extension"):
        raise ImportError(f"IVY_PYTHON_CALLS is {wanted!r}; it must be ctypes, extension or nothing")
    if wanted == "ctypes":
        return
    # Below the lib of an installation it has a folder of its own.
    found, reason = _load([folder for place in [os.path.dirname(library._name), *places] if place
                           for folder in (place, os.path.join(place, "ivyrun"))])
    if found is None:
        if wanted == "extension":
            raise ImportError(f"IVY_PYTHON_CALLS=extension: {reason}")
        return
    from ctypes import c_void_p, cast

    addresses = {f"ivy_{name}": cast(getattr(library, f"ivy_{name}"), c_void_p).value for name in _LIBRARY}
    found.connect(addresses, reductions(), ReduceOp, raise_error)
    _extension = found
    for name in _FUNCTIONS:
        globals()[name] = getattr(found, name)


def _load(places):
    """(extension, why there is none)."""
    # Without the lock of the interpreter there is no limited API yet.
    if sys.implementation.name != "cpython" or sys.version_info < (3, 11) or "t" in getattr(sys, "abiflags", ""):
        return None, "the extension is for CPython from 3.11 on, with its global lock"
    path = next(filter(os.path.exists, [os.path.join(place, FILE_NAME) for place in places]), None)
    if path is None:
        return None, f"there is no {FILE_NAME} in " + ", ".join(places)
    from importlib.machinery import ExtensionFileLoader, ModuleSpec
    try:
        loader = ExtensionFileLoader("ivycomm_calls", path)
        module = loader.create_module(ModuleSpec("ivycomm_calls", loader, origin=path))
        loader.exec_module(module)
    except ImportError as error:
        return None, str(error)
    if module.INTERFACE != INTERFACE:
        return None, f"{path} is of another build"
    return module, None


def is_there():
    """Does the extension make the calls?"""
    return _extension is not None


def teach():
    """Tells the extension of NumPy and torch, once they are imported."""
    global _is_numpy_taught, _is_torch_taught
    if _extension is None:
        return
    if _is_numpy_taught and _is_torch_taught:
        return
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if not _is_numpy_taught and numpy is not None and hasattr(numpy, "empty_like"):
        _extension.teach(numpy.ndarray, numpy.empty, numpy.empty_like)
        _is_numpy_taught = True
    if not _is_torch_taught and torch is not None and hasattr(torch, "empty_like"):
        _is_torch_taught = True
        # Before torch 2.2 nothing short tells autograd of a change; complex ones may be lazy conjugates.
        graph = sys.modules.get("torch.autograd.graph")
        if hasattr(graph, "increment_version"):
            numbers = {getattr(torch, name): number for name, (number, _) in DTYPES.items()
                       if hasattr(torch, name) and not name.startswith("complex")}
            # None where torch was built without CUDA: no tensor of a device is usual then.
            current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
            _extension.teach_torch(torch.Tensor, torch.strided, numbers, torch.empty_like, graph.increment_version,
                                   current_stream)


def interrupt():
    """ivy_call.interrupt for a call of this thread; 0: only ctypes is there, or no handler would run here."""
    if _extension is None or threading.get_ident() != threading.main_thread().ident:
        return 0
    return _extension.ask_for_signals


def settle(code):
    """Raises what a call that had interrupt() ended with: what a handler raised, or the code's exception."""
    _extension.settle(code)


def inside():
    """How many threads are inside a call of the extension."""
    return _extension.inside() if _extension is not None else 0


def seat(handle, rank, size):
    """What a Group keeps as _seat."""
    return _extension.seat(handle, rank, size) if _extension is not None else None


def close(seat_):
    if seat_ is not None:
        _extension.close(seat_)


def set_world(seat_):
    """The world begins, or (None) ends with all its groups."""
    if _extension is not None:
        _extension.set_world(seat_, threading.main_thread().ident)
