"""Stands in for Neurenix where it is not installed: `import neurenix` and `from neurenix.distributed import ...` work.

neurenix.distributed has every name of its documentation, over ivycomm. For the rest torch stands in: neurenix.nn is
torch.nn, neurenix.optim is torch.optim, and tensors are torch's with a save method.
"""

__version__ = "0"
_LAZY = ("distributed", "nn", "optim", "tensor")


def get_device(name="cpu"):
    """The device of this name, such as "cpu" or "cuda:0"; the CPU where there is no GPU."""
    import torch
    device = torch.device(name)
    return torch.device("cpu") if device.type == "cuda" and not torch.cuda.is_available() else device


Device = get_device


def __getattr__(name):
    if name in _LAZY:
        import importlib
        return importlib.import_module(f"neurenix.{name}")  # By the name that programs use: there is one of each module.
    if name == "Tensor":
        from .tensor import Tensor
        return Tensor
    raise AttributeError(f"neurenix is not installed, and ivycomm's stand-in has no {name}: it has neurenix.distributed, "
                         "and torch's modules as neurenix.nn, neurenix.optim and neurenix.tensor")
