# SPDX-License-Identifier: Apache-2.0
"""ivycomm.compat.i_dist and its modules under the names that programs import."""

import sys

from .compat import i_dist

for _name, _module in list(sys.modules.items()):
    if _name.startswith(i_dist.__name__ + "."):
        sys.modules[__name__ + _name[len(i_dist.__name__):]] = _module
sys.modules[__name__] = i_dist
