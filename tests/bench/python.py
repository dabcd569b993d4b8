# SPDX-License-Identifier: Apache-2.0
"""all_reduce of NumPy's float64 from Python: ivycomm and mpi4py with MPICH and Open MPI, two ranks on this host.

    tests/bench/run python [--runs N] [--most BYTES] [--beside FOLDER]

The in-place form is compared with MPI.IN_PLACE, and the functional form with Allreduce into a new numpy.empty_like. They
run in turn; the figures are medians of all turns. The MPI libraries are PyPI's wheels (scripts/setup frameworks), each
started by its own mpiexec; all use the wheels' NumPy. Then the time of `import ivycomm` after NumPy is measured, also for
another ivycomm in FOLDER (the comm/python of another clone).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.realpath(__file__))
REPOSITORY = os.path.realpath(os.path.join(HERE, "../.."))
IVYRUN = os.path.join(REPOSITORY, "build/bin/ivyrun")
FRAMEWORKS = os.environ.get("IVY_FRAMEWORKS", os.path.join(REPOSITORY, "build/frameworks"))
RANK = os.path.join(HERE, "python_calls.py")
LIMIT_SECONDS = 180
FORMS = ("in place", "functional")


def python_of(name):
    return os.path.join(FRAMEWORKS, name, "bin/python3")


def ours():
    return [IVYRUN, "-n", "2", "-x", "OMP_NUM_THREADS=1", "--python", python_of("mpich"), RANK, "ivycomm"]


def mpi(name, *flags):
    return [os.path.join(FRAMEWORKS, name, "bin/mpiexec"), *flags, "-n", "2", python_of(name), RANK, "mpi4py"]


WAYS = {
    "ivycomm": ours(),
    "MPICH": mpi("mpich"),
    "Open MPI": mpi("openmpi", "--allow-run-as-root", "--oversubscribe"),
}


def run(argv, sizes):
    done = subprocess.run([*argv, *map(str, sizes)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=LIMIT_SECONDS, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode != 0:
        raise SystemExit(f"python: {' '.join(argv)} failed: {(done.stdout + done.stderr)[-800:]}")
    return [json.loads(line[line.index("{"):]) for line in done.stdout.splitlines() if "{" in line]


IMPORTS = """
import time
import numpy
begin = time.perf_counter()
import ivycomm
print(time.perf_counter() - begin)
"""


def import_seconds(packages, times=25):
    """Returns the medians of importing ivycomm after NumPy, for each folder of `packages`, in turn."""
    seconds = {package: [] for package in packages}
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for turn in range(times + 1):
            for package in packages:
                done = subprocess.run([python_of("mpich"), "-c", IMPORTS], capture_output=True, text=True,
                                      env={**environment, "PYTHONPATH": package}, timeout=LIMIT_SECONDS, check=True)
                if turn > 0:  # The first import also compiles the modules.
                    seconds[package].append(float(done.stdout))
    return [statistics.median(seconds[package]) for package in packages]


def size_text(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def microseconds(seconds):
    return f"{1e6 * seconds:.2f}" if seconds < 1e-4 else f"{1e6 * seconds:,.0f}"


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=5)
    options.add_argument("--most", type=int, default=64 << 20, help="the largest size (64 MiB)")
    options.add_argument("--beside", action="append", default=[], metavar="FOLDER",
                         help="the ivycomm of another clone, whose import is measured as well")
    given = options.parse_args()
    for name in ("mpich", "openmpi"):
        if not os.path.exists(python_of(name)):
            raise SystemExit(f"python: {python_of(name)} is not there: scripts/setup frameworks")
    sizes = [size for size in [8 ** power for power in range(1, 9)] + [64 << 20] if size <= given.most]
    times = {}
    for number in range(given.runs):
        for way, argv in WAYS.items():
            print(f"python: run {number + 1} of {given.runs}, {way}", file=sys.stderr, flush=True)
            for line in run(argv, sizes):
                for form in FORMS:
                    times.setdefault((way, form, line["bytes"]), []).append(line[form])
    for form in FORMS:
        print(f"\n| all_reduce, {form} | ivycomm, µs | MPICH | Open MPI | ivycomm ÷ MPICH | ÷ Open MPI |")
        print("|---|---|---|---|---|---|")
        for size in sizes:
            medians = [statistics.median(times[way, form, size]) for way in WAYS]
            print(f"| {size_text(size)} | " + " | ".join(map(microseconds, medians)) +
                  f" | {medians[0] / medians[1]:.2f} | {medians[0] / medians[2]:.2f} |", flush=True)
    own, *others = import_seconds([os.path.join(REPOSITORY, "comm/python"), *given.beside])
    print(f"\n`import ivycomm` takes {1e3 * own:.1f} ms after NumPy.")
    for package, other in zip(given.beside, others):
        print(f"That of {package} takes {1e3 * other:.1f} ms: ratio {own / other:.2f}.")


if __name__ == "__main__":
    main()
