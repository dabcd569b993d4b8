# SPDX-License-Identifier: Apache-2.0
"""Kills launchers with SIGKILL and searches for leftovers of their jobs."""

import os
import signal
import subprocess
import time
import uuid

from measure import StandardError, note

# A worker that is hard to stop: it ignores TERM, and so does its child in a separate session.
STUBBORN = 'trap "" TERM HUP INT; setsid sleep 1000 & exec sleep 1000'
READY_SECONDS = 20      # For the start of both workers and their children.
WORKERS = 2
MARK = "IVY_BENCH_MARK"


def processes():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def read(pid, name):
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def is_alive(pid):
    """Returns whether a process runs. A zombie does not count: it holds no resources, and its parent may be slow."""
    stat = read(pid, "stat")
    return bool(stat) and stat.rpartition(b")")[2].split()[0] not in (b"Z", b"X")


def parent(pid):
    stat = read(pid, "stat")
    return int(stat.rpartition(b")")[2].split()[1]) if stat else 0


def marked(mark):
    """Returns the running processes of a job: the mark is in their environment or in an ancestor's."""
    wanted = f"{MARK}={mark}".encode()
    found = {pid for pid in processes() if wanted in read(pid, "environ").split(b"\0")}
    # A supervisor may have cleared its environment, but its parent or its children have the mark.
    grown = True
    while grown:
        more = {pid for pid in processes() if parent(pid) in found} - found
        found |= more
        grown = bool(more)
    return {pid for pid in found if is_alive(pid)}


def node_processes():
    """Returns all processes of ivyrun's programs on hosts, of any job."""
    return {pid for pid in processes() if read(pid, "comm").startswith(b"ivy-")}


def workers_ready(mark):
    sleeping = [pid for pid in marked(mark) if read(pid, "cmdline") == b"sleep\x001000\0"]
    return len(sleeping) >= 2 * WORKERS


def wait_until(condition, seconds):
    """Returns the seconds until the condition was true, or None."""
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > seconds:
            return None
        time.sleep(0.02)
    return time.monotonic() - started


class KillResult:
    def __init__(self):
        self.gone_after = []
        self.left = []
        self.not_started = 0


def kill_once(argv, limit, result):
    with StandardError(argv[0]) as stderr:
        kill_while(argv, limit, result, stderr)


def kill_while(argv, limit, result, stderr):
    mark = uuid.uuid4().hex
    before = node_processes()
    launcher = subprocess.Popen([*argv, "/bin/sh", "-c", STUBBORN], stdin=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL, stderr=stderr,
                                env={**os.environ, MARK: mark}, start_new_session=True)
    started = wait_until(lambda: workers_ready(mark), READY_SECONDS)
    job = marked(mark) | (node_processes() - before)
    launcher.kill()
    launcher.wait()

    def rest():
        return {pid for pid in job | marked(mark) if is_alive(pid)}

    gone = wait_until(lambda: not rest(), limit)
    left = rest()
    if started is None:
        result.not_started += 1
        stderr.tell(f"the workers were not there after {READY_SECONDS} s")
    elif gone is None:
        result.left.append(len(left))
    else:
        result.gone_after.append(gone)
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def kill_launchers(name, argv, runs, limit):
    result = KillResult()
    for turn in range(runs):
        kill_once(argv, limit, result)
        note(f"  {name}: kill {turn + 1} of {runs}, {len(result.left)} times something was left")
    return result
