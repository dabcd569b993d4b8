"""torch.distributed's functions on arrays of any framework; torch need not be installed.

    from ivycomm.compat import torchdist as dist

    dist.init_process_group()
    dist.all_reduce(x)                       # x: NumPy's, torch's, CuPy's, ... whatever can be written to.
    dist.all_gather([a, b], x)

Names, arguments and defaults are torch's: results go into the arrays that are given, `src` and `dst` are ranks of the
world, async_op=True returns something to wait() for, a rank outside the group does nothing. Arrays that cannot be
written to, such as JAX's, are refused; ivycomm's own functions return new ones.
"""

import os
import sys

from .. import collectives, groups, messages, monitored, objects
from ..element_types import ReduceOp  # noqa: F401
from ..job_store import Store  # noqa: F401
from ..job_store import store as get_store  # noqa: F401
from ..modules import nearest, no_such_name
from ..work import Work

_backend = None
_BACKENDS = ("nccl", "gloo", "mpi", "ivy", "shm", "tcp")
_MULTIGPU = ("all_reduce_multigpu", "broadcast_multigpu", "all_gather_multigpu", "reduce_multigpu",
             "reduce_scatter_multigpu")


class GroupMember:
    WORLD, NON_GROUP_MEMBER = None, -100


class group:
    """As torch names the world: group.WORLD."""

    WORLD = None


def __getattr__(name):
    if name in _MULTIGPU:
        raise AttributeError(f"torch has dropped {name}: give each process one GPU, and call {name[:-len('_multigpu')]}")
    raise no_such_name(__name__, name, globals())


# ---- The process group ----
def init_process_group(backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, store=None, group_name="",
                       pg_options=None, device_id=None):
    """Joins the job. backend: one of torch's names; the data goes through ivycomm whatever it says. "nccl" makes NCCL's
    part at once, on the current device, and raises on every rank what keeps it from working on any, such as
    FailedPrecondition where no GPU is. A store of torch's cannot be used: ValueError."""
    global _backend
    name = (backend or "ivy").lower()
    if name not in _BACKENDS:
        raise ValueError(f'backend "{backend}" is not known; {nearest(name, _BACKENDS)}')
    if store is not None:
        raise ValueError("store= is torch's; leave it out: the ranks find each other by the environment or init_method")
    groups.init(init_method, rank=None if rank == -1 else rank, world_size=None if world_size == -1 else world_size,
                timeout=_seconds(timeout))
    if name == "nccl" and _backend != "nccl":
        groups.prepare_device_or_leave(_seconds(timeout))
    _backend = name


def destroy_process_group(group=None):
    """Frees a group; without one, leaves the job."""
    global _backend
    if group is None:
        _backend = None
        groups.finalize()
    elif isinstance(group, groups.Group):
        group.free()


def is_available():
    return True


def is_initialized():
    return groups.is_initialized()


def is_gloo_available():
    """ivycomm serves what these names ask for."""
    return True


is_mpi_available = is_gloo_available


def is_nccl_available():
    """Can GPUs be used here?"""
    return os.path.exists("/dev/nvidiactl")


def is_ucc_available():
    return False


def is_torchelastic_launched():
    return "TORCHELASTIC_RUN_ID" in os.environ


def get_backend(group=None):
    groups.resolve(_group(group))
    return _backend


def new_group(ranks=None, timeout=None, backend=None, pg_options=None):
    """A group of these ranks of the world; every rank calls it, in the same order."""
    return groups.new_group(range(groups.world_size()) if ranks is None else ranks)


def get_rank(group=None):
    """This rank's number in the group; -1: it is no member."""
    members = groups.resolve(_group(group))
    return members.rank if members.is_member else -1


def get_world_size(group=None):
    members = groups.resolve(_group(group))
    return members.size if members.is_member else -1


def get_group_rank(group, global_rank):
    return groups.resolve(_group(group)).group_rank(global_rank)


def get_global_rank(group, group_rank):
    return groups.resolve(_group(group)).world_rank(group_rank)


def get_process_group_ranks(group=None):
    return list(groups.resolve(_group(group)).ranks)


# ---- What the functions share ----
def _group(given):
    return None if given is GroupMember.NON_GROUP_MEMBER else given


def _members(given):
    """The group; None: this rank is not in it."""
    members = groups.resolve(given) if given is not GroupMember.NON_GROUP_MEMBER else None
    return members if members is not None and members.is_member else None


def _seconds(timeout):
    return timeout.total_seconds() if hasattr(timeout, "total_seconds") else timeout


class _Then(Work):
    """A Work after which something is still to be put where the caller wants it."""

    def __init__(self, work, put):
        super().__init__(None, None)
        self._work, self._put = work, put

    def wait(self, timeout=None):
        value = self._work.wait(_seconds(timeout))
        put, self._put = self._put, None
        if put is not None:
            put(value)
        return True

    result = wait

    def test(self):
        return self._work.test()

    is_completed = test


def _ended(value, async_op, put=None):
    """What an operation returns, whose results `put` has still to put into the caller's arrays."""
    if async_op:
        return _Then(value, put) if put else value
    if put and value is not None:
        put(value)
    return None


def _copy(to, values):
    if hasattr(to, "copy_"):
        to.copy_(values)
    else:
        to[...] = values


def _into(arrays):
    def put(values):
        for to, value in zip(arrays, values):
            _copy(to, value)

    return put


def _stacked(arrays):
    if type(arrays[0]).__module__.partition(".")[0] == "torch":
        return sys.modules["torch"].stack(list(arrays))
    import numpy
    return numpy.stack([numpy.asarray(each) for each in arrays])


def _check_length(name, arrays, members):
    if len(arrays) != members.size:
        raise ValueError(f"{name} has {len(arrays)} arrays for a group of {members.size} ranks")


# ---- Collectives ----
def all_reduce(tensor, op=ReduceOp.SUM, group=None, async_op=False):
    members = _members(group)
    if members is not None:
        return _ended(collectives.all_reduce_(tensor, op, group=members, async_op=async_op), async_op)


def reduce(tensor, dst, op=ReduceOp.SUM, group=None, async_op=False):
    members = _members(group)
    if members is not None:
        return _ended(collectives.reduce_(tensor, members.group_rank(dst), op, group=members, async_op=async_op), async_op)


def broadcast(tensor, src, group=None, async_op=False):
    members = _members(group)
    if members is not None:
        return _ended(collectives.broadcast_(tensor, members.group_rank(src), group=members, async_op=async_op), async_op)


def all_gather(tensor_list, tensor, group=None, async_op=False):
    members = _members(group)
    if members is not None:
        _check_length("tensor_list", tensor_list, members)
        return _ended(collectives.all_gather_list(tensor, group=members, async_op=async_op), async_op, _into(tensor_list))


def all_gather_into_tensor(output_tensor, input_tensor, group=None, async_op=False):
    members = _members(group)
    if members is not None:
        return _ended(collectives.all_gather(input_tensor, group=members, async_op=async_op), async_op,
                      lambda whole: _copy(output_tensor, whole.reshape(output_tensor.shape)))


def gather(tensor, gather_list=None, dst=0, group=None, async_op=False):
    members = _members(group)
    if members is None:
        return None
    root = members.group_rank(dst)
    if members.rank == root:
        _check_length("gather_list", gather_list or [], members)
    done = collectives.gather(tensor[None], root, group=members, async_op=async_op)
    return _ended(done, async_op, _into(gather_list) if members.rank == root else None)


def scatter(tensor, scatter_list=None, src=0, group=None, async_op=False):
    members = _members(group)
    if members is None:
        return None
    root, whole = members.group_rank(src), None
    if members.rank == root:
        _check_length("scatter_list", scatter_list or [], members)
        whole = _stacked(scatter_list)
    return _ended(collectives.scatter(whole, root, group=members, out=tensor[None], async_op=async_op), async_op)


def reduce_scatter(output, input_list, op=ReduceOp.SUM, group=None, async_op=False):
    members = _members(group)
    if members is not None:
        _check_length("input_list", input_list, members)
        done = collectives.reduce_scatter(_stacked(input_list), op, group=members, out=output[None], async_op=async_op)
        return _ended(done, async_op)


def reduce_scatter_tensor(output, input, op=ReduceOp.SUM, group=None, async_op=False):
    members = _members(group)
    if members is not None:
        parts = input.reshape((members.size, *output.shape))
        return _ended(collectives.reduce_scatter(parts, op, group=members, out=output[None], async_op=async_op), async_op)


def all_to_all(output_tensor_list, input_tensor_list, group=None, async_op=False):
    members = _members(group)
    if members is not None:
        _check_length("input_tensor_list", input_tensor_list, members)
        _check_length("output_tensor_list", output_tensor_list, members)
        done = collectives.all_to_all(_stacked(input_tensor_list), group=members, async_op=async_op)
        return _ended(done, async_op, _into(output_tensor_list))


def all_to_all_single(output, input, output_split_sizes=None, input_split_sizes=None, group=None, async_op=False):
    members = _members(group)
    if members is not None:
        done = collectives.all_to_all(input, input_split_sizes, output_split=output_split_sizes, group=members,
                                      async_op=async_op)
        return _ended(done, async_op, lambda values: _copy(output, values))


def barrier(group=None, async_op=False, device_ids=None):
    members = _members(group)
    if members is not None:
        return _ended(collectives.barrier(group=members, async_op=async_op), async_op)


def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
    """A barrier whose error names the ranks that have not come; all of them, whatever wait_all_ranks says."""
    members = _members(group)
    if members is not None:
        monitored.monitored_barrier(group=members, timeout=_seconds(timeout))


# ---- Messages ----
def send(tensor, dst, group=None, tag=0):
    members = _members(group)
    if members is not None:
        messages.send(tensor, members.group_rank(dst), tag, group=members)


def recv(tensor, src=None, group=None, tag=0):
    """Returns the sender's rank; -1 outside the group."""
    members = _members(group)
    if members is None:
        return -1
    source = None if src is None else members.group_rank(src)
    message = messages.recv_(tensor, source, tag, group=members, with_message=True)[1]
    return members.world_rank(message.source)


def isend(tensor, dst, group=None, tag=0):
    members = _members(group)
    return None if members is None else messages.isend(tensor, members.group_rank(dst), tag, group=members)


def irecv(tensor, src=None, group=None, tag=0):
    members = _members(group)
    if members is None:
        return None
    return messages.irecv(tensor, None if src is None else members.group_rank(src), tag, group=members)


class P2POp:
    """One message of batch_isend_irecv: op is isend or irecv."""

    def __init__(self, op, tensor, peer, group=None, tag=0):
        if op not in (isend, irecv):
            raise ValueError(f"op is {op!r}: it must be isend or irecv of ivycomm.compat.torchdist")
        self.op, self.tensor, self.peer, self.group, self.tag = op, tensor, peer, group, tag


def batch_isend_irecv(p2p_op_list):
    """Starts all of them, receives first; their works in the order given."""
    works = {}
    for index in sorted(range(len(p2p_op_list)), key=lambda index: p2p_op_list[index].op is isend):
        each = p2p_op_list[index]
        works[index] = each.op(each.tensor, each.peer, each.group, each.tag)
    return [works[index] for index in range(len(p2p_op_list))]


# ---- Objects ----
def broadcast_object_list(object_list, src=0, group=None, device=None):
    members = _members(group)
    if members is not None:
        object_list[:] = objects.broadcast_object(list(object_list), members.group_rank(src), group=members)


def all_gather_object(object_list, obj, group=None):
    members = _members(group)
    if members is not None:
        _check_length("object_list", object_list, members)
        object_list[:] = objects.all_gather_object(obj, group=members)


def gather_object(obj, object_gather_list=None, dst=0, group=None):
    members = _members(group)
    if members is None:
        return
    gathered = objects.gather_object(obj, members.group_rank(dst), group=members)
    if gathered is not None:
        _check_length("object_gather_list", object_gather_list or [], members)
        object_gather_list[:] = gathered


def scatter_object_list(scatter_object_output_list, scatter_object_input_list=None, src=0, group=None):
    """Each rank's object goes into the first place of its output list."""
    members = _members(group)
    if members is not None:
        scatter_object_output_list[0] = objects.scatter_object(scatter_object_input_list, members.group_rank(src),
                                                               group=members)
