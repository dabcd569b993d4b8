"""comm_device.py SCENARIO: arrays on devices of the stand-ins of CUDA and NCCL (tests/comm/nccl_double).

Every rank prints one line of JSON at the end.
"""

import array
import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
import time
import types
from ctypes import byref, c_int, c_size_t, c_uint, c_void_p

if "EXTRA_PATH" in os.environ:  # As a virtual environment has its packages.
    sys.path.append(os.environ["EXTRA_PATH"])
import ivycomm as ic

cuda = ctypes.CDLL(os.environ["IVY_CUDA_LIB"])


def check(status):
    assert status == 0, f"the stand-in of CUDA says {status}"


def use_device(ordinal):
    context = c_void_p()
    check(cuda.cuInit(c_uint(0)))
    check(cuda.cuDevicePrimaryCtxRetain(byref(context), c_int(ordinal)))
    check(cuda.cuCtxSetCurrent(context))


class DeviceArray:
    """float32 on the device, shown to others as CuPy's arrays are."""

    def __init__(self, values):
        self.shape = (len(values),)
        self.pointer = c_void_p()
        check(cuda.cuMemAlloc_v2(byref(self.pointer), c_size_t(4 * len(values))))
        check(cuda.cuMemcpyHtoDAsync_v2(self.pointer, (ctypes.c_float * len(values))(*values),
                                        c_size_t(4 * len(values)), None))
        check(cuda.cuStreamSynchronize(None))

    @property
    def dtype(self):
        return "float32"

    @property
    def __cuda_array_interface__(self):
        return {"shape": self.shape, "typestr": "<f4", "data": (self.pointer.value, False), "version": 3,
                "strides": None, "stream": None}

    def values(self):
        on_host = (ctypes.c_float * self.shape[0])()
        check(cuda.cuMemcpyDtoHAsync_v2(on_host, self.pointer, c_size_t(4 * self.shape[0]), None))
        check(cuda.cuStreamSynchronize(None))
        return list(on_host)


class CupyArray(DeviceArray):
    """As CuPy's: its module makes others, on the device of the first."""

    __module__ = "cupy"
    device = contextlib.nullcontext()


def cupy():
    module = types.ModuleType("cupy")
    module.empty = lambda shape, dtype: CupyArray([0.0] * shape[0])
    return module


def say(**words):
    print(json.dumps(words), flush=True)


def collectives(r, n):
    x = DeviceArray([1.0, r, 2.0 * r])
    assert ic.all_reduce_(x) is x
    assert x.values() == [n, n * (n - 1) / 2, n * (n - 1)], x.values()
    everyone = DeviceArray([0.0] * (3 * n))
    ic.all_gather(DeviceArray([r, r, r]), out=everyone)
    assert everyone.values() == [float(i // 3) for i in range(3 * n)], everyone.values()
    parts = DeviceArray([float(r)] * (2 * n))
    assert ic.all_gather_(parts).values() == [float(i // 2) for i in range(2 * n)], parts.values()
    tree = {"w": DeviceArray([1.0]), "b": [DeviceArray([float(r)] * 5)]}
    assert ic.all_reduce_(tree) is tree and tree["w"].values() == [n], tree["w"].values()
    assert tree["b"][0].values() == [n * (n - 1) / 2] * 5, tree["b"][0].values()
    work = ic.broadcast_(DeviceArray([r] * 4), src=n - 1, async_op=True)
    assert work.wait(30).values() == [n - 1.0] * 4
    group = ic.split(r % 2, r)
    y = DeviceArray([1.0])
    ic.all_reduce_(y, group=group)
    assert y.values() == [group.size], y.values()
    try:
        ic.all_reduce(x)
    except TypeError as error:
        assert "out=" in str(error), error
    else:
        raise AssertionError("an array was made from nothing")
    sys.modules["cupy"] = cupy()
    z = CupyArray([1.0, r])
    total, everyone = ic.all_reduce(z), ic.all_gather(z)
    assert type(total) is CupyArray and total.values() == [n, n * (n - 1) / 2] and z.values() == [1, r]
    assert type(everyone) is CupyArray and everyone.values() == [float(i) for r in range(n) for i in (1, r)]
    nccl = ctypes.CDLL(os.environ["IVY_NCCL_LIB"])
    assert nccl.nccl_double_count(b"ncclAllReduce") == 5, "NCCL was not asked"
    say(says="all equal")


def prepare(r, n):
    began = time.monotonic()
    try:
        ic.prepare_device(r, timeout=float(os.environ.get("PREPARE_TIMEOUT", 20)))
    except ic.IvyError as error:
        say(says=str(error), code=error.code, seconds=time.monotonic() - began)
    else:
        with open("/proc/self/maps") as maps:
            files = {line.split()[-1] for line in maps if "/" in line}
        say(says="prepared", nccl=[file for file in files if "nccl" in os.path.basename(file)])


def hangs(r, n):
    print("ready", os.environ["IVY_JOB_ID"], flush=True)
    ic.prepare_device(r)


def killed(r, n):
    x = DeviceArray([1.0] * (1 << 18))
    ic.all_reduce_(x)

    def die():
        ic.store().set("died", str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)

    if r == n - 1:
        threading.Timer(0.3, die).start()
    deadline = time.monotonic() + 60
    try:
        while time.monotonic() < deadline:
            ic.all_reduce_(x)
            check(cuda.cuStreamSynchronize(None))
    except ic.IvyError as error:
        told = time.monotonic()
        say(says=str(error), kind=type(error).__name__, rank=error.rank,
            seconds=told - float(ic.store().get("died", timeout=10)))


def late(r, n):
    """The last rank does not call what the others wait for on their streams."""
    x = DeviceArray([1.0] * 1000)
    for _ in range(3):
        ic.all_reduce_(x)
    check(cuda.cuStreamSynchronize(None))
    print("ready", os.environ["IVY_JOB_ID"], flush=True)
    if r < n - 1:
        ic.all_reduce_(x)
        check(cuda.cuStreamSynchronize(None))
    time.sleep(1000)


def values_of(memory):
    """What the device has at an object's address."""
    array = DeviceArray([0.0] * memory.shape[0])
    check(cuda.cuMemcpyDtoDAsync_v2(array.pointer, c_void_p(memory.__cuda_array_interface__["data"][0]),
                                    c_size_t(4 * memory.shape[0]), None))
    return array.values()


def registered(r, n):
    ones = DeviceArray([1.0] * 8)
    for window in (None, ic.world()):
        x = ic.empty_registered(8, device=r, window=window)
        assert x.shape == (8,) and x.dtype == "float32", x
        place = c_void_p(x.__cuda_array_interface__["data"][0])
        check(cuda.cuMemcpyDtoDAsync_v2(place, ones.pointer, c_size_t(32), None))
        check(cuda.cuStreamSynchronize(None))
        assert ic.all_reduce_(x) is x
        assert values_of(x) == [float(n)] * 8, values_of(x)
        del x  # Freed when the operations that use it are done.
    assert ic.empty_registered((0, 3), "int32", "cuda").shape == (0, 3)
    for arguments, error in (((8, "float32", "cpu"), ValueError), ((8, "float32", -1), ValueError),
                             ((8, "datetime64[s]", 0), TypeError), ((8, "float32", None, ic.world()), ValueError),
                             ((8, "float32", 77), ic.FailedPrecondition)):
        try:
            ic.empty_registered(*arguments)
        except error:
            continue
        raise AssertionError(f"{arguments} is taken")


def told(call):
    began = time.monotonic()
    try:
        call()
    except ic.IvyError as error:
        say(says=str(error), kind=type(error).__name__, seconds=time.monotonic() - began)
    else:
        say(says="nothing was raised")


def mixed(r, n):
    """The last rank's array is in the memory of the host, those of the others are on devices."""
    x = array.array("f", [1.0] * 10) if r == n - 1 else DeviceArray([1.0] * 10)
    told(lambda: ic.all_reduce_(x))


def without(r, n):
    """An operation on devices is called where NCCL cannot be had."""
    x = DeviceArray([1.0, 2.0])
    told(lambda: ic.all_reduce_(x))
    assert x.values() == [1.0, 2.0], x.values()


def shrunk(r, n):
    """The last rank dies; the others go on with a smaller world, and with NCCL in it and in a group of it."""
    x = DeviceArray([1.0, r])
    ic.all_reduce_(x)
    pair = ic.new_group([0, n - 1])
    if pair.is_member:
        ic.all_reduce_(x, group=pair)
    check(cuda.cuStreamSynchronize(None))
    ic.barrier()
    if r == n - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        ic.barrier()
        raise AssertionError("nobody died")
    except (ic.RankDied, ic.Aborted):
        world = ic.shrink(timeout=60)
    nccl = ctypes.CDLL(os.environ["IVY_NCCL_LIB"])
    before = nccl.nccl_double_count(b"ncclAllReduce")
    y = DeviceArray([1.0, world.rank])
    ic.all_reduce_(y)
    group = ic.new_group(list(reversed(world.ranks)))
    z = ic.broadcast_(DeviceArray([float(world.rank)]), src=0, group=group)
    check(cuda.cuStreamSynchronize(None))
    assert y.values() == [n - 1.0, (n - 1) * (n - 2) / 2] and z.values() == [n - 2.0], (y.values(), z.values())
    assert nccl.nccl_double_count(b"ncclAllReduce") == before + 1, "NCCL was not asked"
    if pair.is_member:
        try:
            ic.all_reduce_(x, group=pair)
            raise AssertionError("a group of the old world works")
        except ic.NotInitialized:
            pass
    say(says="all equal")


def main():
    scenario = sys.argv[1]
    rank = int(os.environ["IVY_RANK"])
    if scenario in ("prepare", "without") and len(sys.argv) > 2 and rank == int((sys.argv + ["1"])[3]):
        name, value = sys.argv[2].split("=", 1)
        os.environ[name] = value
    if scenario not in ("prepare", "hangs"):
        use_device(rank)
    ic.init(timeout=60)
    {"collectives": collectives, "prepare": prepare, "killed": killed, "hangs": hangs,
     "late": late, "registered": registered, "shrunk": shrunk, "mixed": mixed,
     "without": without}[scenario](ic.rank(), ic.world_size())


if __name__ == "__main__":
    main()
