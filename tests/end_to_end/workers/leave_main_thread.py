"""Its main thread exits, another one goes on, so that /proc calls a living process a zombie.

leave_main_thread.py             the worker does so itself
leave_main_thread.py grandchild  an orphan of it does, in a session of its own; the worker ends with 0
"""
import ctypes
import os
import platform
import signal
import sys
import threading
import time

signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
if "grandchild" in sys.argv:
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        # Not before the grandchild has got where it is going.
        time.sleep(1)
        sys.exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)


def go_on():
    time.sleep(0.2)
    os.write(1, b"without main thread\n")
    time.sleep(1000)


threading.Thread(target=go_on).start()
SYS_EXIT = {"x86_64": 60, "aarch64": 93}[platform.machine()]
ctypes.CDLL(None).syscall(SYS_EXIT, 0)  # Of this thread only; the interpreter's lock is free.
