# SPDX-License-Identifier: Apache-2.0
"""Text that all docstrings of calls share, appended to each so that help() of one call is complete."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_WORLD = "group: None for the world; on a rank that is not a member the call does nothing and returns None."
_TIMES = "timeout: seconds; None: the world's (600 unless init said otherwise), math.inf: no limit."
_ERRORS = ("Raises TypeError and ValueError before anything is sent, NotInitialized if there is no world; Mismatch,\n"
           "    RankDied, HostLost, Timeout and Aborted, after which the group is broken.")
_MORE = "More about arrays, types and errors: help(ivycomm.collectives)."


def complete(functions: Iterable[Any]) -> None:
    """Appends to each function's docstring the sentences about its arguments."""
    for function in functions:
        if function.__doc__ is None:  # python -OO
            continue
        code = function.__code__
        names = code.co_varnames[:code.co_argcount + code.co_kwonlyargcount]
        sentences = [_WORLD] if "group" in names else []
        if "async_op" in names:
            sentences.append("async_op=True: returns a Work immediately.")
        sentences += [_TIMES] if "timeout" in names else []
        function.__doc__ = "\n    ".join([function.__doc__.rstrip(), "", *sentences, _ERRORS, _MORE])
