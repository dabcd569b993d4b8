# SPDX-License-Identifier: Apache-2.0
"""Tools for training on many ranks in addition to collectives. Each module needs its own framework."""
