# SPDX-License-Identifier: Apache-2.0
"""Agents on the test hosts: certificates, start, stop, kill, logs, and what is left beside them.

`Credentials` are made once for all tests, by the commands that an administrator types; `Agent` is
the agent of one host; `Agents` is what a test asks for.
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
UNIT = "agent-unit"   # The cgroup that a host's service manager would have delegated.
READY_SECONDS = 10


class Credentials:
    """A CA, host and user certificates below one directory that every host sees."""

    def __init__(self, bed):
        self.bed = bed
        self.inside = "/srv/ivyshared/agents"
        self.outside = os.path.join(bed.shared, "agents")
        os.makedirs(self.outside)
        os.chown(self.outside, USER_ID, USER_ID)
        # The other hosts do not see the build: an agent is installed there by copying it.
        os.mkdir(f"{self.outside}/bin")
        for program in ("ivy-agent", "ivy-agent-cert"):
            shutil.copy(os.path.join(BIN, program), f"{self.outside}/bin/{program}")
        self.agent("ca", "init", "--ca", self.path("ca"))
        for number in bed.numbers():
            self.agent("cert", f"node{number}", ipv4(number), "--serves", USER, "--ca",
                       self.path("ca"), "--out", self.path(f"node{number}"))
        self.make_user("user")

    def path(self, name):
        """As hosts see it."""
        return f"{self.inside}/{name}"

    def place(self, name):
        """As this machine sees it."""
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
        """agent.toml and what it names, in a configuration directory of its own."""
        self.agent("cert", "--user", USER, "--ca", self.path(ca), "--days", str(days),
                   config=config, wrap=wrap)
        return config

    def copy_program(self, name):
        """An ivy-agent of its own in the directory `name`, to be replaced while it runs."""
        os.makedirs(self.place(name), exist_ok=True)
        fresh = self.place(f"{name}/fresh")
        shutil.copy(os.path.join(BIN, "ivy-agent"), fresh)
        # Never written over: the old file may be running.
        os.replace(fresh, self.place(f"{name}/ivy-agent"))
        return self.path(f"{name}/ivy-agent")

    def copy(self, source, target):
        """A directory of the user's, with its owner."""
        shutil.copytree(self.place(source), self.place(target))
        for directory, _, names in os.walk(self.place(target)):
            for path in (directory, *(os.path.join(directory, name) for name in names)):
                os.chown(path, USER_ID, USER_ID)
        return target


class Agent:
    """The agent of one host. delegated: it lives in a cgroup of its own, as under systemd; else in
    one that it cannot write to, as in a login."""

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

    # ---- life ----
    def start(self, wait=True):
        assert not self.is_running(), f"the agent of node{self.number} runs"
        said = len(self.text())
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        inside = self.bed.exec_command(self.number, USER, [
            *variables, *self.limits, self.program, "serve", "--certificates", self.certificates,
            *self.flags])
        # What the host's processes are in, the agent must be in too: from outside, before it is
        # inside.
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
        """The agent itself: the only child of what entered the host's namespaces."""
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
            # nsenter stops itself with its child, and would never see its end.
            os.kill(self.process.pid, number)

    def kill(self):
        """Nobody is told; what it listened on stays."""
        self.signal(signal.SIGKILL)
        self.process.wait(seconds(5))

    def stop(self):
        """In order, as a service manager does. Returns its exit code."""
        self.signal(signal.SIGTERM)
        return self.process.wait(seconds(10))

    def restart(self, wait=True):
        self.kill()
        self.start(wait)

    # ---- what it says ----
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

    # ---- what it costs ----
    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid()}/fd"))

    def cpu_seconds(self):
        with open(f"/proc/{self.pid()}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    # ---- its end ----
    def remove(self):
        """Whatever state it is in: nothing of it is left but its records in the user's home."""
        if self.is_running():
            with contextlib.suppress(AssertionError, ProcessLookupError):
                # Stopped processes hear nothing until they go on.
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
            # A killed agent could not remove its socket. Its lock file stays, and may.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(view.place(SOCKET))
            # Draining would outlive it.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(view.place(f"{HOME}/.local/state/ivyrun/agent/node{self.number}/draining"))
            shutil.rmtree(view.place(f"{HOME}/.config/ivyrun"), ignore_errors=True)
        self.remove_unit()

    def remove_unit(self):
        """The delegated cgroup; jobs inside are left alone, to be found."""
        top = os.path.join(self.bed._cgroups(f"node{self.number}")[0], UNIT)
        inside = [path for path, _, _ in os.walk(top) if cgroup_members(path)]
        names = {os.path.relpath(path, top) for path, _, _ in os.walk(top)}
        if not inside and names <= {".", "agent", "jobs"}:
            remove_cgroup(top)


class Agents:
    """Agents where the test wants them, and a launcher who is the ordinary user of node1."""

    def __init__(self, launcher, credentials):
        self.launcher, self.credentials, self.bed = launcher, credentials, launcher.bed
        self.of_host = {}
        self.configure("user")

    def __getitem__(self, number):
        return self.of_host[number]

    def configure(self, config, host=1):
        """The user's own agent.toml, certificate and key, in his home on the launcher's host."""
        home = self.bed.host_view(host).place(HOME)
        target = os.path.join(home, ".config/ivyrun")
        shutil.rmtree(target, ignore_errors=True)
        if config is None:
            return
        # agent.toml names the files beside it.
        shutil.copytree(os.path.join(self.credentials.place(config), "ivyrun"), target)
        for directory, _, names in os.walk(os.path.join(home, ".config")):
            for path in (directory, *(os.path.join(directory, name) for name in names)):
                os.chown(path, USER_ID, USER_ID)

    def prepare(self, *numbers):
        """Not started yet. Even hosts have a delegated cgroup, odd ones have none."""
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
        """Another verb of the agent, on its host."""
        return self.launcher.run_on(number, self.credentials.path("bin/ivy-agent"), *words,
                                    user=USER, limit=limit)

    # ---- what is left ----
    def leftovers(self):
        """Like the testbed's, without the agents that run and what is theirs."""
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
        """Machine-wide pids of a host's processes that are workers of jobs, not our programs."""
        return sorted(process.pid for process in leftovers.processes_of(self.bed.init_pid(number))
                      if process.state != "Z" and b"IVY_RANK=" in process.environment)

    def supervisors(self, number):
        """Machine-wide pids. A worker that has not executed its program yet has the name too, but
        not a warden for a parent."""
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
    """Runs functions at the same time; every failure is shown."""
    failures = []

    def one(drill):
        try:
            drill()
        except BaseException as error:  # An assertion of pytest's is one too.
            failures.append(f"{getattr(drill, '__name__', drill)}: {error}")
    threads = [threading.Thread(target=one, args=(drill,)) for drill in drills]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, "\n\n".join(failures)
