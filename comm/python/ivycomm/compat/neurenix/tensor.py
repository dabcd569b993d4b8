# SPDX-License-Identifier: Apache-2.0
"""`neurenix.tensor` if Neurenix is not installed: torch's tensors with the other names that Neurenix documents."""

from typing import Any

import numpy
import torch


class Tensor(torch.Tensor):
    """A torch tensor with a save method. It is made from a torch tensor, whose memory it shares, or from anything that
    NumPy can convert to an array."""

    @staticmethod
    def __new__(cls: Any, data: Any, *_: Any, **__: Any) -> Any:
        made = data if isinstance(data, torch.Tensor) else torch.as_tensor(numpy.asarray(data))
        return made.as_subclass(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles as a torch tensor, because remote calls send a torch tensor's memory without a copy."""
        if self.__dict__ or not self.is_leaf:
            return super().__reduce_ex__(protocol)
        return _remade, (type(self), self.detach().as_subclass(torch.Tensor), self.requires_grad)

    def save(self, path: Any) -> None:
        """Writes the values to a file in NumPy's .npy format."""
        numpy.save(path, self.detach().cpu().as_subclass(torch.Tensor).numpy())


def _remade(kind: Any, values: Any, requires_grad: bool) -> Any:
    return values.as_subclass(kind).requires_grad_(requires_grad)


def tensor(data: Any) -> Tensor:
    """Returns a Tensor with the values of `data`: a number, nested lists, an array or a torch tensor."""
    return Tensor(data)


def load(path: Any) -> Tensor:
    """Returns a Tensor with the values of a .npy file."""
    return Tensor(numpy.load(path))


def randn(*shape: Any, **options: Any) -> Any:
    """Returns a Tensor of this shape with values of the standard normal distribution. Takes torch.randn's options."""
    return torch.randn(*shape, **options).as_subclass(Tensor)


def zeros(*shape: Any, **options: Any) -> Any:
    """Returns a Tensor of this shape filled with zeros. Takes torch.zeros' options."""
    return torch.zeros(*shape, **options).as_subclass(Tensor)


def ones(*shape: Any, **options: Any) -> Any:
    """Returns a Tensor of this shape filled with ones. Takes torch.ones' options."""
    return torch.ones(*shape, **options).as_subclass(Tensor)
