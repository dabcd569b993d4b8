# SPDX-License-Identifier: Apache-2.0
"""Converts ivycomm's errors to torch's: DistBackendError if torch has it (2.0 and newer), else RuntimeError."""

from __future__ import annotations

import torch.distributed as dist

from ...errors import IvyError

BackendError = getattr(dist, "DistBackendError", RuntimeError)


def torch_error(error: BaseException) -> BaseException:
    """Returns torch's exception for one of ivycomm's, which becomes its __cause__, with rank, host and signal. Returns any
    other exception unchanged."""
    if not isinstance(error, IvyError):
        return error
    text = str(error)
    if isinstance(error, TimeoutError):
        # Programs and torch's tests search for "timeout", because torch has no exception class for it.
        text = f"the timeout expired: {text}"
    made: BaseException = BackendError(f"backend ivy: {text}")
    made.__cause__ = error
    return made
