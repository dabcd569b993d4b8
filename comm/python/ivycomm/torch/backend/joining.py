# SPDX-License-Identifier: Apache-2.0
"""Makes ivycomm's world of the ranks of torch's default process group. The process groups are groups of that world.

Under ivyrun the environment describes the world. Otherwise (torchrun, mpirun, a store that the caller created) rank 0
starts the world's store and publishes its address in c10d's store. If ivycomm.init() was called before, its world is
used.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any

from ... import groups, lifetime
from ...errors import IvyError

_POLL_SECONDS = 0.005
_numbers = itertools.count()  # Of the worlds: the same on all ranks, because all of them join the same worlds.


def join(store: Any, rank: int, size: int, seconds: float) -> bool:
    """Joins a world of that rank and size unless ivycomm has one. Returns whether it was created here. Blocks until all ranks
    have joined; seconds: timeout.

    store: c10d's, of the default group. Raises IvyError; ValueError if ivycomm's world is a different one.
    """
    if groups.is_initialized():
        world = groups.world()
        if (world.rank, world.size) != (rank, size) and size > 1:
            raise ValueError(f"this process is rank {world.rank} of {world.size} in ivycomm's world "
                             f"({groups.source()}), but rank {rank} of {size} in init_process_group: pass neither "
                             "rank nor world_size, or call ivycomm.finalize() first")
        return False
    if size == 1 and not os.environ.get("IVY_RANK"):
        lifetime.init("self://", timeout=seconds)
    elif os.environ.get("IVY_RANK"):
        lifetime.init(timeout=seconds)
        try:
            join(store, rank, size, seconds)
        except ValueError:
            lifetime.finalize()
            raise
    else:
        _join_by_store(store, rank, size, seconds)
    return True


def _join_by_store(store: Any, rank: int, size: int, seconds: float) -> None:
    key = f"ivycomm/endpoint/{next(_numbers)}"
    folder = tempfile.mkdtemp(prefix="ivycomm-")
    path = os.path.join(folder, "endpoint")
    publisher = None
    try:
        if rank == 0:
            publisher = threading.Thread(target=_publish, args=(store, key, path, time.monotonic() + seconds), daemon=True)
            publisher.start()
        else:
            _write(path, store.get(key))
        lifetime.init(f"file://{path}", rank=rank, world_size=size, timeout=seconds)
        if rank == 0:
            store.delete_key(key)  # All ranks have joined, and the value contains a secret.
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if publisher is not None:
            publisher.join()


def _publish(store: Any, key: str, path: str, deadline: float) -> None:
    """Publishes the endpoint as soon as init() of rank 0, which waits for the others on another thread, has written it."""
    while time.monotonic() < deadline and os.path.isdir(os.path.dirname(path)):
        try:
            with open(path, "rb") as file:
                store.set(key, file.read())
            return
        except OSError:
            time.sleep(_POLL_SECONDS)


def _write(path: str, content: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def make_group(name: str, world_ranks: Sequence[int], seconds: float) -> groups.Group:
    """Creates the group of these world ranks. Only its members call it; blocks until all have."""
    return groups.group_of_members(name, world_ranks, timeout=seconds)


def leave(was_made_here: bool) -> None:
    """Finalizes the world after the default group was destroyed, unless ivycomm.init() was called before."""
    if was_made_here and groups.is_initialized():
        try:
            lifetime.finalize()
        except IvyError:
            pass  # A rank has exited, which operations on the groups have reported.


