#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""mpi4py's own public test suite, under ivyrun and under the same library's mpiexec, test by test.

    tests/frameworks/mpi4py_suite.py mpich [-n 4] [-- ARGUMENTS OF ITS main.py, such as -i p2p]
    tests/frameworks/mpi4py_suite.py openmpi --under ivyrun
    tests/frameworks/mpi4py_suite.py mpich --by-file 120 [--files 'test_p2p*']

Downloads the sources of build/frameworks/LIBRARY's mpi4py with pip and prints the tests that have different results
under the two launchers. The exit code is 1 if a test fails under ivyrun and passes under mpiexec. It takes 5 to 20
minutes for each launcher on a machine with a processor for each rank. With fewer processors, spinning ranks may need an
hour. `--by-file` then runs each test file separately, under one launcher after the other, with a time limit in seconds,
and prints a row for each. If a file exceeds its limit under both launchers, this does not count as a difference. If it
exceeds it under only one, it is run again there with twice the limit. MPI_Comm_spawn and the like are left out; see
docs/mpi.md.
"""

import argparse
import collections
import glob
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time

HERE = os.path.dirname(os.path.realpath(__file__))
REPOSITORY = os.path.dirname(os.path.dirname(HERE))
FRAMEWORKS = os.environ.get("IVY_FRAMEWORKS") or os.path.join(REPOSITORY, "build/frameworks")
IVYRUN = os.path.join(os.environ.get("IVY_BIN") or os.path.join(REPOSITORY, "build/bin"), "ivyrun")
RANK = os.path.join(HERE, "scripts/mpi4py_suite_rank.py")
# Both start processes during the job, which ivyrun does not support.
LEFT_OUT = ["-e", "spawn", "-e", "dynproc"]


def sources_of(python, folder):
    """Downloads and unpacks the sources of this interpreter's version of mpi4py, and returns their directory."""
    version = subprocess.run([python, "-c", "import importlib.metadata as m; print(m.version('mpi4py'))"],
                             check=True, capture_output=True, text=True).stdout.strip()
    subprocess.run([python, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:",
                    "-d", folder, f"mpi4py=={version}"], check=True)
    with tarfile.open(os.path.join(folder, f"mpi4py-{version}.tar.gz")) as archive:
        archive.extractall(folder)
    return os.path.join(folder, f"mpi4py-{version}")


def command_of(launcher, python, ranks):
    if launcher == "ivyrun":
        return [IVYRUN, "-n", str(ranks), "--python", python]
    mpiexec = [os.path.join(os.path.dirname(python), "mpiexec"), "-n", str(ranks)]
    return mpiexec + (["--allow-run-as-root", "--oversubscribe"] if "openmpi" in python else []) + [python]


def outcomes(folder):
    """Returns each test's worst result of all ranks, in the order ok, skip, begin (it did not end), fail."""
    order = ["ok", "skip", "begin", "fail"]
    found = collections.defaultdict(lambda: "ok")
    for rank in os.listdir(folder):
        own = {}
        with open(os.path.join(folder, rank)) as notes:
            for line in notes:
                what, _, test = line.strip().partition(" ")
                if what in order and not (own.get(test) == "fail" and what == "ok"):
                    own[test] = what
        for test, what in own.items():
            found[test] = max(found[test], what, key=order.index)
    return dict(found)


def end_of(process, folder):
    """Stops a launcher and the ranks that it leaves behind, which have the directory in their arguments."""
    process.terminate()
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for name in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(name, "rb") as arguments:
                if folder.encode() in arguments.read().split(b"\0"):
                    os.kill(int(name.split("/")[2]), signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            pass


class Run(collections.namedtuple("Run", "code seconds found")):
    """The result of a run. `code` is None if the time limit was exceeded."""

    def is_over(self):
        return self.code is not None

    def cell(self):
        counts = collections.Counter(self.found.values())
        numbers = ", ".join(f"{counts[what]} {what}" for what in ("ok", "skip", "fail", "begin") if counts[what])
        return f"{numbers or 'none'} in {self.seconds:.0f} s" + ("" if self.is_over() else ", not to its end")


def run(launcher, wanted, sources, only=(), bound=None):
    """Runs the suite under a launcher. `only` are arguments of main.py that select tests."""
    with tempfile.TemporaryDirectory(prefix="ivytest-mpi4py-") as folder:
        began = time.monotonic()
        command = [*command_of(launcher, python_of(wanted), wanted.n), RANK, folder, "test/main.py", *LEFT_OUT, *only,
                   *wanted.rest]
        process = subprocess.Popen(command, cwd=sources, stdin=subprocess.DEVNULL,
                                   stdout=wanted.log or sys.stderr, stderr=wanted.log)
        try:
            code = process.wait(timeout=bound or wanted.timeout)
        except subprocess.TimeoutExpired:
            end_of(process, folder)
            code = None
        return Run(code, time.monotonic() - began, outcomes(folder))


def differences(ours, theirs):
    """Returns a line for each test with different results, and whether ivyrun's are worse. Tests that were cut off by the time
    limit do not count."""
    lines, is_worse = [], False
    for test in sorted(ours.found.keys() | theirs.found.keys()):
        pair = [of.found.get(test, "not run") for of in (ours, theirs)]
        is_cut = any(not of.is_over() and what in ("not run", "begin") for of, what in zip((ours, theirs), pair))
        if pair[0] != pair[1] and not is_cut:
            lines.append(f"{test}: {pair[0]} under ivyrun, {pair[1]} under mpiexec")
            is_worse |= pair[1] in ("ok", "skip") and pair[0] not in ("ok", "skip")
    return lines, is_worse


def whole(wanted, sources):
    launchers = [wanted.under] if wanted.under else ["ivyrun", "mpiexec"]
    runs = []
    for launcher in launchers:
        runs.append(run(launcher, wanted, sources))
        print(f"{launcher}: exit code {runs[-1].code}, {runs[-1].cell()}", flush=True)
    if wanted.under:
        return not runs[0].is_over() or any(what in ("fail", "begin") for what in runs[0].found.values())
    lines, is_worse = differences(*runs)
    print("\n".join(lines))
    return is_worse or not runs[0].is_over()


def one_file(name, wanted, sources):
    """Returns the file's runs under ivyrun and under mpiexec."""
    def under(launcher, bound):
        return run(launcher, wanted, sources, ["-i", f"^{name}$"], bound)

    ours, theirs = under("ivyrun", wanted.by_file), under("mpiexec", wanted.by_file)
    if ours.is_over() and not theirs.is_over():
        theirs = under("mpiexec", 2 * wanted.by_file)
    elif theirs.is_over() and not ours.is_over():
        ours = under("ivyrun", 2 * wanted.by_file)
    return ours, theirs


def file_by_file(wanted, sources):
    print("| file | ivyrun | mpiexec |\n|---|---|---|", flush=True)
    lines, is_worse, sums = [], False, [collections.Counter(), collections.Counter()]
    for name in sorted({name for pattern in wanted.files for name in glob.glob(pattern, root_dir=f"{sources}/test")}):
        if any(word in name for word in LEFT_OUT[1::2]):
            continue
        ours, theirs = one_file(name, wanted, sources)
        print(f"| {name} | {ours.cell()} | {theirs.cell()} |", flush=True)
        for counts, of in zip(sums, (ours, theirs)):
            counts.update(of.found.values())
        more, is_file_worse = differences(ours, theirs)
        lines += more
        is_worse |= is_file_worse or (theirs.is_over() and not ours.is_over())
    print(f"| all | {dict(sums[0])} | {dict(sums[1])} |\n" + "\n".join(lines), flush=True)
    return is_worse


def python_of(wanted):
    return os.path.join(FRAMEWORKS, wanted.library, "bin/python3")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", choices=["mpich", "openmpi", "impi"])
    parser.add_argument("-n", type=int, default=4, help="ranks (4)")
    parser.add_argument("--under", choices=["ivyrun", "mpiexec"], help="one launcher alone, without a comparison")
    parser.add_argument("--sources", metavar="FOLDER", help="the unpacked sources of mpi4py, instead of fetching them")
    parser.add_argument("--timeout", type=float, default=3600, metavar="SECONDS", help="for each launcher (3600)")
    parser.add_argument("--by-file", type=float, metavar="SECONDS", help="file by file, with this bound for each")
    parser.add_argument("--files", default=["test_*.py"], nargs="+", metavar="PATTERN",
                        help="with --by-file: these alone")
    parser.add_argument("--log", type=argparse.FileType("ab"), metavar="FILE", help="for what the launchers print")
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    wanted = parser.parse_args(sys.argv[1:split])
    wanted.rest = sys.argv[split + 1:]
    if not os.path.exists(python_of(wanted)):
        sys.exit(f"{python_of(wanted)} is not there: scripts/setup frameworks")
    with tempfile.TemporaryDirectory(prefix="ivytest-mpi4py-") as folder:
        sources = wanted.sources or sources_of(python_of(wanted), folder)
        sys.exit(file_by_file(wanted, sources) if wanted.by_file else whole(wanted, sources))


if __name__ == "__main__":
    main()
