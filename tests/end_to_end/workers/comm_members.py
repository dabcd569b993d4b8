"""Groups that only their members create. Prints "all equal" at the end."""

import numpy as np

import ivycomm as ic

world = ic.init()
r, n = world.rank, world.size


def refused(call, kind, *words):
    try:
        call()
    except kind as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError(f"not refused: {words}")


# Each pair of neighbours, one after the other, while the other ranks continue, and with the ranks in reverse order.
for i in range(n):
    pair = sorted({i, (i + 1) % n}, reverse=i % 2 == 1)
    if r in pair:
        group = ic.group_of_members(f"pair/{i}", pair, timeout=30)
        assert group.ranks == tuple(pair) and group.rank == pair.index(r) and group.name == f"pair/{i}"
        assert ic.all_reduce(np.full(50_000, float(r)), group=group)[-1] == sum(pair)
        group.free()
alone = ic.group_of_members(f"alone/{r}", [r])
assert ic.all_reduce(np.ones(3), group=alone)[0] == 1
if r < 2:
    refused(lambda: ic.group_of_members("other", range(2 + r), timeout=30), ic.errors.FailedPrecondition, "other",
            "of ranks 0 1 2")
    refused(lambda: ic.group_of_members("turned", [r, 1 - r], timeout=30), ic.errors.FailedPrecondition, "turned")
else:
    refused(lambda: ic.group_of_members("without me", [0, 1]), ic.errors.InvalidArgument, "not one of its ranks")
refused(lambda: ic.group_of_members("x" * 41, [r]), ic.errors.InvalidArgument, "40 bytes")
refused(lambda: ic.group_of_members("twice", [r, r]), ic.errors.InvalidArgument, "is listed twice")
if r == 0:
    refused(lambda: ic.group_of_members("late", [0, n - 1], timeout=0.3), ic.errors.Timeout,
            f"world ranks {n - 1} did not arrive")
ic.barrier()
# The members need a store, but not a working world.
if r == 0:
    ic.abort("on purpose")
refused(lambda: [ic.all_reduce(np.ones(2)) for _ in range(10_000)], ic.errors.Aborted, "on purpose")
after = ic.group_of_members("after", range(n), timeout=30)
assert ic.all_reduce(np.ones(2), group=after)[0] == n
ic.barrier(group=after)
print("all equal", flush=True)
