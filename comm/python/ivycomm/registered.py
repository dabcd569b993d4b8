"""Arrays in memory that the other ranks of this host read where it is: large collectives copy less."""

import ctypes
import math
import weakref
from ctypes import byref, c_void_p

from .element_types import dtype_number
from .errors import check
from .groups import world
from .library import load


def empty_registered(shape, dtype="float32"):
    """A NumPy array of zeros in registered memory (torch.from_numpy makes it a tensor).

    all_reduce, reduce_scatter, all_gather, all_to_all and broadcast use it directly when every rank's arrays
    of that call are registered: give `out=`, or work in place. Any rank may call it by itself. The memory is
    given back when the last view of the array is gone; after finalize() it is ordinary memory.
    ResourceExhausted: there is not so much.
    """
    import numpy

    kind = numpy.dtype(dtype)
    dtype_number("bool" if kind.kind == "b" else kind.name)  # TypeError for what cannot travel.
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    size = math.prod(shape) * kind.itemsize
    pointer = c_void_p()
    check(load().ivy_mem_alloc(world().handle, size, byref(pointer)))
    memory = (ctypes.c_char * size).from_address(pointer.value)
    # Every view holds the memory alive through its base.
    weakref.finalize(memory, load().ivy_mem_free, pointer.value).atexit = False
    return numpy.frombuffer(memory, kind).reshape(shape) if size else numpy.empty(shape, kind)
