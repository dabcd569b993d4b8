"""Virtual environments that `scripts/setup frameworks` has made, and scripts that run in them."""

import os
import shutil

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


def script(launcher, name):
    """The path of a script as workers see it; test hosts have what is in the test's shared folder."""
    source = os.path.join(HERE, "scripts", name)
    if not hasattr(launcher, "bed"):
        return source
    shutil.copy(source, launcher.outside(launcher.directory))
    return f"{launcher.directory}/{name}"
