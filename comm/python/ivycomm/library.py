# SPDX-License-Identifier: Apache-2.0
"""Finds libivycomm, loads it, and declares its C interface (comm/contract/ivycomm.h).

Thread: any. The library is loaded once, on first use; ctypes releases the interpreter's lock during every call.
"""

from __future__ import annotations

import ctypes
import operator
import os
import sys
import threading
from collections.abc import Callable, Mapping
from ctypes import POINTER, c_char, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, SupportsIndex

ABI_VERSION = 1
IN_PLACE = 1  # IVY_IN_PLACE
FOREVER = -1
ANY = -1  # IVY_ANY_SOURCE, IVY_ANY_TAG
ENQUEUE, DEVICE_MEMORY = 1, 2  # ivy_call.flags


class Failure(ctypes.Structure):
    _fields_ = [("struct_bytes", c_size_t), ("kind", c_int32), ("rank", c_int32), ("pid", c_int32),
                ("signal", c_int32), ("exit_code", c_int32), ("sequence", c_uint64),
                ("host", c_char * 64), ("operation", c_char * 32)]


class Options(ctypes.Structure):
    _fields_ = [("struct_bytes", c_size_t), ("init_method", c_char_p), ("rank", c_int32),
                ("world_size", c_int32), ("timeout_ms", c_int64)]


def whole_number(value: SupportsIndex, what: str, bits: int = 32) -> int:
    """Converts a value to a number of the C interface with that many bits; ctypes would silently truncate it.

    TypeError: it is not an integer. ValueError: it does not fit.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be a whole number, not a {type(value).__name__}") from None
    if not -1 << bits - 1 <= number < 1 << bits - 1:
        raise ValueError(f"{what} {number} does not fit into {bits} bits")
    return number


class Members(ctypes.Structure):
    _fields_ = [("struct_bytes", c_size_t), ("name", c_char_p), ("ranks", POINTER(c_int32)),
                ("timeout_ms", c_int64), ("rank_count", c_int32)]


class Call(ctypes.Structure):
    _fields_ = [("struct_bytes", c_size_t), ("timeout_ms", c_int64), ("work", POINTER(c_void_p)),
                ("factor", c_double), ("stream", c_void_p), ("flags", c_uint64),
                ("interrupt", c_void_p), ("interrupt_context", c_void_p), ("device", c_int32)]


class MessageHeader(ctypes.Structure):
    _fields_ = [("struct_bytes", c_size_t), ("source", c_int32), ("tag", c_int32), ("bytes", c_uint64)]


class Bytes(ctypes.Structure):
    """A value of the store. `given` converts Python's bytes, and keeps them alive."""

    _fields_ = [("data", c_void_p), ("bytes", c_size_t)]
    kept: bytes

    @classmethod
    def given(cls, value: bytes) -> Bytes:
        made = cls(ctypes.cast(c_char_p(value), c_void_p), len(value))
        made.kept = value
        return made


class Swap(ctypes.Structure):
    _fields_ = [("expected", POINTER(Bytes)), ("desired", Bytes), ("stored", c_int32), ("current", Bytes)]


class Meeting(ctypes.Structure):
    _fields_ = [("size", c_uint32), ("member", c_uint32), ("arrival", c_uint64), ("round", c_uint64)]


class StoreChange(ctypes.Structure):
    _fields_ = [("what", c_int32), ("key", Bytes), ("value", Bytes)]


COMM, DATA = c_void_p, c_void_p
_call, _message = POINTER(Call), POINTER(MessageHeader)

# Functions that one module calls are declared there (declare()), and the operations of proto/wire/operations.def
# nowhere, because the extension calls them.
_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "ivy_last_error": (c_char_p, []),
    "ivy_last_failure": (c_int, [POINTER(Failure)]),
    "ivy_code_name": (c_char_p, [c_int]),
    "ivy_version": (c_char_p, []),
    "ivy_abi_version": (c_int, []),
    "ivy_init": (c_int, [POINTER(Options), POINTER(c_void_p)]),
    "ivy_finalize": (c_int, [COMM]),
    "ivy_comm_rank": (c_int, [COMM]),
    "ivy_comm_size": (c_int, [COMM]),
    "ivy_comm_local_rank": (c_int, [COMM]),
    "ivy_comm_local_size": (c_int, [COMM]),
    "ivy_comm_node_rank": (c_int, [COMM]),
    "ivy_comm_node_count": (c_int, [COMM]),
    "ivy_comm_world_rank": (c_int, [COMM, c_int]),
    "ivy_comm_name": (c_char_p, [COMM]),
    "ivy_comm_source": (c_char_p, [COMM]),
    "ivy_comm_group": (c_int, [COMM, POINTER(c_int32), c_int32, POINTER(c_void_p)]),
    "ivy_comm_group_of_members": (c_int, [COMM, POINTER(Members), POINTER(c_void_p)]),
    "ivy_comm_split": (c_int, [COMM, c_int32, c_int32, POINTER(c_void_p)]),
    "ivy_comm_free": (c_int, [COMM]),
    "ivy_comm_abort": (c_int, [COMM, c_char_p]),
    "ivy_comm_shrink": (c_int, [COMM, _call]),
    "ivy_comm_grow": (c_int, [COMM, _call]),
    "ivy_restart_count": (c_int, []),
    "ivy_prepare_device": (c_int, [COMM, c_int, _call]),
    "ivy_set_package_folders": (c_int, [c_char_p]),
    "ivy_mem_alloc": (c_int, [COMM, c_size_t, POINTER(c_void_p)]),
    "ivy_mem_alloc_device": (c_int, [COMM, c_int, c_size_t, POINTER(c_void_p)]),
    "ivy_mem_window": (c_int, [COMM, c_void_p, _call]),
    "ivy_mem_free": (c_int, [c_void_p]),
    "ivy_recv_within": (c_int, [COMM, DATA, c_size_t, c_int, c_int, c_int, _message, c_int64]),
    "ivy_work_wait": (c_int, [c_void_p, c_int64]),
    "ivy_group_begin": (c_int, []),
    "ivy_group_end": (c_int, []),
    "ivy_work_hold_back": (c_int, [c_void_p, c_void_p]),
    "ivy_work_test": (c_int, [c_void_p, POINTER(c_int)]),
    "ivy_work_notify": (c_int, [c_void_p, c_int, c_uint64]),
    "ivy_work_abort": (c_int, [c_void_p]),
    "ivy_work_message": (c_int, [c_void_p, _message]),
    "ivy_work_timing": (c_int, [c_void_p, POINTER(c_double), POINTER(c_double)]),
    "ivy_work_free": (c_int, [c_void_p]),
    "ivy_bytes_free": (None, [c_void_p]),
}

FILE_NAME = "libivycomm.so.1"


def places() -> list[str]:
    """Returns the directories that may hold the library, best first."""
    here = os.path.dirname(os.path.abspath(__file__))  # .../ivycomm; inside a zip: .../x.zip/ivycomm
    above = os.path.dirname(here)
    return [os.path.normpath(place) for place in (
        here,  # An installed wheel.
        os.path.dirname(above),  # Beside the archive that the package is in.
        os.path.join(above, "..", ".."),  # <prefix>/lib of <prefix>/lib/ivyrun/python; also a build tree.
        os.path.join(above, "..", "..", "build", "lib"),  # A checkout that was built in build/.
    )]


def candidates() -> list[str]:
    """Returns the paths of possible libraries, best first. The last is left to the loader's search."""
    return [os.path.join(place, FILE_NAME) for place in places()] + [FILE_NAME]


def _open() -> ctypes.CDLL:
    named = os.environ.get("IVY_LIBRARY")
    if named:
        try:
            return ctypes.CDLL(named)
        except OSError as error:
            raise ImportError(f"IVY_LIBRARY={named} cannot be loaded: {error}") from None
    reasons = []
    for path in candidates():
        if os.path.isabs(path) and not os.path.exists(path):
            reasons.append(f"{path} does not exist")
            continue
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            if "GLIBC_" in str(error):
                raise ImportError(f"{path} needs a newer C library than this system has ({error}); "
                                  "ivycomm runs with glibc 2.34 or later") from None
            if "wrong ELF class" in str(error) or "cannot open shared object file" in str(error) and os.path.isabs(path):
                reasons.append(f"{path}: it is not built for {os.uname().machine}")
                continue
            reasons.append(f"{path}: {error}")
    raise ImportError("libivycomm was not found (" + "; ".join(reasons) +
                      "); start the script with ivyrun, or set IVY_LIBRARY to the library's path")


def _missing(name: str) -> Any:
    def refuse(*_: object) -> None:
        raise NotImplementedError(f"this libivycomm ({load().ivy_version().decode()}) has no {name}; "
                                  "install a newer one")
    return refuse


_library: ctypes.CDLL | None = None
_lock = threading.Lock()
_find_world: Callable[[], c_void_p]


def find_world_by(function: Callable[[], c_void_p]) -> None:
    """Sets the function that finds the world's communicator, for modules that may not import groups.py."""
    global _find_world
    _find_world = function


def world_handle() -> c_void_p:
    return _find_world()


def has(name: str) -> bool:
    """Returns whether the library has this function. Older ones lack some."""
    return not getattr(getattr(load(), name), "is_missing", False)


def _declare_in(library: ctypes.CDLL, prototypes: Mapping[str, tuple[Any, list[Any]]]) -> None:
    for name, (result, arguments) in prototypes.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            function = _missing(name)
            function.is_missing = True
            setattr(library, name, function)
            continue
        function.restype, function.argtypes = result, arguments


def declare(prototypes: Mapping[str, tuple[Any, list[Any]]]) -> None:
    """Declares functions of the library: {name: (type of the result, types of the arguments)}."""
    with _lock:
        _PROTOTYPES.update(prototypes)
        if _library is not None:
            _declare_in(_library, prototypes)


def load() -> ctypes.CDLL:
    """Returns the library with its functions declared. ImportError lists the searched paths."""
    global _library
    if _library is not None:
        return _library
    with _lock:
        if _library is not None:
            return _library
        library = _open()
        _declare_in(library, _PROTOTYPES)
        found = library.ivy_abi_version()
        if found != ABI_VERSION:
            raise ImportError(f"{library._name} has ABI {found}, but this ivycomm needs {ABI_VERSION}: "
                              "both must come from the same build")
        if not getattr(library.ivy_set_package_folders, "is_missing", False):
            # pip may have installed NCCL in one of them.
            library.ivy_set_package_folders(os.fsencode(":".join(path for path in sys.path if path)))
        _library = library
    return _library
