# The types of ivycomm.torch; the docstrings are in the code, which a test compares with this. T is a tensor's class.
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar, overload

from . import Group, ReduceOp, Work

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
def all_gather(x: T, axis: int = 0, *, uneven: bool = False, group: Group | None = None, out: T | None = None,
               async_op: Literal[False] = False, timeout: float | None = None) -> T: ...
@overload
def all_gather(x: T, axis: int = 0, *, uneven: bool = False, group: Group | None = None, out: T | None = None,
               async_op: Literal[True], timeout: float | None = None) -> Work[T]: ...
@overload
def all_gather(x: T, axis: int = 0, *, uneven: bool = False, group: Group | None = None, out: T | None = None,
               async_op: bool, timeout: float | None = None) -> T | Work[T]: ...
@overload
def all_gather_list(x: T, *, group: Group | None = None, async_op: Literal[False] = False,
                    timeout: float | None = None) -> list[T]: ...
@overload
def all_gather_list(x: T, *, group: Group | None = None, async_op: Literal[True],
                    timeout: float | None = None) -> Work[list[T]]: ...
@overload
def all_gather_list(x: T, *, group: Group | None = None, async_op: bool,
                    timeout: float | None = None) -> list[T] | Work[list[T]]: ...
@overload
def reduce_scatter(x: T, op: Op = "sum", *, split: Sequence[int] | None = None, group: Group | None = None,
                   out: T | None = None, async_op: Literal[False] = False, timeout: float | None = None,
                   factor: float = 1.0) -> T: ...
@overload
def reduce_scatter(x: T, op: Op = "sum", *, split: Sequence[int] | None = None, group: Group | None = None,
                   out: T | None = None, async_op: Literal[True], timeout: float | None = None,
                   factor: float = 1.0) -> Work[T]: ...
@overload
def reduce_scatter(x: T, op: Op = "sum", *, split: Sequence[int] | None = None, group: Group | None = None,
                   out: T | None = None, async_op: bool, timeout: float | None = None,
                   factor: float = 1.0) -> T | Work[T]: ...
@overload
def broadcast(x: T, src: int = 0, *, group: Group | None = None, out: T | None = None, async_op: Literal[False] = False,
              timeout: float | None = None) -> T: ...
@overload
def broadcast(x: T, src: int = 0, *, group: Group | None = None, out: T | None = None, async_op: Literal[True],
              timeout: float | None = None) -> Work[T]: ...
@overload
def broadcast(x: T, src: int = 0, *, group: Group | None = None, out: T | None = None, async_op: bool,
              timeout: float | None = None) -> T | Work[T]: ...
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
@overload
def scatter(x: T | None = None, src: int = 0, *, split: Sequence[int] | None = None, group: Group | None = None,
            out: T | None = None, async_op: Literal[False] = False, timeout: float | None = None) -> T: ...
@overload
def scatter(x: T | None = None, src: int = 0, *, split: Sequence[int] | None = None, group: Group | None = None,
            out: T | None = None, async_op: Literal[True], timeout: float | None = None) -> Work[T]: ...
@overload
def scatter(x: T | None = None, src: int = 0, *, split: Sequence[int] | None = None, group: Group | None = None,
            out: T | None = None, async_op: bool, timeout: float | None = None) -> T | Work[T]: ...
@overload
def all_to_all(x: T, split: Sequence[int] | None = None, *, output_split: Sequence[int] | None = None,
               group: Group | None = None, out: T | None = None, async_op: Literal[False] = False,
               timeout: float | None = None) -> T: ...
@overload
def all_to_all(x: T, split: Sequence[int] | None = None, *, output_split: Sequence[int] | None = None,
               group: Group | None = None, out: T | None = None, async_op: Literal[True],
               timeout: float | None = None) -> Work[T]: ...
@overload
def all_to_all(x: T, split: Sequence[int] | None = None, *, output_split: Sequence[int] | None = None,
               group: Group | None = None, out: T | None = None, async_op: bool,
               timeout: float | None = None) -> T | Work[T]: ...
@overload
def scan(x: T, op: Op = "sum", *, group: Group | None = None, out: T | None = None, async_op: Literal[False] = False,
         timeout: float | None = None, factor: float = 1.0) -> T: ...
@overload
def scan(x: T, op: Op = "sum", *, group: Group | None = None, out: T | None = None, async_op: Literal[True],
         timeout: float | None = None, factor: float = 1.0) -> Work[T]: ...
@overload
def scan(x: T, op: Op = "sum", *, group: Group | None = None, out: T | None = None, async_op: bool,
         timeout: float | None = None, factor: float = 1.0) -> T | Work[T]: ...
@overload
def exscan(x: T, op: Op = "sum", *, group: Group | None = None, out: T | None = None,
           async_op: Literal[False] = False, timeout: float | None = None, factor: float = 1.0) -> T: ...
@overload
def exscan(x: T, op: Op = "sum", *, group: Group | None = None, out: T | None = None, async_op: Literal[True],
           timeout: float | None = None, factor: float = 1.0) -> Work[T]: ...
@overload
def exscan(x: T, op: Op = "sum", *, group: Group | None = None, out: T | None = None, async_op: bool,
           timeout: float | None = None, factor: float = 1.0) -> T | Work[T]: ...
def sendrecv(x: T, dst: int, like: T | None = None, src: int | None = None, *, send_tag: int = 0,
             recv_tag: int | None = None, group: Group | None = None, out: T | None = None,
             timeout: float | None = None) -> T: ...

class Members(NamedTuple):
    uuid: int
    handles: list[str]

def register() -> None: ...
def rendezvous_reconfigure(handle: str | None = None, *, group: Any = None, size: int | None = None, min_size: int = 1,
                           wait: float | None = 30.0, timeout: float | None = 600.0, spare: bool = False) -> Members: ...
def reconfigure(*, group: Any = None, form_timeout: float = 60.0, size: int | None = None, min_size: int = 1,
                wait: float | None = 30.0, timeout: float | None = 600.0, spare: bool = False) -> Members: ...
