# SPDX-License-Identifier: Apache-2.0
"""`neurenix.nn`, which is torch.nn if Neurenix is not installed."""

from torch.nn import *  # noqa: F403
from torch.nn import functional, init, parameter  # noqa: F401
