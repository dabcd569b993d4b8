# SPDX-License-Identifier: Apache-2.0
"""Remote calls as bytes: pickles with large memory beside them, and the frame that announces them. Pure.

A frame is at most FRAME_BYTES long, so that a receiver can post memory for it before it knows what comes:

    kind, parts, call, length of the pickle [8 bytes each], length of each further part [8 bytes each]

followed by all of the parts when they fit; when they do not, each part is a message of its own after the frame.
"""

import copyreg
import importlib
import io
import pickle
import struct
import sys

from ..modules import imported

FRAME_BYTES = 4096
# ANNOUNCED: a call whose parts are sent when its callee asks for them, by ASKED. AWAITED: the same of a caller that waits
# for the reply, and is asked where it waits. CANCEL: its caller has given a call up; CANCELLED: the reply of a callee that
# had not begun it; ENDED: its caller has the reply of a call that it had given up.
CALL, REPLY, RAISED, CANCEL, STOP, ANNOUNCED, ASKED, AWAITED, CANCELLED, ENDED = range(1, 11)
# Less than this is copied into the pickle: a message of its own costs more.
_APART_BYTES = 2048
_HEADER = struct.Struct("<QQqQ")
_MOST_PARTS = (FRAME_BYTES - _HEADER.size) // 8


def dump(value):
    """[pickle, buffer, ...]: `value` as a pickle of protocol 5, with large memory as buffers that are not copied."""
    apart = []

    def keep_apart(buffer):
        # More parts than a frame can name go into the pickle.
        if len(apart) >= _MOST_PARTS or buffer.raw().nbytes < _APART_BYTES:
            return True
        apart.append(buffer.raw())
        return False

    if imported("torch") is None:
        return [pickle.dumps(value, protocol=5, buffer_callback=keep_apart), *apart]
    written = io.BytesIO()
    pickler = pickle.Pickler(written, protocol=5, buffer_callback=keep_apart)
    pickler.dispatch_table = {**copyreg.dispatch_table, sys.modules["torch"].Tensor: _reduced}
    pickler.dump(value)
    return [written.getvalue(), *apart]


def load(parts):
    """The value of `dump`'s parts. Arrays use the parts' memory."""
    return _Unpickler(io.BytesIO(parts[0]), buffers=parts[1:]).load()


class _Unpickler(pickle.Unpickler):
    """Calls come while the program may still import NumPy, and a part of a package that is asked for meanwhile would be
    imported beside it: whoever comes second would find half of it. So the whole package is waited for."""

    _whole = set()  # Modules that have been waited for.

    def find_class(self, module, name):
        if module in self._whole:
            found = getattr(sys.modules.get(module), name, None)
            if found is not None:
                return found
        importlib.import_module(module.partition(".")[0])
        found = super().find_class(module, name)
        self._whole.add(module)
        return found


def _reduced(value):
    """Pickles a torch.Tensor. torch's own way copies its whole storage; here a dense CPU tensor becomes memory and
    shape."""
    torch = sys.modules["torch"]
    if (not value.is_cpu or value.layout is not torch.strided or value.is_quantized or value.__dict__ or
            value._backward_hooks):
        return value.__reduce_ex__(5)
    rebuild = _tensor
    if value.requires_grad:
        value, rebuild = value.detach(), _leaf
    dtype = value.dtype
    if dtype.is_complex:
        value = value.resolve_conj()
    if not value.is_contiguous():
        value = value.contiguous()
    if value.is_neg():
        value = value.resolve_neg()
    if dtype not in _dtypes:
        _learn(torch, dtype)
    name, is_numpys = _dtypes[dtype]
    shape = None if value.dim() == 1 else tuple(value.shape)
    if not is_numpys:
        value = value.view(-1).view(torch.uint8) if value.numel() else value.to(torch.uint8)
    octets = value.numpy()
    return rebuild, (octets.tobytes() if octets.nbytes < _APART_BYTES else pickle.PickleBuffer(octets), name, shape)


_dtypes = {}  # By torch's dtype: its name, and whether NumPy has it. By its name: the dtype.


def _learn(torch, dtype):
    name = str(dtype).partition(".")[2]
    try:
        torch.empty(0, dtype=dtype).numpy()
        _dtypes[dtype] = name, True
    except TypeError:
        _dtypes[dtype] = name, False
    _dtypes[name] = dtype


# shape: None of what has one dimension.
def _tensor(octets, name, shape):
    import torch

    dtype = _dtypes.get(name) or getattr(torch, name)
    if not len(octets):
        return torch.empty(shape or 0, dtype=dtype)
    # Memory that came inside a pickle or a frame cannot be written to.
    made = torch.frombuffer(bytearray(octets) if isinstance(octets, bytes) else octets, dtype=dtype)
    return made if shape is None else made.reshape(shape)


def _leaf(*parts):
    return _tensor(*parts).requires_grad_()


def pack_ahead(kind, call, parts):
    """The frame of parts that follow it, however small they are."""
    head = _HEADER.pack(kind, len(parts), call, len(parts[0]) if parts else 0)
    return head + struct.pack(f"<{max(0, len(parts) - 1)}Q", *(memoryview(part).nbytes for part in parts[1:]))


def pack(kind, call, parts):
    """(frame, parts that follow it as messages of their own)."""
    head = pack_ahead(kind, call, parts)
    if len(head) + sum(memoryview(part).nbytes for part in parts) <= FRAME_BYTES:
        return b"".join([head, *parts]), []
    return head, list(parts)


def unpack(frame):
    """(kind, call, parts, lengths) of a frame; parts is None when they follow, with these lengths.

    ValueError for bytes that `pack` did not make.
    """
    if len(frame) < _HEADER.size:
        raise ValueError(f"a frame of {len(frame)} bytes")
    kind, count, call, length = _HEADER.unpack_from(frame)
    begin = _HEADER.size + 8 * max(0, count - 1)
    if not CALL <= kind <= ENDED or count > _MOST_PARTS or begin > len(frame):
        raise ValueError(f"a frame of kind {kind} with {count} parts in {len(frame)} bytes")
    lengths = [length, *struct.unpack_from(f"<{max(0, count - 1)}Q", frame, _HEADER.size)] if count else []
    if begin + sum(lengths) != len(frame):
        if begin != len(frame):
            raise ValueError(f"a frame of {len(frame)} bytes for parts of {lengths}")
        return kind, call, None, lengths
    parts = []
    for each in lengths:
        parts.append(frame[begin:begin + each])
        begin += each
    return kind, call, parts, lengths
