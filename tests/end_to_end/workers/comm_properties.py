"""Properties of collectives that users rely on, for every operation, type, form and kind of group.

They are those of torch's tests of c10d and mpi4py's tests of collectives: every form gives the same bits; the input is
unchanged; the result equals NumPy's; it is the same on every rank and every time; operations that undo or contain each
other agree; empty, strided and 0-d arrays work; an error of one rank is an error on all, and a call that is rejected before
anything is sent breaks nothing. Prints "all equal" at the end. With the argument `long` there are more cases.
"""

import itertools
import sys

import numpy as np

import ivycomm as ic
from comm_leave import leave

IS_LONG = "long" in sys.argv
INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
FLOATS = ["float16", "float32", "float64"]
DTYPES = INTEGERS + FLOATS + ["bool", "complex64", "complex128"]
FUNCTIONS = {"sum": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum,
             "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}
# More than fits into an entry, than into the eager area, and than one chunk.
COUNTS = [0, 1, 3, 17, 1000, 40_000] if IS_LONG else [0, 17, 1000]
LARGE = 700_001


def groups(world):
    """Returns groups of several kinds. Each kind contains all ranks in one of its groups, or has None on this rank."""
    n, r = world.size, world.rank
    yield "world", world
    yield "reversed", ic.new_group(range(n - 1, -1, -1))
    yield "halves", ic.split(int(r >= n // 2))
    yield "of one", ic.split(r)
    yield "all but the first", ic.new_group(range(1, n)) if n > 1 else None
    yield "shuffled by key", ic.split(0, (r * 7 + 3) % n)


def given(rank, count, dtype, seed):
    """Small whole numbers, so that every order of additions has the same sum."""
    random = np.random.default_rng([seed, rank, count])
    numbers = random.integers(0, 2 if dtype == "bool" else 4, count)
    if dtype.startswith("complex"):
        numbers = numbers + 1j * random.integers(0, 4, count)
    return numbers.astype(dtype)


def allowed(op, dtype):
    kind = np.dtype(dtype).kind
    if op in ("band", "bor", "bxor"):
        return kind in "iub"
    return not (op in ("min", "max") and kind == "c")


def reduced(op, parts):
    function = FUNCTIONS[op]
    if parts[0].dtype == bool:
        function = {"sum": np.logical_or, "product": np.logical_and}.get(op, function)
    total = parts[0]
    for part in parts[1:]:
        total = function(total, part)
    return total.astype(parts[0].dtype)


def identity(op, like):
    dtype = like.dtype
    if op in ("min", "max"):
        if dtype == bool:
            value = op == "min"
        elif dtype.kind in "iu":
            value = np.iinfo(dtype).max if op == "min" else np.iinfo(dtype).min
        else:
            value = np.inf if op == "min" else -np.inf
    elif op == "band":
        value = True if dtype == bool else ~np.zeros((), dtype)
    else:
        value = int(op == "product")
    return np.full_like(like, value)


def plain(x):
    """Removes -0, which a product of complex numbers may contain if each host multiplies its numbers first."""
    return x + x.dtype.type(0)


class Check:
    def __init__(self):
        self.what, self.number = "", 0

    def same(self, got, expected, form):
        self.number += 1
        assert type(got) is np.ndarray and got.dtype == expected.dtype and got.shape == expected.shape, \
            f"{self.what}, {form}: {got!r} is not like {expected!r}"
        assert got.tobytes() == expected.tobytes(), f"{self.what}, {form}:\n{got}\nis not\n{expected}"

    def forms(self, function, in_place, x, expected, *arguments, **named):
        """Runs all forms: functional, into `out`, asynchronous, with a strided input, repeated, and in place."""
        before, first = x.copy(), function(x, *arguments, **named)
        assert np.array_equal(first, expected), f"{self.what}: {first} is not {expected}"  # See plain().
        expected = first.copy()
        self.same(function(x, *arguments, **named), expected, "again")
        self.same(x, before, "its input afterwards")
        out = np.full_like(expected, 1)
        assert function(x, *arguments, out=out, **named) is out
        self.same(out, expected, "out")
        self.same(function(x, *arguments, async_op=True, **named).wait(), expected, "asynchronous")
        strided = np.repeat(x, 2, axis=0)[::2]
        assert len(x) < 2 or not strided.flags.c_contiguous
        self.same(function(strided, *arguments, **named), expected, "strided")
        if in_place is not None:
            own = x.copy()
            assert in_place(own, *arguments, **named) is own
            self.same(own, expected, "in place")
            own = x.copy()
            assert in_place(own, *arguments, async_op=True, **named).wait() is own
            self.same(own, expected, "in place, asynchronous")


def reductions(check, group):
    n, r = group.size, group.rank
    is_small = not IS_LONG and (group.name != "world" or group.node_count > 1)
    dtypes = ("int16", "float32", "bool") if is_small else DTYPES
    for dtype, count in itertools.product(dtypes, COUNTS):
        for op in FUNCTIONS if IS_LONG or count == 17 else ("sum", "max"):
            if not allowed(op, dtype):
                continue
            check.what = f"{op} of {count} {dtype} in group {group.name}"
            parts = [given(rank, count, dtype, 1) for rank in range(n)]
            x, whole = parts[r], reduced(op, parts)
            check.forms(ic.all_reduce, ic.all_reduce_, x, whole, op, group=group)
            check.forms(ic.scan, ic.scan_, x, reduced(op, parts[:r + 1]), op, group=group)
            before = reduced(op, parts[:r]) if r else identity(op, x)
            check.forms(ic.exscan, ic.exscan_, x, before, op, group=group)
            root = count % n
            got = ic.reduce(x, root, op, group=group)
            assert (got is None) == (r != root)
            if r == root:
                check.same(plain(got), plain(whole), "reduce")
            own = x.copy()
            assert ic.reduce_(own, root, op, group=group) is own
            check.same(plain(own), plain(whole if r == root else x), "reduce in place")
            rows = [given(rank, count * n, dtype, 2) for rank in range(n)]
            mine = reduced(op, rows)[count * r:count * (r + 1)]
            check.forms(ic.reduce_scatter, None, rows[r], mine, op, group=group)
            got = ic.reduce_scatter_(rows[r].copy(), op, group=group)
            check.same(plain(got), plain(mine), "reduce_scatter in place")
            split = [count + rank for rank in range(n)]
            rows = [given(rank, sum(split), dtype, 3) for rank in range(n)]
            begin = sum(split[:r])
            check.forms(ic.reduce_scatter, None, rows[r], reduced(op, rows)[begin:begin + split[r]], op, split=split,
                        group=group)


def moves(check, group):
    n, r = group.size, group.rank
    for dtype, count in itertools.product(DTYPES if IS_LONG else ("int8", "float64", "complex128"), COUNTS):
        check.what = f"{count} rows of {dtype} in group {group.name}"
        parts = [given(rank, 2 * count, dtype, 4).reshape(count, 2) for rank in range(n)]
        x, joined = parts[r], np.concatenate(parts)
        check.forms(ic.all_gather, None, x, joined, group=group)
        own = np.zeros_like(joined)
        own[count * r:count * (r + 1)] = x
        assert ic.all_gather_(own, group=group) is own
        check.same(own, joined, "all_gather in place")
        for rank, each in enumerate(ic.all_gather_list(x, group=group)):
            check.same(np.ascontiguousarray(each), parts[rank], "all_gather_list")
        check.same(ic.all_gather(np.repeat(x, r + 1, axis=0), uneven=True, group=group),
                   np.concatenate([np.repeat(part, rank + 1, axis=0) for rank, part in enumerate(parts)]), "uneven")
        for root in {0, n // 2, n - 1}:
            check.forms(ic.broadcast, ic.broadcast_, x, parts[root], root, group=group)
            got = ic.gather(x, root, group=group)
            assert (got is None) == (r != root)
            if r == root:
                check.same(got, joined, "gather")
            check.same(ic.scatter(got, root, group=group), x, "scatter of what was gathered")
            split = [(rank * 3) % 4 for rank in range(n)]
            rows = given(root, sum(split), dtype, 5)
            begin = sum(split[:r])
            check.same(ic.scatter(rows if r == root else None, root, split=split if r == root else None, group=group),
                       rows[begin:begin + split[r]], "uneven scatter")
        whole = [given(rank, count * n, dtype, 6) for rank in range(n)]
        swapped = np.concatenate([each[count * r:count * (r + 1)] for each in whole])
        check.forms(ic.all_to_all, ic.all_to_all_, whole[r], swapped, group=group)
        check.same(ic.all_to_all(swapped, group=group), whole[r], "all_to_all twice")
        split = [(r + 2 * to) % 3 for to in range(n)]
        came = [(rank + 2 * r) % 3 for rank in range(n)]
        rows = np.repeat(np.array([r], dtype), sum(split))
        check.same(ic.all_to_all(rows, split, group=group), np.repeat(np.arange(n).astype(dtype), came), "uneven")


def floats(check, group):
    """Arbitrary numbers: the order of additions differs from NumPy's, but the bits are the same on every rank, in every form
    and every time."""
    n, r = group.size, group.rank
    for dtype, count in itertools.product(FLOATS, [LARGE, 1000] if IS_LONG else [50_001]):
        check.what = f"any {count} {dtype} in group {group.name}"
        parts = [np.random.default_rng([7, rank]).standard_normal(count).astype(dtype) for rank in range(n)]
        first = ic.all_reduce(parts[r], group=group)
        exact = sum(part.astype("float64") for part in parts)
        tolerance = 4 * n * np.finfo(dtype).eps * (1 + np.abs(parts).astype("float64").sum(axis=0))
        assert (np.abs(first.astype("float64") - exact) <= tolerance).all(), check.what
        check.forms(ic.all_reduce, ic.all_reduce_, parts[r], first, group=group)
        for other in ic.all_gather_list(first, group=group):
            check.same(np.ascontiguousarray(other), first, "of another rank")
        scanned = ic.scan(parts[r], group=group)
        if r == n - 1 and group.node_count == 1:
            check.same(scanned, first, "the last of scan")
        # On several hosts all_reduce first adds each host's ranks.
        assert r < n - 1 or (np.abs(scanned.astype("float64") - exact) <= tolerance).all(), check.what
        mean = ic.all_reduce(parts[r], "mean", group=group)
        assert (np.abs(mean.astype("float64") - exact / n) <= tolerance).all()


def shapes(check, group):
    n, r = group.size, group.rank
    check.what = f"shapes in group {group.name}"
    number = ic.all_reduce(np.float64(r), group=group)
    assert number.shape == () and number == sum(range(n))
    assert ic.all_gather(np.int32(r), group=group).tolist() == list(range(n))
    fortran = np.asfortranarray(np.arange(12.0).reshape(3, 4) + r)
    total = np.arange(12.0).reshape(3, 4) * n + sum(range(n))
    check.same(ic.all_reduce(fortran, group=group), total, "Fortran's order")
    turned = np.arange(6).reshape(2, 3).T
    check.same(ic.broadcast(turned, n - 1, group=group), np.ascontiguousarray(turned), "transposed")
    check.same(ic.all_gather(turned, 1, group=group), np.concatenate([turned] * n, 1), "along axis 1")
    frozen = np.arange(3)
    frozen.flags.writeable = False
    check.same(ic.all_reduce(frozen, group=group), np.arange(3) * n, "an input that is read-only")
    backwards = np.arange(5)[::-1]
    check.same(ic.all_reduce(backwards, group=group), np.arange(5)[::-1] * n, "backwards")


def refused(check, group):
    """Calls that are rejected on their rank before anything is sent do not break the group."""
    n, r = group.size, group.rank
    readonly = np.ones(4)
    readonly.flags.writeable = False
    wrong = [
        (ValueError, lambda: ic.all_reduce(np.ones(3), "sums", group=group)),
        (ValueError, lambda: ic.all_reduce(np.ones(3), "band", group=group)),
        (TypeError, lambda: ic.all_reduce(np.array(["text"]), group=group)),
        (ValueError, lambda: ic.broadcast(np.ones(3), n, group=group)),
        (ValueError, lambda: ic.broadcast(np.ones(3), -1, group=group)),
        (ValueError, lambda: ic.all_reduce(np.ones(3), out=np.ones(4), group=group)),
        (ValueError, lambda: ic.all_reduce(np.ones(3), out=np.ones(3, "f4"), group=group)),
        (ValueError, lambda: ic.reduce_scatter(np.ones(3), split=[1] * n + [1], group=group)),
        (ValueError, lambda: ic.all_gather(np.ones(3), 1, group=group)),
        (ValueError, lambda: ic.barrier(group=group, timeout=-1)),
        ((TypeError, ValueError), lambda: ic.all_reduce_(readonly, group=group)),
        (TypeError, lambda: ic.all_reduce_([1, 2], group=group)),
        (TypeError, lambda: ic.all_reduce(np.ones(3), group="world")),
    ]
    for index, (kind, call) in enumerate(wrong):
        if index % n == r:
            try:
                call()
            except kind:
                pass
            else:
                raise AssertionError(f"wrong call {index} was taken in group {group.name}")
    assert ic.all_reduce(np.ones(1), group=group)[0] == n


def mismatches(world):
    """A differing call of one rank is an error on every rank, but only in that group."""
    def as_rank(first, others):
        return lambda group: (first if group.rank == 0 else others)(group)

    x, y = np.ones(8), np.ones(9)
    wrong = [
        ("count", as_rank(lambda g: ic.all_reduce(x, group=g), lambda g: ic.all_reduce(y, group=g))),
        ("type", as_rank(lambda g: ic.all_reduce(x, group=g), lambda g: ic.all_reduce(x.astype("f4"), group=g))),
        ("reduction", as_rank(lambda g: ic.all_reduce(x, group=g), lambda g: ic.all_reduce(x, "max", group=g))),
        ("operation", as_rank(lambda g: ic.scan(x, group=g), lambda g: ic.exscan(x, group=g))),
        ("root", as_rank(lambda g: (ic.broadcast(x, 0, group=g), ic.barrier(group=g)),
                         lambda g: (ic.broadcast(x, 1, group=g), ic.barrier(group=g)))),
    ]
    for name, call in wrong:
        with ic.new_group(range(world.size)) as group:
            try:
                call(group)
            except ic.Mismatch:
                pass
            else:
                raise AssertionError(f"ranks that differ in {name} were not told")
    ic.barrier()


def main():
    world = ic.init()
    check = Check()
    for _, group in groups(world):
        if group is None or not group.is_member:
            continue
        for part in (reductions, moves, floats, shapes, refused):
            part(check, group)
    if world.size > 1:
        mismatches(world)
    leave(f"{check.number} results")
    ic.finalize()
    print("all equal")


if __name__ == "__main__":
    main()
