# SPDX-License-Identifier: Apache-2.0
"""Looks up frameworks that the program has imported, from any thread."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import ModuleType


# Names of mpi4py, Horovod and torch.distributed that are called differently here, without resembling it.
_ELSEWHERE = {"size": "world_size", "Get_size": "world_size", "Get_rank": "rank", "local_size": "local_world_size",
              "cross_size": "num_nodes", "cross_rank": "node_rank", "init_process_group": "init",
              "destroy_process_group": "finalize", "shutdown": "finalize",
              "broadcast_object_list": "broadcast_object", "Abort": "abort"}


def imported(name: str) -> ModuleType | None:
    """Returns the module after its import has completed; None before, or while another thread still imports it."""
    module = sys.modules.get(name)
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module


def nearest(name: object, known: Iterable[str]) -> str:
    """For messages about unknown names: returns the nearest known name, or else all of them."""
    import difflib  # Slow to import, and rarely needed.

    close = difflib.get_close_matches(str(name), list(known), n=1)
    if close:
        return f'did you mean "{close[0]}"?'
    return "known: " + (", ".join(sorted(known)) or "none")


def no_such_name(module: str, name: str, known: Iterable[str]) -> AttributeError:
    """Returns the AttributeError for a module's __getattr__."""
    import difflib

    known = list(known)
    close = [_ELSEWHERE[name]] if _ELSEWHERE.get(name) in known else difflib.get_close_matches(name, known, n=1)
    return AttributeError(f"{module} has no {name}" + (f"; did you mean {close[0]}?" if close else ""))
