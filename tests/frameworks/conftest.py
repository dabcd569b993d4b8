# SPDX-License-Identifier: Apache-2.0
"""The fixtures of tests/end_to_end, and a copy of JAX that test hosts can use."""

import importlib.util
import os
import sys

import pytest

HERE = os.path.dirname(os.path.realpath(__file__))
END_TO_END = os.path.join(os.path.dirname(HERE), "end_to_end")
sys.path[:0] = [HERE, END_TO_END]

from environments import on_hosts  # noqa: E402


def load_fixtures():
    # Loaded by its path, because pytest requires the same name for both files.
    spec = importlib.util.spec_from_file_location("end_to_end_fixtures", os.path.join(END_TO_END, "conftest.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


_shared = load_fixtures()
pytest_addoption, pytest_configure = _shared.pytest_addoption, _shared.pytest_configure
pytest_collection_modifyitems = _shared.pytest_collection_modifyitems
binaries, local, testbed, hosts = _shared.binaries, _shared.local, _shared.testbed, _shared.hosts
agent_credentials, agents = _shared.agent_credentials, _shared.agents


@pytest.fixture(scope="session")
def python_on_hosts(testbed):
    """The path of JAX's interpreter on test hosts."""
    with on_hosts("jax") as python:
        yield python
