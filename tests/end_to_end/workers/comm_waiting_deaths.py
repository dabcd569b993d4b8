"""comm_waiting_deaths.py WAY: the last rank ends while every other rank waits for it in all operations at the same time, each
in a separate thread and group. Every rank prints the error of each operation.

WAY: kill, exit, abort. The output is JSON with times of the monotonic clock.
"""

import sys
import threading
import time

import numpy as np

import ivycomm as ic
from comm_deaths import FIELDS, die, say

VICTIM, OTHER = 0, 1  # In the groups, whose ranks are in reverse order.


def array(n=4):
    return np.ones(n, dtype=np.float32)


def uneven(n):
    return [1] * (n - 1) + [2]


def made(group):
    return group and group.free()


# No rank gets further than the victim allows, except that ranks other than the root may leave reduce and gather.
OPERATIONS = {
    "all_reduce": lambda g, n: ic.all_reduce(array(), group=g),
    "all_reduce_large": lambda g, n: ic.all_reduce(array(1 << 18), group=g),
    "all_reduce_coalesced": lambda g, n: ic.all_reduce_coalesced([array(), array(3)], group=g),
    "reduce": lambda g, n: ic.reduce(array(), dst=OTHER, group=g),
    "broadcast": lambda g, n: ic.broadcast(array(), src=VICTIM, group=g),
    "all_gather": lambda g, n: ic.all_gather(array(), group=g),
    "gather": lambda g, n: ic.gather(array(), dst=OTHER, group=g),
    "scatter": lambda g, n: ic.scatter(None, src=VICTIM, group=g, out=array()),
    "reduce_scatter": lambda g, n: ic.reduce_scatter(array(n), group=g),
    "reduce_scatter_v": lambda g, n: ic.reduce_scatter(array(n + 1), split=uneven(n), group=g),
    "all_to_all": lambda g, n: ic.all_to_all(array(n), group=g),
    "all_to_all_v": lambda g, n: ic.all_to_all(array(2 * n), split=[2] * n, output_split=[2] * n, group=g),
    "scan": lambda g, n: ic.scan(array(), group=g),
    "barrier": lambda g, n: ic.barrier(group=g),
    "work": lambda g, n: ic.all_gather(array(), group=g, async_op=True).wait(),
    "split": lambda g, n: made(ic.split(0, group=g)),
    "group": lambda g, n: made(ic.new_group([VICTIM, OTHER], group=g)),
    "recv": lambda g, n: ic.recv(array(), VICTIM, 3, group=g),
    "recv_from_any": lambda g, n: ic.recv(array(), group=g),
    "irecv": lambda g, n: ic.irecv(array(), VICTIM, 3, group=g).wait(),
    "sendrecv": lambda g, n: ic.sendrecv(array(), VICTIM, src=VICTIM, group=g),
}


def wait_in(name, group, n, told):
    ic.store().add("waiting", 1)
    try:
        OPERATIONS[name](group, n)
        ic.barrier(group=group)
        told.append({"where": name, "kind": "nothing"})
    except ic.IvyError as error:
        told.append({"at_ns": time.monotonic_ns(), "where": name, "kind": type(error).__name__, "text": str(error),
                     **{field: getattr(error, field, None) for field in FIELDS}})


def main():
    way = sys.argv[1]
    ic.init(timeout=60)
    rank, n = ic.rank(), ic.world_size()
    groups = {name: ic.split(0, -rank) for name in OPERATIONS}
    if rank == n - 1:
        while ic.store().add("waiting", 0) < (n - 1) * len(OPERATIONS):
            time.sleep(0.02)
        time.sleep(0.3)  # Wait until they are inside the operations.
        die(way)
    told = []
    threads = [threading.Thread(target=wait_in, args=(name, groups[name], n, told)) for name in OPERATIONS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for words in told:
        say(**words)


if __name__ == "__main__":
    main()
