"""ivycomm.compat.mpi as a program of mpi4py uses it; says "all equal" at the end."""

import numpy as np
from ivycomm import groups
from ivycomm.compat import mpi as MPI


def objects(comm, r, n):
    assert comm.bcast({"a": r}, root=n - 1) == {"a": n - 1}
    assert comm.allgather(r) == list(range(n))
    assert comm.scatter([i * i for i in range(n)] if r == 0 else None) == r * r
    assert comm.gather(r, root=n - 1) == (list(range(n)) if r == n - 1 else None)
    assert comm.alltoall([(r, i) for i in range(n)]) == [(i, r) for i in range(n)]
    assert comm.allreduce(r, op=MPI.MAX) == n - 1 and comm.exscan(1) == (r or None) and comm.scan(1) == r + 1
    assert comm.allreduce((r % 2, r), op=MPI.MAXLOC) == ((1, 1) if n > 1 else (0, 0))
    assert comm.allreduce([r], op=MPI.Op.Create(lambda a, b: a + b)) == list(range(n))
    status = MPI.Status()
    request = comm.isend(["hi", r], (r + 1) % n, 7)
    assert comm.recv(source=(r - 1) % n, tag=7, status=status) == ["hi", (r - 1) % n]
    request.wait()
    assert (status.Get_source(), status.Get_tag()) == ((r - 1) % n, 7)


def buffers(comm, r, n):
    x, y = np.full(5, r, "i4"), np.empty(5, "i4")
    comm.Allreduce(x, y)
    assert (y == sum(range(n))).all()
    comm.Allreduce(MPI.IN_PLACE, x, op=MPI.MAX)
    assert (x == n - 1).all()
    z = np.empty((n, 5), "i4")
    comm.Allgather(np.full(5, r, "i4"), z)
    assert (z == np.arange(n)[:, None]).all()
    b = np.empty(3)
    request = comm.Irecv(b, source=(r - 1) % n)
    comm.Send(np.full(3, float(r)), dest=(r + 1) % n)
    request.Wait()
    assert (b == (r - 1) % n).all()
    counts = [i + 1 for i in range(n)]
    whole, part = np.arange(sum(counts), dtype="f8"), np.empty(r + 1)
    comm.Scatterv([whole, counts] if r == 0 else None, part)
    assert (part == whole[sum(counts[:r]):][:r + 1]).all()
    gathered = np.empty(sum(counts)) if r == 0 else None
    comm.Gatherv(part, [gathered, counts] if r == 0 else None)
    assert r or (gathered == whole).all()
    flags, out = np.array([r == 0, 1, 0], "i4"), np.empty(3, "i4")
    comm.Allreduce(flags, out, op=MPI.LAND)
    assert list(out) == [n == 1, 1, 0]
    try:
        comm.Allreduce(x, y, op=MPI.MAXLOC)
    except NotImplementedError:
        pass
    else:
        raise AssertionError("MAXLOC of buffers")


def main():
    comm = MPI.COMM_WORLD
    r, n = comm.Get_rank(), comm.Get_size()
    objects(comm, r, n)
    buffers(comm, r, n)
    assert comm.Split(r % 2).allreduce(1) == (n + 1 - r % 2) // 2
    here = comm.Split_type(MPI.COMM_TYPE_SHARED)
    assert here.allgather(r) == sorted(each for each, host in enumerate(comm.allgather(groups.node_rank())) if host == groups.node_rank())
    assert comm.Split(MPI.UNDEFINED if r else 0) is (MPI.COMM_NULL if r else None) or r == 0
    comm.Barrier()
    print("all equal")


main()
