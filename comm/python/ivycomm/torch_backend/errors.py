"""ivycomm's errors as torch's: DistBackendError where torch has it (2.0 and newer), else RuntimeError."""

import torch.distributed as dist

from ..errors import IvyError

BackendError = getattr(dist, "DistBackendError", RuntimeError)


def torch_error(error):
    """The exception to raise; ivycomm's own, with rank, host and signal, is its __cause__."""
    if not isinstance(error, IvyError):
        return error
    text = str(error)
    if isinstance(error, TimeoutError) and "timed out" not in text:
        text = f"timed out: {text}"  # Programs look for this word, since no type of torch's says it.
    made = BackendError(f"backend ivy: {text}")
    made.__cause__ = error
    return made
