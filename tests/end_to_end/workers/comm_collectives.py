"""Every collective of ivycomm on NumPy arrays, compared with a serial reference. Prints "all equal" at the end."""

import array
import ctypes
import os
from collections import OrderedDict, namedtuple

import numpy as np

import ivycomm as ic
from comm_leave import leave

SHAPES = [(), (0,), (1,), (7,), (13, 3), (0, 4), (2, 1, 5)]
DTYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32",
          "float64", "bool", "complex64", "complex128"]
REDUCTIONS = {"sum": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum,
              "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}


def made(rank, shape, dtype, seed=0):
    """Returns a rank's input: small numbers, so that every order of additions gives the same sum."""
    random = np.random.default_rng([seed, rank, len(shape), int(np.prod(shape))])
    numbers = random.integers(0, 2 if dtype == "bool" else 4, shape)
    if dtype.startswith("complex"):
        numbers = numbers + 1j * random.integers(0, 4, shape)
    return np.asarray(numbers).astype(dtype)


def allowed(op, dtype):
    kind = np.dtype(dtype).kind
    if op in ("band", "bor", "bxor"):
        return kind in "iub"
    return not (op in ("min", "max") and kind == "c")


def reduced(op, parts):
    if op == "mean":
        total = sum(part.astype("float64") for part in parts)
        return (total / len(parts)).astype(parts[0].dtype)
    function = REDUCTIONS[op]
    if parts[0].dtype == bool:
        function = {"sum": np.logical_or, "product": np.logical_and}.get(op, function)
    total = parts[0]
    for part in parts[1:]:
        total = function(total, part)
    return np.asarray(total).astype(parts[0].dtype)


def same(got, expected, what):
    assert type(got) is np.ndarray, f"{what}: a {type(got)}"
    assert got.dtype == expected.dtype, f"{what}: {got.dtype}, not {expected.dtype}"
    assert got.shape == expected.shape, f"{what}: {got.shape}, not {expected.shape}"
    assert np.array_equal(got, expected), f"{what}:\n{got}\nis not\n{expected}"


def reductions(r, n):
    for dtype in DTYPES:
        for shape in SHAPES:
            parts = [made(i, shape, dtype) for i in range(n)]
            ops = [op for op in REDUCTIONS if allowed(op, dtype)] if shape in ((7,), ()) else ["sum"]
            for op in ops:
                what = f"{op} of {dtype} {shape}"
                x = parts[r].copy()
                same(ic.all_reduce(x, op), reduced(op, parts), "all_reduce " + what)
                same(x, parts[r], "all_reduce's input " + what)
                out = np.empty_like(x)
                assert ic.all_reduce(x, op, out=out) is out
                same(out, reduced(op, parts), "out of all_reduce " + what)
                same(ic.scan(x, op), reduced(op, parts[:r + 1]), "scan " + what)
                got = ic.reduce(x, n - 1, op)
                assert (got is None) == (r != n - 1)
                if got is not None:
                    same(got, reduced(op, parts), "reduce " + what)
                assert ic.all_reduce_(x, op) is x
                same(x, reduced(op, parts), "all_reduce_ " + what)
    for dtype in ("float32", "float64", "int32"):
        parts = [made(i, (7,), dtype) for i in range(n)]
        assert np.allclose(ic.all_reduce(parts[r], "mean"), reduced("mean", parts)), "mean"
    x = np.ones(5) * (r + 1)
    same(ic.all_reduce(x, "premul_sum", factor=2.0 * r), sum(np.ones(5) * (i + 1) * 2 * i for i in range(n)),
         "premul_sum")


def movement(r, n):
    for dtype in DTYPES:
        for shape in SHAPES:
            what = f"{dtype} {shape}"
            parts = [made(i, shape, dtype, seed=1) for i in range(n)]
            x = parts[r].copy()
            expected = np.concatenate(parts) if shape else np.array(parts, dtype)
            same(ic.all_gather(x), expected, "all_gather " + what)
            for i, part in enumerate(ic.all_gather_list(x)):
                same(part, parts[i], "all_gather_list " + what)
            for dst in (0, n - 1):
                got = ic.gather(x, dst)
                assert (got is None) == (r != dst)
                if got is not None:
                    same(got, expected, "gather " + what)
                same(ic.broadcast(x, dst), parts[dst], "broadcast " + what)
                same(x, parts[r], "broadcast's input " + what)
            assert ic.broadcast_(x, n - 1) is x
            same(x, parts[n - 1], "broadcast_ " + what)
            if not shape:
                continue
            wide = [made(i, (n * shape[0], *shape[1:]), dtype, seed=2) for i in range(n)]
            mine = slice(r * shape[0], (r + 1) * shape[0])
            same(ic.reduce_scatter(wide[r]), reduced("sum", wide)[mine], "reduce_scatter " + what)
            same(ic.all_to_all(wide[r]), np.concatenate([w[mine] for w in wide]), "all_to_all " + what)
            same(ic.scatter(wide[r] if r == 0 else None), wide[0][mine], "scatter " + what)
            x = wide[r].copy()
            assert ic.all_to_all_(x) is x
            same(x, np.concatenate([w[mine] for w in wide]), "all_to_all_ " + what)


def uneven(r, n):
    rows = [2 * i + 1 for i in range(n)]
    begin = [sum(rows[:i]) for i in range(n)]
    own = [made(i, (rows[i], 3), "float32") for i in range(n)]
    same(ic.all_gather(own[r], uneven=True), np.concatenate(own), "uneven all_gather")
    turned = [np.ascontiguousarray(part.T) for part in own]
    same(ic.all_gather(turned[r], axis=1, uneven=True), np.concatenate(turned, 1), "uneven along axis 1")
    whole = [made(i, (sum(rows), 2), "int64", seed=3) for i in range(n)]
    mine = slice(begin[r], begin[r] + rows[r])
    same(ic.reduce_scatter(whole[r], split=rows), reduced("sum", whole)[mine], "uneven reduce_scatter")
    same(ic.scatter(whole[r], n - 1, split=rows if r == n - 1 else None), whole[n - 1][mine], "uneven scatter")
    expected = np.concatenate([w[mine] for w in whole])
    same(ic.all_to_all(whole[r], rows), expected, "uneven all_to_all")
    same(ic.all_to_all(whole[r], rows, output_split=[rows[r]] * n), expected, "all_to_all with both splits")


    for dst in (0, n - 1):
        for part, along in ((own, 0), (turned, 1)):
            got = ic.gather(part[r], dst, along, uneven=True)
            assert (got is None) == (r != dst)
            if got is not None:
                same(got, np.concatenate(part, along), f"uneven gather along axis {along}")
    out = np.empty((sum(rows), 3), "float32")
    assert ic.gather(own[r], uneven=True, out=out if r == 0 else None) is (out if r == 0 else None)
    for split in (None, rows):
        in_place(r, n, [3] * n if split is None else rows, split)


def roots_of_numpy(r, n):
    """Ranks may be integers of any type."""
    last, x = np.int64(n - 1), np.full(2, r)
    same(ic.broadcast(x, last), np.full(2, n - 1), "broadcast from a rank of NumPy's")
    assert ic.broadcast_(x.copy(), np.uint8(n - 1))[0] == n - 1
    for got in (ic.reduce(x, last), ic.gather(x, last), ic.gather_object(r, last)):
        assert (got is None) == (r != n - 1)
    assert ic.broadcast_object(r, last) == n - 1 and ic.scatter_object(list(range(n)), last) == r
    same(ic.scatter(np.arange(n), last), np.array([r]), "scatter")
    work = ic.isend(x, np.int32((r + 1) % n))
    same(ic.recv(x, np.int32((r - 1) % n)), np.full(2, (r - 1) % n), "recv")
    work.wait()
    for wrong in (1.0, "0", None, np.float64(0), -1, n):
        try:
            ic.broadcast(x, wrong)
        except ValueError:
            continue
        raise AssertionError(f"src={wrong!r} was not refused")


def in_place(r, n, rows, split):
    """In-place forms, whose array contains the parts of all ranks."""
    begin = sum(rows[:r])
    mine = slice(begin, begin + rows[r])
    whole = [made(i, (sum(rows), 2), "int64", seed=4) for i in range(n)]
    gathered = np.concatenate([w[sum(rows[:i]):sum(rows[:i + 1])] for i, w in enumerate(whole)])
    x = whole[r].copy()
    assert ic.all_gather_(x, split=split) is x
    same(x, gathered, "all_gather_")
    x = whole[r].copy()
    got = ic.reduce_scatter_(x, split=split)
    same(got, reduced("sum", whole)[mine], "reduce_scatter_")
    assert np.shares_memory(got, x)
    dst = n - 1
    x = (whole[r] if r == dst else whole[r][mine]).copy()
    assert ic.gather_(x, dst, split=split) is x
    same(x, gathered if r == dst else whole[r][mine], "gather_")
    x = whole[r].copy() if r == dst else np.empty((rows[r], 2), "int64")
    got = ic.scatter_(x, dst, split=split, async_op=True).wait(30)
    same(got, whole[dst][mine], "scatter_")
    assert np.shares_memory(got, x) and (r != dst or np.array_equal(x, whole[dst]))


Pair = namedtuple("Pair", "first second")


def tree_of(i, backwards=False):
    """Returns rank i's tree. The order of keys may differ between the ranks' dicts."""
    parts = [("w", [np.full(3, i), np.full((2, 2), float(i))]), ("b", Pair(np.full(2, float(i)), None)),
             ("n", {1: np.float32(i), 10: (np.full(1, 2 * i),)})]
    return OrderedDict(reversed(parts) if backwards else parts)


def same_tree(got, expected, what):
    assert type(got) is type(expected), f"{what}: a {type(got)}"
    if isinstance(expected, dict):
        assert list(got) == list(expected), what
        got, expected = list(got.values()), list(expected.values())
    if isinstance(expected, (list, tuple)):
        assert len(got) == len(expected), what
        for one, other in zip(got, expected):
            same_tree(one, other, what)
    elif expected is not None:
        assert np.array_equal(got, expected) and got.dtype == expected.dtype, f"{what}: {got!r}, not {expected!r}"


def trees(r, n):
    total = tree_of(sum(range(n)))
    total["n"][1] = np.asarray(total["n"][1])
    for async_op in (False, True):
        done = (lambda work: work.wait(30)) if async_op else (lambda tree: tree)
        mine = tree_of(r, backwards=r % 2 == 1)
        got = done(ic.all_reduce(mine, async_op=async_op))
        assert list(got) == list(mine)
        same_tree(OrderedDict((key, got[key]) for key in total), total, "all_reduce of a tree")
        same_tree(mine, tree_of(r, backwards=r % 2 == 1), "its input")
        grads = [np.full(3, float(r)), {"x": np.full((2, 2), float(r))}]
        assert done(ic.all_reduce_(grads, "mean", async_op=async_op)) is grads
        same_tree(grads, [np.full(3, (n - 1) / 2), {"x": np.full((2, 2), (n - 1) / 2)}], "all_reduce_ of a tree")
        own = (np.full(3, r), [np.full(2, float(r))])
        same_tree(done(ic.broadcast(own, n - 1, async_op=async_op)), (np.full(3, n - 1), [np.full(2, n - 1.0)]),
                  "broadcast of a tree")
        assert own[0][0] == r and done(ic.broadcast_(own, n - 1, async_op=async_op)) is own and own[0][0] == n - 1
    work = ic.all_reduce([np.ones(2), np.ones(2, "int32")], async_op=True)
    work.wait(30)
    assert work.test() and work.exception() is None and min(work.timing()) >= 0
    assert ic.all_reduce({}) == {} and ic.broadcast({"none": None}) == {"none": None}
    parts = [np.ones(3) * r, np.ones(2)]
    assert ic.all_reduce_coalesced_(parts)[0] is parts[0] and parts[0][0] == sum(range(n)) and parts[1][0] == n
    assert ic.all_reduce(np.ones(2), "sum", None, None, True).wait(30)[0] == n  # A positional argument, as documented.
    for wrong in (lambda: ic.all_reduce_({"x": 1.0}), lambda: ic.all_reduce([np.ones(1)], out=np.ones(1))):
        try:
            wrong()
        except TypeError:
            continue
        raise AssertionError("a wrong tree was not refused")


def meshes(r, n):
    grid = ic.mesh((n // 2, 2) if n % 2 == 0 else (n, 1), ("dp", "mp"))
    rows, columns = grid.shape
    assert grid.coord == divmod(r, columns)
    for axis, members in (("mp", [grid.coord[0] * columns + i for i in range(columns)]),
                          (0, [i * columns + grid.coord[1] for i in range(rows)])):
        group = grid.group(axis)
        assert group.ranks == tuple(members) and grid.group(axis) is group
        same(ic.all_gather(np.array([r]), group=group), np.array(members), f"axis {axis}")
    for wrong in (lambda: ic.mesh((n + 1,)), lambda: grid.group("pp"), lambda: ic.mesh((n, 1), ("a", "a"))):
        try:
            wrong()
        except ValueError:
            continue
        raise AssertionError("a wrong mesh was not refused")


def layouts(r, n):
    every = [np.arange(24.0).reshape(4, 6) + i for i in range(n)]
    total = sum(every)
    for name, view in {"transposed": lambda a: a.T, "strided": lambda a: a[::2, 1::3],
                       "reversed": lambda a: a[::-1], "Fortran": np.asfortranarray}.items():
        same(ic.all_reduce(view(every[r])), np.ascontiguousarray(view(total)), name)
        try:
            ic.all_reduce_(view(every[r].copy()))
        except ValueError as error:
            assert "contiguous" in str(error), error
        else:
            raise AssertionError(f"{name}: in place was not refused")
    same(ic.all_reduce(every[r].astype(">f8")), total, "foreign byte order")
    frozen = every[r].copy()
    frozen.flags.writeable = False
    same(ic.all_reduce(frozen), total, "read-only")
    for wrong in (lambda: ic.all_reduce_(frozen), lambda: ic.all_reduce(every[r], out=frozen),
                  lambda: ic.all_reduce(every[r], out=np.empty(3))):
        try:
            wrong()
        except ValueError:
            continue
        raise AssertionError("a wrong output was not refused")
    x = every[r].copy()
    same(ic.all_reduce(x, out=x), total, "out is the input")
    x = np.arange(10.0) + r
    same(ic.all_reduce(x[:8], out=x[2:]), sum(np.arange(8.0) + i for i in range(n)), "out overlaps the input")
    for axis in (1, -1):
        same(ic.all_gather(every[r], axis), np.concatenate(every, 1), f"axis {axis}")
    same(ic.all_reduce([1, r]), np.array([n, n * (n - 1) // 2]), "a list")
    same(ic.all_gather(r), np.arange(n), "a number")
    for wrong in ("text", object(), np.array([{}]), np.zeros(2, "datetime64[s]"), np.zeros(2, "longdouble")):
        try:
            ic.all_reduce(wrong)
        except TypeError:
            continue
        raise AssertionError(f"{wrong!r} was not refused")
    for wrong in (lambda: ic.all_reduce(x, "nonsense"), lambda: ic.broadcast(x, n),
                  lambda: ic.all_reduce(np.ones(2, "complex64"), "max"), lambda: ic.reduce_scatter(np.float32(1))):
        try:
            wrong()
        except ValueError:
            continue
        raise AssertionError("a wrong argument was not refused")
    # Rank 0's out has the wrong shape. The other ranks do not call scatter, because rank 0 does not start it.
    try:
        ic.scatter(np.ones(n) if r == 0 else None, out=np.empty(2) if r == 0 else None, timeout=60.0)
        raise AssertionError("a wrong output was not refused")
    except ValueError as error:
        assert "out is float64 of shape (2,)" in str(error), error
    same(ic.all_reduce(r), np.array(sum(range(n))), "after it")


def buffers(r, n):
    """Buffers that are not arrays: they are written in place; a new result is a NumPy array."""
    for make in (lambda: bytearray([r] * 4), lambda: array.array("f", [r] * 4), lambda: memoryview(bytearray([r] * 4)),
                 lambda: memoryview(array.array("d", [r] * 4)), lambda: (ctypes.c_int * 4)(*[r] * 4)):
        x = make()
        got = ic.all_reduce(x)
        assert type(got) is np.ndarray and got.tolist() == [sum(range(n))] * 4 and list(x) == [r] * 4, (x, got)
        assert ic.all_reduce_(x) is x and list(x) == [sum(range(n))] * 4
        assert ic.all_reduce(got, out=x) is x and list(x) == [n * sum(range(n))] * 4
    pair = [bytearray([r]), np.ones(1)]
    assert ic.all_reduce_(pair)[0] == bytearray([sum(range(n))]) and pair[1][0] == n
    for frozen in (memoryview(bytes(4)), np.frombuffer(bytes(4), "u1")):
        try:
            ic.all_reduce_(frozen)
        except ValueError as error:
            assert "read-only" in str(error), error
        else:
            raise AssertionError("read-only memory was written into")


class Shown:
    """NumPy memory that is only accessible by __array_interface__."""

    def __init__(self, array):
        self._array = array

    @property
    def __array_interface__(self):
        return self._array.__array_interface__


class OnlyDlpack:
    """An array that only supports DLPack and whose framework can import other arrays."""

    def __init__(self, array):
        self.array = array

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    @classmethod
    def from_dlpack(cls, x):
        return cls(np.from_dlpack(x))


def shown(r, n):
    """Arrays that support only one protocol."""
    x = Shown(np.full(3, float(r)))
    same(ic.all_reduce(x), np.full(3, float(sum(range(n)))), "what __array_interface__ shows")
    assert ic.all_reduce_(x) is x
    same(x._array, np.full(3, float(sum(range(n)))), "what __array_interface__ shows, in place")
    frozen = np.ones(2)
    frozen.flags.writeable = False
    lent = OnlyDlpack(np.full((2, 3), float(r)))
    for got in (ic.all_reduce(lent), ic.all_reduce({"a": [lent]})["a"][0], ic.all_reduce(lent, async_op=True).wait(30)):
        assert type(got) is OnlyDlpack
        same(got.array, np.full((2, 3), float(sum(range(n)))), "what DLPack shows")
    same(ic.all_gather(lent, axis=1).array, np.repeat([[float(i) for i in range(n)]] * 2, 3, axis=1), "along axis 1")
    for wrong, error, word in ((lambda: ic.all_reduce_(Shown(frozen)), ValueError, "read-only"),
                               (lambda: ic.all_reduce(OnlyDlpack(frozen)), TypeError, "does not export its memory")):
        if "export" in word and int(np.__version__.split(".")[0]) > 1:
            continue  # Since version 2.1 NumPy exports it and marks it read-only.
        try:
            wrong()
        except error as refused:
            assert word in str(refused), refused
        else:
            raise AssertionError(f"not refused: {word}")


class Holder:
    """Has an array as `data`, like many classes."""

    def __init__(self, data):
        self.data, self.dtype, self.shape = data, data.dtype, data.shape


class Sparse(Holder):
    """Like SciPy's sparse arrays: `data` contains only the nonzeros."""

    @property
    def nnz(self):
        return len(self.data)

    def toarray(self):
        return np.diag(self.data)


class Labelled(Holder):
    """Like xarray's arrays: an array with metadata."""

    def __array__(self, dtype=None, copy=None):
        return np.array(self.data, dtype)


class IvyArray(Holder):
    __module__ = "ivy.data_classes.array.array"


def holders(r, n):
    """Only for Ivy's arrays is `data` used."""
    got = ic.all_reduce(IvyArray(np.ones(3)))
    assert type(got) is IvyArray
    same(got.data, np.full(3, float(n)), "Ivy's")
    mine = IvyArray(np.ones(3))
    assert ic.all_reduce_(mine) is mine and mine.data[0] == n
    assert ic.all_reduce(np.ones(3), out=mine) is mine
    assert mine.data[0] == n
    same(ic.all_reduce(Labelled(np.ones(3))), np.full(3, float(n)), "what NumPy makes an array of")
    for wrong, word in ((lambda: ic.all_reduce(Sparse(np.ones(3))), "toarray"),
                        (lambda: ic.all_reduce(Holder(np.ones(3))), "not an array of numbers"),
                        (lambda: ic.all_reduce_(Labelled(np.ones(3))), "written to"),
                        (lambda: ic.all_reduce(np.ones(3), out=Labelled(np.ones(3))), "written to")):
        try:
            wrong()
        except TypeError as error:
            assert word in str(error), error
        else:
            raise AssertionError(f"not refused: {word}")


def asynchronous(r, n):
    """Works of two groups, interleaved and waited for in another order. Some are never waited for."""
    evens = ic.new_group(range(0, n, 2))
    halves = ic.split(r % 2, key=-r)
    expected_ranks = tuple(i for i in reversed(range(n)) if i % 2 == r % 2)
    assert halves.ranks == expected_ranks, halves.ranks
    assert halves.rank == expected_ranks.index(r) and evens.is_member == (r % 2 == 0)
    works, inputs = [], []
    for i in range(40):
        x = np.full(101, float(r + i))
        inputs.append(x)
        works.append((ic.all_reduce(x, async_op=True), ic.all_reduce(x, group=halves, async_op=True),
                      ic.all_gather(x[:3], group=evens, async_op=True)))
        ic.all_reduce(np.ones(3), group=halves, async_op=True)  # No reference to the Work is kept.
    for i, (whole, half, even) in reversed(list(enumerate(works))):
        same(half.wait(30), np.full(101, float(sum(j + i for j in expected_ranks))), "half")
        same(whole.wait(timeout=30), np.full(101, float(sum(range(n)) + n * i)), "whole")
        got = even.wait()
        assert (got is None) == bool(r % 2)
        if got is not None:
            same(got, np.repeat(np.arange(0.0, n, 2) + i, 3), "even")
        assert whole.test() and whole.exception() is None and min(whole.timing()) >= 0
    x = np.ones(4)
    work = ic.all_reduce_(x, async_op=True)
    assert work.wait() is x and x[0] == n and work.result() is x
    halves.free()
    assert ic.all_reduce(x, group=evens) is None or r % 2 == 0


def registered(r, n):
    """Registered arrays on some ranks and on all, and after functions of their world have used them."""
    for everybody in (True, False):
        x = ic.empty_registered((300, 70), "float64") if everybody or r % 2 == 0 else np.empty((300, 70))
        out = ic.empty_registered((300, 70), "float64")
        x[...] = np.arange(21000).reshape(300, 70) + r
        expected = sum(np.arange(21000.0).reshape(300, 70) + rank for rank in range(n))
        ic.all_reduce(x, out=out)
        assert np.array_equal(out, expected)
        ic.all_reduce_(x)
        assert np.array_equal(x, expected)
        view = out[10:]
        del out  # The view keeps the memory.
        assert np.array_equal(view, expected[10:])
    kept = ic.empty_registered(50_000, "uint8")
    kept[...] = 7
    child = os.fork()
    if child == 0:
        del kept  # The memory belongs to the parent.
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0 and np.all(kept == 7)
    assert ic.empty_registered(3, "int32").tolist() == [0, 0, 0]
    assert ic.empty_registered((0, 4)).shape == (0, 4)
    try:
        ic.empty_registered(1 << 50)
    except ic.ResourceExhausted:
        return
    raise AssertionError("a petabyte was given")


def main():
    ic.init()
    r, n = ic.rank(), ic.world_size()
    for part in (reductions, movement, roots_of_numpy, uneven, trees, meshes, layouts, holders, shown, buffers, asynchronous, registered):
        part(r, n)
    ic.barrier(timeout=30)
    leave("all equal")


if __name__ == "__main__":
    main()
