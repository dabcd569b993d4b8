"""Tensors that require grad take the way of ivycomm.torch, which is imported by the first of them.

Functions that have a derivative there ask `is_recorded`. All others refuse such a tensor. Trees ask leaf by leaf.
"""

import importlib
import sys

from .dense_arrays import TorchArrays


def is_recorded(x):
    """Is x a torch tensor whose changes autograd records?"""
    return "torch" in sys.modules and getattr(x, "requires_grad", False) is True and TorchArrays.is_recorded(x)


def derivatives():
    """The module of the functions with derivatives, which stands on collectives.py, which stands on this one."""
    return importlib.import_module(".torch_operations", __package__)


def refuse_at_one_rank(x, name):
    """RuntimeError for an operation that gives the other ranks nothing to call backward() on."""
    if is_recorded(x):
        raise RuntimeError(f"the tensor requires grad, and {name} gives the other ranks nothing that could be "
                           f"differentiated: use ivycomm.torch.{name}, which gives them zeros; x.detach() or "
                           "torch.no_grad() says that it is data only")


def of_scatter(result, x, src, rows, group):
    """This rank's part of a tensor that requires grad at rank src, known to autograd on every rank."""
    if not TorchArrays.owns(result):
        raise RuntimeError("rank src's tensor requires grad, and this rank's part, a "
                           f"{type(result).__name__}, is not torch's: x.detach() at rank src says that it is data only")
    return derivatives().of_scatter(result, x, src, rows, group)
