"""Its main thread exits and another thread continues, so that /proc shows a running process as a zombie.

leave_main_thread.py             the worker itself
leave_main_thread.py grandchild  an orphan of the worker in a separate session; the worker exits with 0
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
        # Wait until the grandchild is in its session.
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
ctypes.CDLL(None).syscall(SYS_EXIT, 0)  # Ends only this thread; the interpreter lock is released.
