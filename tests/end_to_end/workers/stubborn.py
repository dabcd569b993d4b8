"""Is hard to stop: ignores signals, double-forks into separate sessions, keeps pipes open.

stubborn.py [stay|leave]: the first process runs forever, or exits immediately with 0.
"""

import os
import signal
import sys
import time


def ignore():
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)


def daemon():
    """Starts an orphan in a separate session that keeps the output open."""
    if os.fork():
        os.wait()
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    time.sleep(600)
    os._exit(0)


ignore()
daemon()
if os.fork() == 0:
    time.sleep(600)
    os._exit(0)
print("stubborn", os.environ.get("RANK"), "is ready", flush=True)
if sys.argv[1:] != ["leave"]:
    time.sleep(600)
