"""ivycomm's errors as torch's: DistBackendError where torch has it (2.0 and newer), else RuntimeError."""

import torch.distributed as dist

from ..errors import IvyError

BackendError = getattr(dist, "DistBackendError", RuntimeError)


def torch_error(error):
    """The exception to raise; ivycomm's own, with rank, host and signal, is its __cause__."""
    if not isinstance(error, IvyError):
        return error
    made = BackendError(f"backend ivy: {error}")
    made.__cause__ = error
    return made
