"""The part of mpi4py that most programs use, over ivycomm: for machines without an MPI.

    try:
        from mpi4py import MPI
    except ImportError:
        from ivycomm.compat import mpi as MPI

    comm = MPI.COMM_WORLD
    everything = comm.gather({"rank": comm.rank})
    comm.Allreduce(MPI.IN_PLACE, array, op=MPI.SUM)

Methods in lower case take and give any Python object (pickled); those with a capital letter work on NumPy arrays, or on
[array, count] and [array, counts] as mpi4py takes them. The names, arguments and results are mpi4py's; what is not here
(files, windows, spawning, topologies) raises AttributeError. The job is joined at the first question.

Errors are ivycomm's exceptions; MPI.Exception is their base class.
"""

import time

import numpy

from .. import collectives, groups, messages, objects
from ..errors import IvyError as Exception  # noqa: A004: mpi4py's name.
from ..futures import wait_any
from ..library import ANY
from ..modules import no_such_name

ANY_SOURCE = ANY_TAG = ANY
PROC_NULL, UNDEFINED, ROOT, COMM_TYPE_SHARED = -2, -32766, -4, 1
IN_PLACE = type("InPlace", (), {"__repr__": lambda self: "MPI.IN_PLACE"})()
COMM_NULL = None


class Op:
    """A reduction: of arrays by its name, of objects by its function."""

    def __init__(self, name, function):
        self.name, self._function = name, function

    def __call__(self, a, b):
        return self._function(a, b)

    def __repr__(self):
        return f"MPI.{self.name}"

    @classmethod
    def Create(cls, function, commute=False):
        """An operation for reduce, allreduce, scan and exscan of objects: function(a, b)."""
        return cls(None, function)


SUM, PROD = Op("SUM", lambda a, b: a + b), Op("PRODUCT", lambda a, b: a * b)
MIN, MAX = Op("MIN", lambda a, b: min(a, b)), Op("MAX", lambda a, b: max(a, b))
BAND, BOR, BXOR = Op("BAND", lambda a, b: a & b), Op("BOR", lambda a, b: a | b), Op("BXOR", lambda a, b: a ^ b)
LAND, LOR = Op("LAND", lambda a, b: bool(a) and bool(b)), Op("LOR", lambda a, b: bool(a) or bool(b))
LXOR = Op("LXOR", lambda a, b: bool(a) != bool(b))
MINLOC, MAXLOC = Op("MINLOC", lambda a, b: min(a, b)), Op("MAXLOC", lambda a, b: a if (a[0], -a[1]) >= (b[0], -b[1]) else b)
_LOGICAL = {"LAND": "MIN", "LOR": "MAX", "LXOR": "BXOR"}


class Status:
    """Who sent a message, and how many bytes it had."""

    def __init__(self):
        self.source, self.tag, self.count = ANY_SOURCE, ANY_TAG, 0

    def Get_source(self):
        return self.source

    def Get_tag(self):
        return self.tag

    def Get_count(self, datatype=None):
        """Bytes; elements of a NumPy type when one is given."""
        return self.count if datatype is None else self.count // numpy.dtype(datatype).itemsize

    def _fill(self, message):
        self.source, self.tag, self.count = message.source, message.tag, message.bytes


class Request:
    """A message or an operation under way."""

    def __init__(self, work, value=lambda: None, status=None):
        self._work, self._value, self._status = work, value, status

    def wait(self, status=None):
        """The received object, or None."""
        self._work.wait()
        if status is not None and self._status is not None:
            self._status(status)
        return self._value()

    Wait = wait

    def test(self, status=None):
        """(is it done, the received object or None)"""
        return (True, self.wait(status)) if self._work.test() else (False, None)

    def Test(self, status=None):
        return self.test(status)[0]

    @staticmethod
    def waitall(requests, statuses=None):
        return [request.wait(statuses[i] if statuses else None) for i, request in enumerate(requests)]

    @staticmethod
    def Waitall(requests, statuses=None):
        Request.waitall(requests, statuses)
        return True

    @staticmethod
    def waitany(requests, status=None):
        """(index, object) of the first that is done."""
        index = wait_any([request._work for request in requests])
        return index, requests[index].wait(status)


def _array(buffer, what="a buffer"):
    """The NumPy array of a buffer specification: array, [array, count], [array, type], [array, counts, ...]."""
    if isinstance(buffer, (list, tuple)):
        array = numpy.asarray(buffer[0])
        counted = [part for part in buffer[1:] if isinstance(part, (int, numpy.integer))]
        return array.reshape(-1)[:counted[0]] if counted else array
    if not isinstance(buffer, numpy.ndarray):
        buffer = numpy.asarray(memoryview(buffer))
    if not buffer.flags.c_contiguous:
        raise ValueError(f"{what} must be contiguous")
    return buffer


def _counts(buffer):
    for part in buffer[1:] if isinstance(buffer, (list, tuple)) else ():
        while isinstance(part, (list, tuple)) and part and isinstance(part[0], (list, tuple)):
            part = part[0]
        if isinstance(part, (list, tuple, numpy.ndarray)):
            return [int(count) for count in part]
    return None


def _name_of(op):
    if op.name is None:
        raise NotImplementedError("operations made by Op.Create reduce objects: use the method in lower case")
    if op.name in ("MINLOC", "MAXLOC"):
        raise NotImplementedError(f"{op!r} reduces pairs: use the method in lower case")
    return _LOGICAL.get(op.name, op.name)


def _folded(values, op):
    total = values[0]
    for value in values[1:]:
        total = op(total, value)
    return total


class Comm:
    """A communicator."""

    def __init__(self, group):
        self._given = group

    @property
    def _group(self):
        if self._given is None:
            return groups.init()  # The world: joined when it is first asked for.
        return self._given

    rank = property(lambda self: self._group.rank)
    size = property(lambda self: self._group.size)
    name = property(lambda self: self._group.name)

    def Get_rank(self):
        return self.rank

    def Get_size(self):
        return self.size

    def Get_name(self):
        return self.name

    def Split(self, color=0, key=0):
        """One communicator per color; COMM_NULL for UNDEFINED."""
        made = groups.split(None if color == UNDEFINED else color, key, group=self._group)
        return Comm(made) if made.is_member else COMM_NULL

    def Split_type(self, split_type, key=0, info=None):
        """The ranks of this communicator on this host, for COMM_TYPE_SHARED; COMM_NULL for UNDEFINED."""
        if split_type not in (COMM_TYPE_SHARED, UNDEFINED):
            raise NotImplementedError(f"Split_type({split_type}): ivycomm.compat.mpi has COMM_TYPE_SHARED only")
        return self.Split(UNDEFINED if split_type == UNDEFINED else self._group.node_rank, key)

    def Dup(self):
        return Comm(groups.new_group(range(self.size), group=self._group))

    Clone = Dup

    def Free(self):
        self._group.free()

    def Abort(self, errorcode=1):
        """Ends this process with the exit code; the launcher ends the others."""
        import os
        import sys
        sys.stdout.flush()
        groups.abort(f"MPI_Abort({errorcode})")
        os._exit(errorcode)

    def Barrier(self):
        collectives.barrier(group=self._group)

    barrier = Barrier

    # Objects.

    def bcast(self, obj=None, root=0):
        return objects.broadcast_object(obj, root, group=self._group)

    def scatter(self, sendobj=None, root=0):
        return objects.scatter_object(sendobj, root, group=self._group)

    def gather(self, sendobj, root=0):
        return objects.gather_object(sendobj, root, group=self._group)

    def allgather(self, sendobj):
        return objects.all_gather_object(sendobj, group=self._group)

    def alltoall(self, sendobj):
        if len(sendobj) != self.size:
            raise ValueError(f"alltoall needs {self.size} objects, one for each rank")
        every = objects.all_gather_object(list(sendobj), group=self._group)
        return [row[self.rank] for row in every]

    def reduce(self, sendobj, op=SUM, root=0):
        values = self.gather(sendobj, root)
        return None if values is None else _folded(values, op)

    def allreduce(self, sendobj, op=SUM):
        return _folded(self.allgather(sendobj), op)

    def scan(self, sendobj, op=SUM):
        return _folded(self.allgather(sendobj)[:self.rank + 1], op)

    def exscan(self, sendobj, op=SUM):
        before = self.allgather(sendobj)[:self.rank]
        return _folded(before, op) if before else None

    def send(self, obj, dest, tag=0):
        self.isend(obj, dest, tag).wait()

    ssend = send

    # The length goes ahead, because a receiver must have room for what comes; both have the same tag, and keep their order.
    def isend(self, obj, dest, tag=0):
        if dest == PROC_NULL:
            return Request(collectives.Work.done())
        data = numpy.frombuffer(objects._bytes_of(obj)[0], numpy.uint8)
        messages.isend(numpy.array([len(data)]), dest, tag, group=self._group)
        return Request(messages.isend(data, dest, tag, group=self._group))

    def recv(self, buf=None, source=ANY_SOURCE, tag=ANY_TAG, status=None):
        if source == PROC_NULL:
            return None
        length, message = self._recv(numpy.zeros(1, numpy.int64), source, tag)
        data, whole = self._recv(numpy.empty(int(length[0]), numpy.uint8), message.source, message.tag)
        if status is not None:
            status._fill(whole)
        return objects._object(data, 0, len(data))

    def sendrecv(self, sendobj, dest, sendtag=0, recvbuf=None, source=ANY_SOURCE, recvtag=ANY_TAG, status=None):
        request = self.isend(sendobj, dest, sendtag)
        received = self.recv(None, source, recvtag, status)
        request.wait()
        return received

    def _recv(self, array, source, tag):
        return messages.recv_(array, None if source == ANY_SOURCE else source, None if tag == ANY_TAG else tag,
                              group=self._group, with_message=True)

    # Arrays.

    def Send(self, buf, dest, tag=0):
        if dest != PROC_NULL:
            messages.send(_array(buf), dest, tag, group=self._group)

    Ssend = Send

    def Recv(self, buf, source=ANY_SOURCE, tag=ANY_TAG, status=None):
        if source == PROC_NULL:
            return
        _, message = self._recv(_array(buf), source, tag)
        if status is not None:
            status._fill(message)

    def Isend(self, buf, dest, tag=0):
        if dest == PROC_NULL:
            return Request(collectives.Work.done())
        return Request(messages.isend(_array(buf), dest, tag, group=self._group))

    def Irecv(self, buf, source=ANY_SOURCE, tag=ANY_TAG):
        if source == PROC_NULL:
            return Request(collectives.Work.done())
        work = messages.irecv(_array(buf), None if source == ANY_SOURCE else source, None if tag == ANY_TAG else tag,
                              group=self._group)
        return Request(work, status=lambda status: status._fill(work.message()))

    def Sendrecv(self, sendbuf, dest, sendtag=0, recvbuf=None, source=ANY_SOURCE, recvtag=ANY_TAG, status=None):
        request = self.Irecv(recvbuf, source, recvtag)
        self.Send(sendbuf, dest, sendtag)
        request.wait(status)

    def Bcast(self, buf, root=0):
        collectives.broadcast_(_array(buf), root, group=self._group)

    def Allreduce(self, sendbuf, recvbuf, op=SUM):
        self._reduce(lambda x, out: collectives.all_reduce(x, _name_of(op), group=self._group, out=out), sendbuf,
                     recvbuf, op)

    def Scan(self, sendbuf, recvbuf, op=SUM):
        self._reduce(lambda x, out: collectives.scan(x, _name_of(op), group=self._group, out=out), sendbuf, recvbuf, op)

    def Reduce(self, sendbuf, recvbuf, op=SUM, root=0):
        in_place = sendbuf is IN_PLACE
        x = _logical(_array(recvbuf if in_place else sendbuf), op)
        result = collectives.reduce(x, root, _name_of(op), group=self._group)
        if result is not None:
            _into(_array(recvbuf), result)

    def _reduce(self, call, sendbuf, recvbuf, op):
        out = _array(recvbuf)
        x = _logical(out if sendbuf is IN_PLACE else _array(sendbuf), op)
        if x.dtype == out.dtype and x.shape == out.shape:
            call(x, out)
        else:
            _into(out, call(x, None))

    def Allgather(self, sendbuf, recvbuf):
        out = _array(recvbuf)
        if sendbuf is IN_PLACE:
            collectives.all_gather_(out.reshape(-1), group=self._group)
        else:
            _into(out, collectives.all_gather(_array(sendbuf).reshape(-1), group=self._group))

    def Allgatherv(self, sendbuf, recvbuf):
        _into(_array(recvbuf), collectives.all_gather(_array(sendbuf).reshape(-1), uneven=True, group=self._group))

    def Gather(self, sendbuf, recvbuf, root=0):
        if sendbuf is IN_PLACE:
            collectives.gather_(_array(recvbuf).reshape(-1), root, group=self._group)
            return
        whole = collectives.gather(_array(sendbuf).reshape(-1), root, group=self._group)
        if whole is not None:
            _into(_array(recvbuf), whole)

    def Gatherv(self, sendbuf, recvbuf, root=0):
        whole = collectives.gather(_array(sendbuf).reshape(-1), root, uneven=True, group=self._group)
        if whole is not None:
            _into(_array(recvbuf), whole)

    def Scatter(self, sendbuf, recvbuf, root=0):
        x = None if sendbuf is None or self.rank != root else _array(sendbuf).reshape(-1)
        part = collectives.scatter(x, root, group=self._group)
        if recvbuf is not IN_PLACE:
            _into(_array(recvbuf), part)

    def Scatterv(self, sendbuf, recvbuf, root=0):
        x = None if self.rank != root else _array(sendbuf).reshape(-1)
        part = collectives.scatter(x, root, split=_counts(sendbuf) if self.rank == root else None, group=self._group)
        if recvbuf is not IN_PLACE:
            _into(_array(recvbuf), part)

    def Alltoall(self, sendbuf, recvbuf):
        out = _array(recvbuf)
        x = out.reshape(-1).copy() if sendbuf is IN_PLACE else _array(sendbuf).reshape(-1)
        _into(out, collectives.all_to_all(x, group=self._group))

    def Alltoallv(self, sendbuf, recvbuf):
        made = collectives.all_to_all(_array(sendbuf).reshape(-1), _counts(sendbuf), output_split=_counts(recvbuf),
                                      group=self._group)
        _into(_array(recvbuf), made)

    def Reduce_scatter_block(self, sendbuf, recvbuf, op=SUM):
        x = _logical(_array(recvbuf if sendbuf is IN_PLACE else sendbuf).reshape(-1), op)
        _into(_array(recvbuf), collectives.reduce_scatter(x, _name_of(op), group=self._group))

    def __repr__(self):
        return f"<ivycomm.compat.mpi.Comm {self.name}: rank {self.rank} of {self.size}>"


def _logical(array, op):
    """What the logical operations reduce: ones and zeros."""
    return (array != 0).astype(array.dtype) if op.name in _LOGICAL else array


def _into(out, values):
    flat, values = out.reshape(-1), numpy.asarray(values).reshape(-1)
    if len(values) > len(flat):
        raise ValueError(f"the receive buffer has {len(flat)} elements, and {len(values)} came")
    flat[:len(values)] = values


Intracomm = Comm
COMM_WORLD = Comm(None)


def Is_initialized():
    return groups.is_initialized()


def Init():
    groups.init()


def Finalize():
    groups.finalize()


def Wtime():
    return time.time()


def Get_processor_name():
    import socket
    return socket.gethostname()


def __getattr__(name):
    raise no_such_name(__name__, name, globals())
