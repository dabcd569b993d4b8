"""Appends this attempt's number, the host and the time to a file every 50 ms, until the file GO exists: worlds.py LOG GO
The hosts of a test bed share one clock."""

import os
import signal
import sys
import time

log, go = sys.argv[1:]
signal.signal(signal.SIGTERM, signal.SIG_DFL)
print(f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']} on {os.uname().nodename}", flush=True)
while not os.path.exists(go):
    with open(log, "a") as file:
        file.write(f"{os.environ['TORCHELASTIC_RESTART_COUNT']} {os.uname().nodename} {time.monotonic()}\n")
    time.sleep(0.05)
