"""Counts signals: prints "ready", then "got NAME TIMES" for each, and exits with 0 at TERM."""

import collections
import signal
import sys
import time

seen = collections.Counter()


def note(number, _frame):
    seen[number] += 1
    print("got", signal.Signals(number).name, seen[number], flush=True)
    if number == signal.SIGTERM:
        sys.exit(0)


for wanted in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGINT, signal.SIGTERM):
    signal.signal(wanted, note)
print("ready", flush=True)
while True:
    time.sleep(60)
