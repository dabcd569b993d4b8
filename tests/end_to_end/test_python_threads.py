# SPDX-License-Identifier: Apache-2.0
"""Threads and signal handlers that change the arguments of the Python package's calls.

Each scenario of workers/comm_threads.py runs under the ordinary Python and under a free-threaded one, with the release
build and with one of AddressSanitizer:

    cmake -B build -DIVY_FREE_THREADED_PYTHON=python3.14t && cmake --build build        # one that has NumPy
    cmake --preset asan -DIVY_FREE_THREADED_PYTHON=python3.14t && cmake --build build-asan --target ivycomm
    IVY_FREE_THREADED_PYTHON=python3.14t /usr/bin/python3 -m pytest --long tests/end_to_end/test_python_threads.py
"""

import os
import re
import shutil
import subprocess

import pytest

from launching import BIN, REPOSITORY

has_numpy = os.path.isdir("/usr/lib/python3/dist-packages/numpy")
TORCH = os.environ.get("IVY_TORCH_PYTHON") or os.path.join(REPOSITORY, "build/torch/bin/python3")
FREE_THREADED = shutil.which(os.environ.get("IVY_FREE_THREADED_PYTHON") or "")
ASAN_LIBRARY = os.path.join(REPOSITORY, "build-asan/lib/libivycomm.so.1")
CALM = ("-x", "OMP_NUM_THREADS=1")
LIMIT = 120

SCENARIOS = ("changed_lists", "emptied_lists", "resized_arrays", "resized_between_calls", "several_groups", "freed_groups",
             "dropped_groups", "waits_for_one_work", "raising_handlers", "ended_worlds", "pending_at_exit")

PYTHONS = [
    pytest.param((), id="ordinary", marks=pytest.mark.skipif(not has_numpy, reason="python3-numpy is not installed")),
    pytest.param(("--python", FREE_THREADED, "-x", "FREE_THREADED=1"), id="free_threaded", marks=pytest.mark.skipif(
        FREE_THREADED is None, reason="IVY_FREE_THREADED_PYTHON names no free-threaded Python that has NumPy"))]


def check(local, scenario, *flags, limit=LIMIT):
    done = local.run("-n", "2", *CALM, *flags, local.script("comm_threads.py"), scenario, limit=limit)
    assert done.code == 0 and "AddressSanitizer" not in done.err_text, done
    said = done.texts_by_rank()
    assert len(said) == 2 and all(lines[-1] == "went on" for lines in said.values()), done


@pytest.mark.long
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_threads_change_arguments_during_calls(local, scenario, python):
    check(local, scenario, *python)


@pytest.mark.skipif(FREE_THREADED is None, reason="IVY_FREE_THREADED_PYTHON names no free-threaded Python")
def test_a_free_threaded_python_without_its_extension_gets_the_command_that_builds_it(local):
    os.symlink(os.path.realpath(os.path.join(os.path.dirname(BIN), "lib/libivycomm.so.1")),
               os.path.join(local.directory, "libivycomm.so.1"))
    done = local.run_program(FREE_THREADED, "-B", "-c", "import ivycomm.groups\n"
                             "ivycomm.groups.places = lambda: []\n"
                             "ivycomm.init()",
                             env={"PYTHONPATH": os.path.join(REPOSITORY, "comm/python"),
                                  "IVY_LIBRARY": os.path.join(local.directory, "libivycomm.so.1")})
    assert done.code == 1 and re.search(r"extension ivycomm_calls\.cpython-3\d+t.* is missing", done.err_text), done
    assert f"cmake -B build -DIVY_FREE_THREADED_PYTHON={FREE_THREADED}" in done.err_text, done


@pytest.mark.long
@pytest.mark.skipif(not os.path.exists(TORCH), reason="build/torch has no torch: scripts/setup torch")
@pytest.mark.parametrize("scenario", ["changed_lists", "emptied_lists", "replaced_tensors"])
def test_threads_change_tensors(local, scenario):
    check(local, scenario, "--python", TORCH)


def sanitizer():
    """Returns the path of the compiler's AddressSanitizer, which must be loaded before Python."""
    return subprocess.run(["c++", "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()


@pytest.mark.long
@pytest.mark.skipif(not os.path.exists(ASAN_LIBRARY), reason="build-asan has no libivycomm: scripts/test --asan")
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_memory_is_used_after_free(local, scenario, python):
    """Python leaks by design, and its own allocator would hide uses after free."""
    settings = {"LD_PRELOAD": sanitizer(), "IVY_LIBRARY": ASAN_LIBRARY, "ROUNDS": "8",
                "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1"}
    if FREE_THREADED not in python:  # Free-threaded builds have only one allocator.
        settings["PYTHONMALLOC"] = "malloc"
    check(local, scenario, *python, *(word for name, value in settings.items() for word in ("-x", f"{name}={value}")),
          limit=3 * LIMIT)
