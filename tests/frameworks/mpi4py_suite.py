#!/usr/bin/python3
"""mpi4py's own public test suite, under ivyrun and under the same library's mpiexec, test by test.

    tests/frameworks/mpi4py_suite.py mpich [-n 4] [-- ARGUMENTS OF ITS main.py, such as -i p2p]
    tests/frameworks/mpi4py_suite.py openmpi --under ivyrun

Fetches the sources of the mpi4py of build/frameworks/LIBRARY by pip and prints which tests end otherwise
under one launcher than under the other. Exit code 1: ivyrun fails one that mpiexec passes. It takes 5 to 20 minutes
for each launcher. MPI_Comm_spawn and the like are left out: docs/mpi.md says why.
"""

import argparse
import collections
import os
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
# Both start processes while the job runs, which ivyrun does not serve.
LEFT_OUT = ["-e", "spawn", "-e", "dynproc"]


def sources_of(python, folder):
    """The unpacked sources of the version that this interpreter has."""
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
    """What each test came to on the worst rank: fail before skip before ok; `begun` where it did not end."""
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


def run(launcher, wanted, python, sources):
    with tempfile.TemporaryDirectory(prefix="ivytest-mpi4py-") as folder:
        began = time.monotonic()
        command = [*command_of(launcher, python, wanted.n), RANK, folder, "test/main.py", *LEFT_OUT, *wanted.rest]
        code = subprocess.run(command, cwd=sources, stdout=sys.stderr, timeout=wanted.timeout).returncode
        found = outcomes(folder)
        counts = collections.Counter(found.values())
        print(f"{launcher}: exit code {code}, {dict(counts)} in {time.monotonic() - began:.0f} s", flush=True)
        return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", choices=["mpich", "openmpi", "impi"])
    parser.add_argument("-n", type=int, default=4, help="ranks (4)")
    parser.add_argument("--under", choices=["ivyrun", "mpiexec"], help="one launcher alone, without a comparison")
    parser.add_argument("--sources", metavar="FOLDER", help="the unpacked sources of mpi4py, instead of fetching them")
    parser.add_argument("--timeout", type=float, default=3600, metavar="SECONDS", help="for each launcher (3600)")
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    wanted = parser.parse_args(sys.argv[1:split])
    wanted.rest = sys.argv[split + 1:]
    python = os.path.join(FRAMEWORKS, wanted.library, "bin/python3")
    if not os.path.exists(python):
        sys.exit(f"{python} is not there: scripts/setup frameworks")
    with tempfile.TemporaryDirectory(prefix="ivytest-mpi4py-") as folder:
        sources = wanted.sources or sources_of(python, folder)
        launchers = [wanted.under] if wanted.under else ["ivyrun", "mpiexec"]
        found = [run(launcher, wanted, python, sources) for launcher in launchers]
    if wanted.under:
        sys.exit(any(what in ("fail", "begin") for what in found[0].values()))
    ours, theirs = found
    is_worse = False
    for test in sorted(ours.keys() | theirs.keys()):
        pair = ours.get(test, "not run"), theirs.get(test, "not run")
        if pair[0] != pair[1]:
            print(f"{test}: {pair[0]} under ivyrun, {pair[1]} under mpiexec")
            is_worse |= pair[1] in ("ok", "skip") and pair[0] not in ("ok", "skip")
    sys.exit(is_worse)


if __name__ == "__main__":
    main()
