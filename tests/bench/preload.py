#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the first start and a restart of ranks that import a module, with and without --preload, in turn.

    tests/bench/preload.py [--python build/torch/bin/python3] [--module torch] [--ranks 8] [--rounds 3]

A start lasts from the call of ivyrun, a restart from the failure of a rank, until the last rank has imported the module
and has called a function of it. The pause before a restart is set to 1 ms.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

WORKER = """
import MODULE
import os, sys, time
CALL
attempt, rank = os.environ["IVY_GENERATION"], os.environ["RANK"]
def note(what):
    with open(os.path.join(os.environ["NOTES"], what), "w") as file:
        file.write(str(time.monotonic()))
note("up-%s-%s" % (attempt, rank))
if attempt == "0":
    while len([name for name in os.listdir(os.environ["NOTES"]) if name.startswith("up-0")]) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.01)
    if rank != "0":
        time.sleep(600)
    time.sleep(1)
    note("failed")
    os._exit(3)
"""


def one_run(options, preload):
    """Returns the seconds of the first start and of the restart."""
    call = "torch.ones(10).sum()" if options.module == "torch" else ""
    with tempfile.TemporaryDirectory() as notes:
        script = os.path.join(notes, "train.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(WORKER.replace("MODULE", options.module).replace("CALL", call))
        environment = dict(os.environ, NOTES=notes, IVY_TEST_RESTART_PAUSE="1ms")
        began = time.monotonic()
        subprocess.run([options.ivyrun, "-n", str(options.ranks), "-q", "--max-restarts", "1", "--python", options.python,
                        *(["--preload", options.module] if preload else []), script],
                       env=environment, check=True, stdout=subprocess.DEVNULL)
        times = {}
        for name in os.listdir(notes):
            if name != "train.py" and not name.startswith("."):
                with open(os.path.join(notes, name), encoding="utf-8") as file:
                    times[name] = float(file.read())
    last = [max(at for name, at in times.items() if name.startswith(f"up-{attempt}-")) for attempt in (0, 1)]
    return last[0] - began, last[1] - times["failed"]


def main():
    here = os.path.dirname(os.path.realpath(__file__))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ivyrun", default=f"{here}/../../build/bin/ivyrun")
    parser.add_argument("--python", default=os.path.abspath(f"{here}/../../build/torch/bin/python3"))
    parser.add_argument("--module", default="torch")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    found = {False: [], True: []}
    for number in range(options.rounds + 1):
        for preload in found:
            times = one_run(options, preload)
            print(f"{'with' if preload else 'without'}: start {times[0]:.2f} s, restart {times[1]:.2f} s", file=sys.stderr)
            if number > 0:  # The first round reads the files from the disk.
                found[preload].append(times)
    print(f"| {options.ranks} ranks that import {options.module} | without | with --preload | ratio |\n|---|---|---|---|")
    for index, what in enumerate(("first start", "restart")):
        without, warm = (statistics.median(times[index] for times in found[preload]) for preload in (False, True))
        print(f"| {what} | {without:.2f} s | {warm:.2f} s | {warm / without:.2f} |")


if __name__ == "__main__":
    main()
