# SPDX-License-Identifier: Apache-2.0
"""A stand-in for cupyx.distributed: its init_process_group() opens a store in rank 0, at CUPYX_DISTRIBUTED_HOST and _PORT,
from which the other ranks get NCCL's id."""

import os
import socket
import time

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
place = os.environ["CUPYX_DISTRIBUTED_HOST"], int(os.environ["CUPYX_DISTRIBUTED_PORT"])
given = b"an id of NCCL"
if rank == 0:
    with socket.create_server(place) as server:
        for _ in range(1, size):
            with server.accept()[0] as other:
                other.sendall(given)
else:
    deadline = time.monotonic() + 30
    while True:
        try:
            with socket.create_connection(place, timeout=30) as store:
                assert store.makefile("rb").read() == given
            break
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
print(f"rank {rank} of {size} has what rank 0 gave", flush=True)
