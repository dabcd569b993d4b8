"""Messages between two ranks; says "all equal" at the end, or "not there" with a library that has none."""

import numpy as np

import ivycomm as ic
from comm_leave import leave
from ivycomm import library


def main():
    ic.init()
    r, n = ic.rank(), ic.world_size()
    if not library.has("ivy_send"):
        print("not there")
        return
    right, left = (r + 1) % n, (r - 1) % n
    x = np.arange(1000.0) + r
    assert np.array_equal(ic.sendrecv(x, right, src=left), np.arange(1000.0) + left)

    work = ic.isend(x[::2], right, tag=7)
    y = np.empty(500)
    assert ic.recv_(y, left, 7) is y and np.array_equal(y, np.arange(0, 1000.0, 2) + left)
    assert work.wait(30) is None

    # Anyone's, in any order; the message says whose it was.
    if r == 0:
        sources = set()
        for _ in range(n - 1):
            got, message = ic.recv(np.empty(3, "int32"), tag=33, with_message=True)
            assert message.tag == 33 and message.bytes == 12 and (got == message.source).all(), message
            sources.add(message.source)
        assert sources == set(range(1, n))
    else:
        ic.send(np.full(3, r, "int32"), 0, 33)

    # Tags are streams of their own; any tag takes what is there.
    works = [ic.irecv(np.empty(1, "int64"), left, tag) for tag in range(10)]
    for tag in reversed(range(10)):
        ic.send(np.array([tag * 100 + r]), right, tag)
    for tag, work in enumerate(works):
        assert work.wait(30)[0] == tag * 100 + left and work.message().tag == tag
    ic.barrier()
    work = ic.isend(np.array([r]), right, tag=5)
    got, message = ic.recv(np.empty(1, "int64"), left, with_message=True)
    assert got[0] == left and message.tag == 5 and message.source == left, message
    work.wait(30)
    many = ic.all_reduce_coalesced([np.ones(3), np.ones((2, 2)) * r])
    assert (many[0] == n).all() and (many[1] == sum(range(n))).all() and many[1].shape == (2, 2)
    ic.barrier()
    leave("all equal")


if __name__ == "__main__":
    main()
