"""mpi4jax's functions over ivycomm.jax, inside jax.jit and outside: for machines without an MPI.

    try:
        import mpi4jax
        from mpi4py import MPI
    except ImportError:
        from ivycomm.compat import mpi as MPI, mpi4jax

    @jax.jit
    def mean(x):
        return mpi4jax.allreduce(x, op=MPI.SUM, comm=MPI.COMM_WORLD) / MPI.COMM_WORLD.size

Names, arguments and results are mpi4jax's. comm: a communicator of ivycomm.compat.mpi, an ivycomm.Group, or None, the
world. op: ivycomm.compat.mpi's, or a name. The order of calls is kept without tokens; a call that is given `token`
returns (result, token) as before mpi4jax 0.8. Receives name their source, since compiled programs have no wildcards.
Derivatives and errors: ivycomm.jax.
"""

import functools

import jax.numpy as jnp

from .. import groups
from .. import jax as icj
from ..library import ANY
from ..modules import no_such_name

__all__ = ["allgather", "allreduce", "alltoall", "barrier", "bcast", "gather", "recv", "reduce", "scan", "scatter", "send",
           "sendrecv"]


def _with_token(function):
    """A call that is given a token returns it behind its result, or alone where there is none."""

    @functools.wraps(function)
    def call(*args, comm=None, token=None, **named):
        result = function(*args, comm=groups.resolve(getattr(comm, "_group", comm)), **named)
        if token is None:
            return result
        return token if result is None else (result, token)

    return call


def _name(op):
    name = op if isinstance(op, str) else getattr(op, "name", None)
    if not isinstance(name, str) or name.upper() in ("LAND", "LOR", "LXOR", "MINLOC", "MAXLOC"):
        raise ValueError(f"op {op!r} does not reduce arrays: SUM, PROD, MIN, MAX, BAND, BOR and BXOR of "
                         "ivycomm.compat.mpi do")
    return name


def _place(comm, source, tag):
    """(rank, tag) of a receive."""
    if source in (None, ANY):
        if comm.size != 2:
            raise ValueError(f"recv wants the source: a compiled program cannot take what comes from any of {comm.size} ranks")
        source = 1 - comm.rank
    return source, 0 if tag in (None, ANY) else tag


@_with_token
def allgather(x, *, comm):
    """x of all ranks, stacked along a new first axis."""
    return icj.all_gather(jnp.asarray(x)[None], group=comm)


@_with_token
def allreduce(x, op, *, comm):
    return icj.all_reduce(x, _name(op), group=comm)


@_with_token
def alltoall(x, *, comm):
    """x[r] goes to rank r."""
    if jnp.shape(x)[:1] != (comm.size,):
        raise ValueError(f"alltoall wants an array of {comm.size} parts, one for each rank, not of shape {jnp.shape(x)}")
    return icj.all_to_all(x, group=comm)


@_with_token
def barrier(*, comm):
    icj.barrier(group=comm)


@_with_token
def bcast(x, root, *, comm):
    return icj.broadcast(x, root, group=comm)


@_with_token
def gather(x, root, *, comm):
    """At root x of all ranks, stacked along a new first axis; x itself on the others."""
    whole = icj.gather(jnp.asarray(x)[None], root, group=comm)
    return whole if comm.rank == root else x


@_with_token
def reduce(x, op, root, *, comm):
    """The result at root; x itself on the others."""
    whole = icj.reduce(x, root, _name(op), group=comm)
    return whole if comm.rank == root else x


@_with_token
def scan(x, op, *, comm):
    return icj.scan(x, _name(op), group=comm)


@_with_token
def scatter(x, root, *, comm):
    """x[r] of root goes to rank r. On the others x says shape and type of the result."""
    if comm.rank == root and jnp.shape(x)[:1] != (comm.size,):
        raise ValueError(f"scatter wants an array of {comm.size} parts, one for each rank, not of shape {jnp.shape(x)}")
    like = x if comm.rank == root else jnp.zeros((comm.size, *jnp.shape(x)), jnp.asarray(x).dtype)
    return icj.scatter(like, root, group=comm)[0]


@_with_token
def send(x, dest, *, tag=0, comm):
    icj.send(x, dest, tag, group=comm)


@_with_token
def recv(x, source=ANY, *, tag=ANY, status=None, comm):
    """An array of the shape and type of x."""
    source, tag = _place(comm, source, tag)
    return icj.recv(x, source, tag, group=comm)


@_with_token
def sendrecv(sendbuf, recvbuf, source, dest, *, sendtag=0, recvtag=ANY, status=None, comm):
    source, tag = _place(comm, source, recvtag)
    return icj.sendrecv(sendbuf, dest, source, recvbuf, send_tag=sendtag, recv_tag=tag, group=comm)


def __getattr__(name):
    raise no_such_name(__name__, name, __all__)
