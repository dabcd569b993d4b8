#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks whether ivyrun names the first of ten ranks of one host that fail shortly after each other in a random order.

    chrt -r 3 tests/bench/first.py [--rounds N] [--gaps MS,MS,...]

Each rank records the time right before it exits; the exit code shows the rank that ivyrun names. With real-time priority
the ranks fail on time even on a busy machine.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time

RANKS = 10
WORKER = """
import os, time
rank = int(os.environ["RANK"])
due = float(os.environ["GO"]) + os.environ["ORDER"].split(",").index(str(rank)) * float(os.environ["GAP"])
note = os.open(f"{os.environ['NOTES']}/{rank}", os.O_CREAT | os.O_WRONLY)
time.sleep(max(0, due - time.monotonic()))
os.write(note, b"%d" % time.monotonic_ns())
os._exit(10 + rank)
"""


def one_round(ivyrun, gap):
    """Returns the seconds by which the named rank failed later than the first one; 0 if they are the same."""
    order = random.sample(range(RANKS), RANKS)
    with tempfile.TemporaryDirectory() as notes:
        environment = dict(os.environ, GO=str(time.monotonic() + 2), GAP=str(gap), NOTES=notes,
                           ORDER=",".join(map(str, order)))
        done = subprocess.run([ivyrun, "-n", str(RANKS), "-q", sys.executable, "-S", "-c", WORKER],
                              env=environment, capture_output=True, check=False)
        failed = {}
        for rank in os.listdir(notes):
            with open(f"{notes}/{rank}", encoding="ascii") as note:
                failed[int(rank)] = int(note.read() or 0)
    # A rank that was stopped before it failed has not written a time.
    failed = {rank: at for rank, at in failed.items() if at}
    return (failed[done.returncode - 10] - min(failed.values())) / 1e9


def main():
    here = os.path.dirname(os.path.realpath(__file__))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ivyrun", default=f"{here}/../../build/bin/ivyrun")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--gaps", default="10,2,1,0.5", help="milliseconds")
    options = parser.parse_args()
    for gap in map(float, options.gaps.split(",")):
        late = [one_round(options.ivyrun, gap / 1000) for _ in range(options.rounds)]
        wrong = ", ".join(f"{seconds * 1000:.2f}" for seconds in late if seconds)
        print(f"{gap:g} ms apart: the first was named {late.count(0)} of {len(late)} times"
              + (f"; the others failed later by {wrong} ms" if wrong else ""), flush=True)


if __name__ == "__main__":
    main()
