# SPDX-License-Identifier: Apache-2.0
"""Makes a world of ivycomm from the ranks of torch's default process group; all its groups are made from that world.

Under ivyrun the environment describes the world. Otherwise (torchrun, mpirun, a store that the caller made) rank 0
starts the world's store and publishes its address through c10d's. A world that ivycomm.init() has made before is
shared.
"""

import itertools
import os
import shutil
import tempfile
import threading
import time

from ... import groups
from ...errors import IvyError

_LOOK_SECONDS = 0.005
_meetings = itertools.count()  # Every process that joins the same world counts the same numbers.


def join(store, rank, size, seconds):
    """Ensures that a world of that rank and size exists; returns whether it was made here.

    store: c10d's, of the default group. Raises IvyError; ValueError if ivycomm's world is a different one.
    """
    if groups.is_initialized():
        world = groups.world()
        if (world.rank, world.size) != (rank, size) and size > 1:
            raise ValueError(f"this process is rank {world.rank} of {world.size} in ivycomm's world "
                             f"({groups.source()}), and init_process_group says rank {rank} of {size}: give neither "
                             "rank nor world_size, or call ivycomm.finalize() before")
        return False
    if size == 1 and not os.environ.get("IVY_RANK"):
        groups.init("self://", timeout=seconds)
    elif os.environ.get("IVY_RANK"):
        groups.init(timeout=seconds)
        try:
            join(store, rank, size, seconds)
        except ValueError:
            groups.finalize()
            raise
    else:
        _meet(store, rank, size, seconds)
    return True


def _meet(store, rank, size, seconds):
    key = f"ivycomm/endpoint/{next(_meetings)}"
    folder = tempfile.mkdtemp(prefix="ivycomm-")
    path = os.path.join(folder, "endpoint")
    told = None
    try:
        if rank == 0:
            told = threading.Thread(target=_tell, args=(store, key, path, time.monotonic() + seconds), daemon=True)
            told.start()
        else:
            _write(path, store.get(key))
        groups.init(f"file://{path}", rank=rank, world_size=size, timeout=seconds)
        if rank == 0:
            store.delete_key(key)  # All have come. It has a secret in it.
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if told is not None:
            told.join()


def _tell(store, key, path, deadline):
    """On rank 0, whose init() waits for the others: publishes the endpoint as soon as it is written."""
    while time.monotonic() < deadline and os.path.isdir(os.path.dirname(path)):
        try:
            with open(path, "rb") as file:
                store.set(key, file.read())
            return
        except OSError:
            time.sleep(_LOOK_SECONDS)


def _write(path, content):
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def make_group(name, world_ranks, seconds):
    """Makes the group of these world ranks; only its members call it."""
    return groups.group_of_members(name, world_ranks, timeout=seconds)


def leave(was_made_here):
    """Call when the default group has ended: ends the world, unless the caller made it."""
    if was_made_here and groups.is_initialized():
        try:
            groups.finalize()
        except IvyError:
            pass  # A rank that died breaks the world, and its groups have said so.


