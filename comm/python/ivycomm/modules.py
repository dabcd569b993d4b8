# SPDX-License-Identifier: Apache-2.0
"""Helpers for imported frameworks, and for errors about unknown names."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import ModuleType

# Names in mpi4py, Horovod and torch.distributed whose equivalents here are too different for a spelling match.
_FOREIGN_NAMES = {
    "Abort": "abort", "Get_rank": "rank", "Get_size": "world_size", "broadcast_object_list": "broadcast_object",
    "cross_rank": "node_rank", "cross_size": "num_nodes", "destroy_process_group": "finalize",
    "init_process_group": "init", "local_size": "local_world_size", "shutdown": "finalize", "size": "world_size",
}


def imported(name: str) -> ModuleType | None:
    """Returns the module after its import has completed; None before, or while another thread still imports it."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    return None if getattr(spec, "_initializing", False) else module


def _closest(name: str, known: Iterable[str]) -> str | None:
    import difflib  # Slow to import, and rarely needed.

    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)


def nearest(name: object, known: Iterable[str]) -> str:
    """Returns advice for a message about an unknown value: the most similar known name, or else all of them."""
    known = sorted(known)
    close = _closest(str(name), known)
    return f'did you mean "{close}"?' if close is not None else "known: " + (", ".join(known) or "none")


def no_such_name(module: str, name: str, known: Iterable[str]) -> AttributeError:
    """Returns the AttributeError for a module's __getattr__. It suggests the equivalent or most similar known name."""
    known = list(known)
    equivalent = _FOREIGN_NAMES.get(name)
    close = equivalent if equivalent in known else _closest(name, known)
    return AttributeError(f"{module} has no {name}" + (f"; did you mean {close}?" if close is not None else ""))
