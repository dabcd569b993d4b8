"""ivycomm.compat.mpi as a program of mpi4py uses it; says "all equal" at the end."""

import ivycomm as ic
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


def more_buffers(comm, r, n):
    rows = [np.arange(n * 2.0) + 10 * each for each in range(n)]
    x = rows[r].copy()
    comm.Bcast(x, root=n - 1)
    assert (x == rows[-1]).all()
    part, whole = np.empty(2), np.empty(n * n * 2) if r == n - 1 else None
    comm.Scatter(rows[0] if r == 0 else None, part)
    assert (part == rows[0][2 * r:2 * r + 2]).all()
    comm.Gather(rows[r], whole, root=n - 1)
    assert whole is None or (whole == np.concatenate(rows)).all()
    total = np.empty(n * 2) if r == n - 1 else None
    comm.Reduce(rows[r], total, op=MPI.SUM, root=n - 1)
    assert total is None or (total == sum(rows)).all()
    comm.Reduce(MPI.IN_PLACE if r == 0 else rows[r], x := rows[r].copy(), op=MPI.MAX)
    assert r or (x == rows[-1]).all()
    y = np.empty(n * 2)
    comm.Alltoall(rows[r], y)
    assert (y == np.concatenate([each[2 * r:2 * r + 2] for each in rows])).all()
    counts = [each + 1 for each in range(n)]
    out = np.empty(n * (r + 1))
    comm.Alltoallv([np.repeat(np.arange(n) + 10.0 * r, counts), counts], [out, [r + 1] * n])
    assert (out == np.repeat(r + 10.0 * np.arange(n), r + 1)).all()
    comm.Reduce_scatter_block(rows[r], part, op=MPI.SUM)
    assert (part == sum(rows)[2 * r:2 * r + 2]).all()
    comm.Scan(rows[r], y, op=MPI.SUM)
    assert (y == sum(rows[:r + 1])).all()


def more_messages(comm, r, n):
    right, left = (r + 1) % n, (r - 1) % n
    status = MPI.Status()
    assert comm.sendrecv({"from": r}, dest=right, source=left, status=status) == {"from": left}
    assert (status.Get_source(), status.Get_tag()) == (left, 0)
    x = np.empty(3)
    comm.Sendrecv(np.full(3, float(r)), dest=right, sendtag=4, recvbuf=x, source=left, recvtag=4, status=status)
    assert (x == left).all() and status.Get_count("f8") == 3 and status.Get_tag() == 4
    requests = [comm.Isend(np.full(2, 1.0 * r), dest=right, tag=tag) for tag in (5, 6)]
    comm.Recv(y := np.empty(2), source=left, tag=6)
    comm.Recv(y, source=left, tag=5, status=status)
    assert (y == left).all() and status.Get_tag() == 5
    assert MPI.Request.Waitall(requests)
    got = [np.empty(1), np.empty(1)]
    requests = [comm.Irecv(got[0], source=left, tag=8), comm.Irecv(got[1], source=left, tag=7)]
    comm.Send(np.array([7.0]), dest=right, tag=7)
    assert MPI.Request.waitany(requests, status)[0] == 1 and got[1] == 7 and status.Get_tag() == 7
    comm.Barrier()  # Not before all have seen which came first.
    comm.Send(np.array([8.0]), dest=right, tag=8)
    assert MPI.Request.waitall(requests[:1]) == [None] and got[0] == 8
    sent = [comm.isend(["object", each], dest=right, tag=each) for each in range(3)]
    assert [comm.recv(source=left, tag=each) for each in (2, 0, 1)] == [["object", each] for each in (2, 0, 1)]
    assert MPI.Request.waitall(sent) == [None] * 3 and all(request.Test() for request in sent)
    # No rank is there: nothing is sent, and what is received into stays as it is.
    comm.Send(x, dest=MPI.PROC_NULL)
    comm.Recv(x, source=MPI.PROC_NULL)
    assert comm.recv(source=MPI.PROC_NULL) is None and (x == left).all()


def copies(comm, r, n):
    other = comm.Dup()
    assert (other.Get_rank(), other.Get_size()) == (r, n) and other.allreduce(1) == n
    # Messages of one are not those of the other.
    other.Isend(np.array([1.0]), dest=(r + 1) % n)
    comm.Isend(np.array([2.0]), dest=(r + 1) % n)
    x, y = np.empty(1), np.empty(1)
    comm.Recv(x, source=(r - 1) % n)
    other.Recv(y, source=(r - 1) % n)
    assert (x, y) == (2, 1)
    other.Barrier()
    other.Free()
    try:
        other.Barrier()
    except ic.NotInitialized:
        pass
    else:
        raise AssertionError("a communicator that was freed")
    assert comm.allreduce(1) == n


def main():
    comm = MPI.COMM_WORLD
    r, n = comm.Get_rank(), comm.Get_size()
    objects(comm, r, n)
    buffers(comm, r, n)
    more_buffers(comm, r, n)
    more_messages(comm, r, n)
    copies(comm, r, n)
    assert comm.Split(r % 2).allreduce(1) == (n + 1 - r % 2) // 2
    here = comm.Split_type(MPI.COMM_TYPE_SHARED)
    assert here.allgather(r) == sorted(each for each, host in enumerate(comm.allgather(groups.node_rank())) if host == groups.node_rank())
    assert comm.Split(MPI.UNDEFINED if r else 0) is (MPI.COMM_NULL if r else None) or r == 0
    comm.Barrier()
    print("all equal")


main()
