"""How the ranks of torch's default process group become a world of ivycomm, which all its groups are made from.

Under ivyrun the environment says it. Elsewhere (torchrun, mpirun, a store that the caller made) rank 0 starts the
world's store and tells the others through c10d's where it is. A world that ivycomm.init() has made before is shared.
"""

import itertools
import os
import shutil
import tempfile
import threading
import time

from .. import groups
from ..errors import IvyError

_LOOK_SECONDS = 0.005
_meetings = itertools.count()  # Of this process, and of all that meet with it.


def join(store, rank, size, seconds):
    """Makes sure that there is a world of that rank and size; was it made here?

    store: c10d's, of the default group. Raises IvyError; ValueError where ivycomm's world is another one.
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
    """On rank 0, whose init() waits for the others: the endpoint, as soon as it is written."""
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
    """The group of these world ranks, which only they make."""
    return groups.group_of_members(name, world_ranks, timeout=seconds)


def leave(was_made_here):
    """The default group is gone, and with it the world, unless the caller made that."""
    if was_made_here and groups.is_initialized():
        try:
            groups.finalize()
        except IvyError:
            pass  # A rank that died breaks the world, and its groups have said so.


