# SPDX-License-Identifier: Apache-2.0
"""Compiled programs after finalize() and init(), after groups that ended, and after shrink(); three ranks."""

import os
import signal
import time

import ivycomm as ic
import ivycomm.jax as icj
import jax
import jax.numpy as jnp


def main():
    ic.init()
    total = jax.jit(lambda x: icj.all_reduce(x))
    ring = jax.jit(lambda x: icj.sendrecv(x, (ic.rank() + 1) % ic.world_size(), (ic.rank() - 1) % ic.world_size()))
    by_hand = total.lower(jnp.ones(4)).compile()
    assert total(jnp.ones(4)).tolist() == by_hand(jnp.ones(4)).tolist() == [ic.world_size()] * 4
    ring(jnp.ones(2))
    ic.finalize()
    ic.init()
    assert total(jnp.ones(4)).tolist() == [ic.world_size()] * 4
    try:
        by_hand(jnp.ones(4))
        raise AssertionError("a program of a former world ran")
    except RuntimeError as error:
        assert "earlier world" in str(error).replace("\n", " "), error
    print("again: right", flush=True)

    for number in range(1100):
        with ic.new_group(range(ic.world_size())) as group:
            if number % 100 == 0:
                assert icj.all_reduce(jnp.ones(1), group=group).tolist() == [ic.world_size()]
            else:
                icj._number(group)
    print("groups: right", flush=True)

    if ic.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            ic.barrier()
            time.sleep(0.01)
    except ic.RankDied:
        ic.shrink()
    rank, size = ic.rank(), ic.world_size()
    assert ring(jnp.full(2, float(rank))).tolist() == [float((rank - 1) % size)] * 2
    assert total(jnp.ones(4)).tolist() == [size] * 4
    print("shrunk: right", flush=True)


main()
