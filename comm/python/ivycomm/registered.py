# SPDX-License-Identifier: Apache-2.0
"""Arrays in memory that the ranks of this host, or NCCL on a GPU, can use in place, so that large collectives copy
less."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from .element_types import dtype_number
from . import calls
from .dlpack import Region
from .groups import Group, resolve, world
from .waiting import call_in_slices

if TYPE_CHECKING:
    import numpy


def _device_number(device: Any) -> int:
    """Returns the number of a GPU given as 1, "cuda", "cuda:1" or a torch.device; -1 is the current one."""
    if isinstance(device, int) and not isinstance(device, bool) and device >= 0:
        return device
    kind, _, number = str(device).partition(":")
    if kind in ("cuda", "hip") and (not number or number.isdecimal()):
        return int(number) if number else -1
    raise ValueError(f"device={device!r} is not a GPU: pass its number, \"cuda\" or \"cuda:1\"; None means host memory")


def _on_device(shape: Sequence[int], dtype: Any, device: Any, window: Group | None) -> Any:
    # A name, numpy.float32, numpy.dtype("float32") or torch.float32.
    name = getattr(dtype, "__name__", None) or getattr(dtype, "name", None) or str(dtype).removeprefix("torch.")
    dtype_number(name)  # TypeError for what cannot travel.
    from .device_arrays import DeviceMemory

    memory = DeviceMemory.new(shape, name, _device_number(device))
    if window is not None:
        group = resolve(window)
        handle = group.handle
        call_in_slices(lambda: calls.extension.ivy_mem_window(handle, memory.pointer), lambda: group.abort("interrupted"))
    return memory


@overload
def empty_registered(shape: int | Sequence[int], dtype: Any = "float32", device: None = None,
                     window: None = None) -> numpy.ndarray[Any, Any]: ...
@overload
def empty_registered(shape: int | Sequence[int], dtype: Any = "float32", device: Any = None,
                     window: Group | None = None) -> Any: ...
def empty_registered(shape: int | Sequence[int], dtype: Any = "float32", device: Any = None,
                     window: Group | None = None) -> Any:
    """Returns a NumPy array of zeros in registered memory (torch.from_numpy converts it to a tensor).

    all_reduce, reduce_scatter, all_gather, all_to_all and broadcast use it directly if all arrays of the call are
    registered on every rank: pass `out=`, or work in place. Not collective without `window`: any rank may call it, from
    any thread. The memory is freed with the last view of the array; after finalize() it is ordinary memory.

    shape: a length, or one for each axis. dtype: a type of NumPy or its name. device: a GPU (its number, "cuda",
    "cuda:1"): allocates memory of NCCL, not zeroed, that NCCL can use in place from the first collective on it. Returns a
    DeviceMemory: torch.from_dlpack(it) and cupy.from_dlpack(it) do not copy. window: a group whose ranks all call this,
    with the same shape (collective, blocks): NCCL maps the memory of each rank into all others, for its fastest
    algorithms, and collectives must use the same offset in it on every rank.

    Raises ResourceExhausted if there is not enough memory, TypeError for a type that cannot be sent, ValueError for a
    device that is not a GPU or a window without device=, NotInitialized before init().
    """
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    if device is not None:
        return _on_device(shape, dtype, device, window)
    if window is not None:
        raise ValueError("window= requires device=, because it is for GPU memory")
    import numpy

    kind = numpy.dtype(dtype)
    dtype_number("bool" if kind.kind == "b" else kind.name)  # TypeError for what cannot travel.
    size = math.prod(shape) * kind.itemsize
    if not size:
        world()
        return numpy.empty(shape, kind)
    place = calls.handle_place()
    calls.extension.ivy_mem_alloc(world().handle, size, place)
    region = Region(place[0], size, None)
    weakref.finalize(region, calls.extension.ivy_mem_free, place[0]).atexit = False
    return numpy.asarray(region).view(kind).reshape(shape)
