# SPDX-License-Identifier: Apache-2.0
"""Remote calls as bytes: values as pickles with separate large buffers, and the frame that describes them. Pure.

A frame has at most FRAME_BYTES bytes, so that a receiver can post a buffer for it before it knows what arrives:

    kind, number of parts, call, length of the pickle [8 bytes each], length of each further part [8 bytes each]

The parts follow in the frame if all of them fit; otherwise each part is a separate message after the frame.
"""

from __future__ import annotations

import copyreg
import importlib
import io
import pickle
import struct
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..modules import imported

if TYPE_CHECKING:
    from typing_extensions import Buffer

FRAME_BYTES = 4096
# Requests: CALL has its parts in the frame or directly after it. ANNOUNCED and AWAITED keep them until the callee sends
# ASKED; for AWAITED, whose caller blocks for the reply, the callee sends it with the tag of the reply.
# Replies: REPLY, RAISED; CANCELLED: the function was not started.
# CANCEL: the caller has abandoned the call. ENDED: the caller of an abandoned call has its reply. STOP: to a server of
# this process.
CALL, REPLY, RAISED, CANCEL, STOP, ANNOUNCED, ASKED, AWAITED, CANCELLED, ENDED = range(1, 11)
_APART_BYTES = 2048  # Smaller buffers are copied into the pickle, which costs less than another message.
_HEADER = struct.Struct("<QQqQ")
_MOST_PARTS = (FRAME_BYTES - _HEADER.size) // 8


def dump(value: object) -> list[Buffer]:
    """Returns [pickle, buffer, ...]: the value as a pickle of protocol 5, and its large memory as buffers, not copied."""
    apart: list[Buffer] = []

    def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
        # A frame can only describe _MOST_PARTS parts.
        if len(apart) >= _MOST_PARTS or buffer.raw().nbytes < _APART_BYTES:
            return True
        apart.append(buffer.raw())
        return False

    if imported("torch") is None:
        return [pickle.dumps(value, protocol=5, buffer_callback=keep_in_band), *apart]
    written = io.BytesIO()
    pickler = pickle.Pickler(written, protocol=5, buffer_callback=keep_in_band)
    pickler.dispatch_table = {**copyreg.dispatch_table, sys.modules["torch"].Tensor: _reduced}
    pickler.dump(value)
    return [written.getvalue(), *apart]


def load(parts: Sequence[Buffer]) -> Any:
    """Returns the value from the parts that `dump` made. Its arrays use the parts' memory."""
    return _Unpickler(io.BytesIO(parts[0]), buffers=parts[1:]).load()


class _Unpickler(pickle.Unpickler):
    """Waits for the import of a whole package before it uses one of its modules.

    A call may arrive while the program is still importing, for example, NumPy. Importing a submodule at the same time
    would make one of both threads see a half-initialized package.
    """

    _complete: set[str] = set()  # Modules whose import has finished.

    def find_class(self, module: str, name: str) -> Any:
        if module in self._complete:
            found = getattr(sys.modules.get(module), name, None)
            if found is not None:
                return found
        importlib.import_module(module.partition(".")[0])
        found = super().find_class(module, name)
        self._complete.add(module)
        return found


def _reduced(value: Any) -> Any:
    """Reduces a torch.Tensor for the pickler. torch's own method copies the whole storage; here a dense CPU tensor becomes
    its memory, the name of its type, and its shape."""
    torch = sys.modules["torch"]
    if (not value.is_cpu or value.layout is not torch.strided or value.is_quantized or value.__dict__ or
            value._backward_hooks):
        return value.__reduce_ex__(5)
    rebuild: Callable[..., Any] = _tensor
    if value.requires_grad:
        value, rebuild = value.detach(), _leaf
    dtype = value.dtype
    if dtype.is_complex:
        value = value.resolve_conj()
    if not value.is_contiguous():
        value = value.contiguous()
    if value.is_neg():
        value = value.resolve_neg()
    if dtype not in _names:
        _learn(torch, dtype)
    name, is_in_numpy = _names[dtype]
    shape = None if value.dim() == 1 else tuple(value.shape)
    if not is_in_numpy:
        value = value.view(-1).view(torch.uint8) if value.numel() else value.to(torch.uint8)
    octets = value.numpy()
    return rebuild, (octets.tobytes() if octets.nbytes < _APART_BYTES else pickle.PickleBuffer(octets), name, shape)


_names: dict[Any, tuple[str, bool]] = {}  # By torch's dtype: its name, and whether NumPy has the type.
_dtypes: dict[str, Any] = {}  # By that name.


def _learn(torch: ModuleType, dtype: Any) -> None:
    name = str(dtype).partition(".")[2]
    try:
        torch.empty(0, dtype=dtype).numpy()
        _names[dtype] = name, True
    except TypeError:
        _names[dtype] = name, False
    _dtypes[name] = dtype


# shape: None for one dimension.
def _tensor(octets: Any, name: str, shape: tuple[int, ...] | None) -> Any:
    import torch

    dtype = _dtypes.get(name) or getattr(torch, name)
    if not len(octets):
        return torch.empty(shape or 0, dtype=dtype)
    # Memory inside a pickle or a frame is read-only.
    made = torch.frombuffer(bytearray(octets) if isinstance(octets, bytes) else octets, dtype=dtype)
    return made if shape is None else made.reshape(shape)


def _leaf(*parts: Any) -> Any:
    return _tensor(*parts).requires_grad_()


def pack_ahead(kind: int, call: int, parts: Sequence[Buffer]) -> bytes:
    """Returns the frame for parts that are sent after it, even if they are small."""
    lengths = [memoryview(part).nbytes for part in parts]
    return _HEADER.pack(kind, len(parts), call, lengths[0] if parts else 0) + struct.pack(f"<{len(lengths[1:])}Q", *lengths[1:])


def pack(kind: int, call: int, parts: Sequence[Buffer]) -> tuple[bytes, list[Buffer]]:
    """Returns (frame, parts to send after it as separate messages)."""
    head = pack_ahead(kind, call, parts)
    if len(head) + sum(memoryview(part).nbytes for part in parts) <= FRAME_BYTES:
        return b"".join([head, *parts]), []
    return head, list(parts)


def unpack(frame: bytes) -> tuple[int, int, list[Buffer] | None, list[int]]:
    """Returns (kind, call, parts, lengths) of a frame. parts: None if they follow it; lengths: of each part.

    Raises ValueError for bytes that `pack` did not make.
    """
    if len(frame) < _HEADER.size:
        raise ValueError(f"a frame of {len(frame)} bytes is too short")
    kind, count, call, length = _HEADER.unpack_from(frame)
    begin = _HEADER.size + 8 * max(0, count - 1)
    if not CALL <= kind <= ENDED or count > _MOST_PARTS or begin > len(frame):
        raise ValueError(f"invalid frame of kind {kind} with {count} parts in {len(frame)} bytes")
    lengths = [length, *struct.unpack_from(f"<{max(0, count - 1)}Q", frame, _HEADER.size)] if count else []
    if begin + sum(lengths) != len(frame):
        if begin != len(frame):
            raise ValueError(f"invalid frame of {len(frame)} bytes for parts of {lengths}")
        return kind, call, None, lengths
    parts: list[Buffer] = []
    for each in lengths:
        parts.append(frame[begin:begin + each])
        begin += each
    return kind, call, parts, lengths
