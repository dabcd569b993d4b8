# SPDX-License-Identifier: Apache-2.0
"""Tensors, where Neurenix is not installed: torch's, with the few more names that its documentation uses."""

import numpy
import torch


class Tensor(torch.Tensor):
    """A torch tensor that can save itself. Made from anything that NumPy can convert to an array."""

    @staticmethod
    def __new__(cls, data, *_, **__):
        made = data if isinstance(data, torch.Tensor) else torch.as_tensor(numpy.asarray(data))
        return made.as_subclass(cls)

    def __init__(self, *_, **__):
        super().__init__()

    def __reduce_ex__(self, protocol):
        """Pickles as a torch tensor, whose memory is not copied for remote calls."""
        if self.__dict__ or not self.is_leaf:
            return super().__reduce_ex__(protocol)
        return _remade, (type(self), self.detach().as_subclass(torch.Tensor), self.requires_grad)

    def save(self, path):
        """Writes the values as NumPy's .npy."""
        numpy.save(path, self.detach().cpu().as_subclass(torch.Tensor).numpy())


def _remade(kind, values, requires_grad):
    return values.as_subclass(kind).requires_grad_(requires_grad)


def tensor(data):
    """Returns a Tensor of numbers, nested lists or an array."""
    return Tensor(data)


def load(path):
    """Returns the values of a .npy file."""
    return Tensor(numpy.load(path))


def randn(*shape, **options):
    """Returns normally distributed values; options as for torch.randn."""
    return torch.randn(*shape, **options).as_subclass(Tensor)


def zeros(*shape, **options):
    """Returns zeros; options as for torch.zeros."""
    return torch.zeros(*shape, **options).as_subclass(Tensor)


def ones(*shape, **options):
    """Returns ones; options as for torch.ones."""
    return torch.ones(*shape, **options).as_subclass(Tensor)
