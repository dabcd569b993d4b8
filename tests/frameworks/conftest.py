"""The fixtures of tests/end_to_end, and JAX where test hosts find it."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile

import pytest

HERE = os.path.dirname(os.path.realpath(__file__))
END_TO_END = os.path.join(os.path.dirname(HERE), "end_to_end")
sys.path[:0] = [HERE, END_TO_END]

from environments import python_of  # noqa: E402


def load_fixtures():
    # By its path: both files have the name that pytest wants.
    spec = importlib.util.spec_from_file_location("end_to_end_fixtures", os.path.join(END_TO_END, "conftest.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


_shared = load_fixtures()
binaries, local, testbed, hosts = _shared.binaries, _shared.local, _shared.testbed, _shared.hosts
agent_credentials, agents = _shared.agent_credentials, _shared.agents


@pytest.fixture(scope="session")
def python_on_hosts(testbed):
    """JAX's environment where test hosts find it: they see neither this repository nor /tmp."""
    source = os.path.dirname(os.path.dirname(python_of("jax")))
    folder = tempfile.mkdtemp(prefix="ivytest-frameworks-", dir="/opt")
    try:
        os.chmod(folder, 0o755)
        # Links instead of copies where both places are on one file system.
        if subprocess.run(["cp", "-al", source, folder], stderr=subprocess.DEVNULL).returncode:
            shutil.rmtree(os.path.join(folder, "jax"), ignore_errors=True)
            subprocess.run(["cp", "-a", source, folder], check=True)
        yield os.path.join(folder, "jax/bin/python3")
    finally:
        shutil.rmtree(folder)
