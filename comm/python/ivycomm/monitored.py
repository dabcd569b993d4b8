# SPDX-License-Identifier: Apache-2.0
"""A barrier that names the missing ranks."""

from __future__ import annotations

from .collectives import barrier
from .errors import MissingRanks, Timeout
from .groups import Group, resolve, worlds_ended
from .job_store import store

_rounds: dict[tuple[str, int], int] = {}  # By the group's name and world: how many this process has made.


def monitored_barrier(*, group: Group | None = None, timeout: float | None = None) -> None:
    """As barrier(), but after the timeout every rank that arrived raises MissingRanks, whose `missing` lists the others.

    Collective, and blocks. timeout: seconds; None: the world's. As after every failure, the group is then broken. Raises
    RankDied, HostLost, Aborted and Mismatch as barrier() does. It calls the job's store twice, so it takes milliseconds,
    while barrier takes microseconds. On a rank that is not a member the call does nothing.
    """
    group = resolve(group)
    if group.rank is None:
        return
    life = (group.name, worlds_ended())
    round_ = _rounds[life] = _rounds.get(life, 0) + 1
    keys = [f"ivy/monitored/{life[1]}/{group.name}/{round_}/{rank}" for rank in group.ranks]
    own = keys[group.rank]
    shared = store()
    shared.set(own, b"")
    try:
        barrier(group=group, timeout=timeout)
    except Timeout as error:
        missing = [rank for rank, key in enumerate(keys) if not shared.check(key)]
        names = ", ".join(str(rank) for rank in missing) or "none"
        raise MissingRanks(f"monitored_barrier of {group.name}: ranks that did not arrive: {names}; {error}", missing,
                           code=error.code, rank=error.rank, host=error.host, sequence=error.sequence,
                           operation=error.operation) from None
    shared.delete(own)
