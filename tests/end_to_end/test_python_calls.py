"""The Python package's calls in both lanes: in one step by its extension, and by ctypes alone."""

import os

import pytest

from launching import REPOSITORY

has_numpy = os.path.isdir("/usr/lib/python3/dist-packages/numpy")
pytestmark = pytest.mark.skipif(not has_numpy, reason="python3-numpy is not installed")

CALM = ("-x", "OMP_NUM_THREADS=1")
LIMIT = 90
TORCH = os.path.join(REPOSITORY, "build/torch/bin/python3")
HOSTS = ("--fake-hosts", "2", "--nproc_per_node", "1")


@pytest.fixture(params=["extension", "ctypes"])
def lane(request):
    return ("-x", f"IVY_PYTHON_CALLS={request.param}")


def check(local, scenario, *flags):
    done = local.run(*flags, *CALM, local.script("comm_calls.py"), scenario, limit=LIMIT)
    assert done.code == 0, done
    said = done.texts_by_rank()
    assert said and all(lines[-1] == "went on" for lines in said.values()), done


@pytest.mark.parametrize("scenario", ["same_results", "unusual_arguments", "threads", "handler_runs",
                                      "interrupted_calls", "plain_calls"])
def test_calls(local, lane, scenario):
    check(local, scenario, "-n", "3" if scenario == "unusual_arguments" else "2", *lane)


@pytest.mark.skipif(not os.path.exists(TORCH), reason="build/torch has no torch: scripts/setup torch")
def test_calls_on_tensors(local, lane):
    check(local, "tensors", "-n", "2", "--python", TORCH, *lane)


def test_ctrl_c_at_random_moments(local, lane):
    check(local, "drill", "-n", "2", *lane)


def test_ctrl_c_between_hosts(local):
    check(local, "interrupted_barriers", *HOSTS, "-x", "IVY_PYTHON_CALLS=extension")


def test_a_lane_that_is_not_known_is_named(local):
    done = local.run("-n", "1", "-x", "IVY_PYTHON_CALLS=fast", "/usr/bin/python3", "-B", "-c",
                     "import ivycomm; ivycomm.init()")
    assert done.code == 1 and "IVY_PYTHON_CALLS is 'fast'; it must be ctypes, extension or nothing" in done.err_text, done
