# SPDX-License-Identifier: Apache-2.0
"""Redirects tensors that require grad to ivycomm.torch, which the first such tensor imports.

Functions with a derivative there call `is_recorded`. All others reject such a tensor. Trees are checked leaf by leaf.
"""

import importlib
import sys

from .dense_arrays import TorchArrays


def is_recorded(x):
    """Returns whether x is a torch tensor whose changes autograd records."""
    return "torch" in sys.modules and getattr(x, "requires_grad", False) is True and TorchArrays.is_recorded(x)


def derivatives():
    """Returns the module of the functions with derivatives. It imports collectives.py, which imports this module."""
    return importlib.import_module(".torch.operations", __package__)


def refuse_at_one_rank(x, name):
    """Raises RuntimeError for an operation after which the other ranks have nothing to call backward() on."""
    if is_recorded(x):
        raise RuntimeError(f"the tensor requires grad, and {name} gives the other ranks nothing that could be "
                           f"differentiated: use ivycomm.torch.{name}, which gives them zeros; x.detach() or "
                           "torch.no_grad() says that it is data only")


def of_scatter(result, x, src, rows, group):
    """Returns this rank's part of a tensor that requires grad on rank src, registered with autograd on every rank."""
    if not TorchArrays.owns(result):
        raise RuntimeError("rank src's tensor requires grad, and this rank's part, a "
                           f"{type(result).__name__}, is not torch's: x.detach() at rank src says that it is data only")
    return derivatives().of_scatter(result, x, src, rows, group)
