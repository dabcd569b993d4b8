# SPDX-License-Identifier: Apache-2.0
"""Derivatives of ivycomm's operations on torch tensors: with Debian's torch, a current torch, and torch.compile."""

import os

import pytest

from launching import REPOSITORY

TODAY = os.path.join(REPOSITORY, "build/torch/bin/python3")
DEBIAN = "/usr/bin/python3"
needs_debians = pytest.mark.skipif(not os.path.isdir("/usr/lib/python3/dist-packages/torch"),
                                   reason="python3-torch is not installed")
needs_todays = pytest.mark.skipif(not os.path.exists(TODAY), reason=f"{TODAY} is not there: scripts/setup torch")


def run(local, python, ranks, *arguments):
    done = local.run("-n", str(ranks), "-x", "OMP_NUM_THREADS=1", python, "-B", local.script("comm_gradients.py"),
                     *arguments, limit=300)
    assert done.code == 0 and done.out.count(b"all equal") == ranks, done


@needs_debians
def test_adjoints_match_those_of_one_process(local):
    run(local, DEBIAN, 2)


@needs_todays
def test_compiled_without_a_break(local):
    run(local, TODAY, 2, "compile", "aot_eager")


@pytest.mark.long
@needs_todays
@pytest.mark.parametrize("ranks,arguments", [(2, ()), (3, ()), (3, ("compile", "aot_eager")), (2, ("compile", "inductor"))],
                         ids=["two", "three", "three compiled", "by inductor"])
def test_adjoints_with_a_current_torch(local, ranks, arguments):
    run(local, TODAY, ranks, *arguments)
