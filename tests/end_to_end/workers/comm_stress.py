"""Random operations in shared memory for some seconds, with results that are known in advance: comm_stress.py SECONDS [SEED]

All ranks draw the same numbers from the seed, so they agree on each operation. They arrive at different times, with one to
three operations at once, on the world and on groups. Prints the number of operations, then "all equal".
"""

import os
import random
import sys
import time

import numpy as np

import ivycomm as ic
from comm_leave import leave

# Bytes in an entry (104), an eager area (16 KiB), a slot (256 KiB), several slots; half of a ring is lent from 64 KiB on.
LENGTHS = (1, 13, 14, 100, 2_000, 2_049, 9_000, 33_000, 150_000, 300_000)


def pattern(rank, number, length):
    """Returns `length` numbers of a rank for an operation; sums of them are exact."""
    return (np.arange(length, dtype="float64") * 3 + rank * 7 + number) % 1021


def total(members, number, length):
    return sum(pattern(rank, number, length) for rank in members)


def same(got, expected, what):
    if not np.array_equal(got, expected):
        at = np.flatnonzero(np.asarray(got) != np.asarray(expected))
        raise AssertionError(f"{what}: {len(at)} of {len(expected)} differ, the first at {at[0]}: "
                             f"{got[at[0]]}, not {expected[at[0]]}")


def exchange(group, members, number, length):
    """Messages to the next rank and from the previous one; both ends in both orders."""
    me = members.index(ic.rank())
    right, left = members[(me + 1) % len(members)], members[me - 1]
    send = ic.isend(pattern(ic.rank(), number, length), group.group_rank(right), tag=number % 5, group=group)
    got = ic.recv(np.empty(length), group.group_rank(left), number % 5, group=group)
    same(got, pattern(left, number, length), f"message {number} from {left}")
    send.wait(120)


def collective(kind, group, members, number, length):
    me = members.index(ic.rank())
    own, what = pattern(ic.rank(), number, length), f"{kind} {number} of {length}"
    if kind == "all_reduce":
        same(ic.all_reduce(own, group=group), total(members, number, length), what)
    elif kind == "registered":
        buffer = ic.empty_registered(length, "float64")
        buffer[:] = own
        ic.all_reduce_(buffer, group=group)
        same(np.asarray(buffer), total(members, number, length), what)
    elif kind == "broadcast":
        root = number % len(members)
        same(ic.broadcast(own, root, group=group), pattern(members[root], number, length), what)
    elif kind == "all_gather":
        expected = np.concatenate([pattern(rank, number, length) for rank in members])
        same(ic.all_gather(own, group=group), expected, what)
    elif kind == "reduce_scatter":
        whole = np.concatenate([own + part for part in range(len(members))])
        expected = total(members, number, length) + me * len(members)
        same(ic.reduce_scatter(whole, group=group), expected, what)
    elif kind == "all_to_all":
        parts = np.concatenate([own + part for part in range(len(members))])
        expected = np.concatenate([pattern(rank, number, length) + me for rank in members])
        same(ic.all_to_all(parts, group=group), expected, what)
    elif kind == "several":
        works = [ic.all_reduce(own + each, group=group, async_op=True) for each in range(3)]
        for each, work in enumerate(works):
            same(work.wait(120), total(members, number, length) + each * len(members), what)
    else:
        ic.barrier(group=group)


KINDS = ("all_reduce", "registered", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "several", "barrier",
         "message", "message")


def main():
    seconds, seed = float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    expected_page = os.environ.get("EXPECTED_PAGE")
    assert expected_page is None or os.sysconf("SC_PAGESIZE") == int(expected_page), os.sysconf("SC_PAGESIZE")
    ic.init()
    everybody = list(range(ic.world_size()))
    groups = [(ic.world(), everybody)]
    if len(everybody) > 2:
        half = [rank for rank in everybody if rank % 2 == ic.rank() % 2]
        groups.append((ic.split(ic.rank() % 2), half))
    shared, own = random.Random(seed), random.Random(f"{seed} {ic.rank()}")
    number, until, kinds = 0, time.monotonic() + seconds, []
    while True:
        if number % 50 == 0 and ic.broadcast(np.array([time.monotonic() > until], "int32"))[0]:
            break
        number += 1
        group, members = groups[shared.randrange(len(groups))]
        if not kinds:
            kinds = shared.sample(KINDS, len(KINDS))
        kind, length = kinds.pop(), shared.choice(LENGTHS)
        if own.random() < 0.2:  # The others sleep in their waits.
            time.sleep(own.choice((0, 0.0001, 0.003)))
        if kind == "message":
            exchange(group, members, number, length)
        else:
            collective(kind, group, members, number, length)
    print(number, "operations", flush=True)
    leave("all equal")


main()
