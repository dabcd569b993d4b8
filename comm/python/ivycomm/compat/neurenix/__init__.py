# SPDX-License-Identifier: Apache-2.0
"""Stands in for Neurenix where it is not installed: `import neurenix` and `from neurenix.distributed import ...` work.

neurenix.distributed has every name of its documentation, over ivycomm. For the rest torch stands in: neurenix.nn is
torch.nn, neurenix.optim is torch.optim, and tensors are torch's with a save method.
"""

__version__ = "0"
_LAZY = ("Tensor", "distributed", "nn", "optim", "tensor")


def get_device(name="cpu"):
    """Returns the device of this name, such as "cpu" or "cuda:0"; the CPU if there is no GPU."""
    import torch
    device = torch.device(name)
    return torch.device("cpu") if device.type == "cuda" and not torch.cuda.is_available() else device


Device = get_device


def __getattr__(name):
    # Under the name that programs use: each module exists once, and so there is one class of tensors.
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
