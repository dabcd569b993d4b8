"""Messages between two ranks. Prints "all equal" at the end."""

import numpy as np

import ivycomm as ic
from comm_leave import leave


def main():
    ic.init()
    r, n = ic.rank(), ic.world_size()
    right, left = (r + 1) % n, (r - 1) % n
    x = np.arange(1000.0) + r
    assert np.array_equal(ic.sendrecv(x, right, src=left), np.arange(1000.0) + left)

    work = ic.isend(x[::2], right, tag=7)
    y = np.empty(500)
    assert ic.recv_(y, left, 7) is y and np.array_equal(y, np.arange(0, 1000.0, 2) + left)
    assert work.wait(30) is None

    # Messages of any rank in any order; the message contains its sender.
    if r == 0:
        sources = set()
        for _ in range(n - 1):
            got, message = ic.recv(np.empty(3, "int32"), tag=33, with_message=True)
            assert message.tag == 33 and message.bytes == 12 and (got == message.source).all(), message
            sources.add(message.source)
        assert sources == set(range(1, n))
    else:
        ic.send(np.full(3, r, "int32"), 0, 33)

    # Tags are separate streams; a receive with any tag takes the next message.
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
    check_numbers(right)
    leave("all equal")


def refused(kind, call, words):
    try:
        call()
    except kind as error:
        assert words in str(error), error
        return
    raise AssertionError(f"no {kind.__name__}: {words}")


def check_numbers(right):
    """Numbers that the C interface cannot represent are rejected before anything is sent, and not truncated."""
    x, store, too_large = np.arange(3.0), ic.store(), 2**32
    for tag in (too_large + 7, -1, 2**30 + 1):
        for call in (lambda: ic.send(x, right, tag), lambda: ic.isend(x, right, tag), lambda: ic.recv(x, right, tag),
                     lambda: ic.sendrecv(x, right, send_tag=tag), lambda: ic.sendrecv(x, right, recv_tag=tag),
                     lambda: ic.batch_isend_irecv([ic.P2POp(ic.isend, x, right, tag)])):
            refused(ValueError, call, f"tag {tag}")
    for tag in ("a", 1.0):
        refused(TypeError, lambda: ic.send(x, right, tag), "tag must be a whole number")
    refused(TypeError, lambda: ic.send(x, right, None), "tag must be a whole number, not a NoneType")
    refused(ValueError, lambda: ic.split(too_large), f"color {too_large} does not fit into 32 bits")
    refused(ValueError, lambda: ic.split(0, key=-too_large), f"key -{too_large} does not fit")
    refused(TypeError, lambda: ic.split("red"), "color must be a whole number, not a str")
    refused(ValueError, lambda: ic.new_group([too_large]), f"rank {too_large} does not fit")
    refused(ValueError, lambda: ic.group_of_members("numbers", [too_large]), f"rank {too_large} does not fit")
    refused(ValueError, lambda: store.add("numbers", 2**63), "delta 9223372036854775808 does not fit into 64 bits")
    refused(TypeError, lambda: store.add("numbers", 1.5), "delta must be a whole number")
    refused(ic.Timeout, lambda: store.get("never", timeout=0.5), "key 'never' was not set within 0.5 s: waited 0.5 s for key never")
    assert ic.split(np.int64(1), key=np.int8(ic.rank())).size == ic.world_size()


if __name__ == "__main__":
    main()
