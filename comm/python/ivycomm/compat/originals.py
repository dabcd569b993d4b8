# SPDX-License-Identifier: Apache-2.0
"""ivy.distributed and neurenix, importable by their own names where they are not installed.

A finder at the end of sys.meta_path, so that installed packages take precedence. `import ivycomm` adds it; ivyrun's
workers have it from the start, through ivyrun's Python hook. A real Ivy without `distributed` keeps its own modules and
gets that one in addition.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


# Does not use the classes of importlib.abc, whose import takes as long as the rest of ivycomm's.
class _Finder:
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return find(name)


class _Ivy:
    """`ivy`, if it is not installed: a package that contains only `distributed`."""

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        module.__doc__ = "Ivy is not installed; ivy.distributed is provided by ivycomm."

        def refuse(name: str) -> None:
            raise AttributeError(f"Ivy is not installed, so ivy.{name} is missing: pip install ivy; only ivy.distributed works")

        module.__getattr__ = refuse


class _Alias:
    """A module of ivycomm under a second name."""

    def __init__(self, imported: Callable[[], ModuleType]) -> None:
        self._imported = imported

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = self._imported()
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own  # It has run already.


def _i_dist() -> ModuleType:
    from . import i_dist
    return i_dist


def _neurenix() -> ModuleType:
    from . import neurenix
    return neurenix


def find(name: str) -> ModuleSpec | None:
    """Returns the spec of one of the originals' modules; None for all others."""
    loader: Any  # Has the methods of importlib's loaders that are used.
    if name == "ivy":
        loader = _Ivy()
        return ModuleSpec(name, loader, is_package=True)
    if name == "ivy.distributed":
        loader = _Alias(_i_dist)
        return ModuleSpec(name, loader)
    if name == "neurenix":  # Its modules are found in its folder.
        loader = _Alias(_neurenix)
        return ModuleSpec(name, loader, is_package=True)
    return None


def serve() -> None:
    """Appends the finder to the others, once."""
    if not any(type(finder).__name__ == "_Finder" and type(finder).__module__ == __name__ for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
