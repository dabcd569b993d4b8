"""Tensors that require grad take the way of ivycomm.torch, which is imported by the first of them.

`differentiable` stands over the functions that have a derivative there. All others refuse such a tensor. Trees come
here leaf by leaf.
"""

import functools
import importlib
import sys

from .dense_arrays import TorchArrays


def is_recorded(x):
    """Is x a torch tensor whose changes autograd records?"""
    return "torch" in sys.modules and getattr(x, "requires_grad", False) is True and TorchArrays.is_recorded(x)


def derivatives():
    """The module ivycomm.torch, which stands on collectives.py, which stands on this one."""
    return importlib.import_module(".torch", __package__)


def differentiable(function):
    """The function of that name in ivycomm.torch for tensors that require grad; `function` for everything else."""
    name = function.__name__

    @functools.wraps(function)
    def call(x, *arguments, **options):
        if is_recorded(x):
            return getattr(derivatives(), name)(x, *arguments, **options)
        return function(x, *arguments, **options)
    return call


def differentiable_at_one_rank(function):
    """As `differentiable`, but refused: the ranks that get None would have nothing to call backward() on."""
    name = function.__name__

    @functools.wraps(function)
    def call(x, *arguments, **options):
        if is_recorded(x):
            raise RuntimeError(f"the tensor requires grad, and {name} gives the other ranks nothing that could be "
                               f"differentiated: use ivycomm.torch.{name}, which gives them zeros; x.detach() or "
                               "torch.no_grad() says that it is data only")
        return function(x, *arguments, **options)
    return call


def of_scatter(result, x, src, rows, group):
    """This rank's part of a tensor that requires grad at rank src, known to autograd on every rank."""
    if not TorchArrays.owns(result):
        raise RuntimeError("rank src's tensor requires grad, and this rank's part, a "
                           f"{type(result).__name__}, is not torch's: x.detach() at rank src says that it is data only")
    return derivatives().of_scatter(result, x, src, rows, group)
