# SPDX-License-Identifier: Apache-2.0
"""Remote calls compared with torch.distributed.rpc (TensorPipe), and messages compared with MPI's, two ranks on this host.

    tests/bench/run rpc [--runs N] [--most BYTES]

A call sends a number or a tensor from rank 0 to rank 1, whose function returns its length. For comparison, the tensor is
also copied into new memory in one process. The time of a message is half of a round trip. All ways run in turn; the
figures are medians of all turns. Remote calls run on torch's interpreter.
"""

import argparse
import os
import statistics
import sys

from python import FRAMEWORKS, HERE, IVYRUN, REPOSITORY, microseconds, mpi, python_of, run, size_text

RANK = os.path.join(HERE, "rpc_calls.py")
TORCH = os.environ.get("IVY_TORCH_PYTHON", os.path.join(REPOSITORY, "build/torch/bin/python3"))
SIZES = [0, 8, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20, 1 << 30]


def by_ivyrun(python, way):
    return [IVYRUN, "-n", "2", "-x", "OMP_NUM_THREADS=1", "--python", python, RANK, way]


def by_mpi(name, *flags):
    return [*mpi(name, *flags)[:-2], RANK, "mpi4py"]


CALLS = {"ivycomm": by_ivyrun(TORCH, "ivycomm"), "TensorPipe": by_ivyrun(TORCH, "torch"),
         "a copy": [TORCH, RANK, "copy"]}
MESSAGES = {"ivycomm": by_ivyrun(python_of("mpich"), "messages"), "MPICH": by_mpi("mpich"),
            "Open MPI": by_mpi("openmpi", "--allow-run-as-root", "--oversubscribe")}


def measure(ways, sizes, runs):
    times = {}
    for number in range(runs):
        for way, argv in ways.items():
            print(f"rpc: run {number + 1} of {runs}, {way}", file=sys.stderr, flush=True)
            for line in run(argv, sizes):
                times.setdefault((way, line["bytes"]), []).append(line["seconds"])
    return {key: statistics.median(values) for key, values in times.items()}


def print_table(title, ways, times, sizes):
    ours, *others = ways
    print(f"\n| {title} | " + " | ".join(f"{way}, µs" for way in ways) +
          " | " + " | ".join(f"{ours} ÷ {other}" for other in others) + " | GB/s of ours |")
    print("|---" * (2 + len(ways) + len(others)) + "|")
    for size in sizes:
        cells = [microseconds(times[way, size]) for way in ways]
        cells += [f"{times[ours, size] / times[other, size]:.2f}" for other in others]
        print(f"| {size_text(size) if size else 'a number'} | " + " | ".join(cells) +
              f" | {size / times[ours, size] / 1e9:.2f} |", flush=True)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--most", type=int, default=SIZES[-1], help="the largest size (1 GiB)")
    given = options.parse_args()
    sizes = [size for size in SIZES if size <= given.most]
    if not os.path.exists(TORCH):
        raise SystemExit(f"rpc: {TORCH} is not there: scripts/setup torch, or IVY_TORCH_PYTHON=PYTHON")
    print_table("call", CALLS, measure(CALLS, sizes, given.runs), sizes)
    if not all(os.path.exists(python_of(name)) for name in ("mpich", "openmpi")):
        print(f"rpc: no MPI in {FRAMEWORKS}, so messages are left out: scripts/setup frameworks", file=sys.stderr)
        return
    print_table("message", MESSAGES, measure(MESSAGES, sizes[1:], given.runs), sizes[1:])


if __name__ == "__main__":
    main()
