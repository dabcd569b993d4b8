"""A training loop of ivycomm that repairs its world when a host is lost, and prints its state.

    comm_lost_host.py STEPS FILE      rank 0 reads the state of step 20 only when FILE exists
"""

import os
import sys
import time

import numpy as np

import ivycomm as ic

LOST = (ic.RankDied, ic.HostLost, ic.Aborted, ic.TransportError)
steps, go = int(sys.argv[1]), sys.argv[2]

ic.init()
restarts = ic.restart_count()
step, weights = (-1, None) if restarts else (0, np.zeros(4))
must_agree = restarts > 0
print(f"up {ic.rank()} pid {os.getpid()} rejoin {restarts} attempt {os.environ['IVY_GENERATION']}", flush=True)
while step < steps:
    try:
        if must_agree:
            known = ic.all_gather_object(step)
            step, weights = ic.broadcast_object((step, weights), src=known.index(max(known)))
            must_agree = False
        step, weights = step + 1, weights + ic.all_reduce(np.full(4, 1.0 + ic.rank()), "mean")
        if step == 20 and ic.rank() == 0:
            print("waits at step 20", flush=True)
            while not os.path.exists(go):
                time.sleep(0.02)
    except LOST:
        ic.grow(timeout=60)
        must_agree = True
print(f"done: rank {ic.rank()}, step {step}, world {ic.world_size()}, weight {weights[0]:g}", flush=True)
