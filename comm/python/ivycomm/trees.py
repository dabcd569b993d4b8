"""Arrays inside tuples, lists and dicts: what all_reduce and broadcast do with several arrays at once.

A dict, and a list or tuple with an array anywhere in it, is a tree; a list of numbers is an array. Dicts are
walked in the order of their keys' texts, so that ranks may have filled them in different orders. None stays
None.
"""

import copy
import itertools
import time

from . import arrays
from .element_types import ReduceOp
from .work import Timing, Work

CONTAINERS = (dict, list, tuple)


def is_tree(x):
    return isinstance(x, dict) or (isinstance(x, (list, tuple)) and any(is_tree(part) or _is_array(part) for part in x))


def _is_array(x):
    numpy = arrays.NumpyArrays.module()
    if numpy is not None and isinstance(x, numpy.generic):
        return False  # A list of NumPy's numbers is as one of Python's.
    return arrays.kind_of(x) is not None


def _children(tree):
    if isinstance(tree, dict):
        return [tree[key] for key in sorted(tree, key=repr)]
    return tree


def leaves_of(tree):
    if tree is None:
        return []
    if not is_tree(tree):
        return [tree]
    return [leaf for child in _children(tree) for leaf in leaves_of(child)]


def rebuilt(tree, leaves):
    """`tree` with other leaves, an iterator over as many as it has."""
    if tree is None:
        return None
    if not is_tree(tree):
        return next(leaves)
    if isinstance(tree, dict):
        made = copy.copy(tree)  # Keeps the class and the order of keys.
        for key in sorted(tree, key=repr):
            made[key] = rebuilt(tree[key], leaves)
        return made
    children = [rebuilt(child, leaves) for child in tree]
    return type(tree)(*children) if hasattr(tree, "_fields") else type(tree)(children)


class _WorkOfAll(Work):
    """Several operations as one Work, with one result."""

    def __init__(self, works, result):
        super().__init__(None, None)
        self._works, self._make_result = works, result
        self._is_done = False

    def wait(self, timeout=None):
        deadline = None if timeout is None else time.monotonic() + timeout
        for work in self._works:
            work.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        with self._lock:
            if not self._is_done:
                self._result, self._is_done = self._make_result(), True
        return self._result

    result = wait

    def _tell_end(self, told):
        left = itertools.count(len(self._works) - 1, -1)
        undo = [work._tell_end(lambda: None if next(left) else told()) for work in self._works]
        return lambda: [each() for each in undo]

    def test(self):
        return all([work.test() for work in self._works])

    is_completed = test

    def exception(self):
        return next(filter(None, [work.exception() for work in self._works]), None)

    def abort(self):
        for work in self._works:
            work.abort()

    def timing(self):
        times = [work.timing() for work in self._works] or [Timing(0.0, 0.0)]
        return Timing(times[0].queued, sum(each.ran for each in times))


def _all_done(works, result, async_op):
    return _WorkOfAll(works, result) if async_op else result()


def all_reduce(reduce, tree, op, group, async_op, timeout, factor, in_place):
    """Calls `reduce`, an all_reduce_coalesced, once for each type of element in the tree."""
    leaves = leaves_of(tree)
    by_type = {}
    for index, leaf in enumerate(leaves):
        kind, array = arrays.adopt(leaf)
        by_type.setdefault((kind.dtype_name(array), kind.place(array)), []).append(index)
    parts = [reduce([leaves[i] for i in indices], ReduceOp(op), group=group, async_op=async_op, timeout=timeout,
                    factor=factor) for indices in by_type.values()]

    def result():
        if in_place:
            return tree
        made = [None] * len(leaves)
        for indices, part in zip(by_type.values(), parts):
            for index, array in zip(indices, part.wait() if async_op else part):
                made[index] = array
        return rebuilt(tree, iter(made))

    return _all_done(parts, result, async_op)


def broadcast(move, tree, src, group, async_op, timeout, in_place):
    """Calls `move`, a broadcast, once for each array in the tree."""
    parts = [move(leaf, src, group=group, async_op=async_op, timeout=timeout) for leaf in leaves_of(tree)]

    def result():
        if in_place:
            return tree
        return rebuilt(tree, iter([part.wait() for part in parts] if async_op else parts))

    return _all_done(parts, result, async_op)
