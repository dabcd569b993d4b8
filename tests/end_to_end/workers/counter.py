"""Prints "count N" every PAUSE seconds, COUNT times: counter.py COUNT PAUSE. Then exits."""

import sys
import time

for number in range(int(sys.argv[1])):
    print("count", number, flush=True)
    time.sleep(float(sys.argv[2]))
