#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how long a job with a spare host takes from the loss of a host to the next step.

    tests/bench/lost_host.py [--rounds N] [--bin DIRECTORY]

Runs four ranks of ivycomm on two of three simulated hosts, kills the supervisor of the second host with SIGKILL, and
takes the time until rank 0 has finished another step with all ranks: when all workers start again, and with --on-failure
replace. Prints the median, the lowest and the highest time of each.
"""

import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = """
import os, time
import numpy as np
import ivycomm as ic
ic.init()
step, world = 0, int(os.environ["IVY_GENERATION"])
while True:
    try:
        ic.all_reduce(np.ones(4), "sum")
        step += 1
        if ic.rank() == 0: print("step", step, "of world", world, "at", time.monotonic(), flush=True)
        time.sleep(0.005)
    except (ic.RankDied, ic.HostLost, ic.Aborted, ic.TransportError):
        ic.grow(timeout=60)
        world += 1
"""


def children(pid):
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat") as stat:
                name, rest = stat.read().rsplit(")", 1)
        except OSError:
            continue
        if int(rest.split()[1]) == pid:
            found.append((int(entry), name.split("(", 1)[1]))
    return found


def supervisors(pid):
    """Returns the supervisors below a launcher, in the order of their starts."""
    found = []
    for child, name in children(pid):
        found += [child] if name.startswith("ivy-supervis") else []
        found += supervisors(child)
    return sorted(found)


def measure(ivyrun, mode, directory):
    """Returns the seconds from the kill to the next step of rank 0."""
    program = os.path.join(directory, "steps.py")
    with open(program, "w") as file:
        file.write(PROGRAM)
    flags = ["--on-failure", "replace"] if mode == "replace" else []
    with subprocess.Popen([ivyrun, "--fake-hosts", "3", "--spares", "1", "--nproc-per-node", "2", *flags, sys.executable,
                           program],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as job:
        killed = None
        for line in job.stdout:
            step = re.search(r"step (\d+) of world (\d+) at ([\d.]+)$", line)
            if not step:
                continue
            if killed is None and int(step[1]) == 50:
                victim = supervisors(job.pid)[1]
                killed = time.monotonic()
                os.kill(victim, signal.SIGKILL)
            elif int(step[2]) > 0:
                job.send_signal(signal.SIGINT)
                job.send_signal(signal.SIGINT)
                return float(step[3]) - killed
    raise SystemExit("the job ended before the next step")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bin", default=os.path.join(REPOSITORY, "build/bin"))
    options = parser.parse_args()
    print("| mode | median | lowest | highest |\n|---|---|---|---|")
    for mode in ("restart", "replace"):
        times = []
        for number in range(options.rounds):
            with tempfile.TemporaryDirectory() as directory:
                times.append(measure(os.path.join(options.bin, "ivyrun"), mode, directory))
            print(f"{mode} {number}: {times[-1]:.3f} s", file=sys.stderr)
        print(f"| {mode} | {statistics.median(times):.2f} s | {min(times):.2f} s | {max(times):.2f} s |")


if __name__ == "__main__":
    main()
