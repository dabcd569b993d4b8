"""Hangs in a way: `hangs.py KIND`. Prints "ready JOB" before. Rank 2 is always in another function."""

import ctypes
import os
import signal
import socket
import sys
import threading
import time

RANK = int(os.environ["RANK"])


def where_two_is():
    time.sleep(1000)


def where_others_are():
    time.sleep(1000)


class Short:
    """Creates and frees many frames, which is dangerous for a reader of another thread's stack."""

    def __init__(self, depth):
        self.inner = Short(depth - 1) if depth else None


def runs_python():
    while True:
        Short(5)


def flight_socket():
    """Returns the path on which ivyrun's hook lets torch's worker server listen."""
    hook = next(finder for finder in sys.meta_path if type(finder).__name__ == "_FlightServer")
    return hook.path


def serve_flight_record(records):
    """Answers like torch's worker server, with a record of a real torch (flight_dumps/record.py)."""
    with open(os.path.join(records, f"absent-{RANK}.json"), "rb") as file:
        record = file.read()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(flight_socket())
    listener.listen()
    threading.Thread(target=answer_with_record, args=(listener, record), daemon=True).start()


def answer_with_record(listener, record):
    while True:
        connection, _ = listener.accept()
        with connection:
            asked = connection.recv(1000)
            known = b"backend=gloo " in asked
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(record), record) if known
                               else b"HTTP/1.1 404 Not Found\r\nContent-Length: 1\r\n\r\n.")


def serve_health():
    """Listens at NCCL_RAS_ADDR like a process with NCCL. A file contains the requests."""
    host, port = os.environ["NCCL_RAS_ADDR"].rsplit(":", 1)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind((host, int(port)))
    listener.listen()
    threading.Thread(target=answer_about_health, args=(listener,), daemon=True).start()


def answer_about_health(listener):
    while True:
        connection, _ = listener.accept()
        with connection:
            asked = b""
            while not asked.endswith(b"VERBOSE STATUS\n"):
                asked += connection.recv(1000)
            with open("asked", "a") as file:
                file.write(asked.decode())
            connection.sendall(
                b"SERVER PROTOCOL 2\nOK\nJob summary\n===========\n\nCommunicators... (0.00s)\n=============\n\n"
                b"    0         1         1         3         3         3   RUNNING  MISMATCH\n\nErrors\n======\n\n"
                b"Warnings\n========\n\n#0-0 (27a079b828ff1a75) MISMATCH\n"
                b"  Communicator ranks have different AllReduce operation counts\n"
                b"  2 ranks have launched up to operation 4\n"
                b"  Rank 2 has launched up to operation 3 -- GPU 2 managed by process 77 on node 10.0.0.1\n\n")


def works_quietly():
    """Is in another function at each inspection, and prints nothing for a long time."""
    lines = "\n" * RANK + "def f(n):\n" + "".join(
        f" if n == {n}: time.sleep(0.3)\n" for n in range(40))
    names = {"time": time}
    exec(compile(lines, "quiet.py", "exec"), names)
    for n in range(24):
        names["f"](n)
    print("done", flush=True)
    sys.exit(0)


def prints_when_interrupted():
    """Like torch when it waits for its store: a signal interrupts the wait, and this is printed."""
    libc = ctypes.CDLL(None)
    while True:
        libc.usleep(1_000_000_000)
        print("interrupted", flush=True)


def main():
    kind = sys.argv[1]
    if kind == "threads":
        for _ in range(300):
            threading.Thread(target=where_two_is, daemon=True).start()
    if kind == "busy":
        threading.Thread(target=runs_python, daemon=True).start()
    if kind == "nccl" and RANK != 1:
        with open(os.environ["NCCL_DEBUG_FILE"].replace("%p", str(os.getpid())), "w") as file:
            file.write("NCCL version 2.30.7+cuda13.2\n\n[2026-11-22 06:00:00] a:77:78 [0] "
                       "socket.cc:512 NCCL WARN an earlier one\n\n[2026-11-22 06:00:01] a:77:78 [0] "
                       "socket.cc:538 NCCL WARN socketPollConnect: no route\n")
    if kind in ("flight", "abort", "leave"):
        serve_flight_record(sys.argv[2])
    if kind == "health":
        serve_health()
    print("ready", os.environ["IVY_JOB_ID"], "pid", os.getpid(), flush=True)
    if kind == "quiet":
        works_quietly()
    if kind == "echo":
        prints_when_interrupted()
    if kind == "leave" and RANK == 2:
        sys.exit(0)
    if kind == "uninterruptible" and RANK == 0:
        # A parent sleeps uninterruptibly until its vfork child executes a program.
        libc = ctypes.PyDLL(None)
        if libc.vfork() == 0:
            libc.pause()
    if kind == "abort" and RANK == 0:
        time.sleep(1)
        sys.stderr.write("[rank0]: Watchdog caught collective operation timeout: WorkNCCL(...)\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGABRT)
    where_two_is() if RANK == 2 else where_others_are()


main()
