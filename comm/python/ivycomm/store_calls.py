# SPDX-License-Identifier: Apache-2.0
"""Shared by the calls of the job's store: timeouts, and waits that signals can interrupt."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TypeVar

from .errors import Timeout
from .waiting import must_slice

T = TypeVar("T")

_SLICE_SECONDS = 0.2
DEFAULT_SECONDS = 600.0
_FOREVER = float("inf")
_MOST_SECONDS = 86400.0  # One call of the library; it is made again.


def seconds(timeout: float | None) -> float:
    if timeout is None:
        return DEFAULT_SECONDS
    if timeout < 0:
        raise ValueError(f"timeout must not be negative: {timeout} s")
    return timeout


def wait_in_slices(function: Callable[[int], T], timeout: float | None, what: str) -> T:
    """Returns function(milliseconds), which it calls until that does not raise Timeout, so that signals are handled in
    between. timeout: seconds; None: no limit. what: begins the text of the Timeout that is raised then."""
    limit = _FOREVER if timeout is None else timeout
    deadline = time.monotonic() + limit
    while True:
        left = min(max(0.0, deadline - time.monotonic()), _MOST_SECONDS)
        slice_ = min(left, _SLICE_SECONDS) if must_slice() else left
        try:
            return function(max(1, int(slice_ * 1000)))
        except Timeout as error:
            if time.monotonic() < deadline:
                continue
            # The store only sees the last slice's timeout.
            waited = re.sub(r"^waited \S+ s", f"waited {limit:.1f} s", str(error))
            raise Timeout(f"{what} within {limit:g} s: {waited}") from None
