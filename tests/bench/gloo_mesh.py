# SPDX-License-Identifier: Apache-2.0
"""Forms a Gloo process group of WORKERS processes with a store on loopback: gloo_mesh.py WORKERS PORT RUN

The processes are forked from one that has imported torch, because 64 imports would dominate the measured time. Prints the
seconds from their common start to the end of the slowest init_process_group, after which all processes are connected."""

import datetime
import os
import sys
import time

import torch.distributed as dist


def worker(rank, workers, port, run, start, done):
    os.read(start, 1)
    store = dist.TCPStore("127.0.0.1", port, None, False, datetime.timedelta(seconds=120))
    dist.init_process_group("gloo", rank=rank, world_size=workers,
                            store=dist.PrefixStore(f"run{run}", store),
                            timeout=datetime.timedelta(seconds=120))
    os.write(done, b"+")
    os.read(start, 1)  # Wait until the parent closes the pipe: no process may leave while others connect.


def main():
    workers, port, run = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    start, begin = os.pipe()
    finished, done = os.pipe()
    children = []
    for rank in range(workers):
        pid = os.fork()
        if pid == 0:
            os.close(begin)
            status = 1
            try:
                worker(rank, workers, port, run, start, done)
                status = 0
            finally:
                os._exit(status)
        children.append(pid)
    os.close(done)
    started = time.monotonic()
    os.write(begin, b"s" * workers)
    arrived = 0
    while arrived < workers:
        got = os.read(finished, workers)
        if not got:
            break
        arrived += len(got)
    seconds = time.monotonic() - started
    os.close(begin)
    for pid in children:
        os.waitpid(pid, 0)
    if arrived < workers:
        sys.exit(f"only {arrived} of {workers} processes got through")
    print(f"{seconds:.3f}")


if __name__ == "__main__":
    main()
