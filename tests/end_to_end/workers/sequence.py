"""Prints "pid P count N" every PAUSE seconds until the file STOP exists (then exits with CODE):
sequence.py PAUSE STOP [CODE]. STOP.RANK stops one rank, with the code that it contains."""

import os
import sys
import time

pause, stop = float(sys.argv[1]), sys.argv[2]
code = int(sys.argv[3]) if len(sys.argv) > 3 else 0
own = f"{stop}.{os.environ['RANK']}"
number = 0
while True:
    # A single write, because print() would write the parts of a line separately.
    os.write(1, f"pid {os.getpid()} count {number}\n".encode())
    number += 1
    time.sleep(pause)
    if os.path.exists(own):
        sys.exit(int(open(own).read() or 0))
    if os.path.exists(stop):
        sys.exit(code)
