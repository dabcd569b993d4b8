"""Ranks, objects, the store, a forked child, i_dist. Prints "all equal" at the end. Does not need NumPy."""

import os
import signal
import sys

import ivycomm as ic
from comm_leave import leave
from ivycomm import i_dist


def objects(r, n):
    big = {"rank": r, "bytes": bytes([r % 256]) * (1000 * (r + 1))}
    assert ic.broadcast_object(big if r == n - 1 else None, n - 1)["rank"] == n - 1
    assert [o["rank"] for o in ic.all_gather_object(big)] == list(range(n))
    assert [len(o["bytes"]) for o in ic.all_gather_object(big)] == [1000 * (i + 1) for i in range(n)]
    gathered = ic.gather_object(("from", r), 0)
    assert gathered == ([("from", i) for i in range(n)] if r == 0 else None)
    assert ic.scatter_object([[i] * i for i in range(n)] if r == 0 else None) == [r] * r


def the_store(r, n):
    store = ic.store()
    store.set(f"name/{r}", f"rank {r}")
    assert store.get(f"name/{(r + 1) % n}", timeout=30) == f"rank {(r + 1) % n}".encode()
    store.wait([f"name/{i}" for i in range(n)], timeout=30)
    store.set(f"bytes/{r}", b"\0\xff\0")
    assert store.get(f"bytes/{r}") == b"\0\xff\0"
    store.add("count", 2)
    ic.barrier()
    assert store.add("count", 0) == 2 * n
    assert store.delete(f"bytes/{r}") and not store.delete(f"bytes/{r}")
    try:
        store.get("never", timeout=0.3)
    except ic.Timeout as error:
        assert "never" in str(error), error
    else:
        raise AssertionError("a missing key was found")


def refuses_a_child(call):
    try:
        call()
    except ic.NotInitialized as error:
        return "fork" in str(error)
    return False


def forked(r):
    """Rank 0 forks a child during an operation that waits for the other ranks."""
    if r != 0:
        ic.store().get("the child has gone", timeout=60)
        ic.barrier()
        return
    work = ic.barrier(async_op=True)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        os._exit(sum(not refuses_a_child(call) for call in (
            ic.barrier, ic.init, work.abort, lambda: work.wait(20), lambda: ic.split(0), lambda: ic.store().get("name/0"),
            lambda: ic.broadcast_object(1), lambda: ic.abort("by the child"))) + (not work.test()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    if ic.world_size() > 1:
        ic.store().set("the child has gone", "")
    assert work.wait(30) is None


def original_names(r, n):
    context = i_dist.init_dist(backend="gloo")
    assert context is i_dist.ParallelContext() and context.is_initized and context["rank"] == r
    assert context.get_world_size() == context["world_size"] == n == len(context.default_group)
    try:
        context.nothing
    except AttributeError:
        pass
    group = i_dist.Group(range(n - 1, -1, -1))
    assert group.size == n and group.rank == n - 1 - r and group[0] == n - 1 and len(group) == n
    assert i_dist.Group([0]).rank == (0 if r == 0 else None)


# Variables of torchrun and ivyrun, and the corresponding ones of Open MPI and MPICH.
OTHERS = {"RANK": ("OMPI_COMM_WORLD_RANK", "PMI_RANK"),
          "WORLD_SIZE": ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"),
          "LOCAL_RANK": ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"),
          "LOCAL_WORLD_SIZE": ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")}


def said(name, default):
    """Returns the launcher's value of a variable."""
    for variable in (name, *OTHERS.get(name, ())):
        if variable in os.environ:
            return int(os.environ[variable])
    return default


def main():
    for question in (ic.rank, ic.barrier):
        try:
            question()
        except ic.NotInitialized:
            continue
        raise AssertionError("an answer before init")
    world = ic.init()
    assert ic.init() is world and ic.is_initialized() and world.name == "world"
    r, n = ic.rank(), ic.world_size()
    assert r == said("RANK", 0) and n == said("WORLD_SIZE", 1)
    assert ic.local_rank() == said("LOCAL_RANK", 0)
    assert ic.local_world_size() == said("LOCAL_WORLD_SIZE", 1)
    assert ic.node_rank() == said("NODE_RANK", 0)
    assert ic.num_nodes() == said("IVY_NUM_NODES", 1)
    assert ic.is_main_process() == (r == 0) and world.ranks == tuple(range(n))
    assert ic.barrier(async_op=True).wait(timeout=30) is None
    for part in (objects, the_store, original_names):
        part(r, n)
    forked(r)
    leave("left")
    ic.finalize()
    assert not ic.is_initialized()
    print("all equal")


if __name__ == "__main__":
    main()
