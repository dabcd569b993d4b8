"""Rank 1 takes memory without end; the others wait."""

import os
import time

if os.environ["RANK"] == "1":
    hoard = []
    while True:
        hoard.append(bytearray(b"x" * (8 << 20)))
print("waiting", flush=True)
time.sleep(600)
