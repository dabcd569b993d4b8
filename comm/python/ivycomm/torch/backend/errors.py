# SPDX-License-Identifier: Apache-2.0
"""Converts ivycomm's errors to torch's: DistBackendError if torch has it (2.0 and newer), else RuntimeError."""

import torch.distributed as dist

from ...errors import IvyError

BackendError = getattr(dist, "DistBackendError", RuntimeError)


def torch_error(error):
    """Returns the exception to raise; ivycomm's own, with rank, host and signal, is its __cause__."""
    if not isinstance(error, IvyError):
        return error
    text = str(error)
    if isinstance(error, TimeoutError):
        # Programs and torch's own tests look for this word, because no type of torch's says it.
        text = f"the timeout is over: {text}"
    made = BackendError(f"backend ivy: {text}")
    made.__cause__ = error
    return made
