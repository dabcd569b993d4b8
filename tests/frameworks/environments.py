# SPDX-License-Identifier: Apache-2.0
"""Virtual environments that `scripts/setup frameworks torch` creates, and scripts that run in them."""

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
    """Returns the interpreter of that virtual environment. Skips the test if it does not exist."""
    parent = os.path.join(REPOSITORY, "build") if name == "torch" else FRAMEWORKS
    path = os.path.join(parent, name, "bin/python3")
    if not os.path.exists(path):
        pytest.skip(f"{path} is not there: scripts/setup {'torch' if name == 'torch' else 'frameworks'}")
    return path


@contextlib.contextmanager
def on_hosts(name):
    """Copies that virtual environment for test hosts, which see neither this repository nor /tmp, and yields its
    interpreter."""
    source = os.path.realpath(os.path.dirname(os.path.dirname(python_of(name))))
    folder = tempfile.mkdtemp(prefix="ivytest-frameworks-", dir="/opt")
    try:
        os.chmod(folder, 0o755)
        # Use links instead of copies if both directories are on the same file system.
        if subprocess.run(["cp", "-al", source, folder], stderr=subprocess.DEVNULL).returncode:
            shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
            subprocess.run(["cp", "-a", source, folder], check=True)
        yield os.path.join(folder, name, "bin/python3")
    finally:
        shutil.rmtree(folder)


def example(name):
    """Returns the path of a script in scripts/examples, for launchers on this machine."""
    return os.path.join(REPOSITORY, "scripts/examples", name)


def script(launcher, name):
    """Returns the path of a script as workers see it. For test hosts it is copied to the test's shared directory."""
    source = os.path.join(HERE, "scripts", name)
    if not hasattr(launcher, "bed"):
        return source
    shutil.copy(source, launcher.outside(launcher.directory))
    return f"{launcher.directory}/{name}"
