# SPDX-License-Identifier: Apache-2.0
"""Shared by the calls of the job's store: waiting, and converting results."""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Callable
from typing import Any

from .errors import DEADLINE_EXCEEDED, Timeout, last_error
from .library import Bytes, load
from .waiting import calling, must_slice

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


def taken(value: Bytes) -> bytes:
    """Returns the bytes that the library allocated, and frees them."""
    try:
        return ctypes.string_at(value.data, value.bytes)
    finally:
        load().ivy_bytes_free(value.data)


def wait_in_slices(function: Callable[..., int], behind: tuple[Any, ...], timeout: float | None, what: str) -> None:
    """Calls function(milliseconds, *behind) until it has an answer, handling signals in between; None: no limit."""
    limit = _FOREVER if timeout is None else timeout
    deadline = time.monotonic() + limit
    while True:
        left = min(max(0.0, deadline - time.monotonic()), _MOST_SECONDS)
        slice_ = min(left, _SLICE_SECONDS) if must_slice() else left
        with calling():
            code = function(max(1, int(slice_ * 1000)), *behind)
        if code == 0:
            return
        if code == DEADLINE_EXCEEDED and time.monotonic() < deadline:
            continue
        error = last_error(code)
        if isinstance(error, Timeout):
            # The store only sees the last slice's timeout.
            waited = re.sub(r"^waited \S+ s", f"waited {limit:.1f} s", str(error))
            raise Timeout(f"{what} within {limit:g} s: {waited}") from None
        raise error
