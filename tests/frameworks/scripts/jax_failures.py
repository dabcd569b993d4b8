# SPDX-License-Identifier: Apache-2.0
"""Errors of ivycomm.jax's calls on two ranks: in compiled programs, outside of them, and at Ctrl-C."""

import os
import signal
import threading
import time

import jax
import jax.numpy as jnp

import ivycomm as ic
import ivycomm.jax as icj

rank = ic.init().rank
groups = [ic.new_group([0, 1]) for _ in range(4)]


def seen(what, run):
    try:
        run()
        print(f"{what}: nothing", flush=True)
    except BaseException as error:  # noqa: BLE001 - KeyboardInterrupt among them.
        print(f"{what}: {type(error).__module__}.{type(error).__name__} {error}".splitlines()[0], flush=True)


def reduced(group, length=4):
    return jax.jit(lambda x: icj.all_reduce(x, group=group))(jnp.ones(length)).block_until_ready()


reduced(None)
with_ours = icj.errors()(reduced)
seen("compiled", lambda: with_ours(groups[0], 4 + rank))
seen("plain", lambda: reduced(groups[1], 4 + rank))
seen("eager", lambda: icj.all_reduce(jnp.ones(4 + rank), group=groups[2]))
seen("types", lambda: icj.reduce_scatter(jnp.ones(3)))
seen("tracing", lambda: jax.jit(jax.grad(lambda x: icj.reduce_scatter(x, "max").sum()))(jnp.ones(4)))
if rank == 0:
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
    seen("interrupted", lambda: reduced(groups[3]))
else:
    time.sleep(3)
    seen("left behind", lambda: with_ours(groups[3]))
reduced(None)
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
seen("bereft", lambda: with_ours(None))
