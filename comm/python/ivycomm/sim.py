# SPDX-License-Identifier: Apache-2.0
"""ivycomm.compat.sim under the name that programs import."""

import sys

from .compat import sim

sys.modules[__name__] = sim
