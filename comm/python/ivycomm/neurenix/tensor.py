"""Tensors, where Neurenix is not installed: torch's, with the few more names that its documentation uses."""

import numpy
import torch


class Tensor(torch.Tensor):
    """A torch tensor that can save itself. Made of anything that NumPy makes an array of."""

    @staticmethod
    def __new__(cls, data, *_, **__):
        made = data if isinstance(data, torch.Tensor) else torch.as_tensor(numpy.asarray(data))
        return made.as_subclass(cls)

    def __init__(self, *_, **__):
        super().__init__()

    def save(self, path):
        """Writes the values as NumPy's .npy."""
        numpy.save(path, self.detach().cpu().as_subclass(torch.Tensor).numpy())


def tensor(data):
    return Tensor(data)


def load(path):
    """The values of a .npy file."""
    return Tensor(numpy.load(path))


def randn(*shape, **options):
    return torch.randn(*shape, **options).as_subclass(Tensor)


def zeros(*shape, **options):
    return torch.zeros(*shape, **options).as_subclass(Tensor)


def ones(*shape, **options):
    return torch.ones(*shape, **options).as_subclass(Tensor)
