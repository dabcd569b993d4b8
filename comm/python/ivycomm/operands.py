# SPDX-License-Identifier: Apache-2.0
"""Converts the arrays of a call to memory for the C library, and the memory to the call's result.

A Python function makes an `Operands` of its input and output: operands_of(x, out), or in_place(x) if x is both. It passes
the memory to work.start(), with the function that makes the result when the operation is done: Operands.finish().
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from . import arrays
from .arrays import ArrayKind, Memory
from .counts import Counts, counts_of
from .groups import Group
from .library import IN_PLACE
from .work import Work

Finish = Callable[["Work[Any] | None"], Any]  # Makes the result of an operation that has succeeded; as for work.start().


def nothing(async_op: bool) -> Any:
    """Returns the result of an operation on a rank that is not in the group: None, or a Work that is done."""
    return Work.done() if async_op else None


def shape_of(x: Any) -> tuple[int, ...]:
    """Returns the lengths of x's axes."""
    return tuple(x.shape)


class Operands:
    """The input of one call, and the array that receives its result.

    kind, array: the input, as arrays.adopt() returns it. input: its memory. given, result_kind, result, output: the caller's
    array or None, the array that receives the result, and its memory; set by receive(). send, recv: the pointers for the C
    function; recv is None before receive().
    """

    def __init__(self, kind: ArrayKind, array: Any, memory: Memory) -> None:
        self.kind, self.array, self.input = kind, array, memory
        self.send = memory.pointer
        self.recv: int | None = None
        self._receivers: tuple[Any, ...] = ()

    def receive(self, out: Any, shape: Sequence[int]) -> Operands:
        """Sets the result: the caller's `out`, or a new array of this shape if it is None. Returns self. Raises ValueError
        or TypeError if `out` cannot receive the result."""
        shape = tuple(shape)
        if out is None:
            kind, result = self.kind, self.kind.empty(shape, self.array)
        else:
            kind, result = arrays.adopt_output(out, "out")
            self._check_result(kind, result, shape)
        output = kind.output(result, "out")
        if output.dtype != self.input.dtype:
            raise ValueError(f"out is {result.dtype}, but the input is {self.array.dtype}")
        return self.receive_into(out, kind, result, output)

    def _check_result(self, kind: ArrayKind, result: Any, shape: tuple[int, ...]) -> None:
        if shape_of(result) != shape:
            raise ValueError(f"out has shape {shape_of(result)}, but the result has shape {shape}")
        place, result_place = self.kind.place(self.array), kind.place(result)
        if (place == "cpu") != (result_place == "cpu"):
            raise ValueError(f"out is in memory of {result_place}, but x is in memory of {place}: move one of them")

    def receive_into(self, given: Any, kind: ArrayKind, result: Any, output: Memory) -> Operands:
        """Sets the result to an array whose fitness the caller has checked. Returns self."""
        self.given, self.result_kind, self.result, self.output = given, kind, result, output
        self.recv, self._receivers = output.pointer, (given, result, output)
        return self

    @property
    def keep(self) -> tuple[Any, ...]:
        """All objects whose memory the operation uses, for work.start()."""
        return (self.array, self.input, *self._receivers)

    def separate(self) -> Operands:
        """Sends a copy of the input if `out` shares memory with it. Returns self."""
        if self.given is not None and self.input.overlaps(self.output):
            copy = self.kind.input(self.kind.empty(shape_of(self.array), self.array))
            self.kind.copy(copy, self.input)
            self.input, self.send = copy, copy.pointer
        return self

    def in_place_or_separate(self) -> Operands:
        """As separate(), but lets the library work in place if `out` is the input's memory. Returns self."""
        if self.input.pointer == self.output.pointer and self.input.count == self.output.count:
            self.send = IN_PLACE
            return self
        return self.separate()

    def finish(self, make_result: Callable[[], Any] | None = None) -> Finish:
        """Returns the function that ends the call: it returns the caller's array, or the result in the form of the input.

        make_result: makes the result, an array or a list of arrays, from self.result; None: it is self.result.
        """
        def finish(_work: Work[Any] | None) -> Any:
            if self.given is not None:
                self.result_kind.changed(self.result)
                return self.given
            made = self.result if make_result is None else make_result()
            if isinstance(made, list):
                return [self.kind.in_form_of(part, self.array) for part in made]
            return self.kind.in_form_of(made, self.array)
        return finish


def input_of(kind: ArrayKind, array: Any, is_sent: bool = True) -> Operands:
    """Returns the Operands of an input, without a result. is_sent: False if only its shape and type are used, not its values.

    Raises ValueError or TypeError if the array cannot be sent, and RuntimeError if it requires grad. Its shape can only be
    relied on afterwards: some arrays that cannot be sent, such as nested tensors, have none.
    """
    if is_sent:
        kind.refuse_gradient(array)
    return Operands(kind, array, kind.input(array))


def operands_of(x: Any, out: Any = None, is_sent: bool = True) -> Operands:
    """Returns the Operands of a call whose result has the shape of x."""
    operands = input_of(*arrays.adopt(x), is_sent)
    return operands.receive(out, shape_of(operands.array))


def in_place(x: Any) -> Operands:
    """Returns the Operands of an operation that changes x. Raises TypeError or ValueError if x cannot be changed."""
    kind, array = arrays.adopt_output(x, "x")
    memory = kind.output(array, "x")
    operands = Operands(kind, array, memory).receive_into(x, kind, array, memory)
    operands.send = IN_PLACE
    return operands


def row_elements(shape: Sequence[int]) -> int:
    """Returns the number of elements of one row of axis 0."""
    each = 1
    for length in shape[1:]:
        each *= length
    return each


def rows_of_ranks(shape: Sequence[int], split: Sequence[int] | None, group: Group, name: str) -> list[int]:
    """Returns the number of rows of axis 0 for each rank: `split`, or equal parts if it is None. Raises ValueError if
    they are not the shape's rows; `name` is the operation in the message."""
    if not shape:
        raise ValueError(f"{name} divides the first axis, but a 0-d array has none")
    if split is None:
        if shape[0] % group.size:
            raise ValueError(f"{name}: {shape[0]} rows cannot be divided equally among {group.size} ranks; "
                             "pass split=[...] with the rows of each rank")
        return [shape[0] // group.size] * group.size
    rows = [int(n) for n in split]
    if len(rows) != group.size or min(rows) < 0 or sum(rows) != shape[0]:
        raise ValueError(f"{name}: split={rows} is not {group.size} numbers whose sum is {shape[0]}")
    return rows


def row_counts(shape: Sequence[int], split: Sequence[int] | None, group: Group,
               name: str) -> tuple[list[int], Counts]:
    """Returns (rows of each rank, elements of each rank). The elements are one number if split is None, else an array
    for the C function."""
    rows = rows_of_ranks(shape, split, group, name)
    each = row_elements(shape)
    return rows, rows[0] * each if split is None else counts_of([n * each for n in rows])


def normal_axis(axis: int, dimensions: int) -> int:
    """Returns the axis as a non-negative number. Raises ValueError if the array has no such axis."""
    if not -dimensions <= axis < dimensions:
        raise ValueError(f"axis {axis} is out of range for an array with {dimensions} axes")
    return axis % dimensions
