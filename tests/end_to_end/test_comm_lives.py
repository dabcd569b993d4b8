# SPDX-License-Identifier: Apache-2.0
"""A worker may join a new world after a broken one. Reports about the broken world do not affect the new one."""

import os

import pytest

from launching import BIN, WORKERS

ONE = ("-n", "2")
HOSTS = ("--fake-hosts", "2", "--nproc_per_node", "1")
LIMIT = 60

places = pytest.mark.parametrize("flags", [ONE, HOSTS], ids=["one", "hosts"])


def check_whole(done):
    assert done.code == 0, done
    assert {rank: lines[-1:] for rank, lines in done.texts_by_rank().items()} == {0: ["whole"], 1: ["whole"]}, done


@places
def test_a_world_is_whole_after_others_that_broke(local, flags):
    check_whole(local.run(*flags, local.script("comm_lives.py"), "abort", "mismatch", "timeout", limit=LIMIT))


@places
def test_another_program_of_the_same_worker_joins_a_whole_world(local, flags):
    script = os.path.join(WORKERS, "comm_lives.py")
    twice = f"/usr/bin/python3 -B {script} abort && exec /usr/bin/python3 -B {script} abort"
    check_whole(local.run(*flags, "sh", "-c", twice, limit=LIMIT))


@places
def test_groups_of_a_finalized_world_are_rejected(local, flags):
    done = local.run(*flags, local.script("comm_stale_groups.py"), limit=LIMIT)
    assert done.code == 0, done
    assert done.texts_by_rank() == {0: ["all refused"], 1: ["all refused"]}, done


OTHER_BUILD = os.path.join(os.path.dirname(BIN), "lib/doubles/libcomm_other_protocol.so")


@places
def test_ranks_that_load_two_builds_get_a_warning(local, flags):
    """Under ivyrun the supervisor owns the shared memory of a host and does not know the builds of the library."""
    chosen = f'test "$IVY_RANK" = 0 || export IVY_LIBRARY={OTHER_BUILD}'
    done = local.run(*flags, "sh", "-c", f'{chosen}; exec /usr/bin/python3 -B -c "import ivycomm; ivycomm.init()"',
                     limit=LIMIT)
    assert done.code not in (0, None), done
    said = (done.out + done.err).decode()
    assert "has a different build of libivycomm" in said, done
    assert "0123456789abcdef" in said and "rank 0" in said and "rank 1" in said, done
