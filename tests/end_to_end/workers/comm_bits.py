"""Reduces numbers whose sum depends on the order of additions, and prints a hash of the bytes of each result."""

import hashlib
import platform

import numpy as np

import ivycomm as ic
from comm_leave import leave

COUNTS = (1, 7, 1000, 300_000)  # Short ones and long ones use different algorithms.
DTYPES = ("int8", "int32", "int64", "float16", "float32", "float64", "complex64", "complex128")


def numbers(dtype, count):
    source = np.random.default_rng([DTYPES.index(dtype), count, ic.rank()])
    if dtype.startswith("int"):
        return source.integers(-100, 100, count).astype(dtype)
    made = source.uniform(-1, 1, count) * 10.0 ** source.integers(-3, 3, count)
    # Processors differ in the bits of the NaN that is inf - inf.
    made[::3] = source.choice((np.inf, -np.inf, np.nan, 0.0, -0.0), made[::3].shape)
    if dtype.startswith("complex"):
        made = made + 1j * source.uniform(-1, 1, count)
    return made.astype(dtype)


def operations(dtype):
    common = ("sum", "product", "mean")
    return common if dtype.startswith("complex") else (*common, "min", "max")


ic.init()
for dtype in DTYPES:
    for count in COUNTS:
        for op in operations(dtype):
            result = ic.all_reduce(numbers(dtype, count), op)
            print(dtype, count, op, hashlib.sha256(result.tobytes()).hexdigest(), flush=True)
# The job's store, between ranks of different hosts.
store, half = ic.store(), ic.world_size() // 2
store.set(f"bits/{ic.rank()}", platform.machine())
other = (ic.rank() + half) % ic.world_size()
print("stored", store.get(f"bits/{other}", timeout=60).decode(), flush=True)
leave("all equal")
