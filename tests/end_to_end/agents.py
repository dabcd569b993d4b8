# SPDX-License-Identifier: Apache-2.0
"""Agents on the test hosts: certificates, start, stop, kill, logs, and leftovers.

`Credentials` are made once for all tests, with the commands that an administrator types. `Agent` is
the agent of one host. `Agents` is the fixture that tests use.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import threading

from launching import BIN, HOSTS, seconds, wait_until

import leftovers  # (found by way of launching)
from host_init import USER, USER_ID
from namespaces import cgroup_members, remove_cgroup
from testbed import ipv4

PORT = 7411
HOME = f"/home/{USER}"
SOCKET = f"/tmp/ivyrun-{USER_ID}/agent.sock"
UNIT = "agent-unit"   # The cgroup that a host's service manager would delegate.
READY_SECONDS = 10


class Credentials:
    """A CA with certificates of hosts and users, in a directory that every host sees."""

    def __init__(self, bed):
        self.bed = bed
        self.inside = "/srv/ivyshared/agents"
        self.outside = os.path.join(bed.shared, "agents")
        os.makedirs(self.outside)
        os.chown(self.outside, USER_ID, USER_ID)
        # The other hosts do not see the build directory, so the agent's program is copied to where they see it.
        os.mkdir(f"{self.outside}/bin")
        for program in ("ivy-agent", "ivy-agent-cert"):
            shutil.copy(os.path.join(BIN, program), f"{self.outside}/bin/{program}")
        self.agent("ca", "init", "--ca", self.path("ca"))
        for number in bed.numbers():
            self.agent("cert", f"node{number}", ipv4(number), "--serves", USER, "--ca",
                       self.path("ca"), "--out", self.path(f"node{number}"))
        self.make_user("user")

    def path(self, name):
        """Returns the path of `name` on the hosts."""
        return f"{self.inside}/{name}"

    def place(self, name):
        """Returns the path of `name` on this machine."""
        return os.path.join(self.outside, name)

    def agent(self, *words, check=True, config="nobody", wrap=()):
        """Runs ivy-agent on node1 as the ordinary user."""
        command = [HOSTS, "exec", f"{USER}@1", "env", f"XDG_CONFIG_HOME={self.path(config)}", *wrap,
                   self.path("bin/ivy-agent"), *words]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              env={**os.environ, "IVY_TESTBED": self.bed.state},
                              timeout=seconds(30))
        assert not check or done.returncode == 0, f"{words}: {done.stderr}"
        return done

    def make_user(self, config, ca="ca", days=90, wrap=()):
        """Makes a configuration directory with an agent.toml and the files that it names."""
        self.agent("cert", "--user", USER, "--ca", self.path(ca), "--days", str(days),
                   config=config, wrap=wrap)
        return config

    def copy_program(self, name):
        """Copies ivy-agent into the directory `name`, for a test that replaces the program while it runs."""
        os.makedirs(self.place(name), exist_ok=True)
        fresh = self.place(f"{name}/fresh")
        shutil.copy(os.path.join(BIN, "ivy-agent"), fresh)
        # The file is replaced and not overwritten, because it may be running.
        os.replace(fresh, self.place(f"{name}/ivy-agent"))
        return self.path(f"{name}/ivy-agent")

    def copy(self, source, target):
        """Copies a directory together with its owner."""
        shutil.copytree(self.place(source), self.place(target))
        for directory, _, names in os.walk(self.place(target)):
            for path in (directory, *(os.path.join(directory, name) for name in names)):
                os.chown(path, USER_ID, USER_ID)
        return target


class Agent:
    """The agent of one host. If `delegated`, it runs in a separate cgroup that it may write to, as under systemd;
    otherwise in a cgroup that it may not write to, as in a login session."""

    def __init__(self, agents, number, delegated):
        self.bed, self.number, self.delegated = agents.bed, number, delegated
        self.credentials = agents.credentials
        self.program = self.credentials.path("bin/ivy-agent")
        self.certificates = self.credentials.path(f"node{number}")
        self.flags = ["--listen", f"0.0.0.0:{PORT}"]
        self.log_path = agents.launcher.outside(f"{agents.launcher.directory}/agent-{number}.log")
        self.process = None
        self.environment = {}
        self.limits = ()  # A program that sets limits and then becomes the agent.

    # ---- start and stop ----
    def start(self, wait=True):
        assert not self.is_running(), f"the agent of node{self.number} is already running"
        said = len(self.text())
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        inside = self.bed.exec_command(self.number, USER, [
            *variables, *self.limits, self.program, "serve", "--certificates", self.certificates,
            *self.flags])
        # The agent must be in the cgroups of the host's other processes. It has to enter them before it enters the
        # host's namespaces.
        enter = "for d in $0; do echo $$ > $d/cgroup.procs; done; exec \"$@\""
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                ["/bin/sh", "-c", enter, " ".join(self._cgroups()), *inside],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True)
        if wait:
            self.wait_ready(said)

    def _cgroups(self):
        paths = self.bed._cgroups(f"node{self.number}")
        if self.delegated:
            paths[0] = os.path.join(paths[0], UNIT)
            if not os.path.isdir(paths[0]):
                os.mkdir(paths[0])
                for name in ("", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"):
                    with contextlib.suppress(FileNotFoundError):
                        os.chown(os.path.join(paths[0], name), USER_ID, USER_ID)
        return paths

    def wait_ready(self, said=0):
        self.wait_for("ready\n", READY_SECONDS, said)

    def is_running(self):
        return self.process is not None and self.process.poll() is None

    def pid(self):
        """Returns the agent's pid. It is the only child of the process that entered the host's namespaces."""
        def find():
            with contextlib.suppress(OSError, ValueError):
                with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children") as file:
                    pid = int(file.read())
                with open(f"/proc/{pid}/comm") as file:
                    return pid if file.read().strip() == "ivy-agent" else None
            return None
        return wait_until(find, 5, f"the agent of node{self.number} is a process")

    def signal(self, number):
        pid = self.pid()
        os.kill(pid, number)
        if number == signal.SIGCONT:
            # nsenter stops itself when its child is stopped. Without this signal it would not notice the child's exit.
            os.kill(self.process.pid, number)

    def kill(self):
        """Kills the agent without a warning. Its socket file remains."""
        self.signal(signal.SIGKILL)
        self.process.wait(seconds(5))

    def stop(self):
        """Stops the agent with TERM, as a service manager does, and returns its exit code."""
        self.signal(signal.SIGTERM)
        return self.process.wait(seconds(10))

    def restart(self, wait=True):
        self.kill()
        self.start(wait)

    # ---- log ----
    def text(self):
        with contextlib.suppress(FileNotFoundError):
            with open(self.log_path, errors="replace") as file:
                return file.read()
        return ""

    def wait_for(self, words, limit=5, since=0):
        def there():
            if words in self.text()[since:]:
                return True
            assert self.is_running(), f"the agent of node{self.number} ended:\n{self.text()[since:]}"
            return False
        try:
            wait_until(there, limit, f"node{self.number}'s agent says {words!r}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.text()[since:][-4000:]}") from None

    # ---- resources ----
    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid()}/fd"))

    def cpu_seconds(self):
        with open(f"/proc/{self.pid()}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    # ---- removal ----
    def remove(self):
        """Kills the agent in any state and removes everything except its records in the user's home."""
        if self.is_running():
            with contextlib.suppress(AssertionError, ProcessLookupError):
                # A stopped process handles no signals until it is continued.
                self.signal(signal.SIGCONT)
                self.signal(signal.SIGTERM)
            try:
                self.process.wait(seconds(5))
            except subprocess.TimeoutExpired:
                with contextlib.suppress(AssertionError, ProcessLookupError):
                    self.signal(signal.SIGKILL)
                self.process.kill()
                self.process.wait()
        if self.bed.is_on(self.number):
            view = self.bed.host_view(self.number)
            # A killed agent cannot remove its socket. Its lock file may remain.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(view.place(SOCKET))
            # Otherwise the next agent would still be drained.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(view.place(f"{HOME}/.local/state/ivyrun/agent/node{self.number}/draining"))
            shutil.rmtree(view.place(f"{HOME}/.config/ivyrun"), ignore_errors=True)
        self.remove_unit()

    def remove_unit(self):
        """Removes the delegated cgroup, unless jobs are still in it: those are reported as leftovers."""
        top = os.path.join(self.bed._cgroups(f"node{self.number}")[0], UNIT)
        inside = [path for path, _, _ in os.walk(top) if cgroup_members(path)]
        names = {os.path.relpath(path, top) for path, _, _ in os.walk(top)}
        if not inside and names <= {".", "agent", "jobs"}:
            remove_cgroup(top)


class Agents:
    """Agents on the hosts that the test chooses, and a launcher that runs as the ordinary user on node1."""

    def __init__(self, launcher, credentials):
        self.launcher, self.credentials, self.bed = launcher, credentials, launcher.bed
        self.of_host = {}
        self.configure("user")

    def __getitem__(self, number):
        return self.of_host[number]

    def configure(self, config, host=1):
        """Writes the user's agent.toml, certificate and key into the home on the launcher's host."""
        home = self.bed.host_view(host).place(HOME)
        target = os.path.join(home, ".config/ivyrun")
        shutil.rmtree(target, ignore_errors=True)
        if config is None:
            return
        # agent.toml names files in the same directory.
        shutil.copytree(os.path.join(self.credentials.place(config), "ivyrun"), target)
        for directory, _, names in os.walk(os.path.join(home, ".config")):
            for path in (directory, *(os.path.join(directory, name) for name in names)):
                os.chown(path, USER_ID, USER_ID)

    def prepare(self, *numbers):
        """Creates the agents without starting them. Those of even hosts have a delegated cgroup, those of odd hosts do not."""
        for number in numbers:
            self.of_host[number] = Agent(self, number, delegated=number % 2 == 0)
        return [self.of_host[number] for number in numbers]

    def start(self, *numbers):
        made = self.prepare(*numbers)
        for agent in made:
            agent.start(wait=False)
        for agent in made:
            agent.wait_ready()
        return made[0]

    def run(self, *arguments, **options):
        return self.launcher.run("--transport", "agent", *arguments, **options)

    def job(self, *arguments, **options):
        return self.launcher.start("--transport", "agent", *arguments, **options)

    def command(self, number, *words, limit=30):
        """Runs another ivy-agent command on the agent's host."""
        return self.launcher.run_on(number, self.credentials.path("bin/ivy-agent"), *words,
                                    user=USER, limit=limit)

    # ---- leftovers ----
    def leftovers(self):
        """Returns the testbed's leftovers without the running agents and their files, sockets and cgroups."""
        return [line for line in self.bed.leftovers() if not self._is_an_agents(line)]

    def leftovers_of_ours(self):
        return [line for line in self.leftovers() if ": connection " not in line]

    def _is_an_agents(self, line):
        host, _, what = line.partition(": ")
        agent = self.of_host.get(int(host.removeprefix("node")))
        if agent is None:
            return False
        top = os.path.join(self.bed._cgroups(host)[0], UNIT)
        running = agent.is_running()
        if running and what.startswith(f"process {agent.pid()} "):
            return True
        return (what in {f"cgroup {top}", f"cgroup {top}/agent", f"cgroup {top}/jobs",
                         f"file {SOCKET}"} or
                running and what in {f"listening port {PORT}", f"listening socket {SOCKET}"})

    def wait_clean(self, limit, find=None):
        find = find or self.leftovers_of_ours
        try:
            return wait_until(lambda: not find(), limit, "nothing of the jobs is left")
        except AssertionError as error:
            raise AssertionError(f"{error}\n" + "\n".join(find())) from None

    def workers(self, number):
        """Returns the pids, as seen on this machine, of the jobs' workers on a host, without ivyrun's own programs."""
        return sorted(process.pid for process in leftovers.processes_of(self.bed.init_pid(number))
                      if process.state != "Z" and b"IVY_RANK=" in process.environment)

    def supervisors(self, number):
        """Returns the pids, as seen on this machine, of the supervisors on a host. A worker that has not executed its
        program yet has the same name, but its parent is not a warden."""
        found = leftovers.processes_of(self.bed.init_pid(number))
        wardens = {process.pid for process in found if process.name == b"ivy-warden"}
        return [process.pid for process in found if process.name == b"ivy-supervisor" and
                process.state != "Z" and process.parent in wardens]

    def remove(self):
        threads = [threading.Thread(target=agent.remove) for agent in self.of_host.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.configure(None)


def side_by_side(*drills):
    """Runs functions at the same time and reports every failure."""
    failures = []

    def one(drill):
        try:
            drill()
        except BaseException as error:  # pytest's own failures are exceptions, too.
            failures.append(f"{getattr(drill, '__name__', drill)}: {error}")
    threads = [threading.Thread(target=one, args=(drill,)) for drill in drills]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, "\n\n".join(failures)
