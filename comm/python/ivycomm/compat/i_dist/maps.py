# SPDX-License-Identifier: Apache-2.0
"""Functions mapped over an axis that the ranks divide: pmap, xmap and dp_pipeline of the original ivy.distributed."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from ... import arrays, collectives, groups
from .meshes import Mesh

Axes = Any  # A number, or one for each argument; None: the whole argument.


def pmap(fn: Callable[..., Any], in_axes: Axes = 0, out_axes: Axes = 0, group: groups.Group | None = None,
         dst: int | None = None, vectorize: bool | None = None) -> Callable[..., Any]:
    """Returns a function that maps fn over an axis of its arguments, as vmap does, with the positions divided among the
    ranks.

    The returned function is collective: every rank of the group calls it with the whole arrays, and it blocks until the
    results of all ranks have arrived. Each rank calls fn for its part of the positions along in_axes (a number, or one
    for each argument; None: the whole argument is passed). The results are joined along out_axes (a number, or one for
    each result of a tuple), on every rank (dst None or -1), or only on rank dst (None on the others). Arguments and
    results may be lists, tuples and dicts of arrays; named arguments are passed to every call unchanged. It raises
    ValueError if the axes have different lengths, or fewer positions than there are ranks.

    vectorize: None: one call of torch's, JAX's or TensorFlow's own vmap if the arguments are its arrays and it can map fn,
    otherwise a call for each position; True: vmap only (TypeError without it); False: never, for functions that
    communicate.
    """

    @functools.wraps(fn)
    def mapped(*arguments: Any, **named: Any) -> Any:
        call = functools.partial(fn, **named) if named else fn
        members = groups.resolve(group)
        if not members.is_member:
            return None
        to_all = dst in (None, -1) or groups.checked_rank(members, dst) is None
        axes = _axes_of(in_axes, arguments)
        begin, end = _own_part(arguments, axes, members)
        stacked = _vectorized(call, arguments, axes, (begin, end), vectorize)
        if stacked is None:
            results = [call(*(argument if axis is None else _each(argument, lambda a: _at(a, axis, position))
                              for argument, axis in zip(arguments, axes))) for position in range(begin, end)]
            stacked = _together(results, _stack)
        whole = _gathered_along(stacked, out_axes, members)
        return whole if to_all or members.rank == dst else None

    return mapped


def xmap(fn: Callable[..., Any], in_axes: Sequence[Mapping[int, str]], out_axes: Mapping[int, str], *,
         mesh: Mesh) -> Callable[..., Any]:
    """Returns fn mapped over the named axes of a mesh, as JAX's former xmap: a pmap() for each axis.

    in_axes: for each argument a dict {position: name of one of the mesh's axes}, {} for an argument that is not divided.
    out_axes: one such dict for the result, with every name of in_axes. mesh: a NamedMesh. Raises ValueError if the names
    do not agree.
    """
    names = sorted({name for axes in in_axes for name in axes.values()})
    if not names:
        raise ValueError("in_axes contains no axis")
    if sorted(out_axes.values()) != names:
        raise ValueError(f"out_axes={out_axes} must contain each of {names}")
    position_of = {name: position for position, name in out_axes.items()}
    # The innermost map is over the last position of the result, so that the outer ones do not move it.
    ordered = sorted(names, key=position_of.__getitem__)

    def nested(left: list[str], taken: list[str]) -> Callable[..., Any]:
        if not left:
            return fn
        name, *others = left
        outer = [_position(axes, name, taken) for axes in in_axes]
        inner = nested(others, [*taken, name])
        return pmap(inner, in_axes=outer, out_axes=position_of[name] - len(taken), group=mesh.axis_group(name), vectorize=False)

    return nested(ordered, [])


def _position(axes: Mapping[int, str], name: str, taken: Sequence[str]) -> int | None:
    """Returns the position of a named axis of an argument, after earlier axes were removed; None if it has no such
    axis."""
    place = next((position for position, each in axes.items() if each == name), None)
    if place is None:
        return None
    return place - sum(1 for position, each in axes.items() if each in taken and position < place)


def dp_pipeline(grad_fn: Callable[..., Any], batch_axis: Axes = 0,
                group: groups.Group | None = None) -> Callable[..., Any]:
    """Returns a function that computes grad_fn of a batch on all ranks together.

    The returned function is collective: every rank of the group calls it with the whole batch. batch_axis: a number, or
    one for each argument (None: an argument that is not divided, such as parameters). Each rank calls grad_fn with its
    part, and the results, trees of arrays, are averaged with the parts' lengths as weights: for the gradient of a mean
    that is grad_fn of the whole batch. Raises ValueError as pmap() does.
    """

    def piped(*arguments: Any, **kwargs: Any) -> Any:
        from ...gradient_average import average_gradients

        members = groups.resolve(group)
        if not members.is_member:
            return None
        axes = _axes_of(batch_axis, arguments)
        begin, end = _own_part(arguments, axes, members)
        parts = [argument if axis is None else _each(argument, lambda a: _between(a, axis, begin, end))
                 for argument, axis in zip(arguments, axes)]
        return average_gradients(grad_fn(*parts, **kwargs), end - begin, group=members)

    return piped


def _axes_of(axes: Axes, arguments: Sequence[Any]) -> list[Any]:
    each = list(axes) if isinstance(axes, (list, tuple)) else [axes] * len(arguments)
    if len(each) != len(arguments):
        raise ValueError(f"in_axes has {len(each)} numbers for {len(arguments)} arguments")
    return each


def _own_part(arguments: Sequence[Any], axes: Sequence[Any], members: groups.Group) -> tuple[int, int]:
    """Returns (begin, end) of this rank's positions of the mapped axes."""
    lengths = {leaf.shape[axis] for argument, axis in zip(arguments, axes) if axis is not None
               for leaf in _leaves(argument)}
    if len(lengths) != 1:
        raise ValueError(f"the mapped axes of the arguments must have one length, not {sorted(lengths)}")
    length = lengths.pop()
    if length < members.size:
        raise ValueError(f"an axis of {length} positions cannot be divided among {members.size} ranks")
    rank = cast(int, members.rank)
    return length * rank // members.size, length * (rank + 1) // members.size


def _vmap_for(arguments: Sequence[Any]) -> Callable[[Callable[..., Any], Any], Any] | None:
    torch: Any
    jax: Any
    tensorflow: Any
    torch, jax, tensorflow = (sys.modules.get(name) for name in ("torch", "jax", "tensorflow"))
    leaves = [leaf for argument in arguments for leaf in _leaves(argument)]
    if torch is not None and hasattr(torch, "func") and all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return lambda fn, axes: torch.func.vmap(fn, in_dims=axes)
    if jax is not None and all(isinstance(leaf, jax.Array) for leaf in leaves):
        return lambda fn, axes: jax.vmap(fn, in_axes=axes)
    if tensorflow is not None and all(tensorflow.is_tensor(leaf) for leaf in leaves):
        return lambda fn, axes: _tensorflows_vmap(tensorflow, fn, axes)
    return None


def _tensorflows_vmap(tensorflow: Any, fn: Callable[..., Any], axes: Sequence[Any]) -> Callable[..., Any]:
    """vectorized_map for axes other than 0 and arguments that are not divided."""
    def mapped(*arguments: Any) -> Any:
        divided = [_each(argument, lambda a: _axis_to_front(tensorflow, a, axis))
                   for argument, axis in zip(arguments, axes) if axis is not None]

        def at_once(parts: Any) -> Any:
            left = iter(parts)
            return fn(*(argument if axis is None else next(left) for argument, axis in zip(arguments, axes)))

        return tensorflow.vectorized_map(at_once, divided, fallback_to_while_loop=False)

    return mapped


def _axis_to_front(tensorflow: Any, array: Any, axis: int) -> Any:
    dimensions = list(range(len(array.shape)))
    front = dimensions.pop(axis)
    return tensorflow.transpose(array, [front, *dimensions])


def _vectorized(fn: Callable[..., Any], arguments: Sequence[Any], axes: Sequence[Any], part: tuple[int, int],
                vectorize: bool | None) -> Any:
    """Returns the results of a part of the positions, stacked along axis 0; None if each position needs its own
    call."""
    vmap = None if vectorize is False else _vmap_for(arguments)
    if vmap is None:
        if vectorize:
            raise TypeError("vectorize=True needs tensors of torch 2.0 or later, or arrays of JAX or TensorFlow")
        return None
    taken = [argument if axis is None else _each(argument, lambda a: _between(a, axis, *part))
             for argument, axis in zip(arguments, axes)]
    try:
        return vmap(fn, tuple(axes))(*taken)
    except Exception:
        if vectorize:
            raise
        return None


def _between(array: Any, axis: int, begin: int, end: int) -> Any:
    return array[(slice(None),) * (axis % len(array.shape)) + (slice(begin, end),)]


def _at(array: Any, axis: int, position: int) -> Any:
    return array[(slice(None),) * (axis % len(array.shape)) + (position,)]


def _stack(parts: Sequence[Any]) -> Any:
    kind, _ = arrays.adopt(parts[0])
    return kind.concatenate([arrays.adopt(part)[1][None] for part in parts], 0)


def _gathered_along(stacked: Any, out_axes: Axes, group: groups.Group) -> Any:
    if not isinstance(out_axes, (list, tuple)):
        return _each(stacked, lambda part: _gathered(part, out_axes, group))
    results = stacked if isinstance(stacked, (list, tuple)) else (stacked,)
    if len(out_axes) != len(results):
        raise ValueError(f"out_axes has {len(out_axes)} numbers for {len(results)} results")
    whole = [_each(part, functools.partial(_gathered, axis=axis, group=group)) for part, axis in zip(results, out_axes)]
    return type(stacked)(whole) if isinstance(stacked, (list, tuple)) else whole[0]


def _gathered(stacked: Any, axis: int, group: groups.Group) -> Any:
    kind, _ = arrays.adopt(stacked)
    whole = collectives.all_gather(stacked, uneven=True, group=group)
    return kind.move_axis_back(whole, axis) if axis else whole


def _leaves(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return [leaf for key in tree for leaf in _leaves(tree[key])]
    if isinstance(tree, (list, tuple)):
        return [leaf for branch in tree for leaf in _leaves(branch)]
    return [arrays.adopt(tree)[1]]


def _each(tree: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(tree, dict):
        return {key: _each(branch, change) for key, branch in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(_each(branch, change) for branch in tree)
    return change(arrays.adopt(tree)[1])


def _together(trees: Sequence[Any], join: Callable[[Any], Any]) -> Any:
    """Joins trees of equal structure to one, leaf by leaf."""
    first = trees[0]
    if isinstance(first, dict):
        return {key: _together([tree[key] for tree in trees], join) for key in first}
    if isinstance(first, (list, tuple)):
        return type(first)(_together([tree[i] for tree in trees], join) for i in range(len(first)))
    return join(trees)
