# SPDX-License-Identifier: Apache-2.0
"""ivycomm.compat.neurenix under the name that programs import."""

import sys

from .compat import neurenix

sys.modules[__name__] = neurenix
