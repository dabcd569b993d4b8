# SPDX-License-Identifier: Apache-2.0
"""Arrays inside tuples, lists, dicts and classes registered with a framework: all_reduce and broadcast of several at
once.

A dict, and a list or tuple that contains an array at any depth, is a tree; a list of numbers is an array. Dicts are
traversed in the order of their keys' texts, so that ranks may have filled them in different orders; keys whose texts do
not give the same order on all ranks (objects, arrays, modules) are rejected. None stays None. Other classes are trees
if jax.tree_util or torch.utils._pytree knows them and the program has imported that framework.
"""

from __future__ import annotations

import array
import itertools
import re
import sys
import time
from collections.abc import Callable
from typing import Any

from . import arrays
from .element_types import dtype_number
from .futures import call_when_done
from .work import Timing, Work

CONTAINERS = (dict, list, tuple)


def is_tree(x: Any) -> Any:
    if isinstance(x, dict):
        return True
    if isinstance(x, (list, tuple)):
        return any(is_tree(part) or _is_array(part) for part in x)
    return arrays.kind_of(x) is None and _registered(x) is not None


def _is_array(x: Any) -> Any:
    numpy = arrays.NumpyArrays.module()
    if numpy is not None and isinstance(x, numpy.generic):
        return False  # A list of NumPy's numbers is as one of Python's.
    return isinstance(x, (bytearray, memoryview, array.array)) or arrays.kind_of(x) is not None


def _ordered_keys(tree: Any) -> Any:
    """Returns the keys of a dict, in an order that is the same on all ranks."""
    texts = {key: _text_of(key) for key in tree}
    keys = sorted(tree, key=texts.__getitem__)
    for former, key in zip(keys, keys[1:]):
        if texts[former] == texts[key]:
            raise TypeError(f"two keys of a tree have the same text, {texts[key]}: {_KEYS}")
    return keys


_KEYS = "the order could differ between ranks; use keys such as str or int, or a list instead of a dict"


def _text_of(key: Any) -> Any:
    if isinstance(key, (str, bytes, int, float)) or key is None:
        return repr(key)
    if isinstance(key, tuple):
        return f"({', '.join(map(_text_of, key))})"
    if isinstance(key, frozenset):
        return f"frozenset({', '.join(sorted(map(_text_of, key)))})"
    text = repr(key)
    if re.search(r"\bat 0x[0-9a-fA-F]+", text):
        raise TypeError(f"the text of a tree's key contains an address, {text}: {_KEYS}")
    if _is_array(key):
        raise TypeError(f"a tree's key is an array ({type(key).__name__}), whose text depends on its values: {_KEYS}")
    return text


def _children(tree: Any) -> Any:
    if isinstance(tree, dict):
        return [tree[key] for key in _ordered_keys(tree)]
    return tree if isinstance(tree, CONTAINERS) else _registered(tree)[0]


def _registered(x: Any) -> Any:
    """Returns (children, function that rebuilds x from new children) if a framework knows the class of x, else None."""
    if type(x) in arrays.NO_ARRAYS:
        return None
    arrays.refuse_parts(x)  # JAX counts sparse arrays as trees, but the sum of their parts is not their sum.
    jax, torch = sys.modules.get("jax.tree_util"), sys.modules.get("torch.utils._pytree")
    if jax is not None:
        children, form = jax.tree_flatten(x, is_leaf=lambda part: part is not x)
        if not (len(children) == 1 and children[0] is x):
            return children, form.unflatten
    node = torch.SUPPORTED_NODES.get(type(x)) if torch is not None else None
    if node is not None:
        children, context = node.flatten_fn(x)
        return children, lambda others: node.unflatten_fn(list(others), context)
    return None


def leaves_of(tree: Any) -> Any:
    if tree is None:
        return []
    if not is_tree(tree):
        return [tree]
    return [leaf for child in _children(tree) for leaf in leaves_of(child)]


def rebuilt(tree: Any, leaves: Any) -> Any:
    """Returns `tree` with its leaves replaced by those of an iterator."""
    if tree is None:
        return None
    if not is_tree(tree):
        return next(leaves)
    if isinstance(tree, dict):
        import copy  # Slow to import.

        made = copy.copy(tree)  # Keeps the class and the order of keys.
        for key in _ordered_keys(tree):
            made[key] = rebuilt(tree[key], leaves)
        return made
    children = [rebuilt(child, leaves) for child in _children(tree)]
    if not isinstance(tree, CONTAINERS):
        return _registered(tree)[1](children)
    return type(tree)(*children) if hasattr(tree, "_fields") else type(tree)(children)


def _check(leaves: Any, in_place: Any) -> None:
    """Raises for an invalid leaf before the first one is sent."""
    for leaf in leaves:
        if in_place:
            kind, array_ = arrays.adopt_output(leaf, "a leaf of x")
            kind.output(array_, "a leaf of x")
        else:
            kind, array_ = arrays.adopt(leaf)
            dtype_number(kind.dtype_name(array_))


class Joined(Work[Any]):
    """Several operations, or one, as one Work with its own result."""

    def __init__(self, works: Any, result: Any) -> None:
        super().__init__(None, None)
        self._works, self._make_result = works, result
        self._is_done = False

    def wait(self, timeout: float | None = None) -> Any:
        deadline = None if timeout is None else time.monotonic() + timeout
        for work in self._works:
            work.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        with self._lock:
            if not self._is_done:
                self._result, self._is_done = self._make_result(), True
        return self._result

    result = wait

    def _call_at_end(self, on_done: Callable[[], object]) -> Callable[[], None]:
        left = itertools.count(len(self._works) - 1, -1)
        undo = [call_when_done(work, lambda: None if next(left) else on_done()) for work in self._works]

        def forget() -> None:
            for each in undo:
                each()

        return forget

    def test(self) -> bool:
        return all([work.test() for work in self._works])

    is_completed = test

    def exception(self) -> BaseException | None:
        return next(filter(None, [work.exception() for work in self._works]), None)

    def abort(self) -> None:
        for work in self._works:
            work.abort()

    def timing(self) -> Timing:
        times = [work.timing() for work in self._works] or [Timing(0.0, 0.0)]
        return Timing(times[0].queued, sum(each.ran for each in times))


def all_reduce(reduce: Callable[..., Any], tree: Any, how: dict[str, Any], in_place: bool) -> Any:
    """Calls `reduce`, an all_reduce_coalesced, once for each type of element in the tree. how: its other arguments."""
    leaves = leaves_of(tree)
    _check(leaves, in_place)
    by_type: dict[tuple[str, str], list[int]] = {}
    for index, leaf in enumerate(leaves):
        kind, array = arrays.adopt(leaf)
        by_type.setdefault((kind.dtype_name(array), kind.place(array)), []).append(index)
    parts = [reduce([leaves[i] for i in indices], **how) for indices in by_type.values()]

    def result() -> Any:
        if in_place:
            return tree
        made = [None] * len(leaves)
        for indices, part in zip(by_type.values(), parts):
            for index, array in zip(indices, part.wait() if how["async_op"] else part):
                made[index] = array
        return rebuilt(tree, iter(made))

    return Joined(parts, result) if how["async_op"] else result()


def broadcast(move: Callable[..., Any], tree: Any, src: int, how: dict[str, Any], in_place: bool) -> Any:
    """Calls `move`, a broadcast, once for each array in the tree. how: its other arguments."""
    leaves = leaves_of(tree)
    _check(leaves, in_place)
    parts = [move(leaf, src, **how) for leaf in leaves]

    def result() -> Any:
        if in_place:
            return tree
        return rebuilt(tree, iter([part.wait() for part in parts] if how["async_op"] else parts))

    return Joined(parts, result) if how["async_op"] else result()
