# SPDX-License-Identifier: Apache-2.0
"""Arrays of a call as memory: its input and output, the rows of each rank, and the end of a call in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import arrays
from .counts import counts_of
from .groups import Group
from .library import IN_PLACE
from .work import Work


def nothing(async_op: bool) -> Any:
    """Returns what an operation returns on a rank that is not in the group: None, or a Work that is done."""
    return Work.done() if async_op else None


def shape_of(x: Any) -> Any:
    """Returns the lengths of x's axes as a tuple."""
    return tuple(x.shape)


class Operands:
    """Input and output of one call: the memory that is sent and the memory that is written."""

    def __init__(self, x: Any, out: Any, shape_of_result: Any, what: str = "out", is_form: bool = False) -> None:
        """is_form: only the shape and type of x are used."""
        self.kind, self.array = arrays.adopt(x)
        if not is_form:
            self.kind.refuse_gradient(self.array)
        self.input = self.kind.input(self.array)
        shape = tuple(shape_of_result(shape_of(self.array)))
        if out is None:
            self.result = self.kind.empty(shape, self.array)
            self.result_kind = self.kind
        else:
            self.result_kind, self.result = arrays.adopt_output(out, what)
            if shape_of(self.result) != shape:
                raise ValueError(f"{what} has shape {shape_of(self.result)}, the result has {shape}")
            place, result_place = self.kind.place(self.array), self.result_kind.place(self.result)
            if (place == "cpu") != (result_place == "cpu"):
                raise ValueError(f"{what} is in memory of {result_place}, and x in memory of {place}: move one of them")
        self.output = self.result_kind.output(self.result, what)
        if self.output.dtype != self.input.dtype:
            raise ValueError(f"{what} is {self.result.dtype}, the input {self.array.dtype}")
        self.is_given, self.given = out is not None, out

    @property
    def send(self) -> Any:
        return self.input.pointer

    @property
    def recv(self) -> Any:
        return self.output.pointer

    @property
    def keep(self) -> Any:
        return (self.array, self.input, self.result, self.output)

    def separate(self) -> Any:
        """Makes a copy if input and output share memory."""
        if self.is_given and self.input.overlaps(self.output):
            copy = self.kind.input(self.kind.empty(shape_of(self.array), self.array))
            self.kind.copy(copy, self.input)
            self.input = copy
        return self

    def joined(self) -> Any:
        """As separate(), but input and output may be the same memory: the operation then works in place."""
        if self.input.pointer == self.output.pointer and self.input.count == self.output.count:
            self.input.pointer = IN_PLACE
            return self
        return self.separate()

    def finish(self, result: Any = None) -> Any:
        """Returns the function that ends the call and returns its result in the form of x; result: makes it instead."""
        def finish(_work: Any) -> Any:
            if self.is_given:
                self.result_kind.changed(self.result)
                return self.given
            made = self.result if result is None else result()
            if isinstance(made, list):
                return [self.kind.in_form_of(part, self.array) for part in made]
            return self.kind.in_form_of(made, self.array)
        return finish


def in_place(x: Any) -> Any:
    """Returns (kind, array, Memory) of an array that an operation changes. TypeError, ValueError: it cannot be changed."""
    kind, array = arrays.adopt_output(x, "x")
    return kind, array, kind.output(array, "x")


def written(kind: Any, array: Any, x: Any, rows: Any = None) -> Any:
    """Returns the function that ends an operation in place and returns x; rows: the array's first rows instead."""
    def finish(_work: Any) -> Any:
        kind.changed(array)
        return x if rows is None else array[:rows]
    return finish


def row_elements(shape: Sequence[int]) -> Any:
    """Returns the number of elements of one row of axis 0."""
    each = 1
    for length in shape[1:]:
        each *= length
    return each


def rows_of_ranks(shape: Sequence[int], split: Any, group: Group, name: str) -> Any:
    """Returns the number of rows of axis 0 for each rank."""
    if not shape:
        raise ValueError(f"{name} divides the first axis, and a 0-d array has none")
    if split is None:
        if shape[0] % group.size:
            raise ValueError(f"{name}: {shape[0]} rows cannot be divided equally among {group.size} ranks; "
                             "split=[...] says who gets how many")
        return [shape[0] // group.size] * group.size
    rows = [int(n) for n in split]
    if len(rows) != group.size or min(rows) < 0 or sum(rows) != shape[0]:
        raise ValueError(f"{name}: split={rows} is not {group.size} numbers whose sum is {shape[0]}")
    return rows


def row_counts(shape: Sequence[int], split: Any, group: Group, name: str) -> Any:
    """Returns (rows of each rank, elements of one rank if all are equal, else their array for the C interface)."""
    rows = rows_of_ranks(shape, split, group, name)
    each = row_elements(shape)
    return rows, rows[0] * each if split is None else counts_of([n * each for n in rows])


def normal_axis(axis: int, dimensions: Any) -> Any:
    """Returns a non-negative axis. ValueError: the array has no such axis."""
    if not -dimensions <= axis < dimensions:
        raise ValueError(f"axis {axis} of an array with {dimensions} axes")
    return axis % dimensions
