"""comm_mismatches.py HOW ROUNDS [CASE...]: the ranks make different calls, and every rank must get Mismatch.

HOW: "groups": each round uses a separate group, whose block ends by the exception; "worlds": each round uses a world that
the ranks abort, finalize and join again immediately; "uncaught": one round, whose exception ends the rank. Another rank is
late in each round. Prints "all told" at the end, or another error that a rank got.
"""

import os
import random
import sys
import time

import numpy as np

import ivycomm as ic


def is_odd(r, n):
    """The last rank calls something else."""
    return r == n - 1


def shape(odd, group, **more):
    return ic.all_reduce(np.ones(5 if odd else 4), group=group, **more)


def large_shape(odd, group, **more):
    return ic.all_reduce(np.ones((1 << 18) + odd), group=group, **more)


def dtype(odd, group, **more):
    return ic.all_reduce(np.ones(4, np.float32 if odd else np.float64), group=group, **more)


def reduction(odd, group, **more):
    return ic.all_reduce(np.ones(4), "max" if odd else "sum", group=group, **more)


def operation(odd, group, **more):
    x = np.ones(4 * group.size)
    return ic.reduce_scatter(x, group=group, **more) if odd else ic.all_reduce(x, group=group, **more)


def barrier(odd, group, **more):
    return ic.barrier(group=group, **more) if odd else ic.all_reduce(np.ones(1), group=group, **more)


def root(odd, group, **more):
    return ic.broadcast_(np.ones(4), 1 if odd else 0, group=group, **more)


def broadcast_shape(odd, group, **more):
    return ic.broadcast_(np.ones(5 if odd else 4), 0, group=group, **more)


def reduce_dtype(odd, group, **more):
    return ic.reduce(np.ones(4, np.int32 if odd else np.int64), 0, group=group, **more)


def gather_shape(odd, group, **more):
    return ic.all_gather(np.ones((2, 5 if odd else 4)), group=group, **more)


def scatter_shape(odd, group, **more):
    return ic.reduce_scatter(np.ones(group.size * (3 if odd else 2)), group=group, **more)


def all_to_all_shape(odd, group, **more):
    return ic.all_to_all(np.ones(group.size * (3 if odd else 2)), group=group, **more)


def coalesced(odd, group, **more):
    return ic.all_reduce_coalesced([np.ones(3)] * (3 if odd else 2), group=group, **more)


def objects(odd, group, **more):
    return ic.all_reduce(np.ones(1), group=group, **more) if odd else ic.broadcast_object("x", 0, group=group)


def kind_of_call(odd, group, **more):
    return ic.scan(np.ones(3), group=group, **more) if odd else ic.exscan(np.ones(3), group=group, **more)


CASES = (shape, large_shape, dtype, reduction, operation, barrier, root, broadcast_shape, reduce_dtype, gather_shape,
         scatter_shape, all_to_all_shape, coalesced, objects, kind_of_call)


def late(chance, r, n):
    """Delays one rank. All ranks draw the same rank and delay."""
    delay, who = chance.choice((0, 0, 0.0005, 0.003, 0.03, 0.3)), chance.randrange(n)
    if r == who and delay:
        time.sleep(delay)


def call(case, group, chance):
    is_async = chance.random() < 0.3
    late(chance, group.rank, group.size)
    try:
        done = case(is_odd(group.rank, group.size), group, **({"async_op": True} if is_async else {}))
        if isinstance(done, ic.Work):
            done.wait()
        # In some operations a rank needs no data of the others. Then the next operation reports the mismatch.
        ic.barrier(group=group)
    except ic.Mismatch:
        raise
    except Exception as error:
        raise AssertionError(f"{case.__name__}{', a Work' if is_async else ''}: {error!r}") from error
    raise AssertionError(f"{case.__name__}: nothing was told")


def in_groups(case, number):
    try:
        with ic.new_group(range(ic.world_size())) as group:
            call(case, group, random.Random(f"{case.__name__} {number}"))
    except ic.Mismatch:
        pass


def in_worlds(case, number):
    chance = random.Random(f"{case.__name__} {number}")
    ic.init()
    try:
        # A rank that is still in this call when the others make the next one may already get the mismatch.
        assert ic.all_reduce(np.ones(1))[0] == ic.world_size()
        call(case, ic.world(), chance)
    except ic.Mismatch:
        pass
    if chance.random() < 0.5:
        ic.abort("the next world")
    try:
        ic.finalize()
    except ic.Mismatch:
        pass


def main():
    how, rounds, names = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    ic.init()
    for number in range(rounds):
        for case in CASES:
            if names and case.__name__ not in names:
                continue
            if how == "uncaught":
                try:
                    call(case, ic.world(), random.Random(f"{os.environ.get('IVY_JOB_ID')} {case.__name__}"))
                except BaseException as error:
                    print(type(error).__name__, error, flush=True)
                    raise
            {"groups": in_groups, "worlds": in_worlds}[how](case, number)
    print("all told", flush=True)


if __name__ == "__main__":
    main()
