# SPDX-License-Identifier: Apache-2.0
"""The launcher's loop hangs, for example because its program is on a file system that does not respond. A separate thread
continues to send heartbeats to every host over every transport, and no worker ends."""

import contextlib
import ctypes
import os
import time

import pytest

from launching import seconds
from test_torchrun_mode import Nodes

LEASE_S = seconds(4)
WORKER = ("bash", "-c", 'trap "echo rank $RANK got TERM; exit 143" TERM; echo up $RANK; '
          'while ! test -e {0}/end; do sleep 0.1; done; echo done $RANK')
PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH, WALL = 0x4206, 0x4207, 17, 0x40000000


@contextlib.contextmanager
def stopped_thread(pid):
    """Stops a process's first thread, which runs its loop. The other threads continue."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]

    def ptrace(request):
        if libc.ptrace(request, pid, None, None) != 0:
            raise OSError(ctypes.get_errno(), f"ptrace {request:#x} of {pid}")
    ptrace(PTRACE_SEIZE)
    ptrace(PTRACE_INTERRUPT)
    os.waitpid(pid, WALL)
    try:
        yield
    finally:
        ptrace(PTRACE_DETACH)


def outlast_the_lease(launcher, directory, ranks):
    """Runs a job of two ranks with `launcher` and hangs its loop for three leases."""
    with launcher as job:
        job.wait_for("up", count=ranks)
        time.sleep(1)  # Wait for the first tick of the sessions.
        with stopped_thread(job.pid()):
            time.sleep(3 * LEASE_S)
        with open(os.path.join(directory, "end"), "w", encoding="ascii"):
            pass
        done = job.finish()
    assert done.code == 0 and "got TERM" not in done.out.decode(), done
    assert done.out.decode().count("done") == ranks, done


def words(hosts):
    return ("--lease", f"{LEASE_S:g}s", *(word.replace("{0}", hosts.directory) for word in WORKER))


def test_workers_on_this_host_continue(local):
    outlast_the_lease(local.start("-n", "2", *words(local)), local.directory, 2)


@pytest.mark.parametrize("transport", [("--transport", "ssh"), ("--transport", "ssh", "--ssh-command", "ssh")],
                         ids=["libssh", "client"])
def test_hosts_reached_by_ssh_continue(hosts, transport):
    job = hosts.start(*transport, "-H", "node2,node3", "-n", "2", *words(hosts))
    outlast_the_lease(job, hosts.outside(hosts.directory), 2)


def test_hosts_reached_by_agents_continue(agents):
    agents.start(2, 3)
    user = agents.launcher
    outlast_the_lease(user.start("--transport", "agent", "-H", "node2,node3", "-n", "2", *words(user)),
                      user.outside(user.directory), 2)


def test_hosts_that_dial_back_continue(local):
    nodes = Nodes(local, 2, "--nproc_per_node", "1")
    with nodes.start(1, *words(local)) as other:
        outlast_the_lease(nodes.start(0, *words(local)), local.directory, 1)
        done = other.finish()
    assert done.code == 0 and "got TERM" not in done.out.decode(), done
