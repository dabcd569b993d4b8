"""Rank 1 allocates memory without limit; the others wait."""

import os
import time

if os.environ["RANK"] == "1":
    hoard = []
    while True:
        hoard.append(bytearray(b"x" * (8 << 20)))
print("waiting", flush=True)
time.sleep(600)
