# SPDX-License-Identifier: Apache-2.0
"""Virtual environments that `scripts/setup frameworks` has made, and scripts that run in them."""

import contextlib
import os
import shutil
import subprocess
import tempfile

import pytest

from launching import REPOSITORY

HERE = os.path.dirname(os.path.realpath(__file__))
FRAMEWORKS = os.environ.get("IVY_FRAMEWORKS") or os.path.join(REPOSITORY, "build/frameworks")


def python_of(name):
    """The interpreter of that virtual environment; skips where there is none."""
    path = os.path.join(FRAMEWORKS, name, "bin/python3")
    if not os.path.exists(path):
        pytest.skip(f"{path} is not there: scripts/setup frameworks")
    return path


@contextlib.contextmanager
def on_hosts(name):
    """The same where test hosts find it, until the end: they see neither this repository nor /tmp."""
    source = os.path.dirname(os.path.dirname(python_of(name)))
    folder = tempfile.mkdtemp(prefix="ivytest-frameworks-", dir="/opt")
    try:
        os.chmod(folder, 0o755)
        # Links instead of copies where both places are on one file system.
        if subprocess.run(["cp", "-al", source, folder], stderr=subprocess.DEVNULL).returncode:
            shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
            subprocess.run(["cp", "-a", source, folder], check=True)
        yield os.path.join(folder, name, "bin/python3")
    finally:
        shutil.rmtree(folder)


def example(name):
    """The path of a script in scripts/examples, for launchers on this machine."""
    return os.path.join(REPOSITORY, "scripts/examples", name)


def script(launcher, name):
    """The path of a script as workers see it; test hosts have what is in the test's shared folder."""
    source = os.path.join(HERE, "scripts", name)
    if not hasattr(launcher, "bed"):
        return source
    shutil.copy(source, launcher.outside(launcher.directory))
    return f"{launcher.directory}/{name}"
