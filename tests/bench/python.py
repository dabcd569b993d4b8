# SPDX-License-Identifier: Apache-2.0
"""all_reduce of NumPy's float64 from Python: ivycomm beside mpi4py on MPICH and on Open MPI, two ranks of this host.

    tests/bench/run python [--runs N] [--most BYTES]

In place beside MPI.IN_PLACE, functional beside Allreduce into a fresh numpy.empty_like; each in turn, and the medians
of all turns. Then what `import ivycomm` takes after NumPy. PyPI's
wheels (scripts/setup frameworks), each started by its own mpiexec; NumPy is theirs for all.
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
import sys, time
begin = time.perf_counter()
import numpy
middle = time.perf_counter()
import ivycomm
print(middle - begin, time.perf_counter() - middle)
"""


def import_seconds(times=15):
    """Medians of importing NumPy and ivycomm after it, each in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.path.join(REPOSITORY, "comm/python"), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    pairs = []
    with tempfile.TemporaryDirectory() as folder:  # Where the compiled modules are kept from the first time on.
        environment["PYTHONPYCACHEPREFIX"] = folder
        for _ in range(times):
            done = subprocess.run([python_of("mpich"), "-c", IMPORTS], capture_output=True, text=True, env=environment,
                                  timeout=LIMIT_SECONDS, check=True)
            pairs.append([float(word) for word in done.stdout.split()])
    return [statistics.median(column) for column in zip(*pairs)]


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
        print(f"\n| all_reduce, {form} | ivycomm, µs | by ctypes | MPICH | Open MPI | ivycomm ÷ MPICH | ÷ Open MPI |")
        print("|---|---|---|---|---|---|---|")
        for size in sizes:
            medians = [statistics.median(times[way, form, size]) for way in WAYS]
            print(f"| {size_text(size)} | " + " | ".join(map(microseconds, medians)) +
                  f" | {medians[0] / medians[2]:.2f} | {medians[0] / medians[3]:.2f} |", flush=True)
    numpy, ivycomm = import_seconds()
    print(f"\n`import ivycomm` takes {1e3 * ivycomm:.1f} ms after NumPy, which takes {1e3 * numpy:.1f}.")


if __name__ == "__main__":
    main()
