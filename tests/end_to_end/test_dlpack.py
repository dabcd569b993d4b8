# SPDX-License-Identifier: Apache-2.0
"""ivycomm.dlpack: memory of other frameworks is used without a copy and released once; invalid capsules are rejected."""

import ctypes
import gc
import os
import sys

import pytest

from launching import REPOSITORY

numpy = pytest.importorskip("numpy")
sys.path.insert(0, os.path.join(REPOSITORY, "comm/python"))
sys.path.insert(0, os.path.join(REPOSITORY, "tests/end_to_end/workers"))

import dlpack_structs as structs  # noqa: E402
from ivycomm import dlpack  # noqa: E402

FLOAT, INT, BOOL = 2, 0, 6


class Producer:
    """Exports an array in a capsule that it makes itself and counts how often the capsule is released."""

    def __init__(self, array, version=(1, 0), flags=0, type_=(FLOAT, 32, 1), device=(1, 0), strides=True, offset=0):
        self.array, self.version, self.device, self.given_back, self.asked = array, version, device, 0, []
        self.shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        steps = [step // array.itemsize for step in array.strides]
        self.strides = (ctypes.c_int64 * array.ndim)(*steps) if strides else None
        self.deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.take_back)
        address = array.__array_interface__["data"][0]
        tensor = structs.Tensor(address - offset if array.size else None, structs.Device(*device), array.ndim,
                               structs.DataType(*type_), self.shape, self.strides, offset)
        deleter = ctypes.cast(self.deleter, ctypes.c_void_p).value
        if version is None:
            self.managed, self.name = structs.Managed(tensor, None, deleter), b"dltensor"
        else:
            self.managed = structs.ManagedVersioned(*version, None, deleter, flags, tensor)
            self.name = b"dltensor_versioned"

    def take_back(self, address):
        assert address == ctypes.addressof(self.managed)
        self.given_back += 1

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        self.asked.append(options)
        if self.version is None and "max_version" in options:
            raise TypeError("unexpected keyword argument 'max_version'")
        self.capsule = structs.new_capsule(ctypes.addressof(self.managed), self.name, None)
        return self.capsule


GRID = numpy.arange(12, dtype="f4").reshape(3, 4)


@pytest.mark.parametrize("array", [GRID, GRID.T, GRID[::-1, ::2], GRID[1:2], numpy.asarray(GRID[2, 1]), GRID[:0]],
                         ids=["dense", "transposed", "reversed", "a row", "0-d", "empty"])
@pytest.mark.parametrize("version", [None, (1, 0), (1, 9)], ids=["old", "1.0", "1.9"])
def test_memory_is_released_once_after_the_last_view(array, version):
    producer = Producer(array, version)
    got, writable = dlpack.view(producer)
    assert numpy.array_equal(got, array) and got.dtype == "f4" and got.shape == array.shape
    assert writable == (version is not None) and got.flags.writeable == writable
    if array.size:
        part = got[..., None]
        assert part.__array_interface__["data"][0] == array.__array_interface__["data"][0], "the view is a copy"
        del got
        gc.collect()
        assert producer.given_back == 0
        del part
    gc.collect()
    assert producer.given_back == 1
    assert producer.asked == ([{"max_version": (1, 1)}, {}] if version is None else [{"max_version": (1, 1)}])


def test_read_only_memory_is_not_writable():
    got, writable = dlpack.view(Producer(GRID, flags=1))
    assert not writable and not got.flags.writeable


def test_writes_are_visible_to_the_producer():
    array = numpy.zeros(4, "f4")
    got, _ = dlpack.view(Producer(array))
    got[1] = 5
    assert array[1] == 5


def test_offsets_and_missing_strides():
    assert numpy.array_equal(dlpack.view(Producer(GRID[1:], offset=16, strides=False))[0], GRID[1:])


def test_bools():
    array = numpy.array([True, False])
    assert dlpack.view(Producer(array, type_=(BOOL, 8, 1)))[0].tolist() == [True, False]
    assert dlpack.view(dlpack.Lent(array))[0].dtype == bool
    assert numpy.array_equal(dlpack.view(dlpack.Lent(GRID.copy()))[0], GRID)


@pytest.mark.parametrize("options,words", [({"version": (2, 0)}, "version 2.0"), ({"type_": (FLOAT, 32, 4)}, "4 lanes"),
                                           ({"type_": (17, 4, 1)}, "type code 17"), ({"type_": (INT, 4, 1)}, "4 bits")])
def test_rejected_capsules_are_released(options, words):
    producer = Producer(GRID, **options)
    with pytest.raises(TypeError, match=words):
        dlpack.view(producer)
    assert producer.given_back == 1


def test_an_array_on_a_device_is_rejected_without_a_request():
    producer = Producer(GRID, device=(2, 0))
    with pytest.raises(TypeError, match="device 2"):
        dlpack.view(producer)
    assert producer.asked == []


def test_a_capsule_is_consumed_once():
    class Again(Producer):
        def __dlpack__(self, **options):
            return self.capsule if hasattr(self, "capsule") else super().__dlpack__(**options)

    producer = Again(GRID)
    got, _ = dlpack.view(producer)
    with pytest.raises(TypeError, match="unused DLPack capsule"):
        dlpack.view(producer)
    del got
    gc.collect()
    assert producer.given_back == 1
