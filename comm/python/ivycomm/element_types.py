# SPDX-License-Identifier: Apache-2.0
"""Element types and reductions: names and the C interface's numbers.

They are those of proto/wire/operations.def, and test_ivycomm.py compares both.
"""

from __future__ import annotations

import enum


class ReduceOp(enum.IntEnum):
    """A reduction of the inputs of all ranks, element by element. Calls also take its name as text, in any case: "sum",
    "max", "premul_sum"; "mean" and "average" for AVG, "prod" for PRODUCT."""

    SUM = 0
    AVG = 1
    PRODUCT = 2
    MIN = 3
    MAX = 4
    BAND = 5
    BOR = 6
    BXOR = 7
    PREMUL_SUM = 8


_OPS = {op.name.lower(): op for op in ReduceOp}
_OPS.update({"add": ReduceOp.SUM, "mean": ReduceOp.AVG, "average": ReduceOp.AVG, "prod": ReduceOp.PRODUCT,
             "minimum": ReduceOp.MIN, "maximum": ReduceOp.MAX, "and": ReduceOp.BAND, "or": ReduceOp.BOR,
             "xor": ReduceOp.BXOR})


def reductions() -> dict[str | ReduceOp, int]:
    """Returns the numbers of the reductions by name and by member."""
    return {**{name: int(op) for name, op in _OPS.items()}, **{op: int(op) for op in ReduceOp}}


def op_number(op: str | ReduceOp) -> int:
    """Returns the number of a reduction given by name or as ReduceOp."""
    if isinstance(op, ReduceOp):
        return int(op)
    found = _OPS.get(str(op).lower().replace("reduceop.", "")) if not isinstance(op, int) else None
    if found is None:
        raise ValueError(f"op {op!r} is unknown; use one of " + ", ".join(o.name.lower() for o in ReduceOp))
    return int(found)


# By the name in NumPy (with ml_dtypes) and torch: number, bytes.
DTYPES = {
    "int8": (0, 1), "uint8": (1, 1), "int16": (2, 2), "uint16": (3, 2), "int32": (4, 4), "uint32": (5, 4),
    "int64": (6, 8), "uint64": (7, 8), "float16": (8, 2), "bfloat16": (9, 2), "float32": (10, 4),
    "float64": (11, 8), "bool": (12, 1), "complex64": (13, 8), "complex128": (14, 16),
    "float8_e4m3fn": (15, 1), "float8_e5m2": (16, 1),
}
U8, I64 = DTYPES["uint8"][0], DTYPES["int64"][0]


def dtype_number(name: str) -> int:
    """Returns the number of a type. Raises TypeError if the type cannot be sent."""
    try:
        return DTYPES[name][0]
    except KeyError:
        raise TypeError(f"arrays of {name} cannot be sent; supported types: " + ", ".join(DTYPES)) from None
