# SPDX-License-Identifier: Apache-2.0
"""Collectives of JAX arrays, inside jax.jit and outside.

    import ivycomm as ic, ivycomm.jax as icj
    ic.init()

    @jax.jit
    def step(parameters, batch):
        loss, gradient = jax.value_and_grad(loss_of)(parameters, batch)
        return loss, icj.all_reduce(gradient, "mean")

Inside jit the compiled program calls libivycomm through XLA's foreign function interface, without the interpreter. The
calls are ordered effects of JAX: those of a program, including calls in lax.scan, lax.cond and lax.while_loop, run in
program order, and so do successive programs. Every rank of the group must make the same calls in the same order; a
lax.cond must take the same branch on all of them.

Arguments: `x` is a JAX array, or anything that jax.numpy.asarray converts to one, with the same shape and type on every
rank; the result is a new array. Rows are those of axis 0. `group`: an ivycomm.Group of which this rank is a member, None
for the world; ranks such as `src` and `dst` are ranks of the group. `timeout`: seconds, None for the world's. jax.vmap
maps over every call. Outside jit a call blocks until its result is complete. Any thread may call.

Derivatives, forward and reverse mode: the derivative of a call is also a call, so all ranks must differentiate the same
calls. The differentiated loss is the sum of the losses of all ranks, as in jax.lax's collectives; all_reduce's `grad`
can change that.

Errors: TypeError and ValueError while the function is traced; ValueError for a group of which this rank is not a
member. A failed call outside jit raises ivycomm's exceptions (RankDied, HostLost, Mismatch, Timeout, Aborted,
NotInitialized). From a compiled program JAX raises its own exception with the text of ivycomm's; inside
`with ivycomm.jax.errors():` ivycomm's exception is raised.

Limits: one device per process and program, because JAX rejects ordered effects on several devices (pmap, or shard_map
over several devices); no order between these calls and XLA's own collectives. On GPUs the handlers enqueue operations on
XLA's stream (run on one H100 with JAX 0.11.2, for one and two ranks).
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, TypeVar, Union

import jax
import jax.numpy as jnp
from jax._src import dispatch, effects
from jax._src.interpreters.mlir import custom_call, full_like_aval
from jax._src.lib.mlir import ir
from jax.interpreters import ad, batching, mlir

try:
    from jax.core import ShapedArray
    from jax.extend.core import Primitive
except ImportError:  # Before JAX 0.4.36.
    from jax.core import Primitive, ShapedArray
try:
    from jax import ffi
except ImportError:  # Before JAX 0.4.38.
    from jax.extend import ffi

from .. import calls, groups, library, lifetime
from ..element_types import ReduceOp, dtype_number, op_number
from ..errors import Failure, IvyError, of_failure
from ..work import milliseconds

__all__ = ["all_gather", "all_reduce", "all_to_all", "barrier", "broadcast", "errors", "gather", "recv", "reduce",
           "reduce_scatter", "scan", "scatter", "send", "sendrecv"]

ArrayT = TypeVar("ArrayT")  # A JAX array or a tracer; for all_reduce also a tree of them.
Op = Union[str, ReduceOp]
Array = Any  # A JAX array or a tracer; JAX is not installed where the types are checked.
Shape = tuple[int, ...]
How = dict[str, Any]  # The parameters of a call; see _how().

SUM, MEAN = int(ReduceOp.SUM), int(ReduceOp.AVG)
NOBODY = -1


class _Order(effects.Effect):
    """The effect of every call, so that JAX keeps the calls in order."""

    def __str__(self) -> str:
        return "ivycomm"


_ORDER = _Order()
for _kinds in (effects.ordered_effects, effects.lowerable_effects, effects.control_flow_allowed_effects,
               effects.remat_allowed_effects, effects.custom_derivatives_allowed_effects):
    _kinds.add_type(_Order)


_FILE_NAME = "libivycomm_jax.so"
_TARGETS = {"cpu": "ivycomm_on_host", "cuda": "ivycomm_on_gpu", "rocm": "ivycomm_on_gpu"}
_TAKES_TOKENS = tuple(int(part) for part in jax.__version__.split(".")[:2]) >= (0, 5)
_PASSES = "ivycomm_passes"
if not _TAKES_TOKENS:
    del _TARGETS["cuda"], _TARGETS["rocm"]
_FUNCTIONS = ("all_reduce_coalesced", "reduce", "scan", "broadcast", "all_gather", "reduce_scatter", "gather", "scatter",
              "all_to_all", "barrier", "send", "recv", "work_wait", "work_test", "work_abort", "work_free", "last_error",
              "last_failure")
_INTERPRETER = ("PyGILState_Ensure", "PyGILState_Release", "PyErr_CheckSignals", "PyErr_Fetch", "PyErr_Restore",
                "Py_AddPendingCall")


class _Functions(ctypes.Structure):
    _fields_ = [("struct_bytes", ctypes.c_size_t),
                *((name, ctypes.c_void_p) for name in _FUNCTIONS)]


class _Failure(ctypes.Structure):
    """The C interface's ivy_failure."""

    _fields_ = [("struct_bytes", ctypes.c_size_t), ("kind", ctypes.c_int32), ("rank", ctypes.c_int32),
                ("pid", ctypes.c_int32), ("signal", ctypes.c_int32), ("exit_code", ctypes.c_int32),
                ("sequence", ctypes.c_uint64), ("host", ctypes.c_char * 64), ("operation", ctypes.c_char * 32)]


class _Interpreter(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in _INTERPRETER]


_lock = threading.Lock()
_handlers: Any = None  # The library libivycomm_jax.so, once it is loaded.


def _interface_minor() -> int:
    """Returns the minor version of XLA's foreign function interface, from this jaxlib's header."""
    path = os.path.join(ffi.include_dir(), "xla/ffi/api/c_api.h")
    try:
        with open(path) as file:
            text = file.read()
        major, minor = (int(re.findall(rf"define XLA_FFI_API_{word} (\d+)", text)[0]) for word in ("MAJOR", "MINOR"))
    except (OSError, IndexError) as error:
        raise ImportError(f"ivycomm.jax cannot read the version of XLA's interface from {path}: {error}") from None
    if major != 0:
        raise ImportError(f"this jaxlib has version {major}.{minor} of XLA's foreign function interface, but "
                          "ivycomm.jax supports 0.*; install a newer ivycomm")
    return minor


def _open() -> ctypes.CDLL:
    folder = os.path.dirname(os.path.realpath(library.path()))
    places = [os.environ.get("IVY_JAX_LIBRARY")] + [
        os.path.join(os.path.dirname(path), _FILE_NAME) for path in [os.path.join(folder, ""), *library.candidates()[:-1]]]
    path = next((place for place in places if place and os.path.exists(place)), None)
    if path is None:
        raise ImportError(f"{_FILE_NAME} was not found ({', '.join(filter(None, places))}): it is installed with libivycomm; set "
                          "IVY_JAX_LIBRARY to its path")
    handlers, loaded = ctypes.CDLL(path), ctypes.CDLL(library.path())
    functions = _Functions(ctypes.sizeof(_Functions), *(_address(getattr(loaded, "ivy_" + name)) for name in _FUNCTIONS))
    interpreter = _Interpreter(*(_address(getattr(ctypes.pythonapi, name)) for name in _INTERPRETER))
    if handlers.ivy_jax_set_functions(ctypes.byref(functions), ctypes.byref(interpreter), _interface_minor()):
        raise ImportError(f"{path} is from a different build than this ivycomm: both must come from one build")
    for platform, name in _TARGETS.items():
        function = handlers.ivy_jax_on_host if platform == "cpu" else handlers.ivy_jax_on_gpu
        with contextlib.suppress(NotImplementedError, AttributeError):
            ffi.register_ffi_target(name, ffi.pycapsule(function), platform={"cuda": "CUDA", "rocm": "ROCM"}.get(
                platform, platform))
    if not _TAKES_TOKENS:
        ffi.register_ffi_target(_PASSES, ffi.pycapsule(handlers.ivy_jax_pass), api_version=0)
    return handlers


def _address(function: Any) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value


def _load() -> Any:
    global _handlers
    with _lock:
        if _handlers is None:
            _handlers = _open()
    return _handlers


# By group. No number is used again, so that a program with a freed group fails.
_numbers: weakref.WeakKeyDictionary[groups.Group, int] = weakref.WeakKeyDictionary()
_next_number = itertools.count()


def _number(group: groups.Group) -> int:
    """Returns the number of a group in compiled programs, which must not contain its address."""
    handlers, handle = _load(), group.handle
    with _lock:
        number = _numbers.get(group)
        if number is None:
            number = next(_next_number)
            handlers.ivy_jax_set_group(ctypes.c_int64(number), ctypes.c_void_p(handle.address), group.rank, group.size)
            _numbers[group] = number
            weakref.finalize(group, handlers.ivy_jax_set_group, ctypes.c_int64(number), None, 0, 0).atexit = False
    return number


def _forget_group(group: groups.Group) -> None:
    number = _numbers.pop(group, None)
    if number is not None:
        _handlers.ivy_jax_set_group(ctypes.c_int64(number), None, 0, 0)


def _forget_programs() -> None:
    """Makes JAX compile its programs again for a new world, in which this rank's number, peers and groups differ."""
    if _handlers is not None:
        for group in list(_numbers):
            _forget_group(group)
        jax.clear_caches()


groups.on_free.append(_forget_group)
lifetime.on_new_world.append(_forget_programs)


def _translated(error: RuntimeError) -> IvyError | None:
    """Converts an exception of JAX to ivycomm's. Returns None if it is not about a call of ivycomm."""
    at = str(error).find("ivycomm: ")
    if at < 0 or _handlers is None:
        return None
    failure = _Failure(struct_bytes=ctypes.sizeof(_Failure))
    text = ctypes.create_string_buffer(4096)
    code = _handlers.ivy_jax_last_failure(text, len(text), ctypes.byref(failure))
    if code == 0:
        return None
    fields = (getattr(failure, name) for name in Failure._fields)
    return of_failure(code, text.value.decode(errors="replace"), Failure(*fields))


@contextlib.contextmanager
def errors() -> Iterator[None]:
    """A context manager, also a decorator: inside it, failed calls in compiled programs raise ivycomm's exceptions instead
    of JAX's.

    JAX raises an exception when a result is used, so use the results inside the block, too (`x.block_until_ready()`).
    """
    try:
        yield
    except RuntimeError as error:
        ours = None if isinstance(error, IvyError) else _translated(error)
        if ours is None:
            raise
        raise ours from error


class _Operation:
    """A primitive of JAX: its shapes, derivatives, batching, and the foreign call.

    shape(shape of the operand, how): returns the result's shape; None: no result. transpose(cotangents, avals of the
    operands, how): maps the results' cotangents to the operands'; None: the call has no derivative. jvp: replaces the rule
    for linear maps. rows: axis 0 is divided or joined, so vmap must put the batch axis at 1.
    """

    count = 0

    def __init__(self, name: str, shape: Callable[[Shape, How], Shape] | None = None,
                 transpose: Callable[[list[Array], list[Any], How], Sequence[Array]] | None = None,
                 jvp: Callable[..., Any] | None = None, rows: bool = False) -> None:
        self.number, self.shape, self.rows = _Operation.count, shape, rows
        _Operation.count += 1
        self.primitive = primitive = Primitive("ivycomm_" + name)
        primitive.multiple_results = True
        primitive.def_impl(partial(dispatch.apply_primitive, primitive))
        primitive.def_effectful_abstract_eval(self._abstract)
        for platform, target in _TARGETS.items():
            with contextlib.suppress(NotImplementedError):
                mlir.register_lowering(primitive, partial(self._lower, target), platform=platform)
        self.transpose, self.name = transpose, name
        ad.primitive_jvps[primitive] = jvp or self._jvp
        ad.primitive_transposes[primitive] = self._transpose
        batching.primitive_batchers[primitive] = self._batch

    def __call__(self, *operands: Array, **how: Any) -> list[Array]:
        return self.primitive.bind(*operands, **how)

    def _abstract(self, *operands: Any, **how: Any) -> tuple[list[Any], set[_Order]]:
        if self.shape is None:
            return [], {_ORDER}
        return [ShapedArray(self.shape(operand.shape, how), operand.dtype) for operand in operands], {_ORDER}

    def _lower(self, target: str, context: Any, *given: Any, **how: Any) -> Sequence[Any]:
        operands, aliases = list(given), {}
        shapes = [aval.shape for aval in context.avals_in]
        if self is _broadcast:
            aliases = {1: 1}
        elif _gets_nothing(how) and context.avals_out:
            # This rank's result is zeros; the program creates them on the result's device.
            zeros = full_like_aval(context, 0, context.avals_out[0])
            aliases = {len(operands) + 1: 1}
            operands.append(zeros)
            shapes.append(context.avals_out[0].shape)
        number = ir.IntegerType.get_signless(64)
        attributes = {name: ir.IntegerAttr.get(number, how[name]) for name in _SENT}
        attributes["operation"] = ir.IntegerAttr.get(number, self.number)
        turn = _turn_of(context.tokens_in.get(_ORDER))
        call = custom_call(
            target, api_version=4, has_side_effect=True, backend_config=attributes, operands=[turn, *operands],
            result_types=[turn.type, *(_type_of(aval) for aval in context.avals_out)],
            operand_layouts=_row_major([(), *shapes]),
            result_layouts=_row_major([(), *(aval.shape for aval in context.avals_out)]),
            operand_output_aliases=aliases)
        turn, *results = call.results
        context.set_tokens_out(mlir.TokenSet({_ORDER: _token_of(turn)}))
        return results

    def _jvp(self, primals: Sequence[Array], tangents: Sequence[Any], **how: Any) -> tuple[list[Array], list[Any]]:
        if self.transpose is None or how["op"] not in (SUM, MEAN):
            raise NotImplementedError(f"ivycomm.jax.{self.name} has no derivative for these arguments; "
                                      "use jax.lax.stop_gradient if none is needed")
        results = self(*primals, **how)
        if all(type(tangent) is ad.Zero for tangent in tangents) or not results:
            return results, [ad.Zero.from_primal_value(result) for result in results]
        tangents = [ad.instantiate_zeros(tangent) for tangent in tangents]
        if tangents[0].dtype == jax.dtypes.float0:
            return results, [ad.Zero.from_primal_value(result) for result in results]
        return results, self(*tangents, **how)

    def _transpose(self, cotangents: Sequence[Any], *operands: Any, **how: Any) -> Sequence[Array]:
        assert self.transpose is not None  # Otherwise _jvp has raised an exception.
        dense = [ad.instantiate_zeros(cotangent) for cotangent in cotangents]
        return self.transpose(dense, [operand.aval for operand in operands], how)

    def _batch(self, operands: Sequence[Array], axes: Sequence[int | None], **how: Any) -> tuple[list[Array], list[int]]:
        axis = 1 if self.rows else 0
        size = next(operand.shape[at] for operand, at in zip(operands, axes) if at is not None)
        moved = [jnp.repeat(jnp.expand_dims(operand, axis), size, axis) if at is None else jnp.moveaxis(operand, at, axis)
                 for operand, at in zip(operands, axes)]
        if self is _recv or self is _sendrecv:
            how = {**how, "like": (size, *how["like"])}
        results = self(*moved, **how)
        return results, [axis] * len(results)


def _type_of(aval: Any) -> Any:
    return ir.RankedTensorType.get(aval.shape, mlir.dtype_to_ir_type(aval.dtype))


def _row_major(shapes: Iterable[Shape]) -> list[Shape]:
    return [tuple(reversed(range(len(shape)))) for shape in shapes]


# With JAX before 0.5, handlers cannot take a token as an argument (XLA aborts the process). Two calls that do nothing
# convert the token to a number and back; the data dependency keeps the same order.
def _turn_of(token: Any) -> Any:
    if _TAKES_TOKENS:
        return token
    number = ir.RankedTensorType.get([], ir.IntegerType.get_signless(8))
    return _passed(token, number)


def _token_of(turn: Any) -> Any:
    return turn if _TAKES_TOKENS else _passed(turn, mlir.token_type())


def _passed(value: Any, type_: Any) -> Any:
    return custom_call(_PASSES, api_version=1, operands=[value], result_types=[type_], operand_layouts=[()],
                       result_layouts=[()], has_side_effect=True).results[0]


_SENT = ("group", "op", "peer", "source", "tag", "source_tag", "timeout_ms")  # The parameters that the handler needs.


# Returns whether the result on this rank is zeros.
def _gets_nothing(how: How) -> bool:
    kind = how["kind"]
    return bool((kind == "to_root" and how["peer"] != how["rank"]) or (kind == "exchange" and how["source"] == NOBODY))


def _same(shape: Shape, _how: How) -> Shape:
    return shape


def _gathered(shape: Shape, how: How) -> Shape:
    return (how["size"] * shape[0], *shape[1:])


def _divided(shape: Shape, how: How) -> Shape:
    return (shape[0] // how["size"], *shape[1:])


def _with_sum(how: How) -> How:
    return {**how, "op": SUM}


# The derivative of a mean is the derivative of the sum divided by the number of ranks.
def _scaled(arrays: list[Array], how: How) -> list[Array]:
    return [array / how["size"] for array in arrays] if how["op"] == MEAN else arrays


def _transpose_all_reduce(cotangents: list[Array], _avals: list[Any], how: How) -> list[Array]:
    if how["grad"] == "identity":
        return _scaled(cotangents, how)
    return _all_reduce(*cotangents, **how)


def _jvp_all_reduce(primals: Sequence[Array], tangents: Sequence[Any], **how: Any) -> tuple[list[Array], list[Any]]:
    op = ReduceOp(how["op"])
    if op not in (ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT):
        return _Operation._jvp(_all_reduce, primals, tangents, **how)
    results = _all_reduce(*primals, **how)
    pairs = []
    for x, tangent, result in zip(primals, tangents, results):
        slope = _slope_of_product(x, how) if op is ReduceOp.PRODUCT else _slope_of_extreme(x, result, how)
        pairs.append(slope * ad.instantiate_zeros(tangent))
    return results, _all_reduce(*pairs, **_with_sum(how))


def _slope_of_product(x: Array, how: How) -> Array:
    """Returns the product of the other ranks' x, without a division, so that zeros are no problem."""
    rows = _all_gather(x[None], **_with_sum(how))[0]
    return jnp.prod(rows.at[how["rank"]].set(1), axis=0)


def _slope_of_extreme(x: Array, result: Array, how: How) -> Array:
    """Returns 1 / number of ranks that have the extreme, or 0 if this rank does not have it; as in jax.numpy."""
    is_it = (x == result).astype(x.dtype)
    return is_it / _all_reduce(is_it, **_with_sum(how))[0]


def _transpose_scan(cotangents: list[Array], _avals: list[Any], how: How) -> list[Array]:
    # Rank r's x contributes to the results of r and of later ranks.
    rows = _all_gather(cotangents[0][None], **how)[0]
    return [jnp.sum(rows[how["rank"]:], axis=0, dtype=rows.dtype)]


_all_reduce: _Operation = _Operation("all_reduce", _same, _transpose_all_reduce, _jvp_all_reduce)
_reduce: _Operation = _Operation("reduce", _same, lambda cts, _, how: _broadcast(
    *_scaled(cts, how), **{**_with_sum(how), "kind": "from_root"}))
_scan: _Operation = _Operation("scan", _same, _transpose_scan)
_broadcast: _Operation = _Operation("broadcast", _same, lambda cts, _, how: _reduce(*cts, **{**how, "kind": "to_root"}))
_all_gather: _Operation = _Operation("all_gather", _gathered, lambda cts, _, how: _reduce_scatter(*cts, **how), rows=True)
_reduce_scatter: _Operation = _Operation("reduce_scatter", _divided, lambda cts, _, how: _all_gather(
    *_scaled(cts, how), **_with_sum(how)), rows=True)
_gather: _Operation = _Operation("gather", _gathered, lambda cts, _, how: _scatter(*cts, **{**how, "kind": "from_root"}), rows=True)
_scatter: _Operation = _Operation("scatter", _divided, lambda cts, _, how: _gather(*cts, **{**how, "kind": "to_root"}), rows=True)
_all_to_all: _Operation = _Operation("all_to_all", _same, lambda cts, _, how: _all_to_all(*cts, **how), rows=True)
_barrier = _Operation("barrier")
_send = _Operation("send")
_recv: _Operation = _Operation("recv", lambda _shape, how: how["like"])
_sendrecv: _Operation = _Operation("sendrecv", lambda _shape, how: how["like"], lambda cts, avals, how: _sendrecv(
    *cts, **{**how, "peer": how["source"], "source": how["peer"], "tag": how["source_tag"], "source_tag": how["tag"],
             "like": avals[0].shape}))


def _how(group: groups.Group, timeout: float | None, kind: str = "", **more: Any) -> How:
    """Returns the parameters of a call. All calls have the same ones, because the handler expects the same attributes. kind:
    "from_root", "to_root" or "exchange" if some ranks get no result, or give none."""
    return dict(dict(group=_number(group), rank=group.rank, size=group.size, op=SUM, peer=NOBODY, source=NOBODY, tag=0,
                     source_tag=0, timeout_ms=milliseconds(timeout), grad="sum", kind=kind), **more)


def _carried_out(operation: _Operation, operands: list[Array], how: How) -> list[Array]:
    """Makes a call and returns its results. Outside jit, blocks until they are complete and raises ivycomm's exceptions."""
    if any(isinstance(operand, jax.core.Tracer) for operand in operands):
        return operation(*operands, **how)
    def complete() -> list[Array]:
        results: list[Array] = operation(*operands, **how)
        jax.block_until_ready(results) if results else jax.effects_barrier()
        return results

    with errors():
        made: list[Array] = calls.extension.call_inside(None, complete)
        return made


def _array(x: Any) -> Array:
    x = jnp.asarray(x)
    dtype_number(x.dtype.name)
    return x


def _member(group: groups.Group | None) -> groups.Group:
    group = groups.resolve(group)
    if not group.is_member:
        raise ValueError(f"this rank is not a member of {group!r}; only members may call this")
    return group


def _with_rows(x: Any, name: str, group: groups.Group) -> Array:
    x = _array(x)
    if not x.ndim:
        raise ValueError(f"{name} divides the first axis, but a 0-d array has none")
    if x.shape[0] % group.size:
        raise ValueError(f"{name}: {x.shape[0]} rows cannot be divided equally among {group.size} ranks")
    return x


def _reduction(op: Op) -> int:
    number = op_number(op)
    if number == ReduceOp.PREMUL_SUM:
        raise ValueError('op "premul_sum": multiply x by the factor and use "sum" instead')
    return number


def all_reduce(x: ArrayT, op: Op = "sum", *, group: groups.Group | None = None,
               grad: Literal["sum", "identity"] = "sum", timeout: float | None = None) -> ArrayT:
    """Returns op, element by element, over x of all ranks; bitwise identical on all ranks.

    x: an array, or a tree of arrays (arrays of one type are one operation); the result has its shape and types. op: as for
    ivycomm.all_reduce, except "premul_sum"; sum, mean, min, max and product have derivatives. grad: "sum": the derivative
    is an all_reduce as well (every rank has a loss, and their sum is differentiated); "identity": the gradient is passed
    through (all ranks compute the same loss from the result). Raises ValueError for another `op` or `grad`.
    """
    group, number = _member(group), _reduction(op)
    if grad not in ("sum", "identity"):
        raise ValueError(f'grad must be "sum" or "identity", not {grad!r}')
    leaves, form = jax.tree_util.tree_flatten(x)
    leaves = [_array(leaf) for leaf in leaves]
    results = list(leaves)
    for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):
        places = [at for at, leaf in enumerate(leaves) if leaf.dtype == dtype]
        reduced = _carried_out(_all_reduce, [leaves[at] for at in places], _how(group, timeout, op=number, grad=grad))
        for at, result in zip(places, reduced):
            results[at] = result
    return jax.tree_util.tree_unflatten(form, results)


def reduce(x: ArrayT, dst: int = 0, op: Op = "sum", *, group: groups.Group | None = None,
           timeout: float | None = None) -> ArrayT:
    """As all_reduce of one array, but only rank dst gets the result; the others get zeros of the same shape."""
    group = _member(group)
    return _carried_out(_reduce, [_array(x)], _how(group, timeout, "to_root", op=_reduction(op),
                                                   peer=groups.checked_rank(group, dst)))[0]


def scan(x: ArrayT, op: Op = "sum", *, group: groups.Group | None = None, timeout: float | None = None) -> ArrayT:
    """Returns op, element by element, over x of all ranks up to and including this one; same shape as x. Only "sum" has a
    derivative. Raises ValueError for "mean" and "premul_sum"."""
    group, number = _member(group), _reduction(op)
    if number == MEAN:
        raise ValueError('scan does not support op "mean"')
    return _carried_out(_scan, [_array(x)], _how(group, timeout, op=number))[0]


def broadcast(x: ArrayT, src: int = 0, *, group: groups.Group | None = None, timeout: float | None = None) -> ArrayT:
    """Returns rank src's x on every rank. On the others x only specifies shape and type; its gradient is zero there."""
    group = _member(group)
    return _carried_out(_broadcast, [_array(x)], _how(group, timeout, "from_root", peer=groups.checked_rank(group, src)))[0]


def all_gather(x: ArrayT, axis: int = 0, *, group: groups.Group | None = None, timeout: float | None = None) -> ArrayT:
    """Returns x of all ranks, concatenated along `axis` in rank order; 0-d arrays form a vector. x must have the same shape
    on every rank. Raises ValueError if x has no such axis."""
    group = _member(group)
    return _along(axis, x, lambda rows: _carried_out(_all_gather, [rows], _how(group, timeout))[0])


def gather(x: ArrayT, dst: int = 0, axis: int = 0, *, group: groups.Group | None = None,
           timeout: float | None = None) -> ArrayT:
    """As all_gather, but only rank dst gets the result; the others get zeros of the same shape."""
    group = _member(group)
    how = _how(group, timeout, "to_root", peer=groups.checked_rank(group, dst))
    return _along(axis, x, lambda rows: _carried_out(_gather, [rows], how)[0])


def _along(axis: int, x: Any, gathered: Callable[[Array], Array]) -> Array:
    x = _array(x)
    if not x.ndim:
        x = x[None]
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"axis {axis} is out of range for an array with {x.ndim} axes")
    return jnp.moveaxis(gathered(jnp.moveaxis(x, axis, 0)), 0, axis) if axis % x.ndim else gathered(x)


def reduce_scatter(x: ArrayT, op: Op = "sum", *, group: groups.Group | None = None,
                   timeout: float | None = None) -> ArrayT:
    """Returns this rank's part of op over x of all ranks: rank r gets the r-th of equal parts of the rows. Raises ValueError
    if the rows cannot be divided equally."""
    group = _member(group)
    x = _with_rows(x, "reduce_scatter", group)
    return _carried_out(_reduce_scatter, [x], _how(group, timeout, op=_reduction(op)))[0]


def scatter(x: ArrayT, src: int = 0, *, group: groups.Group | None = None, timeout: float | None = None) -> ArrayT:
    """Returns this rank's part of rank src's rows: part r goes to rank r. On the others x only specifies shape (of the whole)
    and type. Raises ValueError if the rows cannot be divided equally."""
    group = _member(group)
    x = _with_rows(x, "scatter", group)
    return _carried_out(_scatter, [x], _how(group, timeout, "from_root", peer=groups.checked_rank(group, src)))[0]


def all_to_all(x: ArrayT, *, group: groups.Group | None = None, timeout: float | None = None) -> ArrayT:
    """Sends part r of the rows to rank r; returns the parts received from ranks 0, 1, ..., concatenated. Raises ValueError if
    the rows cannot be divided into equal parts."""
    group = _member(group)
    return _carried_out(_all_to_all, [_with_rows(x, "all_to_all", group)], _how(group, timeout))[0]


def barrier(*, group: groups.Group | None = None, timeout: float | None = None) -> None:
    """Calls written after it run only after every rank of the group has reached it. Outside jit, blocks until then."""
    _carried_out(_barrier, [], _how(_member(group), timeout))


def _tag(tag: Any) -> int:
    if not isinstance(tag, int) or not 0 <= tag <= 2**30:
        raise ValueError(f"tag {tag!r} is not a number from 0 to 2^30")
    return tag


def send(x: Any, dst: int, tag: int = 0, *, group: groups.Group | None = None, timeout: float | None = None) -> None:
    """Sends x to rank dst, which calls recv with the same tag (0 to 2^30). Not collective. No derivative: see sendrecv."""
    group = _member(group)
    _carried_out(_send, [_array(x)], _how(group, timeout, peer=groups.checked_rank(group, dst), tag=_tag(tag)))


def recv(like: ArrayT, src: int, tag: int = 0, *, group: groups.Group | None = None,
         timeout: float | None = None) -> ArrayT:
    """Returns an array with the shape and type of `like`, received from rank src with this tag. Not collective. No
    derivative: see sendrecv."""
    group = _member(group)
    model = _array(like)
    how = _how(group, timeout, source=groups.checked_rank(group, src), source_tag=_tag(tag), like=model.shape)
    return _carried_out(_recv, [model], how)[0]


def sendrecv(x: ArrayT, dst: int | None, src: int | None, like: ArrayT | None = None, *, send_tag: int = 0,
             recv_tag: int = 0, group: groups.Group | None = None, timeout: float | None = None) -> ArrayT:
    """Sends x to dst and receives from src at the same time; the result has the shape of `like` (None: x).

    dst or src None: no peer, at the ends of a line of ranks; without a src the result is zeros. The derivative is sent
    in the opposite direction: from dst to src. Not collective. Raises ValueError if `like` has another type than x.
    """
    group = _member(group)
    sent = _array(x)
    shape = sent.shape if like is None else jnp.shape(like)
    if like is not None and jnp.asarray(like).dtype != sent.dtype:
        raise ValueError(f"like is {jnp.asarray(like).dtype}, but x is {sent.dtype}")
    peer, source = (NOBODY if rank is None else groups.checked_rank(group, rank) for rank in (dst, src))
    how = _how(group, timeout, "exchange", peer=peer, source=source, tag=_tag(send_tag), source_tag=_tag(recv_tag), like=shape)
    return _carried_out(_sendrecv, [sent], how)[0]


def _await_programs() -> None:
    # Programs that are still running use the world. Their callers get their errors.
    with contextlib.suppress(RuntimeError):
        jax.effects_barrier()


lifetime.before_end.append(_await_programs)
