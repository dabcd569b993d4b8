"""Rank 0 keeps the parameters; the other ranks fetch them, compute gradients, and send those as remote calls.

    ivyrun -n 3 parameter_server.py
    ivyrun --fake-hosts 2 --nproc_per_node 2 parameter_server.py

Learns a line from noisy points. Every worker goes at its own pace: nobody waits for a slower one.
"""

import threading

import ivycomm as ic
import numpy as np
from ivycomm import rpc

parameters, lock = np.zeros(2), threading.Lock()


@rpc.register
def fetch():
    with lock:
        return parameters.copy()


@rpc.register
def push(gradient, rate=0.05):
    with lock:
        parameters.__isub__(rate * gradient)


def work(steps=200):
    rng = np.random.default_rng(ic.rank())
    for _ in range(steps):
        slope, offset = rpc.rpc_sync(0, fetch)
        x = rng.uniform(-1, 1, 32)
        error = slope * x + offset - (3 * x + 1 + rng.normal(0, 0.1, 32))
        rpc.rpc_sync(0, push, np.array([(error * x).mean(), error.mean()]) * 2)


def main():
    ic.init()
    if ic.world_size() < 2:
        raise SystemExit("a parameter server needs a worker: ivyrun -n 2 parameter_server.py")
    rpc.init_rpc()
    if ic.rank() > 0:
        work()
    ic.barrier()
    if ic.rank() == 0:
        print(f"y = {parameters[0]:.2f} x + {parameters[1]:.2f}, learnt by {ic.world_size() - 1} workers")
        assert np.allclose(parameters, [3, 1], atol=0.2), parameters
    rpc.shutdown()


if __name__ == "__main__":
    main()
