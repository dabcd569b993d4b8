"""Remote calls when something goes wrong. What goes right stands in test_originals.py."""

import pytest

from test_ivycomm import CALM, LIMIT, ONE_HOST, TWO_HOSTS, check_all_equal, needs_numpy, ranks_of

two_places = pytest.mark.parametrize("flags", [ONE_HOST["two"], TWO_HOSTS["hosts"]], ids=["two", "hosts"])


def faults(local, flags, mebibytes):
    check_all_equal(local.run(*flags, *CALM, local.script("comm_rpc_faults.py"), str(mebibytes),
                              "hosts" if flags == TWO_HOSTS["hosts"] else "one", limit=LIMIT), ranks_of(flags))


@needs_numpy
@two_places
def test_faults(local, flags):
    faults(local, flags, 8)


@needs_numpy
@two_places
@pytest.mark.long
def test_faults_with_much(local, flags):
    faults(local, flags, 1024 if flags == ONE_HOST["two"] else 128)  # Four ranks hold several of them each.
