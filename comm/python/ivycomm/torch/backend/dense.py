# SPDX-License-Identifier: Apache-2.0
"""Tensors as memory for the library: dense, with a known element type.

Everything here runs in the caller's thread, except take_back(), which runs in the thread that performed the operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...dense_arrays import Memory, raw_stream
from ...element_types import DTYPES, U8
from ...library import IN_PLACE

_NUMBERS = {getattr(torch, name): number for name, (number, _) in DTYPES.items() if hasattr(torch, name)}


class Dense:
    """A tensor's memory. keep: the object that must exist until the operation is done. number: the library's element type.

    A tensor that is not contiguous is copied; take_back() copies the operation's result to it.
    """

    __slots__ = ("tensor", "pointer", "count", "number", "keep", "has_stream", "_original")

    def __init__(self, tensor: Any, does_reduce: bool = False) -> None:
        if tensor.layout != torch.strided:
            raise ValueError(f"backend ivy sends only dense tensors; this one has layout {tensor.layout}: x.to_dense()")
        self._original = None
        if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
            dense = tensor
        else:
            original = tensor.detach()
            dense = original.resolve_conj().resolve_neg().contiguous()
            if dense is not original and dense.data_ptr() != original.data_ptr():
                self._original = original
        number, count = _NUMBERS.get(dense.dtype), dense.numel()
        if number is None:
            if does_reduce:
                raise TypeError(f"backend ivy cannot reduce tensors of {dense.dtype}")
            number, count = U8, count * dense.element_size()  # Sent as bytes.
        self.tensor, self.pointer, self.count, self.number = dense, dense.data_ptr(), count, number
        self.has_stream = dense.is_cuda
        self.keep: Any
        if self.has_stream:  # On the stream that is current now.
            self.keep = Memory(dense, self.pointer, count, number, dense.element_size(), raw_stream(dense.device))
        elif dense.device.type == "cpu":
            self.keep = dense
        else:
            raise TypeError(f"backend ivy sends only tensors on the CPU and on CUDA devices, not on {dense.device}")

    @property
    def is_copied(self) -> bool:
        """Whether take_back() has anything to do."""
        return self._original is not None

    def use_stream(self, stream: Any) -> None:
        """Sets the stream of the operation."""
        self.keep.stream = stream.cuda_stream

    def take_back(self) -> None:
        """Copies the operation's result to the caller's tensor."""
        if self._original is not None:
            self._original.copy_(self.tensor)


class Row:
    """Several tensors of one type as one contiguous block. Not copied if they are consecutive views of one storage."""

    __slots__ = ("dense", "counts", "_parts")

    def __init__(self, tensors: Sequence[Any], is_input: bool, does_reduce: bool = False) -> None:
        parts = [tensor.detach() for tensor in tensors]
        first = parts[0]
        if any(part.dtype != first.dtype or part.device != first.device for part in parts):
            raise ValueError("the tensors of one call have different types or devices")
        self._parts: list[Any] | None = None
        whole = _as_one(parts)
        if whole is None:
            self._parts = parts
            whole = (torch.cat([part.reshape(-1) for part in parts]) if is_input else
                     torch.empty(sum(part.numel() for part in parts), dtype=first.dtype, device=first.device))
        self.dense = Dense(whole, does_reduce)
        scale = self.dense.count // whole.numel() if whole.numel() else 1
        self.counts = [part.numel() * scale for part in parts]

    @property
    def is_copied(self) -> bool:
        return self._parts is not None

    @property
    def is_even(self) -> bool:
        return len(set(self.counts)) == 1

    def take_back(self) -> None:
        assert self._parts is not None  # Only called if is_copied.
        offset, flat = 0, self.dense.tensor
        for part in self._parts:
            part.copy_(flat[offset:offset + part.numel()].view(part.shape))
            offset += part.numel()


def _as_one(parts: list[Any]) -> Any:
    """Returns a one-dimensional view of all parts if they are consecutive in one storage, else None."""
    place, step = parts[0].data_ptr(), parts[0].element_size()
    if parts[0].layout != torch.strided or parts[0].is_conj():
        return None
    for part in parts:
        if not part.is_contiguous() or part.data_ptr() != place or part.is_conj() or part.is_neg():
            return None
        place += part.numel() * step
    count = sum(part.numel() for part in parts)
    if count == 0 or count == parts[0].numel():
        return parts[0].reshape(-1) if count else None
    first = parts[0]
    has_room = (first.storage_offset() + count) * step <= _storage_bytes(first)
    return first.as_strided((count,), (1,)) if has_room else None


def _storage_bytes(tensor: Any) -> int:
    if hasattr(tensor, "untyped_storage"):
        return tensor.untyped_storage().nbytes()
    return tensor.storage().nbytes()  # torch before 2.0.


__all__ = ["Dense", "IN_PLACE", "Row"]
