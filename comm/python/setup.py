# SPDX-License-Identifier: Apache-2.0
"""Puts the built libivycomm into the wheel, with the extension that calls it and libivycomm_jax, and ivy-rendezvous,
which rank 0 starts where no ivyrun does; everything else is in pyproject.toml.

The library is taken from IVY_LIBRARY, else from the checkout's build/lib; ivy-rendezvous from
IVY_RENDEZVOUS, else from the bin/ beside the library's directory.
"""

import glob
import os
import re
import shutil
import subprocess
import sys

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # Before setuptools 70.1.
    from wheel.bdist_wheel import bdist_wheel

HERE = os.path.dirname(os.path.abspath(__file__))
NAME = "libivycomm.so.1"
JAX_NAME = "libivycomm_jax.so"  # Loaded by ivycomm.jax.
STORE = "ivy-rendezvous"
CALLS = "ivycomm_calls.abi3.so"


def version():
    """The project's, which CMake keeps."""
    with open(os.path.join(HERE, "..", "..", "CMakeLists.txt"), encoding="utf-8") as file:
        return re.search(r"^project\(ivyrun VERSION ([0-9.]+)", file.read(), re.M)[1]


def built_library():
    path = os.environ.get("IVY_LIBRARY") or os.path.join(HERE, "..", "..", "build", "lib", NAME)
    if not os.path.exists(path):
        raise SystemExit(f"{os.path.normpath(path)} does not exist: build it (cmake --preset release && "
                         "cmake --build build --target ivycomm), or set IVY_LIBRARY to it")
    return path


def built_store(library):
    path = os.environ.get("IVY_RENDEZVOUS") or os.path.join(os.path.dirname(os.path.realpath(library)), "..", "bin",
                                                            STORE)
    if not os.access(path, os.X_OK):
        raise SystemExit(f"{os.path.normpath(path)} does not exist: build it (cmake --build build --target ivy-node), "
                         "or set IVY_RENDEZVOUS to it")
    return path


class WithLibrary(build_py):
    def run(self):
        super().run()
        subprocess.run([sys.executable, os.path.join(HERE, "make_stub.py"), os.path.join(self.build_lib, "ivycomm")], check=True)
        library = built_library()
        shutil.copyfile(library, os.path.join(self.build_lib, "ivycomm", NAME))
        folder = os.path.dirname(os.path.realpath(library))
        calls = next(filter(os.path.exists, (os.path.join(folder, CALLS), os.path.join(folder, "ivyrun", CALLS))), None)
        if calls is None:
            raise SystemExit(f"there is no {CALLS} next to {library}: build it (cmake --build build --target ivycomm_calls)")
        # Those for free-threaded Pythons as well, if some were built.
        for each in glob.glob(os.path.join(os.path.dirname(calls), "ivycomm_calls.*.so")):
            shutil.copy(each, os.path.join(self.build_lib, "ivycomm"))
        for_jax = os.path.join(os.path.dirname(library), JAX_NAME)
        if not os.path.exists(for_jax):
            raise SystemExit(f"{for_jax} does not exist: build it (cmake --build build --target ivycomm_jax)")
        shutil.copyfile(for_jax, os.path.join(self.build_lib, "ivycomm", JAX_NAME))
        store = os.path.join(self.build_lib, "ivycomm", STORE)
        shutil.copyfile(built_store(library), store)
        os.chmod(store, 0o755)


class ForAnyPython(bdist_wheel):
    """The library is for one kind of machine, but for every Python."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


class OfOneMachine(Distribution):
    def has_ext_modules(self):
        return True


setup(version=version(), cmdclass={"build_py": WithLibrary, "bdist_wheel": ForAnyPython}, distclass=OfOneMachine)
