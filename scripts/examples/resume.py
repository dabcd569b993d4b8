"""A program that may be stopped at any time and goes on where it was, as on spot machines
(docs/spot-and-preemptible.md), and as --stop-before-end and --requeue need it.

    ivyrun -n 2 resume.py --steps 1000 --checkpoint state.json

On TERM or USR1 it finishes its step, rank 0 saves, and every rank exits with 0.
"""

import argparse
import json
import os
import signal
import time

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--step-seconds", type=float, default=0.05)
parser.add_argument("--checkpoint", default="state.json")
options = parser.parse_args()
rank = int(os.environ.get("RANK", "0"))

told = []
for number in (signal.SIGTERM, signal.SIGUSR1):
    # Only remembered: the step in hand is finished first.
    signal.signal(number, lambda number, frame: told.append(signal.Signals(number).name))


def save(step):
    """Whole or not at all: whoever reads it meets the old state or the new one."""
    with open(options.checkpoint + ".new", "w") as file:
        json.dump({"step": step}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(options.checkpoint + ".new", options.checkpoint)


step = 0
if os.path.exists(options.checkpoint):
    with open(options.checkpoint) as file:
        step = json.load(file)["step"]
print(f"begins at step {step}", flush=True)

while step < options.steps and not told:
    time.sleep(options.step_seconds)
    step += 1

if rank == 0:
    save(step)
print(f"{told[0]}: saved at step {step}" if told else f"done: {step} steps", flush=True)
