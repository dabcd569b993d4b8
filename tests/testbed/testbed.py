# SPDX-License-Identifier: Apache-2.0
"""Creates, breaks and removes simulated hosts. `hosts` is the command line; tests use the class Testbed."""

import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid

import host_init
import leftovers
from namespaces import (CLONE_NEWCGROUP, CLONE_NEWIPC, CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWPID,
                        CLONE_NEWUTS, cgroup_mounts, enter_cgroup, remove_cgroup, start_time,
                        unshare, unshare_with_users)

REPOSITORY = os.path.realpath(os.path.join(os.path.dirname(os.path.realpath(__file__)), "../.."))
LOGIN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MAX_HOSTS = 250         # One byte of the IPv4 address.
BOOT_SECONDS = 20       # The time limit for a host's sshd to start; it takes a few seconds on a busy machine.
NEEDED = ("ip", "tc", "nsenter", "ssh-keygen", "/usr/sbin/sshd", "setpriv", "/bin/csh",
          "/usr/bin/fish")


class TestbedError(Exception):
    """An error that the user can fix. It is printed without a traceback."""


def ipv4(number):
    return f"10.77.0.{number}"


def ipv6(number):
    return f"fd77::{number}"


def run(*command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise TestbedError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")


class Testbed:
    __test__ = False  # Tells pytest that this is not a test, despite the name.

    def __init__(self, state=None):
        self.state = os.path.realpath(state or os.environ.get("IVY_TESTBED") or "/run/ivy-testbed")
        # All testbeds of a machine share the cgroup tree, so the names contain a hash of the state directory.
        self.prefix = "ivytb-" + hashlib.sha256(self.state.encode()).hexdigest()[:10]
        self.repository = REPOSITORY
        self.arm64_root = os.path.join(REPOSITORY, "build/arm64-host")
        self.cgroup_v2, self.memory_v1 = cgroup_mounts()
        self.broken = set()  # Hosts that this object has cut, unplugged or powered off.

    # ---- state directory ----
    def path(self, name):
        return os.path.join(self.state, name)

    def read(self, name):
        with open(self.path(name)) as file:
            return file.read()

    def write(self, name, text, mode=0o644):
        with open(self.path(name), "w") as file:
            file.write(text)
        os.chmod(self.path(name), mode)

    @property
    def shared(self):
        """The directory that is mounted on every host as /srv/ivyshared."""
        return self.path("shared")

    def count(self):
        try:
            return int(self.read("count"))
        except (OSError, ValueError):
            return 0

    def numbers(self):
        return range(1, self.count() + 1)

    def is_arm64(self, number):
        try:
            return str(number) in self.read("arm64").split()
        except OSError:
            return False

    def new_boot_id(self):
        return str(uuid.uuid4())

    def address_lines(self):
        return [(k, f"{ipv4(k)} node{k}\n{ipv6(k)} node{k}-v6") for k in self.numbers()]

    @contextlib.contextmanager
    def _locked(self):
        os.makedirs(self.state, exist_ok=True)
        with open(self.state + ".lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self.state + ".lock")

    # ---- the inits of hosts, and the switch's process ----
    def _pid(self, name):
        """Returns the pid of a host's init or of the switch, or None if it has exited. Its start time is compared, too,
        because the pid may have been reused."""
        try:
            pid, started = map(int, self.read(f"{name}/pid").split())
        except (OSError, ValueError):
            return None
        return pid if start_time(pid) == started else None

    def _remember(self, name, pid):
        self.write(f"{name}/pid", f"{pid} {start_time(pid)}")

    def init_pid(self, number):
        if not 1 <= number <= self.count():
            raise TestbedError(f"there is no host {number}; the testbed has {self.count()} "
                               "(hosts up N)")
        pid = self._pid(f"node{number}")
        if pid is None:
            raise TestbedError(f"host {number} is powered off; `hosts on {number}` starts it")
        return pid

    def is_on(self, number):
        return self._pid(f"node{number}") is not None

    @staticmethod
    def _mounts(pid):
        """Returns the mounts that the process sees: id -> mount point."""
        with open(f"/proc/{pid}/mountinfo", encoding="utf-8") as file:
            return {fields[0]: fields[4] for fields in map(str.split, file)}

    def lost_mounts(self):
        """Returns mount points that hosts have made when they booted and have lost since, as "node2: /etc/passwd".

        If a program on this machine replaces a file by rename, as the installation of a package does with /etc/passwd, the
        kernel removes the bind mounts on that file from every host. The hosts then no longer have their own accounts.
        The machine's mounts, of which each host has a copy, are not counted: the end of a container or of a network
        namespace removes them at any time.
        """
        lost = []
        for number in filter(self.is_on, self.numbers()):
            now = set(self._mounts(self.init_pid(number)).values())
            lost += [f"node{number}: {path}" for path in self.read(f"node{number}/mounts").splitlines() if path not in now]
        return lost

    def _in_switch(self, *command):
        run("nsenter", "-t", str(self._pid("switch")), "-n", *command)

    def _in_host(self, number, *command):
        run("nsenter", "-t", str(self.init_pid(number)), "-n", *command)

    def _cgroups(self, name):
        """Returns the cgroups of a host ("node2"): that of cgroup v2 first."""
        return [os.path.join(mount, self.prefix, name)
                for mount in (self.cgroup_v2, self.memory_v1) if mount]

    # ---- up ----
    def up(self, count, arm64=()):
        """Creates `count` hosts. The numbers in `arm64` become hosts of that architecture."""
        self.check_machine(count)
        if arm64:
            self.check_arm64()
        with self._locked():
            if self.count():
                raise TestbedError(f"{self.state} is up with {self.count()} hosts; "
                                   "`hosts down` first")
            try:
                self._make(count, arm64)
            except BaseException:
                self._remove()
                raise

    def check_machine(self, count):
        """Raises TestbedError if this machine cannot run `count` hosts."""
        if os.geteuid() != 0:
            raise TestbedError("namespaces need root")
        if not 1 <= count <= MAX_HOSTS:
            raise TestbedError(f"{count} hosts: 1 to {MAX_HOSTS} are possible")
        missing = [tool for tool in NEEDED if shutil.which(tool, path=LOGIN_PATH) is None]
        if missing:
            raise TestbedError(f"missing: {', '.join(missing)} (apt-get install iproute2 "
                               "openssh-client openssh-server csh fish)")
        if self.cgroup_v2 is None:
            raise TestbedError("no cgroup v2 is mounted on this machine")

    def check_arm64(self):
        """Raises TestbedError if this machine cannot run an arm64 host."""
        if os.uname().machine != "x86_64":
            raise TestbedError("arm64 hosts are emulated on x86-64 only")
        for path in (os.path.join(self.arm64_root, "packages"), host_init.EMULATOR_RULE):
            if not os.path.exists(path):
                raise TestbedError(f"{path} is not there (scripts/setup arm64)")
        try:
            # The kernel has an emulator table per user namespace since 6.7. Older kernels only have the machine's.
            release = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
        except ValueError:
            release = (0, 0)
        if release < (6, 7):
            raise TestbedError(f"arm64 hosts need Linux 6.7 or later; this is {os.uname().release}")

    def _make(self, count, arm64):
        self._remove()  # Remove the remains of an `up` that was killed.
        for name in ("", "shared", "keys", "switch"):
            os.makedirs(self.path(name), exist_ok=True)
        os.chmod(self.shared, 0o1777)
        os.chmod(self.path("keys"), 0o700)
        self.write("count", str(count))
        self.write("arm64", " ".join(map(str, arm64)))
        for user in ("root", host_init.USER):
            self._make_key(f"keys/{user}", user)
        self._make_host_keys()
        self._start_switch()
        booting = [(number, *self._fork_host(number)) for number in self.numbers()]
        for number, pid, reader in booting:
            self._finish_boot(number, pid, reader)
        for number in self.numbers():
            self._await_sshd(number)

    def _make_key(self, name, comment):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", self.path(name))

    def _make_host_keys(self):
        known = []
        for number in self.numbers():
            os.makedirs(self.path(f"node{number}"), exist_ok=True)
            self._make_key(f"node{number}/host_key", f"node{number}")
            public = " ".join(self.read(f"node{number}/host_key.pub").split()[:2])
            names = f"node{number},node{number}-v6,{ipv4(number)},{ipv6(number)}"
            known.append(f"{names} {public}\n")
        # The launcher's host also connects to itself by these names.
        own = " ".join(self.read("node1/host_key.pub").split()[:2])
        self.write("known_hosts", "".join(known) + f"localhost,127.0.0.1,::1 {own}\n")

    def _start_switch(self):
        for path in self._cgroups("switch"):
            os.makedirs(path, exist_ok=True)
        pid = os.fork()
        if pid == 0:
            os.setsid()
            for path in self._cgroups("switch"):
                enter_cgroup(path)
            unshare(CLONE_NEWNET)
            null = os.open("/dev/null", os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            os.chdir("/")
            os.execv("/bin/sleep", ["testbed-switch", "infinity"])
        self._remember("switch", pid)
        self._await(lambda: os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net"),
                    "the switch has not started")
        self._in_switch("ip", "link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
        self._in_switch("ip", "link", "set", "br0", "up")

    def _fork_host(self, number):
        """Starts a host. Returns the pid of its init and a pipe that reports when it is ready, or an error."""
        for path in self._cgroups(f"node{number}"):
            os.makedirs(path, exist_ok=True)
        # Two pipes are needed because either of the two processes below may write first.
        pid_reader, pid_writer = os.pipe()
        ready_reader, ready_writer = os.pipe()
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            try:
                self._become_host(number, pid_writer, ready_writer)
            except BaseException as error:  # Report any failure to the waiting parent.
                os.write(ready_writer, f"error: {error!r}".encode())
            os._exit(1)
        os.close(pid_writer)
        os.close(ready_writer)
        os.waitpid(child, 0)
        text = os.read(pid_reader, 64)
        os.close(pid_reader)
        if not text:
            reason = os.read(ready_reader, 4096).decode()
            raise TestbedError(f"host {number} did not start: {reason}")
        self._remember(f"node{number}", int(text))
        return int(text), ready_reader

    def _become_host(self, number, pid_writer, ready_writer):
        os.setsid()
        for path in self._cgroups(f"node{number}"):
            enter_cgroup(path)
        enter = unshare_with_users if self.is_arm64(number) else unshare
        enter(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET |
              CLONE_NEWCGROUP)
        self.write(f"node{number}/inherited-mounts", " ".join(self._mounts("self")))
        settings = host_init.HostSettings(self, number)
        null = os.open("/dev/null", os.O_RDONLY)
        log = os.open(self.path(f"node{number}/init.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for fd, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(fd, target)
        pid = os.fork()
        if pid == 0:
            host_init.become_host(settings, self.memory_v1 is not None,
                                  lambda text: os.write(ready_writer, text.encode()))
        os.write(pid_writer, str(pid).encode())
        os._exit(0)

    def _finish_boot(self, number, pid, reader):
        said = b""
        while True:
            more = os.read(reader, 4096)
            if not more:
                break
            said += more
        os.close(reader)
        if said != b"ready":
            raise TestbedError(f"host {number} did not start: {said.decode() or 'no answer'}")
        inherited = self.read(f"node{number}/inherited-mounts").split()
        made = {path for identifier, path in self._mounts(pid).items() if identifier not in inherited}
        self.write(f"node{number}/mounts", "\n".join(sorted(made)))
        port = f"p{number}"
        # Like a real machine, a host keeps its MAC address over a reboot, so that its neighbours' tables remain valid.
        self._in_switch("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0",
                        "address", f"02:77:00:00:00:{number:02x}", "netns", str(pid))
        self._in_switch("ip", "link", "set", port, "master", "br0", "up")
        inside = ("nsenter", "-t", str(pid), "-n", "ip")
        run(*inside, "addr", "add", f"{ipv4(number)}/16", "dev", "eth0")
        run(*inside, "addr", "add", f"{ipv6(number)}/64", "dev", "eth0", "nodad")
        run(*inside, "link", "set", "eth0", "up")

    def _await_sshd(self, number):
        pid = self.init_pid(number)
        log = self.path(f"node{number}/init.log")
        self._await(lambda: 22 in leftovers.listening_ports(pid),
                    f"sshd of host {number} does not listen; see {log}")

    def _await(self, condition, message):
        deadline = time.monotonic() + BOOT_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise TestbedError(message)
            time.sleep(0.01)

    # ---- use ----
    def exec_command(self, number, user, command):
        """Returns the argv that runs `command` on a host. The caller must have entered the host's cgroup."""
        home = "/root" if user == "root" else f"/home/{user}"
        drop = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
        fresh = ["env", "-i", f"HOME={home}", f"USER={user}", f"LOGNAME={user}", "SHELL=/bin/bash",
                 f"PATH={LOGIN_PATH}", "LANG=C.UTF-8", f"TERM={os.environ.get('TERM', 'dumb')}"]
        # Change the directory inside the host, because a directory opened outside would give access to this machine's files.
        enter = ["/bin/sh", "-c", 'cd "$0" 2>/dev/null || cd "$1"; shift; exec "$@"', os.getcwd(),
                 home]
        users = ["-U"] if self.is_arm64(number) else []
        return ["nsenter", "-t", str(self.init_pid(number)), *users, "-n", "-u", "-m", "-p", "-i", "-C",
                "--", *enter, *([] if user == "root" else drop), *fresh, *command]

    def execute(self, number, user, command):
        argv = self.exec_command(number, user, command)
        for path in self._cgroups(f"node{number}"):
            enter_cgroup(path)
        os.execvp(argv[0], argv)

    def show_processes(self, number):
        inside = ["nsenter", "-t", str(self.init_pid(number)), *(["-U"] if self.is_arm64(number) else []), "-p", "-m"]
        subprocess.run([*inside, "ps", "-ef"], check=False)

    # ---- break ----
    def cut(self, number):
        self.broken.add(number)
        self._in_switch("ip", "link", "set", f"p{number}", "nomaster")

    def cut_one_way(self, number):
        self.broken.add(number)
        self._in_switch("tc", "qdisc", "replace", "dev", f"p{number}", "root", "blackhole")

    def unplug(self, number):
        self.broken.add(number)
        self._in_switch("ip", "link", "set", f"p{number}", "down")

    def slow(self, number, rate="256kbit"):
        """Limits both directions of the host's link to `rate`."""
        self.broken.add(number)
        # The queue holds half a second of traffic; more is dropped, as a modem would.
        limit = ("root", "tbf", "rate", rate, "burst", "8kb", "latency", "500ms")
        self._in_switch("tc", "qdisc", "replace", "dev", f"p{number}", *limit)
        self._in_host(number, "tc", "qdisc", "replace", "dev", "eth0", *limit)

    def join(self, number):
        # The link may have no queueing discipline.
        with contextlib.suppress(TestbedError):
            self._in_switch("tc", "qdisc", "del", "dev", f"p{number}", "root")
        with contextlib.suppress(TestbedError):
            self._in_host(number, "tc", "qdisc", "del", "dev", "eth0", "root")
        self._in_switch("ip", "link", "set", f"p{number}", "master", "br0", "up")

    def repair(self):
        """Repairs every host that this object has broken."""
        for number in list(self.broken):
            if self.is_on(number):
                self.join(number)
            else:
                self.power_on(number)
            self.broken.discard(number)

    def power_off(self, number):
        pid = self.init_pid(number)
        # Cut the link first, so that the sockets of the killed processes cannot send FIN or RST.
        self.cut(number)
        os.kill(pid, signal.SIGKILL)
        self._await(lambda: start_time(pid) is None, f"host {number} does not end")
        # The host's network namespace, with its interface, exists as long as closed connections retransmit their FIN. If
        # there are none, the switch's end of the link is already gone.
        with contextlib.suppress(TestbedError):
            self._in_switch("ip", "link", "del", f"p{number}")
        for path in self._cgroups(f"node{number}"):
            self._end_cgroup(path)

    def power_on(self, number):
        if self.is_on(number):
            raise TestbedError(f"host {number} is on")
        pid, reader = self._fork_host(number)
        self._finish_boot(number, pid, reader)
        self._await_sshd(number)

    # ---- check ----
    def host_view(self, number):
        name = f"node{number}"
        return leftovers.HostView(name, self.init_pid(number), self._cgroups(name))

    def leftovers(self):
        """Returns a line for each leftover of ivyrun on any host. Only valid if no job is running."""
        if not self.count():
            raise TestbedError("the testbed is not up (hosts up N)")
        return [line for number in self.numbers() if self.is_on(number)
                for line in leftovers.find(self.host_view(number))]

    def sweep(self):
        for number in self.numbers():
            if self.is_on(number):
                leftovers.sweep(self.host_view(number))

    # ---- down ----
    def down(self):
        with self._locked():
            self._remove()

    def _remove(self):
        for name in [*(f"node{number}" for number in self.numbers()), "switch"]:
            pid = self._pid(name)
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for path in self._cgroups(""):
            self._end_cgroup(path.rstrip("/"))
        shutil.rmtree(self.state, ignore_errors=True)

    @staticmethod
    def _end_cgroup(path):
        if not remove_cgroup(path):
            raise TestbedError(f"{path} cannot be removed; its processes do not end")
