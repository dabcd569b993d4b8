"""comm_device.py SCENARIO: arrays on devices of the stand-ins for CUDA and NCCL (tests/comm/nccl_double).

Every rank prints one line of JSON at the end.
"""

import array
import contextlib
import ctypes
import gc
import json
import os
import signal
import sys
import threading
import time
import types
from ctypes import byref, c_int, c_size_t, c_uint, c_void_p

if "EXTRA_PATH" in os.environ:  # Laid out like the packages of a virtual environment.
    sys.path.append(os.environ["EXTRA_PATH"])
import ivycomm as ic
import dlpack_structs as structs
from ivycomm import dlpack

cuda = ctypes.CDLL(os.environ["IVY_CUDA_LIB"])
RANK = int(os.environ["IVY_RANK"])


def check(status):
    assert status == 0, f"the stand-in of CUDA says {status}"


def use_device(ordinal):
    context = c_void_p()
    check(cuda.cuInit(c_uint(0)))
    check(cuda.cuDevicePrimaryCtxRetain(byref(context), c_int(ordinal)))
    check(cuda.cuCtxSetCurrent(context))


class DeviceArray:
    """A float32 array on the device, accessible like CuPy's arrays."""

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
    """Like CuPy's arrays: its module creates further arrays on the same device."""

    __module__ = "cupy"
    device = contextlib.nullcontext()


class LentArray:
    """A float32 array on the device that only supports DLPack. Counts how often it is released."""

    def __init__(self, values, version=(1, 0), flags=0, strides=None):
        self.array, self.version, self.flags, self.strides = DeviceArray(values), version, flags, strides
        self.asked, self.given_back, self.taken = [], 0, []
        self.values = self.array.values

    def __dlpack_device__(self):
        return (dlpack.CUDA, RANK)

    def __dlpack__(self, **options):
        if self.version is None and "max_version" in options:
            raise TypeError("unexpected keyword argument 'max_version'")
        self.asked.append(options)
        tensor = structs.Tensor(self.array.pointer.value, structs.Device(dlpack.CUDA, RANK), 1, structs.DataType(2, 32, 1),
                               (ctypes.c_int64 * 1)(*self.array.shape),
                               None if self.strides is None else (ctypes.c_int64 * 1)(*self.strides), 0)
        deleter = ctypes.CFUNCTYPE(None, c_void_p)(self.take_back)
        address = ctypes.cast(deleter, c_void_p).value
        if self.version is None:
            managed, name = structs.Managed(tensor, None, address), b"dltensor"
        else:
            managed, name = structs.ManagedVersioned(*self.version, None, address, self.flags, tensor), b"dltensor_versioned"
        self.taken.append((managed, deleter))
        return structs.new_capsule(ctypes.addressof(managed), name, None)

    def take_back(self, address):
        assert address in [ctypes.addressof(managed) for managed, _ in self.taken]
        self.given_back += 1

    def all_back(self):
        gc.collect()
        return self.given_back == len(self.taken)


class AdoptedArray(LentArray):
    """An array whose framework imports arrays of others."""

    @classmethod
    def from_dlpack(cls, x):
        made = cls([])
        made.lender = dlpack.DeviceTensor(x)
        assert made.lender.device == (dlpack.CUDA, RANK), made.lender.device
        made.array.pointer, made.array.shape = c_void_p(made.lender.pointer), made.lender.shape
        return made


class StreamArray(DeviceArray):
    """An array that exports the stream on which its framework uses it."""

    def __init__(self, values):
        super().__init__(values)
        self.stream = c_void_p()
        check(cuda.cuStreamCreate(byref(self.stream), c_uint(1)))

    @property
    def __cuda_array_interface__(self):
        return {**super().__cuda_array_interface__, "stream": self.stream.value}


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


def lent_values(r, n):
    everyone = [float(i) for i in range(n)]
    x = LentArray([1.0, r, 2.0 * r])
    assert values_of(ic.all_reduce(x)) == [n, sum(everyone), 2 * sum(everyone)] and x.values() == [1.0, r, 2.0 * r]
    assert values_of(ic.all_gather(LentArray([float(r)]))) == everyone
    assert values_of(ic.broadcast(LentArray([float(r)] * 4), src=n - 1)) == [n - 1.0] * 4
    assert [values_of(part) for part in ic.all_gather_list(LentArray([float(r)] * 2))] == [[float(i)] * 2 for i in range(n)]
    assert values_of(ic.all_reduce(LentArray([1.0]), async_op=True).wait()) == [n]
    tree = ic.all_reduce({"w": LentArray([1.0]), "b": [LentArray([float(r)] * 5)]})
    assert values_of(tree["w"]) == [n] and values_of(tree["b"][0]) == [sum(everyone)] * 5
    assert values_of(ic.sendrecv(LentArray([float(r)]), (r + 1) % n, src=(r - 1) % n)) == [(r - 1.0) % n]
    assert values_of(ic.scatter(LentArray([0.5 + i for i in range(n)]) if r == 0 else None)) == [0.5 + r]
    got = LentArray([0.0])
    ic.wait_all(ic.batch_isend_irecv([ic.P2POp(ic.isend, LentArray([float(r)]), (r + 1) % n),
                                      ic.P2POp(ic.irecv, got, (r - 1) % n)]))
    assert got.values() == [(r - 1.0) % n]
    assert ic.all_reduce_(x) is x and x.values() == [n, sum(everyone), 2 * sum(everyone)]
    parts = LentArray([float(r)] * 2 * n)
    assert values_of(ic.reduce_scatter_(parts)) == [sum(everyone)] * 2
    assert x.all_back() and parts.all_back() and got.all_back() and got.given_back > 0


def lent_streams(r, n):
    old, new, stream = LentArray([1.0], version=None), LentArray([1.0]), StreamArray([float(r)])
    ic.all_reduce(old)
    ic.all_reduce(new)
    assert old.asked == [{"stream": 1}] and new.asked == [{"stream": 1, "max_version": (1, 1)}], (old.asked, new.asked)
    assert ic.all_reduce(stream, out=new) is new
    assert new.asked[-1]["stream"] == stream.stream.value and new.values() == [n * (n - 1) / 2], new.asked
    assert [dlpack.stream_for(device, number) for device in (dlpack.CUDA, dlpack.ROCM) for number in (0, 2, 77)] == [
        1, 2, 77, 0, 2, 77]
    assert old.all_back() and new.all_back()


def lent_until_done(r, n):
    """The array is released once, after the last rank has joined the operation."""
    x = LentArray([1.0])
    if r == n - 1:
        ic.store().get("nobody has it back", timeout=20)
        ic.all_reduce(x)
    else:
        work = ic.all_reduce(x, async_op=True)
        time.sleep(0.2)
        gc.collect()
        assert not work.test() and x.given_back == 0 and len(x.taken) == 1
        if ic.store().add("waiting") == n - 1:
            ic.store().set("nobody has it back", b"")
        assert values_of(work.wait()) == [n]
    assert x.all_back() and x.given_back == 1


def lent_refused(r, n):
    class Unwilling(LentArray):
        def __dlpack__(self, **options):
            raise BufferError("it is packed")

    read_only, old = LentArray([1.0], flags=1), LentArray([1.0], version=None)
    copied, strided = LentArray([1.0], flags=2), LentArray([1.0, 2.0], strides=[2])
    calls = [(lambda x=x: ic.all_reduce_(x), TypeError, "is read-only") for x in (read_only, old, copied)]
    calls += [(lambda x=x: ic.all_reduce(LentArray([1.0]), out=x), TypeError, "is read-only") for x in (read_only, old)]
    calls += [(lambda: ic.all_reduce(strided), ValueError, "not contiguous"),
              (lambda: ic.all_reduce(Unwilling([1.0])), TypeError, "does not export its memory: it is packed"),
              (lambda: ic.all_reduce(LentArray([1.0], version=(2, 0))), TypeError, "version 2.0"),
              (lambda: ic.all_gather(ic.empty_registered((2, 2), device=r), axis=1), ValueError, "axis=0")]
    for call, error, words in calls:
        try:
            call()
        except error as refused:
            assert words in str(refused), refused
        else:
            raise AssertionError(f"nothing refuses: {words}")
    assert read_only.values() == old.values() == copied.values() == [1.0]
    assert values_of(ic.all_reduce(read_only)) == [n]
    assert all(x.all_back() and x.given_back > 0 for x in (read_only, old, copied, strided))


def lent_results(r, n):
    """A framework imports the result, whose memory is freed with the framework's array."""
    y = ic.all_reduce(AdoptedArray([1.0, r]))
    assert type(y) is AdoptedArray and y.values() == [n, n * (n - 1) / 2]
    pointer = y.array.pointer
    assert cuda.cuda_double_owns(pointer, c_size_t(8))
    del y
    gc.collect()
    assert not cuda.cuda_double_owns(pointer, c_size_t(8))
    half = ic.empty_registered(4, "bfloat16", device=r)
    assert type(ic.all_reduce_(half)) is type(half) and not hasattr(half, "__cuda_array_interface__")
    lent = dlpack.DeviceTensor(half[1:3])
    assert (lent.dtype, lent.shape, lent.pointer) == ("bfloat16", (2,), half.pointer + 2) and lent.device[0] == dlpack.CUDA
    stream = StreamArray([1.0]).stream
    assert dlpack.DeviceTensor(half, stream.value).device == (dlpack.CUDA, r)


def lent(r, n):
    """Arrays that only support DLPack."""
    ic.all_reduce_(DeviceArray([1.0]))
    lent_values(r, n)
    lent_streams(r, n)
    lent_until_done(r, n)
    lent_refused(r, n)
    lent_results(r, n)
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
    """The last rank does not call the operation for which the others wait on their streams."""
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
    """Returns the values on the device at an object's address."""
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
        del x  # The memory is freed when the operations that use it are done.
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
    """The last rank's array is in host memory; the other ranks' arrays are on devices."""
    x = array.array("f", [1.0] * 10) if r == n - 1 else DeviceArray([1.0] * 10)
    told(lambda: ic.all_reduce_(x))


def without(r, n):
    """Calls an operation on devices without NCCL."""
    x = DeviceArray([1.0, 2.0])
    told(lambda: ic.all_reduce_(x))
    assert x.values() == [1.0, 2.0], x.values()


def after_a_death(is_killed, repair):
    """Repairs the world after a death. The killed rank may have left the first barrier before the others."""
    try:
        ic.barrier()
        if is_killed:
            os.kill(os.getpid(), signal.SIGKILL)
        ic.barrier()
    except (ic.RankDied, ic.HostLost, ic.Aborted):
        return repair(timeout=60)
    raise AssertionError("no rank died")


def grown(r, n):
    """A rank dies twice and is restarted. Each time the world and a group have an NCCL communicator of all ranks."""
    lives = ic.restart_count()
    own = ic.empty_registered(4, device=r)
    for death in range(lives, 3):
        x = DeviceArray([1.0, r])
        ic.all_reduce_(x)
        group = ic.new_group([0, n - 1])
        pair = DeviceArray([1.0])
        ic.all_reduce_(pair, group=group)
        ic.broadcast_(own, src=0)
        check(cuda.cuStreamSynchronize(None))
        assert x.values() == [n, n * (n - 1) / 2] and pair.values() == [2.0 if group.is_member else 1.0]
        if death < 2:
            ic.all_reduce_(x)  # It may be running when the last rank dies.
            world = after_a_death(r == n - 1, ic.grow)
            assert (world.rank, world.size) == (r, n)
    nccl = ctypes.CDLL(os.environ["IVY_NCCL_LIB"])
    assert nccl.nccl_double_count(b"ncclCommInitRankConfig") == 3 - lives, "one for each world"
    assert nccl.nccl_double_count(b"ncclAllReduce") >= 3 - lives, "NCCL was not asked"
    ic.finalize()
    assert nccl.nccl_double_count(b"leaked") == 0, "communicators of NCCL are left"
    say(says="all equal", lives=lives)


def shrunk(r, n):
    """The last rank dies. The others continue with a smaller world that uses NCCL, also in a group."""
    x = DeviceArray([1.0, r])
    ic.all_reduce_(x)
    pair = ic.new_group([0, n - 1])
    if pair.is_member:
        ic.all_reduce_(x, group=pair)
    check(cuda.cuStreamSynchronize(None))
    world = after_a_death(r == n - 1, ic.shrink)
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
     "without": without, "grown": grown, "lent": lent}[scenario](ic.rank(), ic.world_size())


if __name__ == "__main__":
    main()
