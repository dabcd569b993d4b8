# SPDX-License-Identifier: Apache-2.0
"""Redirects tensors that require grad to ivycomm.torch.operations, which the first such tensor imports.

Functions with a derivative there call `is_recorded`. All others reject such a tensor. Trees are checked leaf by leaf.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .dense_arrays import TorchArrays

if TYPE_CHECKING:
    from .groups import Group


def is_recorded(x: Any) -> bool:
    """Returns whether x is a torch tensor whose changes autograd records."""
    return "torch" in sys.modules and getattr(x, "requires_grad", False) is True and TorchArrays.is_recorded(x)


_import: Callable[[], ModuleType]


def import_derivatives_by(function: Callable[[], ModuleType]) -> None:
    """Sets the function that imports and returns ivycomm.torch.operations. That module imports collectives.py and
    messages.py, which import this one, so the package's __init__.py knows it, and not this module."""
    global _import
    _import = function


def derivatives() -> ModuleType:
    """Returns ivycomm.torch.operations: functions of the same names as ivycomm's, with derivatives."""
    return _import()


def refuse_at_one_rank(x: Any, name: str) -> None:
    """Raises RuntimeError for an operation after which the other ranks have nothing to call backward() on."""
    if is_recorded(x):
        raise RuntimeError(f"the tensor requires grad, and {name} returns nothing on the other ranks that could be "
                           f"differentiated: use ivycomm.torch.{name}, which returns zeros there; use x.detach() or "
                           "torch.no_grad() if it is only data")


def of_scatter(result: Any, x: Any, src: int, rows: Sequence[int], group: Group) -> Any:
    """Returns this rank's part of a tensor that requires grad on rank src, registered with autograd on every rank."""
    if not TorchArrays.owns(result):
        raise RuntimeError("rank src's tensor requires grad, but this rank's part, a "
                           f"{type(result).__name__}, is not a torch tensor: use x.detach() on rank src if it is only data")
    return derivatives().of_scatter(result, x, src, rows, group)
