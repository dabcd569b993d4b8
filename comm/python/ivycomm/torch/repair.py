# SPDX-License-Identifier: Apache-2.0
"""Agreement on the members of a torch process group after some have exited: the rendezvous that torch's in-place repair
requires but does not provide.

torch 2.14 and newer can form a process group again in running processes (`enable_reconfigure`, experimental). Its
documentation leaves `rendezvous_reconfigure()`, "out of band", to the program. The function here uses the group's store:

    dist.init_process_group("gloo", enable_reconfigure=True)
    ivycomm.torch.reconfigure()                      # The first members.
    while step < steps:
        try:
            train(step)
        except RuntimeError:                         # A rank has exited.
            ivycomm.torch.reconfigure()              # The survivors, and spares in place of the dead ranks.

The processes agree in rounds. The store has these keys below ivycomm/reconfigure/NAME/; N is the number of a round:

    round         number of the newest round
    N/arrived     number of processes that have arrived
    N/member/I    description of the I-th of them, as JSON; deleted if it gives up
    N/dead/ID     the member ID of the previous round has exited, as another process on its host has found
    N/closed      the decision, written once: the members, in the order of their ranks, and the uuid
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
import traceback
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from ..errors import FailedPrecondition, Timeout


class Members(NamedTuple):
    """Arguments for torch's _reconfigure(). uuid: a fresh number; handles: one for each rank, in order."""

    uuid: int
    handles: list[Any]


_POLL_SECONDS = 0.02
_WAIT_SECONDS = 30.0
_TIMEOUT_SECONDS = 600.0
_ATTEMPTS = 5


# ---- pure: the members of a round ---------------------------------------------------------------

def order(former: Sequence[str], arrived: Sequence[tuple[str, bool]], size: int) -> list[str]:
    """Returns the ids of the next members, in the order of their ranks.

    former: ids of the previous round, in order; arrived: [(id, is_spare)], with new processes in order of arrival.
    Former members keep their order; new ones take the positions of missing ones, then the end. Spares are used only if
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


def is_time(former: Sequence[str], arrived: Sequence[tuple[str, bool]], dead: Collection[str], size: int | None) -> bool:
    """Returns whether the round can be closed without waiting for more processes. dead: ids of former members that have
    exited. size: the wanted number of members; None: the former members that still run."""
    ids = {each for each, _ in arrived}
    own = sum(1 for each, is_spare in arrived if not is_spare or each in former)
    has_settled = bool(former) and all(each in ids or each in dead for each in former)
    if size is None:
        return has_settled
    return own >= size or (has_settled and len(ids) >= size)


# ---- the identity of a process, and whether it still runs ---------------------------------------

def _first_line(path: str) -> str:
    try:
        with open(path) as file:
            return file.readline().strip()
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Returns the start time of a process in the kernel's ticks; "" if it does not exist or is a zombie."""
    fields = _first_line(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 and fields[0] not in "ZX" else ""


def _machine() -> str:
    """Returns the same text in all processes of one process id namespace, and in no others."""
    try:
        return f"{_first_line('/proc/sys/kernel/random/boot_id')} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return secrets.token_hex(8)


_About = dict[str, Any]  # A process as it describes itself in the store: id, rank, pid, started, machine, handle, spare.


def _has_exited(member: _About) -> bool:
    """Returns False for a process on another host."""
    return bool(member["machine"] == _machine() and _started(member["pid"]) != member["started"])


# ---- the rounds ---------------------------------------------------------------------------------

class _Rounds:
    """This process's part in the rounds of one group. Thread: one at a time. `store` is a store of torch."""

    def __init__(self, store: Any, rank: int, first_size: int) -> None:
        self.store, self.first_size = store, first_size
        self.about: _About = {"id": secrets.token_hex(8), "rank": rank, "pid": os.getpid(), "started": _started(os.getpid()),
                              "machine": _machine()}
        self.former: list[_About] = []  # The members of the last round, if this process was one.
        self.round = -1
        self.number: int | None = None  # Of this process among the arrivals of the round; None between rounds.
        self.store.compare_set("round", "", "0")

    def key(self, name: str) -> str:
        return f"{self.round}/{name}"

    def newest(self) -> int:
        return int(self.store.get("round"))

    def agree(self, handle: Any, size: int | None, min_size: int, wait: float | None, timeout: float | None,
              is_spare: bool) -> Members:
        """Takes part in rounds until this process is a member. The arguments are those of rendezvous_reconfigure()."""
        began = time.monotonic()
        while True:
            if self.number is None:
                # A process that was not a member of the last rounds may have missed some.
                self.round = max(self.newest(), self.round + 1)
                self.number = self.store.add(self.key("arrived"), 1) - 1
            # Otherwise the previous call has failed after its arrival, and the round may have closed with this process.
            about = dict(self.about, handle=handle, spare=is_spare and not self.former)
            mine = self.key(f"member/{self.number}")
            self.store.set(mine, json.dumps(about))
            try:
                closed = self._await_close(size, min_size, wait, began, timeout)
            except BaseException:
                self.store.delete_key(mine)  # Otherwise the others would wait for this process.
                raise
            self.number = None
            self.store.compare_set("round", str(self.round), str(self.round + 1))
            members = closed["members"]
            # It may be a member with the handle of an earlier call, which is no longer valid.
            if any((each["id"], each["handle"]) == (about["id"], handle) for each in members):
                self.former = members
                return Members(closed["uuid"], [each["handle"] for each in members])
            # Otherwise it takes part in the next round.

    def _await_close(self, size: int | None, min_size: int, wait: float | None, began: float, timeout: float | None) -> Any:
        """Returns the decision of the round. Any process that sees that the round can be closed closes it."""
        dead: set[str] = set()
        entered = time.monotonic()
        while not self.store.check([self.key("closed")]):
            arrived = self._arrived()
            former = self._former_members()
            wanted = size if size is not None or former else self.first_size
            self._find_dead(former, arrived, dead)
            pairs = [(each["id"], each["spare"]) for each in arrived]
            is_late = wait is not None and time.monotonic() - entered >= wait and len(pairs) >= min_size
            ids = [each["id"] for each in former]
            if len(pairs) >= min_size and (is_late or is_time(ids, pairs, dead, wanted)):
                self._close(ids, arrived, wanted)
                break
            if timeout is not None and time.monotonic() - began >= timeout:
                if wanted is None:
                    wanted = sum(each not in dead for each in ids)
                raise Timeout(f"{len(pairs)} processes arrived within {timeout:g} s to re-form the group, but "
                              f"{max(min_size, wanted)} are required (round {self.round})")
            time.sleep(_POLL_SECONDS)
        return json.loads(self.store.get(self.key("closed")))

    def _arrived(self) -> list[_About]:
        """Returns the processes that have arrived in the round and, if they are on this host, still run."""
        count = int(self.store.add(self.key("arrived"), 0))
        found = {}
        for number in range(count):
            # "" if the key does not exist: a process that gives up deletes its own.
            text = self.store.compare_set(self.key(f"member/{number}"), "", "")
            if text:
                about = json.loads(text)
                if not _has_exited(about):
                    found[about["id"]] = about
        return list(found.values())

    def _former_members(self) -> list[_About]:
        """Returns the members of the previous round. A new process reads them from the store."""
        last = f"{self.round - 1}/closed"
        if self.round > 0 and self.store.check([last]):
            members: list[_About] = json.loads(self.store.get(last))["members"]
            return members
        return self.former

    def _find_dead(self, former: list[_About], arrived: list[_About], dead: set[str]) -> None:
        """Adds to `dead` the ids of former members that have exited, and publishes those of this host."""
        ids = {each["id"] for each in arrived}
        for each in former:
            if each["id"] in ids or each["id"] in dead:
                continue
            if _has_exited(each):
                self.store.set(self.key(f"dead/{each['id']}"), "1")
            if self.store.check([self.key(f"dead/{each['id']}")]):
                dead.add(each["id"])

    def _close(self, former: list[str], arrived: list[_About], size: int | None) -> None:
        by_id = {each["id"]: each for each in arrived}
        arrived.sort(key=lambda each: each["rank"])  # New processes take part in the order of their first ranks.
        pairs = [(each["id"], each["spare"]) for each in arrived]
        members = order(former, pairs, len(former) if size is None else size)
        decision = {"uuid": secrets.randbits(62), "members": [by_id[each] for each in members]}
        self.store.compare_set(self.key("closed"), "", json.dumps(decision))


_rounds: dict[str, tuple[Any, _Rounds, int]] = {}  # By the group's name: the group, its rounds, and the process id.


def _rounds_of(dist: Any, group: Any) -> _Rounds:
    name = getattr(group, "group_name", "") or "0"
    found = _rounds.get(name)
    if found is None or found[0] is not group or found[2] != os.getpid():
        store = dist.PrefixStore(f"ivycomm/reconfigure/{name}", dist.distributed_c10d._world.pg_map[group][1])
        found = _rounds[name] = (group, _Rounds(store, group.rank(), group.size()), os.getpid())
    return found[1]


def rendezvous_reconfigure(handle: Any = None, *, group: Any = None, size: int | None = None, min_size: int = 1,
                           wait: float | None = _WAIT_SECONDS, timeout: float | None = _TIMEOUT_SECONDS,
                           spare: bool = False) -> Members:
    """Agrees with the other processes on a group's next members. Returns Members(uuid, handles) for torch's _reconfigure().
    Blocks until they have agreed.

    handle: dist._get_reconfigure_handle() of the group; None: this process leaves the broken group, so that no process
    keeps waiting in it, and requests the handle. group: None for the default one. Former members keep their order, and
    new members take the positions of missing ones.

    size: number of members. None: in the first call the group's size; later all former members that still run, and
    spares that are already waiting in place of dead ones. With a size the call waits for that many, including restarted
    ranks. wait: after this many seconds (None: never) the processes that have arrived form the group, if they are at
    least min_size. spare: this process takes part only if others are missing; its call returns when it becomes a member
    (timeout=None: however long that takes).

    Processes on the same host notice the exit of a member immediately. The loss of a host is not noticed; `wait` decides.
    All processes must share a store that none of them owns, as in a job of ivyrun.

    Raises Timeout after `timeout` seconds (None: never); FailedPrecondition if this torch or this group does not
    support it; ValueError for sizes below 1, or a size below min_size; and the errors of torch's store if it is
    unreachable. Thread: one at a time for a group.
    """
    import torch.distributed as dist

    group = group or dist.distributed_c10d._get_default_group()
    if not getattr(group, "supports_reconfigure", False):
        raise FailedPrecondition("this process group cannot be re-formed: that requires torch 2.14 or newer and "
                                 'init_process_group("gloo", enable_reconfigure=True)')
    if min_size < 1 or (size is not None and size < min_size):
        raise ValueError(f"size={size}, min_size={min_size}: min_size must be at least 1, and size at least min_size")
    rounds = _rounds_of(dist, group)
    if handle is None:
        if rounds.former:
            _leave(dist, group)
        handle = group.get_reconfigure_handle()
    return rounds.agree(handle, size, min_size, wait, timeout, spare)


def _leave(dist: Any, group: Any) -> None:
    """Replaces the broken group with one that contains only this process.

    Ranks that are in a collective with the dead rank get an error, but others may be waiting for this process in their
    collective, and would not arrive at the rendezvous. Leaving closes their connections to this process, too.
    """
    from datetime import timedelta

    # The failed operation keeps the connections open, and the frames of its traceback keep the operation.
    error = sys.exc_info()[1]
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__
    dist.distributed_c10d._reconfigure(uuid=secrets.randbits(62), handles=[group.get_reconfigure_handle()],
                                       group=group, timeout=timedelta(seconds=10)).wait()


def reconfigure(*, group: Any = None, form_timeout: float = 60.0, **options: Any) -> Members:
    """Repeats rendezvous_reconfigure(**options) and torch's _reconfigure() until the group is formed. Returns the
    Members. Blocks until then.

    If a member exits while the group is being formed, the others try again, five times. form_timeout: seconds for torch's
    part of one attempt; options, such as timeout (seconds): those of rendezvous_reconfigure(). Afterwards dist.get_rank()
    and dist.get_world_size() return the new values. Raises FailedPrecondition if no attempt succeeds, and the errors of
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
    raise FailedPrecondition(f"the group could not be re-formed in {_ATTEMPTS} attempts: {last}") from last
