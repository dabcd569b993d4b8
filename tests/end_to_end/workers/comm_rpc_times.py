"""Times of remote calls, printed by rank 0 as JSON: seconds of a call with a number and with a tensor of 8 bytes (best of
five medians), and of 1 GiB in a NumPy array by a call and by a message into memory that has been written before (best of
five each, in turn)."""

import json
import statistics
import time

import ivycomm as ic
import numpy as np
import torch
from ivycomm import rpc

LARGE = 1 << 30


@rpc.register
def length(value):
    return 8 if isinstance(value, float) else len(value)


def seconds_of(function, *arguments):
    began = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - began


def call(value):
    return seconds_of(rpc.rpc_sync, 1, length, value)


def small(value):
    return min(statistics.median(call(value) for _ in range(1000)) for _ in range(5))


def message(value, place):
    """Sends the array and receives a byte back."""
    if ic.rank() == 0:
        ic.send(value, 1)
        ic.recv_(place, 1)
    else:
        ic.recv_(value, 0)
        ic.send(place, 0)


def main():
    ic.init()
    rpc.init_rpc()
    value, place = np.ones(LARGE, np.uint8), np.ones(1, np.uint8)
    times = {}
    if ic.rank() == 0:
        times = {"number": small(1.5), "tensor": small(torch.ones(1, dtype=torch.float64))}
        call(value)
    calls, messages = [], []
    message(value, place)
    for _ in range(5):
        ic.barrier()
        if ic.rank() == 0:
            calls.append(call(value))
        ic.barrier()
        messages.append(seconds_of(message, value, place))
    if ic.rank() == 0:
        print(json.dumps({**times, "calls": calls, "messages": messages}), flush=True)
    rpc.shutdown()


if __name__ == "__main__":
    main()
