# SPDX-License-Identifier: Apache-2.0
"""Finds libivycomm and the extension that calls it, and loads both.

Thread: any. They are loaded once, on first use.
"""

from __future__ import annotations

import operator
import os
import sys
import threading
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Any, SupportsIndex

from . import calls
from .element_types import ReduceOp, reductions
from .errors import check

ABI_VERSION = 1
IN_PLACE = 1  # IVY_IN_PLACE
FOREVER = -1
ANY = -1  # IVY_ANY_SOURCE, IVY_ANY_TAG

FILE_NAME = "libivycomm.so.1"
_IS_FREE_THREADED = "t" in getattr(sys, "abiflags", "")
# Free-threaded builds have no limited API, so each of their versions needs its own file.
EXTENSION_NAME = "ivycomm_calls" + (EXTENSION_SUFFIXES[0] if _IS_FREE_THREADED else ".abi3.so")


def whole_number(value: SupportsIndex, what: str, bits: int = 32) -> int:
    """Converts a value to a number of the C interface with that many bits.

    Raises TypeError if it is not an integer, and ValueError if it does not fit.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be a whole number, not a {type(value).__name__}") from None
    if not -1 << bits - 1 <= number < 1 << bits - 1:
        raise ValueError(f"{what} {number} does not fit into {bits} bits")
    return number


def places() -> list[str]:
    """Returns the directories that may hold the library, best first."""
    here = os.path.dirname(os.path.abspath(__file__))  # .../ivycomm; inside a zip: .../x.zip/ivycomm
    above = os.path.dirname(here)
    return [os.path.normpath(place) for place in (
        here,  # An installed wheel.
        os.path.dirname(above),  # Next to the archive that contains the package.
        os.path.join(above, "..", ".."),  # <prefix>/lib of <prefix>/lib/ivyrun/python; also a build tree.
        os.path.join(above, "..", "..", "build", "lib"),  # A checkout that was built in build/.
    )]


def candidates() -> list[str]:
    """Returns the paths of possible libraries, best first. The last is left to the loader's search."""
    return [os.path.join(place, FILE_NAME) for place in places()] + [FILE_NAME]


def _load_extension(library: str) -> calls.Extension:
    """Loads the extension that is next to the library, in one of places(), or in `ivyrun/` below one of these."""
    if sys.implementation.name != "cpython":
        raise ImportError(f"ivycomm needs CPython 3.9 or later, not {sys.version.split()[0]} of {sys.implementation.name}")
    folders = [folder for place in [os.path.dirname(library), *places()] if place
               for folder in (place, os.path.join(place, "ivyrun"))]  # An installation has it in lib/ivyrun.
    path = next(filter(os.path.exists, [os.path.join(folder, EXTENSION_NAME) for folder in folders]), None)
    if path is not None:
        return calls.load(path)
    advice = ("reinstall ivycomm, or build it (cmake --build build --target ivycomm, which needs python3-dev)"
              if not _IS_FREE_THREADED else
              f"build it for this free-threaded Python: cmake -B build -DIVY_FREE_THREADED_PYTHON={sys.executable} && "
              "cmake --build build --target ivycomm")
    raise ImportError(f"ivycomm's extension {EXTENSION_NAME} is missing: it must be next to libivycomm, but is in none of "
                      + ", ".join(dict.fromkeys(map(os.path.normpath, folders))) + "; " + advice)


def _open_named(path: str) -> calls.Extension:
    """Loads the extension, which loads the library in that file. Raises OSError with the loader's reason."""
    try:
        extension = _load_extension(path)
    except ImportError as error:
        if error.path is None:  # It is missing, or from another build.
            raise
        raise OSError(str(error)) from None
    extension.open_library(path)
    return extension


def _open() -> tuple[calls.Extension, str]:
    """Returns the extension, which has opened the library, and the library's path."""
    named = os.environ.get("IVY_LIBRARY")
    if named:
        if not os.path.exists(named):
            raise ImportError(f"IVY_LIBRARY={named} cannot be loaded: it does not exist")
        try:
            return _open_named(named), named
        except OSError as error:
            raise ImportError(f"IVY_LIBRARY={named} cannot be loaded: {error}") from None
    reasons = []
    for path in candidates():
        if os.path.isabs(path) and not os.path.exists(path):
            reasons.append(f"{path} does not exist")
            continue
        try:
            return _open_named(path), path
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


_path: str | None = None
_lock = threading.Lock()
_find_world: Callable[[], Any]


def find_world_by(function: Callable[[], Any]) -> None:
    """Sets the function that finds the world's communicator, for modules that may not import groups.py."""
    global _find_world
    _find_world = function


def world_handle() -> Any:
    return _find_world()


def path() -> str:
    """Returns the path of the library, which it loads."""
    load()
    assert _path is not None
    return _path


def load() -> calls.Extension:
    """Returns the extension, with the library loaded. ImportError lists the searched paths."""
    global _path
    if calls.is_loaded():
        return calls.extension
    with _lock:
        if calls.is_loaded():
            return calls.extension
        extension, path = _open()
        found = int(extension.ivy_abi_version())
        if found != ABI_VERSION:
            raise ImportError(f"{path} has ABI {found}, but this ivycomm needs {ABI_VERSION}: both must come from the same "
                              "build")
        extension.connect(reductions(), ReduceOp, check)
        _path = path
        calls.use(extension)
        # pip may have installed NCCL in one of them.
        extension.ivy_set_package_folders(os.fsencode(":".join(path for path in sys.path if path)))
    return extension
