# SPDX-License-Identifier: Apache-2.0
"""`neurenix.optim`, which is torch.optim if Neurenix is not installed."""

from torch.optim import *  # noqa: F403
from torch.optim import lr_scheduler  # noqa: F401
