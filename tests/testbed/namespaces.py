# SPDX-License-Identifier: Apache-2.0
"""System calls and cgroup functions for simulated hosts."""

import contextlib
import ctypes
import os
import signal
import time

REMOVE_SECONDS = 10  # The time limit for killed processes to leave their cgroup.

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2
SYS_PIVOT_ROOT = 155  # On x86-64.

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result, what):
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags):
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def unshare_with_users(flags):
    """Like unshare(), with a new user namespace in which all users keep their numbers. The namespace has a table of
    emulators (binfmt_misc) that the rest of the machine does not see."""
    process = os.getpid()
    reader, writer = os.pipe()
    mapper = os.fork()  # Only a process outside the namespace may map all users.
    if mapper == 0:
        os.close(writer)
        if os.read(reader, 1):
            for kind in ("uid", "gid"):
                with open(f"/proc/{process}/{kind}_map", "w") as file:
                    file.write("0 0 4294967295")
        os._exit(0)
    os.close(reader)
    try:
        unshare(flags | CLONE_NEWUSER)
        os.write(writer, b"x")
    finally:
        os.close(writer)
        os.waitpid(mapper, 0)


def change_root(new, old):
    """Makes the mount point `new` this mount namespace's root. The old root is then at `old`, below it."""
    _check(_libc.syscall(ctypes.c_long(SYS_PIVOT_ROOT), os.fsencode(new), os.fsencode(new + old)), f"pivot_root to {new}")
    os.chdir("/")


def detach(path):
    """Removes the mount and all below it."""
    _check(_libc.umount2(os.fsencode(path), MNT_DETACH), f"umount of {path}")


def mount(source, target, kind=None, flags=0, options=None):
    encode = lambda text: None if text is None else os.fsencode(text)  # noqa: E731
    result = _libc.mount(encode(source), encode(target), encode(kind), ctypes.c_ulong(flags),
                         encode(options))
    _check(result, f"mount {source} on {target}")


def set_host_name(name):
    data = name.encode()
    _check(_libc.sethostname(data, ctypes.c_size_t(len(data))), "sethostname")


def cgroup_mounts():
    """Returns the mount points of cgroup v2 and of the v1 memory controller, each a path or None."""
    unified = memory = None
    with open("/proc/self/mountinfo") as table:
        for line in table:
            fields, _, rest = line.partition(" - ")
            kind, _, options = rest.split(" ", 2)
            if kind == "cgroup2":
                unified = unified or fields.split()[4]
            elif kind == "cgroup" and "memory" in options.strip().split(","):
                memory = memory or fields.split()[4]
    return unified, memory


def enter_cgroup(directory):
    """Moves this process into the cgroup."""
    with open(os.path.join(directory, "cgroup.procs"), "w") as file:
        file.write("0")


def cgroup_members(directory):
    try:
        with open(os.path.join(directory, "cgroup.procs")) as file:
            return [int(line) for line in file]
    except OSError:
        return []


def remove_cgroup(top):
    """Kills all processes in the cgroup and below, except this one, and removes the cgroups. Returns False if that was not
    possible within REMOVE_SECONDS."""
    deadline = time.monotonic() + REMOVE_SECONDS
    while os.path.isdir(top):
        for directory, _, _ in os.walk(top, topdown=False):
            for pid in cgroup_members(directory):
                if pid != os.getpid():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.rmdir(directory)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def start_time(pid):
    """Returns the start time from /proc/PID/stat (field 22), or None if the process has exited. A pid may be reused, but pid
    and start time together identify a process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])
