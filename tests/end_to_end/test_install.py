# SPDX-License-Identifier: Apache-2.0
"""`cmake --install`: the installed tree can be moved, and C++ programs, workers and pip can use it."""

import importlib.util
import os
import re
import shutil
import subprocess

import pytest

from launching import BIN, REPOSITORY, seconds

BUILD = os.path.dirname(BIN)
EXAMPLE = os.path.join(REPOSITORY, "scripts/examples/all_reduce.cc")


def call(*command, cwd, env=None):
    done = subprocess.run(command, cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True,
                          timeout=seconds(120))
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    if not os.path.exists(os.path.join(BUILD, "cmake_install.cmake")) or shutil.which("cmake") is None:
        pytest.skip("IVY_BIN is not in a build tree")
    first = tmp_path_factory.mktemp("install") / "first"
    call("cmake", "--install", BUILD, "--prefix", str(first), cwd=BUILD)
    moved = first.parent / "moved"  # The installation must not depend on its first path.
    os.rename(first, moved)
    yield str(moved)
    shutil.rmtree(first.parent, ignore_errors=True)


def run_installed(local, prefix, *arguments):
    return local.run_program(os.path.join(prefix, "bin/ivyrun"), *arguments, limit=60)


def check_example(local, prefix, program):
    done = run_installed(local, prefix, "-n", "2", program)
    assert done.code == 0 and sorted(done.texts_by_rank()) == [0, 1], done
    assert b"rank 0 of 2: sum 3, right" in done.out, done


def test_man_pages_and_completions_are_installed(prefix):
    for program in ("ivyrun", "ivyctl", "ivy-agent", "ivy-rendezvous"):
        for place in (f"man/man1/{program}.1", f"bash-completion/completions/{program}",
                      f"zsh/site-functions/_{program}", f"fish/vendor_completions.d/{program}.fish"):
            with open(os.path.join(prefix, "share", place), encoding="utf-8") as stream:
                assert program in stream.read().replace("\\-", "-"), place


def test_the_probe_is_installed(local, prefix):
    assert os.access(os.path.join(prefix, "bin/ivy-probe"), os.X_OK)
    assert os.access(os.path.join(prefix, "bin/ivy-pmix"), os.X_OK)
    done = run_installed(local, prefix, "-n", "2", "--bind-to", "core", "--report-bindings", "/bin/true")
    assert done.code == 0 and "rank 1 on localhost: processors " in done.own_text(), done


def test_cplusplus_by_cmake(local, prefix):
    local.file("CMakeLists.txt", f"""cmake_minimum_required(VERSION 3.16)
project(example LANGUAGES CXX)
set(CMAKE_CXX_STANDARD 20)
find_package(ivy 0.1 REQUIRED)
add_executable(all_reduce {EXAMPLE})
target_compile_options(all_reduce PRIVATE -Wall -Wextra -Werror)
target_link_libraries(all_reduce PRIVATE ivy::comm)
""")
    call("cmake", "-S", ".", "-B", "build", f"-DCMAKE_PREFIX_PATH={prefix}", cwd=local.directory)
    call("cmake", "--build", "build", cwd=local.directory)
    check_example(local, prefix, os.path.join(local.directory, "build/all_reduce"))


def test_cplusplus_by_pkg_config(local, prefix):
    if shutil.which("pkg-config") is None:
        pytest.skip("pkg-config is not installed")
    flags = call("pkg-config", "--cflags", "--libs", "ivycomm", cwd=local.directory,
                 env={"PKG_CONFIG_PATH": os.path.join(prefix, "lib/pkgconfig")}).split()
    call("c++", "-std=c++20", EXAMPLE, *flags, f"-Wl,-rpath,{prefix}/lib", "-o", "all_reduce", cwd=local.directory)
    check_example(local, prefix, os.path.join(local.directory, "all_reduce"))


def test_workers_find_the_installed_package(local, prefix):
    done = run_installed(local, prefix, "-n", "1", "/usr/bin/python3", "-B", "-c",
                         "import ivycomm; from ivycomm import library\n"
                         "print(ivycomm.__file__, library.path(), ivycomm.init().size)")
    assert done.code == 0, done
    package, library, size = done.out_lines[-1].split()[-3:]
    assert package.startswith(prefix + "/lib/ivyrun/python/ivycomm/"), done
    assert library == prefix + "/lib/libivycomm.so.1" and size == "1", done


def test_the_wheel_holds_the_library(local, prefix):
    if not all(importlib.util.find_spec(name) for name in ("pip", "setuptools", "wheel")):
        pytest.skip("python3-pip, python3-setuptools and python3-wheel are not installed")
    source = os.path.join(local.directory, "comm/python")
    shutil.copy(os.path.join(REPOSITORY, "CMakeLists.txt"), local.directory)  # The version is defined there.
    shutil.copytree(os.path.join(REPOSITORY, "comm/python"), source,
                    ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    call("/usr/bin/python3", "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index", "--quiet",
         "--disable-pip-version-check", "-w", local.directory, source, cwd=local.directory,
         env={"IVY_LIBRARY": os.path.join(prefix, "lib/libivycomm.so.1")})
    made, = (name for name in os.listdir(local.directory) if name.endswith(".whl"))
    with open(os.path.join(REPOSITORY, "CMakeLists.txt"), encoding="utf-8") as file:
        version = re.search(r"^project\(ivyrun VERSION ([0-9.]+)", file.read(), re.M)[1]
    assert made.startswith(f"ivycomm-{version}-py3-none-linux_"), made
    place = os.path.join(local.directory, "site")
    call("/usr/bin/python3", "-m", "pip", "install", "--no-deps", "--no-index", "--quiet", "--disable-pip-version-check",
         "--target", place, os.path.join(local.directory, made), cwd=local.directory)
    done = local.run_program("/usr/bin/python3", "-B", local.script("comm_world.py"),
                             env={"PYTHONPATH": place})
    assert done.code == 0 and done.out_lines[-1:] == ["all equal"], done
    done = local.run_program("/usr/bin/python3", "-B", "-c",
                             "import ivycomm; from ivycomm import library\n"
                             "print(library.path(), ivycomm.__version__)",
                             env={"PYTHONPATH": place})
    assert done.out_lines == [os.path.join(place, "ivycomm/libivycomm.so.1") + f" {version}"], done
    assert not [name for name in os.listdir(place) if name.endswith(".pth")]
    # Rank 0 starts the store that is in the wheel.
    words = ("/usr/bin/python3", "-B", "-c", "import sys, ivycomm as ic\n"
             f"ic.init('file://{local.directory}/meet', rank=int(sys.argv[1]), world_size=2, timeout=60)\n"
             "print(ic.all_gather_object(ic.rank()))")
    with local.start_program(*words, "0", env={"PYTHONPATH": place}) as first:
        other = local.run_program(*words, "1", env={"PYTHONPATH": place})
        for done in (first.finish(), other):
            assert done.code == 0 and done.out_lines == ["[0, 1]"], done
