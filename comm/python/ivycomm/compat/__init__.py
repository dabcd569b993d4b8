# SPDX-License-Identifier: Apache-2.0
"""Only messages: the stand-ins for mpi4py, mpi4jax and torch.distributed that were here have been removed."""

from __future__ import annotations

from typing import NoReturn

_INSTEAD = {
    "mpi": "use mpi4py with a real MPI under ivyrun: pip install mpi4py mpich, then `from mpi4py import MPI`",
    "mpi4jax": "use mpi4jax with a real MPI under ivyrun (pip install mpi4jax mpi4py mpich), or ivycomm.jax inside jax.jit",
    "torchdist": "use torch.distributed for torch's tensors, and ivycomm's own functions for other arrays",
}


def __getattr__(name: str) -> NoReturn:
    if name in _INSTEAD:
        raise ImportError(f"ivycomm.compat.{name} has been removed: {_INSTEAD[name]}")
    raise AttributeError(f"ivycomm.compat has no {name}")
