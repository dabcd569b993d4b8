# SPDX-License-Identifier: Apache-2.0
"""The reductions of the original ivy.distributed, and their names in each framework."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Mapping
from typing import Any

from ...element_types import ReduceOp, op_number
from ...modules import nearest

_MPI = {"PRODUCT": "PROD", "MEAN": "SUM"}
_NUMPY = {"SUM": "sum", "MEAN": "sum", "MAX": "max", "MIN": "min", "PRODUCT": "prod"}


class IvyReduceOp(str, enum.Enum):
    """A reduction of the inputs of all ranks. Strings such as "sum" are accepted as well."""

    SUM = "SUM"
    MEAN = "MEAN"
    MAX = "MAX"
    MIN = "MIN"
    PRODUCT = "PRODUCT"
    BAND = "BAND"
    BOR = "BOR"
    BXOR = "BXOR"

    __str__ = str.__str__  # ivycomm's own functions take the name.


class OpHandler:
    """A reduction and its names in each framework. op: a name, a ReduceOp, an IvyReduceOp or an OpHandler. Raises ValueError
    for an unknown one. The properties import the framework, and raise ImportError if it is not installed."""

    op: IvyReduceOp

    def __init__(self, op: Any) -> None:
        given = op.op if isinstance(op, OpHandler) else op
        try:
            number = ReduceOp(op_number(given))
        except ValueError:
            raise ValueError(f"op {op!r} is unknown; {nearest(str(given).upper(), IvyReduceOp.__members__)}") from None
        name = "MEAN" if number is ReduceOp.AVG else number.name
        if name not in IvyReduceOp.__members__:
            raise ValueError(f"op {op!r} is not one of " + ", ".join(IvyReduceOp.__members__))
        self.op = IvyReduceOp[name]

    @property
    def name(self) -> str:
        """The reduction's name in IvyReduceOp, such as "SUM"."""
        return self.op.name

    def _of(self, framework: str, names: Mapping[str, str]) -> str:
        if self.name not in names:
            raise ValueError(f"{framework} has no reduction {self.name}")
        return names[self.name]

    @property
    def torch_op(self) -> Any:
        """A member of torch.distributed.ReduceOp; a mean is its SUM, which the caller divides."""
        import torch.distributed
        return getattr(torch.distributed.ReduceOp, "SUM" if self.op is IvyReduceOp.MEAN else self.name)

    @property
    def tensorflow_op(self) -> Any:
        """A member of tf.distribute.ReduceOp, which has SUM and MEAN."""
        import tensorflow
        return getattr(tensorflow.distribute.ReduceOp, self._of("TensorFlow", {"SUM": "SUM", "MEAN": "MEAN"}))

    @property
    def jax_op(self) -> Callable[..., Any]:
        """A function that reduces axis 0 of an array."""
        import jax.numpy
        return functools.partial(getattr(jax.numpy, self._of("JAX", {**_NUMPY, "MEAN": "mean"})), axis=0)

    @property
    def mpi_op(self) -> Any:
        """A member of mpi4py.MPI; a mean is its SUM, which the caller divides."""
        from mpi4py import MPI
        return getattr(MPI, _MPI.get(self.name, self.name))

    def cupy_op(self) -> str:
        """The name in cupyx.distributed; a mean is its "sum", which the caller divides."""
        return self._of("CuPy", _NUMPY)


def named(op: Any) -> Any:
    """Returns a reduction in ivycomm's form: from a name, a number, an IvyReduceOp or an OpHandler."""
    return op.name if isinstance(op, (OpHandler, IvyReduceOp)) else op
