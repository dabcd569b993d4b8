# SPDX-License-Identifier: Apache-2.0
"""Agreement on the surviving members after a loss: the rendezvous that torch's in-place repair requires but does not
provide.

torch 2.14 and newer can form a group again in running processes (`enable_reconfigure`, experimental); its documentation
calls a `rendezvous_reconfigure()` "out of band". This is one, based on the group's store:

    dist.init_process_group("gloo", enable_reconfigure=True)
    ivycomm.torch.reconfigure()                      # The first members.
    while step < steps:
        try:
            train(step)
        except RuntimeError:                         # A rank has died.
            ivycomm.torch.reconfigure()              # The survivors, and spares in place of the dead ranks.

Each agreement is a round; `round` is the number of the newest one. Below ivycomm/reconfigure/NAME/, round N's keys are

    N/arrived     counts the arrivals; each process keeps its number
    N/member/I    description of arrival I, as JSON
    N/dead/ID     a member of the previous round whose process has exited, as found by a neighbour
    N/closed      the decision: the members, in the order of their ranks, and the uuid
"""

import json
import os
import secrets
import sys
import time
import traceback
from collections import namedtuple

from ..errors import FailedPrecondition, Timeout

Members = namedtuple("Members", "uuid handles")
Members.__doc__ = "Arguments for torch's _reconfigure(). uuid: a fresh number; handles: one for each rank, in order."

_LOOK_SECONDS = 0.02
_WAIT_SECONDS = 30.0
_TIMEOUT_SECONDS = 600.0
_ATTEMPTS = 5


# ---- pure: who takes part -----------------------------------------------------------------------

def order(former, arrived, size):
    """Returns the ids of the next members, in the order of their ranks.

    former: ids of the previous round, in order; arrived: [(id, is_spare)], with new processes in order of arrival.
    Former members keep their order; new ones take the places of missing ones, then the end; spares are used only if
    there are fewer than `size` others.
    """
    ids = [each for each, _ in arrived]
    new = [each for each, is_spare in arrived if each not in former and not is_spare]
    spares = [each for each, is_spare in arrived if each not in former and is_spare]
    room = max(0, size - len(new) - sum(each in ids for each in former))
    new += spares[:room]
    members = []
    for each in former:
        if each in ids:
            members.append(each)
        elif new:
            members.append(new.pop(0))
    return members + new


def is_time(former, arrived, dead, size):
    """Returns whether the round can be closed without waiting for more processes. size None: all living former
    members suffice."""
    ids = {each for each, _ in arrived}
    own = sum(1 for each, is_spare in arrived if not is_spare or each in former)
    has_settled = bool(former) and all(each in ids or each in dead for each in former)
    if size is None:
        return has_settled
    return own >= size or (has_settled and len(ids) >= size)


# ---- who this process is, and whether a neighbour lives -----------------------------------------

def _first_line(path):
    try:
        with open(path) as file:
            return file.readline().strip()
    except OSError:
        return ""


def _started(pid):
    """Returns the start time of a process in the kernel's ticks; "" if it does not exist or is a zombie."""
    fields = _first_line(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 and fields[0] not in "ZX" else ""


def _machine():
    """Identifies processes that share one process id namespace."""
    try:
        return f"{_first_line('/proc/sys/kernel/random/boot_id')} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return secrets.token_hex(8)


def _is_gone(member):
    return member["machine"] == _machine() and _started(member["pid"]) != member["started"]


# ---- the meeting --------------------------------------------------------------------------------

class _Meetings:
    """This process's way through the rounds of one group. Thread: one at a time."""

    def __init__(self, store, rank, first_size):
        self.store, self.first_size = store, first_size
        self.about = {"id": secrets.token_hex(8), "rank": rank, "pid": os.getpid(), "started": _started(os.getpid()),
                      "machine": _machine()}
        self.former = []  # How the members of the last round described themselves.
        self.round = -1
        self.number = None  # This process's number in the round, while it may still become a member.
        self.store.compare_set("round", "", "0")

    def key(self, name):
        return f"{self.round}/{name}"

    def newest(self):
        return int(self.store.get("round"))

    def meet(self, handle, size, min_size, wait, timeout, is_spare):
        began = time.monotonic()
        while True:
            if self.number is None:
                # The round of a member that has left is over; another one may already be open.
                self.round = max(self.newest(), self.round + 1)
                self.number = self.store.add(self.key("arrived"), 1) - 1
            # Otherwise the previous call has failed, and its round may have been closed with this process in it.
            about = dict(self.about, handle=handle, spare=is_spare and not self.former)
            mine = self.key(f"member/{self.number}")
            self.store.set(mine, json.dumps(about))
            try:
                closed = self._await_close(size, min_size, wait, began, timeout)
            except BaseException:
                self.store.delete_key(mine)  # Nobody is to wait for a process that has given up.
                raise
            self.number = None
            self.store.compare_set("round", str(self.round), str(self.round + 1))
            members = closed["members"]
            # With the handle of a former call, which is no longer this process's, it meets again.
            if any((each["id"], each["handle"]) == (about["id"], handle) for each in members):
                self.former = members
                return Members(closed["uuid"], [each["handle"] for each in members])
            # The round was closed without this process, which comes first in the next one.

    def _await_close(self, size, min_size, wait, began, timeout):
        dead, entered = set(), time.monotonic()
        while not self.store.check([self.key("closed")]):
            arrived = self._arrived()
            former = self._former(arrived)
            wanted = size if size is not None or former else self.first_size
            self._bury(former, arrived, dead)
            pairs = [(each["id"], each["spare"]) for each in arrived]
            is_late = wait is not None and time.monotonic() - entered >= wait and len(pairs) >= min_size
            ids = [each["id"] for each in former]
            if len(pairs) >= min_size and (is_late or is_time(ids, pairs, dead, wanted)):
                self._close(ids, arrived, wanted)
                break
            if timeout is not None and time.monotonic() - began >= timeout:
                if wanted is None:
                    wanted = sum(each not in dead for each in ids)
                raise Timeout(f"{len(pairs)} processes came to form the group anew in {timeout:g} s, and "
                              f"{max(min_size, wanted)} are wanted (round {self.round})")
            time.sleep(_LOOK_SECONDS)
        return json.loads(self.store.get(self.key("closed")))

    def _arrived(self):
        count = int(self.store.add(self.key("arrived"), 0))
        found = {}
        for number in range(count):
            # "" if the key does not exist: a process that gives up deletes its own.
            text = self.store.compare_set(self.key(f"member/{number}"), "", "")
            if text:
                about = json.loads(text)
                if not _is_gone(about):
                    found[about["id"]] = about
        return list(found.values())

    def _former(self, arrived):
        """Returns the members of the last round; a new process reads them from the store."""
        last = f"{self.round - 1}/closed"
        if self.round > 0 and self.store.check([last]):
            return json.loads(self.store.get(last))["members"]
        return self.former

    def _bury(self, former, arrived, dead):
        ids = {each["id"] for each in arrived}
        for each in former:
            if each["id"] in ids or each["id"] in dead:
                continue
            if _is_gone(each):
                self.store.set(self.key(f"dead/{each['id']}"), "1")
            if self.store.check([self.key(f"dead/{each['id']}")]):
                dead.add(each["id"])

    def _close(self, former, arrived, size):
        by_id = {each["id"]: each for each in arrived}
        arrived.sort(key=lambda each: each["rank"])  # As they were started, among those who are new.
        pairs = [(each["id"], each["spare"]) for each in arrived]
        members = order(former, pairs, len(former) if size is None else size)
        decision = {"uuid": secrets.randbits(62), "members": [by_id[each] for each in members]}
        self.store.compare_set(self.key("closed"), "", json.dumps(decision))


_meetings = {}  # By group's name; gone with the group's store.


def _find_meetings(dist, group):
    name = getattr(group, "group_name", "") or "0"
    found = _meetings.get(name)
    if found is None or found[0] is not group or found[2] != os.getpid():
        store = dist.PrefixStore(f"ivycomm/reconfigure/{name}", dist.distributed_c10d._world.pg_map[group][1])
        found = _meetings[name] = (group, _Meetings(store, group.rank(), group.size()), os.getpid())
    return found[1]


def rendezvous_reconfigure(handle=None, *, group=None, size=None, min_size=1, wait=_WAIT_SECONDS,
                           timeout=_TIMEOUT_SECONDS, spare=False):
    """Agrees with the other processes on a group's next members; returns Members(uuid, handles) for _reconfigure(). Blocks
    until they have agreed.

    handle: dist._get_reconfigure_handle() of the group; None: this process leaves the broken group, so that no process
    keeps waiting in it, and requests the handle. group: None for the default one. Former members keep their order, and
    new members take the places of missing ones.

    size: number of members. None: in the first call the group's size, later all living former members, and spares that
    are already waiting in place of dead members. With a size the call waits for that many, including restarted ranks.
    wait: after this many seconds (None: never) the processes that have arrived form the group, if they are at least
    min_size. spare: this process takes part only if others are missing; its call returns when it becomes a member
    (timeout=None: however long that takes).

    The exit of a member's process is noticed immediately by its neighbours on the same host; the loss of a host is not
    noticed, and `wait` decides. All processes must share a store that none of them owns, as ivyrun's jobs do.

    Raises Timeout after `timeout` seconds (None: never), FailedPrecondition if this torch or this group does not
    support it, and the errors of torch's store if it is unreachable. Thread: one at a time for a group.
    """
    import torch.distributed as dist

    group = group or dist.distributed_c10d._get_default_group()
    if not getattr(group, "supports_reconfigure", False):
        raise FailedPrecondition("this process group cannot be formed anew: that takes torch 2.14 or newer and "
                                 'init_process_group("gloo", enable_reconfigure=True)')
    if min_size < 1 or (size is not None and size < min_size):
        raise ValueError(f"size={size}, min_size={min_size}: at least 1, and size at least min_size")
    meetings = _find_meetings(dist, group)
    if handle is None:
        if meetings.former:
            _let_go(dist, group)
        handle = group.get_reconfigure_handle()
    return meetings.meet(handle, size, min_size, wait, timeout, spare)


def _let_go(dist, group):
    """Replaces the broken group with one that contains only this process.

    Ranks in a collective with the dead rank get an error, but others may wait for this process in theirs, and would
    not arrive: this closes their connections to it, too.
    """
    from datetime import timedelta

    # The failed operation holds the connections, and the frames of its error hold the operation.
    error = sys.exc_info()[1]
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__
    dist.distributed_c10d._reconfigure(uuid=secrets.randbits(62), handles=[group.get_reconfigure_handle()],
                                       group=group, timeout=timedelta(seconds=10)).wait()


def reconfigure(*, group=None, form_timeout=60.0, **options):
    """Repeats rendezvous_reconfigure(**options) and torch's _reconfigure() until the group is formed; returns the
    Members. Blocks until then.

    If a member dies while the group is formed, the others try again, five times. form_timeout: seconds for torch's part
    of one attempt; options, such as timeout (seconds): those of rendezvous_reconfigure(). Afterwards dist.get_rank() and
    dist.get_world_size() return the new values. Raises FailedPrecondition if no attempt succeeds, and the errors of
    rendezvous_reconfigure(). Thread: one at a time for a group.
    """
    from datetime import timedelta

    import torch.distributed as dist

    for _ in range(_ATTEMPTS):
        members = rendezvous_reconfigure(group=group, **options)
        try:
            dist.distributed_c10d._reconfigure(uuid=members.uuid, handles=list(members.handles), group=group,
                                               timeout=timedelta(seconds=form_timeout)).wait()
            return members
        except RuntimeError as error:
            last = error
    raise FailedPrecondition(f"the group could not be formed anew in {_ATTEMPTS} attempts: {last}") from last
