"""Ctrl-C at any moment: rank 0 is interrupted during a sequence of calls. Both ranks get an error and start again.

The argument is the number of worlds. The memory of operations is overwritten afterwards, so that a sanitizer or a wrong
result in the next world would show an operation that still runs.
"""

import random
import signal
import sys

import numpy as np

import ivycomm as ic

fired = False


def interrupt(_number, _frame):
    global fired
    fired = True
    raise KeyboardInterrupt


def one_call(choose, n, memory):
    small, large = memory
    call = choose.randrange(9)
    if call == 0:
        ic.all_reduce(small)
    elif call == 1:
        ic.all_reduce_(large)
    elif call == 2:
        ic.wait_all([ic.all_reduce_(small, async_op=True), ic.all_reduce(large, async_op=True)])
    elif call == 3:
        ic.all_gather_object({"rank": ic.rank()})
    elif call == 4:
        got = np.empty_like(small)
        peer = (ic.rank() + 1) % n
        ic.wait_all(ic.batch_isend_irecv([(ic.isend, small, peer, 1), (ic.irecv, got, peer, 1)]))
    elif call == 5:
        with ic.new_group(range(n)) as group:
            ic.barrier(group=group)
    elif call == 6:
        ic.wait_any([ic.barrier(async_op=True)])
    elif call == 7:
        ic.exscan(small)
    else:
        ic.store().add("calls")


def one_world(round_):
    global fired
    fired = False
    ic.init()
    r, n = ic.rank(), ic.world_size()
    choose = random.Random(round_)  # All ranks make the same calls.
    memory = np.zeros(50), np.zeros(300_000)
    ic.barrier()
    assert ic.all_reduce(np.ones(4))[0] == n
    try:
        if r == 0:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.03))
        while not fired:
            one_call(choose, n, memory)
    except KeyboardInterrupt:
        assert r == 0
    except (ic.Aborted, ic.NotInitialized):
        assert r != 0
    if r == 0:
        ic.abort("interrupted")
    try:
        ic.finalize()
    except ic.Aborted:
        pass
    for array in memory:
        array.fill(round_)


def main():
    rounds = int(sys.argv[1])
    signal.signal(signal.SIGALRM, interrupt)
    for round_ in range(rounds):
        one_world(round_)
    print(f"{rounds} worlds")


if __name__ == "__main__":
    main()
