# SPDX-License-Identifier: Apache-2.0
"""Stands in for Neurenix, a framework for machine learning, so that its programs run where it is not installed.

`neurenix.distributed` has every name of Neurenix's documentation and is implemented with ivycomm. torch implements the
rest: `neurenix.nn` is torch.nn, `neurenix.optim` is torch.optim, and tensors are torch's with a save method. Submodules
are imported when they are first used, because torch takes seconds to import.
"""

from typing import Any as _Any

__version__ = "0"
_LAZY = ("Tensor", "distributed", "nn", "optim", "tensor")


def get_device(name: str = "cpu") -> _Any:
    """Returns the torch device of this name, such as "cpu" or "cuda:0". Returns the CPU if torch finds no GPU."""
    import torch
    device = torch.device(name)
    return torch.device("cpu") if device.type == "cuda" and not torch.cuda.is_available() else device


Device = get_device


def __getattr__(name: str) -> _Any:
    # Imports by the name "neurenix", not by this package's path: otherwise each module would exist twice, and there
    # would be two classes of tensors.
    if name == "Tensor":
        from neurenix.tensor import Tensor
        return Tensor
    if name == "distributed":
        import neurenix.distributed as module
        return module
    if name == "nn":
        import neurenix.nn as module
        return module
    if name == "optim":
        import neurenix.optim as module
        return module
    if name == "tensor":
        import neurenix.tensor as module
        return module
    from ivycomm.modules import nearest
    raise AttributeError(f"neurenix is not installed, and ivycomm's stand-in has no {name}; "
                         + nearest(name, [*_LAZY, "Device", "get_device"]))
