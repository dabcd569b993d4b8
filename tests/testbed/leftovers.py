# SPDX-License-Identifier: Apache-2.0
"""Finds leftovers of ivyrun on a host: processes, files, sockets, ports and cgroups.

The search uses /proc from outside the host. It starts no process on the host that it could find itself.
"""

import contextlib
import fcntl
import os
import re
import shutil
import signal
import time

# Job directories are called JOBID-HOST. Other files next to them, such as the uploaded program, may remain.
JOB_DIRECTORY = re.compile(r"^[0-9a-f]{32}-\d+$")
OURS = re.compile(rb"(^|/)(ivyrun|ivy-[a-z]+)(-[0-9a-f]+)?$")
SWEEP_SECONDS = 10
SLURM_DAEMONS = (b"slurmctld", b"slurmscriptd", b"slurmd", b"munged")
SLURM_PORTS = {6817, 6818}          # slurmctld, slurmd: Slurm's own defaults.
EMULATORS = b"/usr/libexec/qemu-binfmt/"
NS_GET_PARENT = 0xb702  # ioctl_ns(2)
SLURM_SOCKETS = "/srv/ivyshared/slurm/"


class HostView:
    def __init__(self, name, init_pid, cgroups):
        self.name = name
        self.init_pid = init_pid
        self.cgroups = cgroups

    def place(self, path):
        return f"/proc/{self.init_pid}/root{path}"


class Process:
    def __init__(self, pid):
        self.pid = pid
        with open(f"/proc/{pid}/stat", "rb") as file:
            head, _, tail = file.read().rpartition(b")")
        self.name = head.partition(b"(")[2]
        fields = tail.split()
        self.state, self.parent = fields[0].decode(), int(fields[1])
        self.command = self._read("cmdline")
        if self.command.startswith(EMULATORS):
            self.command = self.command.split(b"\0", 2)[-1]  # After the emulator and the program's path.
        self.environment = self._read("environ")

    def _read(self, name):
        try:
            with open(f"/proc/{self.pid}/{name}", "rb") as file:
                return file.read(65536)
        except OSError:
            return b""

    def words(self):
        return self.command.rstrip(b"\0").replace(b"\0", b" ")[:150].decode(errors="replace")

    def is_ours(self):
        program = self.command.split(b"\0")[0]
        return bool(OURS.search(program) or OURS.match(self.name) or
                    b"IVY_JOB_ID=" in self.environment)


def is_inside(descriptor, known):
    """Returns whether a pid namespace is inside another one. `known` has the answers so far, by inode, and gets new ones."""
    inode = os.fstat(descriptor).st_ino
    if inode not in known:
        known[inode] = False  # The outermost one has no parent.
        with contextlib.suppress(OSError):
            parent = fcntl.ioctl(descriptor, NS_GET_PARENT)
            try:
                known[inode] = is_inside(parent, known)
            finally:
                os.close(parent)
    return known[inode]


def processes_of(init_pid):
    """Returns all processes of the host's pid namespace and of those inside it, such as a pod's, except the host's init."""
    try:
        inside = {os.stat(f"/proc/{init_pid}/ns/pid").st_ino: True}
    except OSError:
        return []
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != init_pid:
            # The namespaces of a zombie cannot be read; zombies_below() finds it through its parent.
            with contextlib.suppress(OSError):
                descriptor = os.open(f"/proc/{entry}/ns/pid", os.O_RDONLY)
                try:
                    if is_inside(descriptor, inside):
                        found.append(Process(int(entry)))
                finally:
                    os.close(descriptor)
    return found + zombies_below([init_pid, *(process.pid for process in found)])


def zombies_below(parents):
    found = []
    for parent in parents:
        with contextlib.suppress(OSError):
            with open(f"/proc/{parent}/task/{parent}/children") as file:
                for pid in map(int, file.read().split()):
                    process = Process(pid)
                    if process.state == "Z":
                        found.append(process)
    return found


def is_slurm_daemon(process):
    """Returns whether this is a daemon started by tests/testbed/slurm. A job's slurmstepd is not one of them."""
    program = process.command.split(b"\0")[0].rpartition(b"/")[2]
    return program in SLURM_DAEMONS or process.name in SLURM_DAEMONS


def is_furniture(process, init_pid):
    """Returns whether the process belongs to the host itself: a child of init, the listening sshd, a Slurm daemon."""
    if is_slurm_daemon(process):
        return True
    if process.words().startswith("sshd: /usr/sbin/sshd") or is_emulated_sshd(process) and not is_connection(process):
        return True
    programs = (b"init\0", b"sleep\0infinity\0")
    return process.parent == init_pid and process.command.startswith(programs)


def was_entered(process, by_pid, init_pid):
    """Returns whether the process was started through `hosts exec`: its topmost ancestor is not the host's init."""
    while process.parent in by_pid:
        process = by_pid[process.parent]
    return process.parent != init_pid


def left_processes(view):
    found = processes_of(view.init_pid)
    by_pid = {process.pid: process for process in found}
    for process in found:
        if is_furniture(process, view.init_pid):
            continue
        if process.is_ours() or not was_entered(process, by_pid, view.init_pid):
            yield process


def listening_ports(pid):
    ports = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/net/{table}") as file:
                for line in file.readlines()[1:]:
                    fields = line.split()
                    if fields[3] == "0A":
                        ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def left_files(view):
    parents = []
    for place in ("/tmp", "/dev/shm", "/run"):
        with contextlib.suppress(OSError):
            parents += [f"{place}/{name}" for name in os.listdir(view.place(place))
                        if name.startswith("ivyrun")]
    for parent in parents:
        with contextlib.suppress(OSError):
            for name in os.listdir(view.place(parent)):
                if JOB_DIRECTORY.match(name) or name.endswith(".sock"):
                    yield f"{parent}/{name}"
    with contextlib.suppress(OSError):
        for name in os.listdir(view.place("/dev/shm")):
            if not name.startswith("ivyrun-"):
                yield f"/dev/shm/{name}"


def left_sockets(view):
    with contextlib.suppress(OSError):
        with open(f"/proc/{view.init_pid}/net/unix") as file:
            for line in file.readlines()[1:]:
                fields = line.split()
                of_slurm = len(fields) > 7 and fields[7].startswith(SLURM_SOCKETS)
                if len(fields) > 7 and "ivy" in fields[7] and not of_slurm:
                    yield fields[7]


def left_cgroups(view):
    for top in view.cgroups:
        for directory, names, _ in os.walk(top):
            for name in names:
                yield os.path.join(directory, name)


def is_emulated_sshd(process):
    """Returns whether this is sshd on an arm64 host. It cannot change its command line, which is the emulator's."""
    return process.words().startswith("/usr/sbin/sshd ")


def is_connection(process):
    return process.words().startswith("sshd: ") or is_emulated_sshd(process) and process.words().endswith(" -R")


def find(view):
    lines = []
    for process in left_processes(view):
        kind = "connection" if is_connection(process) else "process"
        if process.state == "Z":
            kind = "zombie"
        lines.append(f"{kind} {process.pid} ({process.name.decode(errors='replace')}, "
                     f"{process.state}): {process.words()}")
    lines += [f"file {path}" for path in left_files(view)]
    lines += [f"listening socket {name}" for name in left_sockets(view)]
    expected = {22}
    if any(is_slurm_daemon(process) for process in processes_of(view.init_pid)):
        expected |= SLURM_PORTS
    lines += [f"listening port {port}"
              for port in sorted(listening_ports(view.init_pid) - expected)]
    lines += [f"cgroup {path}" for path in left_cgroups(view)]
    return [f"{view.name}: {line}" for line in lines]


def sweep(view):
    deadline = time.monotonic() + SWEEP_SECONDS
    while True:
        living = [process for process in left_processes(view) if process.state != "Z"]
        for process in living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        if not living or time.monotonic() > deadline:
            break
        time.sleep(0.02)
    for path in list(left_files(view)):
        target = view.place(path)
        shutil.rmtree(target, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(target)
    for path in sorted(left_cgroups(view), key=len, reverse=True):
        with contextlib.suppress(OSError):
            os.rmdir(path)
