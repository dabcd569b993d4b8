# SPDX-License-Identifier: Apache-2.0
"""ivycomm.compat.i_dist under the name that programs import."""

import sys

from .compat import i_dist

sys.modules[__name__] = i_dist
