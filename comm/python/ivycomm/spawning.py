# SPDX-License-Identifier: Apache-2.0
"""ivycomm.compat.spawning under the name that programs import."""

import sys

from .compat import spawning

sys.modules[__name__] = spawning
