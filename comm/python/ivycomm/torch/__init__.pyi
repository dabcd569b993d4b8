# SPDX-License-Identifier: Apache-2.0
# The types of ivycomm.torch; the docstrings are in the code, which a test compares with this. T is a tensor's class.
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, TypeVar, overload

from .. import Group, ReduceOp, Work
from .. import all_gather as all_gather
from .. import all_gather_list as all_gather_list
from .. import all_to_all as all_to_all
from .. import broadcast as broadcast
from .. import exscan as exscan
from .. import reduce_scatter as reduce_scatter
from .. import scan as scan
from .. import scatter as scatter
from .. import sendrecv as sendrecv

T = TypeVar("T")
Op = str | ReduceOp
Grad = Literal["sum", "identity"]

__all__: list[str]

@overload
def all_reduce(x: T, op: Op = "sum", group: Group | None = None, out: T | None = None, async_op: Literal[False] = False,
               *, timeout: float | None = None, factor: float = 1.0, grad: Grad = "sum") -> T: ...
@overload
def all_reduce(x: T, op: Op = "sum", group: Group | None = None, out: T | None = None, *, async_op: Literal[True],
               timeout: float | None = None, factor: float = 1.0, grad: Grad = "sum") -> Work[T]: ...
@overload
def all_reduce(x: T, op: Op = "sum", group: Group | None = None, out: T | None = None, *, async_op: bool,
               timeout: float | None = None, factor: float = 1.0, grad: Grad = "sum") -> T | Work[T]: ...
@overload
def all_reduce_coalesced(xs: Iterable[T], op: Op = "sum", *, group: Group | None = None,
                         async_op: Literal[False] = False, timeout: float | None = None, factor: float = 1.0,
                         grad: Grad = "sum") -> list[T]: ...
@overload
def all_reduce_coalesced(xs: Iterable[T], op: Op = "sum", *, group: Group | None = None, async_op: Literal[True],
                         timeout: float | None = None, factor: float = 1.0, grad: Grad = "sum") -> Work[list[T]]: ...
@overload
def all_reduce_coalesced(xs: Iterable[T], op: Op = "sum", *, group: Group | None = None, async_op: bool,
                         timeout: float | None = None, factor: float = 1.0,
                         grad: Grad = "sum") -> list[T] | Work[list[T]]: ...
@overload
def reduce(x: T, dst: int = 0, op: Op = "sum", *, group: Group | None = None, out: T | None = None,
           async_op: Literal[False] = False, timeout: float | None = None, factor: float = 1.0) -> T: ...
@overload
def reduce(x: T, dst: int = 0, op: Op = "sum", *, group: Group | None = None, out: T | None = None,
           async_op: Literal[True], timeout: float | None = None, factor: float = 1.0) -> Work[T]: ...
@overload
def reduce(x: T, dst: int = 0, op: Op = "sum", *, group: Group | None = None, out: T | None = None, async_op: bool,
           timeout: float | None = None, factor: float = 1.0) -> T | Work[T]: ...
@overload
def gather(x: T, dst: int = 0, axis: int = 0, *, uneven: bool = False, group: Group | None = None, out: T | None = None,
           async_op: Literal[False] = False, timeout: float | None = None) -> T: ...
@overload
def gather(x: T, dst: int = 0, axis: int = 0, *, uneven: bool = False, group: Group | None = None, out: T | None = None,
           async_op: Literal[True], timeout: float | None = None) -> Work[T]: ...
@overload
def gather(x: T, dst: int = 0, axis: int = 0, *, uneven: bool = False, group: Group | None = None, out: T | None = None,
           async_op: bool, timeout: float | None = None) -> T | Work[T]: ...

class Members(NamedTuple):
    uuid: int
    handles: list[str]

def register() -> None: ...
def rendezvous_reconfigure(handle: str | None = None, *, group: Any = None, size: int | None = None, min_size: int = 1,
                           wait: float | None = 30.0, timeout: float | None = 600.0, spare: bool = False) -> Members: ...
def reconfigure(*, group: Any = None, form_timeout: float = 60.0, size: int | None = None, min_size: int = 1,
                wait: float | None = 30.0, timeout: float | None = 600.0, spare: bool = False) -> Members: ...
