# SPDX-License-Identifier: Apache-2.0
"""Sentences that the docstrings of all calls share. The decorators append them, so that help() of one call is
complete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_COLLECTIVE = ("Collective: every rank of the group calls it, in the same order among the group's operations. Any thread may\n"
               "    call it. It blocks until this rank's result is complete; on a GPU, until the operation is on the stream.")
_MESSAGE = "Not collective: only the two ranks call it. Any thread may call it."
_GROUP = "group: None for the world; on a rank that is not a member the call does nothing and returns None."
_ASYNC = "async_op=True: returns a Work immediately."
_TIMEOUT = "timeout: seconds; None: the world's (600 unless init said otherwise), math.inf: no limit."
_ERRORS = ("Raises TypeError and ValueError before anything is sent, NotInitialized if there is no world; Mismatch,\n"
           "    RankDied, HostLost, Timeout and Aborted, after which the group is broken.")
_MORE = "More about arrays, types and errors: help(ivycomm.collectives)."


def collective(function: FunctionT) -> FunctionT:
    """Completes the docstring of a call that every rank of the group makes."""
    return _completed(function, _COLLECTIVE)


def message(function: FunctionT) -> FunctionT:
    """Completes the docstring of a call that two ranks make."""
    return _completed(function, _MESSAGE)


def _completed(function: FunctionT, first: str) -> FunctionT:
    if function.__doc__ is not None:  # None with python -OO.
        parameters = function.__code__.co_varnames[:function.__code__.co_argcount + function.__code__.co_kwonlyargcount]
        sentences = [first] + [sentence for name, sentence in (("group", _GROUP), ("async_op", _ASYNC), ("timeout", _TIMEOUT))
                               if name in parameters]
        function.__doc__ = "\n    ".join([function.__doc__.rstrip(), "", *sentences, _ERRORS, _MORE])
    return function
