"""Remote calls as bytes: pickles with large memory beside them, and the frame that announces them. Pure.

A frame is at most FRAME_BYTES long, so that a receiver can post memory for it before it knows what comes:

    kind, parts, call, length of the pickle [8 bytes each], length of each further part [8 bytes each]

followed by all of the parts when they fit; when they do not, each part is a message of its own after the frame.
"""

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
    _TensorPickler(written, protocol=5, buffer_callback=keep_apart).dump(value)
    return [written.getvalue(), *apart]


def load(parts):
    """The value of `dump`'s parts. Arrays use the parts' memory."""
    return _Unpickler(io.BytesIO(parts[0]), buffers=parts[1:]).load()


class _Unpickler(pickle.Unpickler):
    """Calls come while the program may still import NumPy, and a part of a package that is asked for meanwhile would be
    imported beside it: whoever comes second would find half of it. So the whole package is waited for."""

    def find_class(self, module, name):
        importlib.import_module(module.partition(".")[0])
        return super().find_class(module, name)


class _TensorPickler(pickle.Pickler):
    """Torch's own pickles copy a tensor's whole storage; here a dense one on the CPU is its memory and its form."""

    def reducer_override(self, value):
        torch = sys.modules["torch"]
        if type(value) is not torch.Tensor or value.device.type != "cpu" or value.layout is not torch.strided:
            return NotImplemented
        if value.requires_grad or value.is_quantized:
            return NotImplemented
        flat = value.resolve_conj().resolve_neg().contiguous().view(-1)
        octets = flat.view(torch.uint8).numpy() if flat.numel() else b""
        return _tensor, (pickle.PickleBuffer(octets), str(value.dtype).partition(".")[2], tuple(value.shape))


def _tensor(octets, dtype, shape):
    import torch
    with memoryview(octets) as view:
        if not view.nbytes:
            return torch.empty(shape, dtype=getattr(torch, dtype))
        # Memory that came inside a pickle cannot be written to.
        memory = bytearray(view) if view.readonly else octets
    return torch.frombuffer(memory, dtype=getattr(torch, dtype)).reshape(shape)


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
