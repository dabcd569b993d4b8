"""A training loop that loses a rank and goes on, in the same processes.

    ivyrun -n 4 --on-failure replace repair.py            # the lost rank is started again and taken in
    ivyrun -n 4 --on-failure shrink repair.py --shrink    # the others go on without it

--lose RANK:STEP kills that rank in that step, to see it happen.
"""

import argparse
import os
import signal

import numpy as np

import ivycomm as ic

LOST = (ic.RankDied, ic.HostLost, ic.Aborted, ic.TransportError)

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--shrink", action="store_true", help="go on without the lost rank")
parser.add_argument("--lose", metavar="RANK:STEP")
options = parser.parse_args()
loses = tuple(int(number) for number in options.lose.split(":")) if options.lose else None


def newest(step, weights):
    """The state of the rank that has come farthest: a newcomer has none, a survivor may be one step behind."""
    steps = ic.all_gather_object(step)
    return ic.broadcast_object((step, weights), src=steps.index(max(steps)))


ic.init()
first_rank = ic.rank()
step, weights = (-1, None) if ic.restart_count() else (0, np.zeros(4))
must_agree = ic.restart_count() > 0  # The survivors agree after their grow(): so does a newcomer, first of all.
while step < options.steps:
    try:
        if must_agree:
            step, weights = newest(step, weights)
            must_agree = False
        if (first_rank, step) == loses and not ic.restart_count():
            os.kill(os.getpid(), signal.SIGKILL)
        gradient = np.full(4, 1.0 + ic.rank())
        # The state changes only when the step is whole.
        step, weights = step + 1, weights + ic.all_reduce(gradient, "mean")
    except LOST as error:
        print(f"in step {step}: {error}", flush=True)
        world = ic.shrink(timeout=60) if options.shrink else ic.grow(timeout=60)
        print(f"goes on as rank {world.rank} of {world.size}", flush=True)
        must_agree = True
print(f"done: step {step}, world {ic.world_size()}, weight {weights[0]:g}", flush=True)
