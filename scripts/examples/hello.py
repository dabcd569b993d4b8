"""Says who it is: the smallest program that shows how workers are placed."""

import os
import socket

print(
    f"hello from rank {os.environ.get('RANK', '0')} of {os.environ.get('WORLD_SIZE', '1')}"
    f" (local rank {os.environ.get('LOCAL_RANK', '0')}) on {socket.gethostname()},"
    f" pid {os.getpid()}",
    flush=True,
)
