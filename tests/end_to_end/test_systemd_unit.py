# SPDX-License-Identifier: Apache-2.0
"""The shipped template unit under a real systemd: readiness, watchdog, restart and stop during a job.

A test host gets the files that a package would install (the program in /usr/bin, the unit, /etc/ivyrun) and a systemd.
Most tests use a `systemd --user` of the ordinary user, with a drop-in, because a user's manager can change neither user
nor capabilities. Tests of these settings use a system manager, which is process 1 of separate namespaces and runs the unit
unchanged. Neither covers the order at boot (After=) and OOMPolicy=; systemd-analyze checks that these lines are valid.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from launching import BIN, HOSTS, REPOSITORY, SLOW, Finished, seconds, wait_until

import leftovers  # (found by way of launching)
from host_init import USER, USER_ID
from namespaces import remove_cgroup

SCRIPTS = os.path.join(REPOSITORY, "scripts/systemd")
TEMPLATE = os.path.join(SCRIPTS, "ivy-agent@.service")
UNIT = f"ivy-agent@{USER}.service"
NODE = 4              # A host with only cgroup v2, ordinary homes and shells.
PORT = 7411
HOME = f"/home/{USER}"
RUNTIME = f"/run/user/{USER_ID}"
CGROUP = "/sys/fs/cgroup/user-manager"
# A lower exposure would mean that the unit restricts jobs; a higher one, that a line of the unit is missing.
EXPOSURE = (8.5, 9.0)

# Runs as root on the host. /etc, /usr/bin and /var/lib get overlays for the test; files that the overlay would hide are
# copied.
LAYERS = f"""
set -e
mkdir -p /run/layers/etc /run/layers/bin /run/layers/lib
mkdir -p /run/layers/work1 /run/layers/work2 /run/layers/work3
cp /etc/passwd /etc/group /etc/shadow /etc/hosts /etc/nsswitch.conf /run/layers/etc/
chmod 600 /run/layers/etc/shadow
[ ! -e /etc/hostname ] || cp /etc/hostname /run/layers/etc/
mount -t overlay layer -o lowerdir=/etc,upperdir=/run/layers/etc,workdir=/run/layers/work1 /etc
mount -t overlay layer -o lowerdir=/usr/bin,upperdir=/run/layers/bin,workdir=/run/layers/work2 /usr/bin
mount -t overlay layer -o lowerdir=/var/lib,upperdir=/run/layers/lib,workdir=/run/layers/work3 /var/lib
mkdir -p /etc/ivyrun
cp -r "$1/host" /etc/ivyrun/agent
chown -R {USER}: /etc/ivyrun/agent
install -m 755 "$1/ivy-agent" /usr/bin/ivy-agent
"""
USER_MANAGER = f"""
{LAYERS}
install -d -o {USER} -g {USER} -m 700 {RUNTIME} {HOME}/.config {HOME}/.config/systemd
install -d -o {USER} -g {USER} {HOME}/.config/systemd/user {HOME}/.config/systemd/user/ivy-agent@.service.d
install -m 644 "$1/ivy-agent@.service" {HOME}/.config/systemd/user/
mkdir -p /run/systemd/system {CGROUP}
chown -R {USER} {CGROUP}
echo $$ > {CGROUP}/cgroup.procs
exec setpriv --reuid {USER} --regid {USER} --init-groups env -i HOME={HOME} USER={USER} \\
  LOGNAME={USER} SHELL=/bin/bash PATH=/usr/bin:/bin LANG=C.UTF-8 XDG_RUNTIME_DIR={RUNTIME} \\
  /lib/systemd/systemd --user
"""
UNITS = "/run/units"  # The system manager's only units: the agent's, and empty targets that it depends on.
SYSTEM_MANAGER = f"""
set -e
mkdir -p {CGROUP}
echo $$ > {CGROUP}/cgroup.procs
exec unshare -p -m -C -i --fork --kill-child --mount-proc /bin/bash -c '
{LAYERS}
umount /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
# systemd mounts credentials in a child process, so mounts must propagate, as on a machine booted by systemd.
mount --make-rshared /
mkdir -p {UNITS}/ivy-agent@.service.d
install -m 644 "$1/ivy-agent@.service" {UNITS}/
for name in sysinit basic shutdown umount multi-user network-online nss-user-lookup remote-fs local-fs; do
  printf "[Unit]\\nDefaultDependencies=no\\n" > {UNITS}/$name.target
done
exec env -i PATH=/usr/bin:/bin container=ivytest SYSTEMD_UNIT_PATH={UNITS} \\
  /lib/systemd/systemd --system --unit=multi-user.target --log-target=console
' boot "$1"
"""
REMOVE = f"""
for place in /usr/bin /etc /var/lib; do mountpoint -q $place && umount -l $place; done
rm -rf /run/layers {RUNTIME} {UNITS} /run/systemd /run/ivyrun-{USER} {HOME}/.config {HOME}/.local {HOME}/.cache
"""
# Bits of CapabilityBoundingSet= (linux/capability.h) that the unit removes, and one that it must keep.
TAKEN_AWAY = {"BLOCK_SUSPEND": 36, "LEASE": 28, "LINUX_IMMUTABLE": 9, "MAC_ADMIN": 33, "MAC_OVERRIDE": 32,
              "SYS_BOOT": 22, "SYS_PACCT": 20, "SYS_TIME": 25, "SYS_TTY_CONFIG": 26, "WAKE_ALARM": 35}
SYS_RESOURCE = 24
# Removes settings that a user's manager may not apply, and sends the agent's log to a file.
ADAPT = """[Service]
User=
CapabilityBoundingSet=~
StandardError=append:{log}
"""


def systemd_is_here():
    return os.path.exists("/lib/systemd/systemd") and shutil.which("systemd-analyze")


# ---- without running it --------------------------------------------------------------------------

@pytest.fixture
def analyze():
    """Returns a function that runs systemd-analyze in a mount namespace where the program is installed."""
    if os.geteuid() != 0 or not systemd_is_here():
        pytest.skip("needs root and systemd's programs")
    script = ("set -e; mount -t tmpfs tmpfs /mnt; mkdir /mnt/upper /mnt/work; "
              'cp "$1" /mnt/upper/ivy-agent; shift; '
              "mount -t overlay layer -o lowerdir=/usr/bin,upperdir=/mnt/upper,workdir=/mnt/work "
              '/usr/bin; exec systemd-analyze "$@"')

    def run(*words):
        return subprocess.run(["unshare", "-m", "sh", "-c", script, "sh",
                               os.path.join(BIN, "ivy-agent"), *words], text=True,
                              capture_output=True, cwd=SCRIPTS, timeout=seconds(30))
    return run


@pytest.mark.parametrize("name", ["ivy-agent@.service", "ivy-agent@alice.service"])
def test_systemd_understands_every_line(analyze, name):
    # The man page is only in the packages, so it is not checked here.
    done = analyze("verify", "--man=no", os.path.join(SCRIPTS, name))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done


def test_exposed_ports_are_reported(analyze, capsys):
    done = analyze("security", "--offline=true", "--no-pager", TEMPLATE)
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+) (\w+)", done.stdout)
    assert found, done
    with capsys.disabled():
        print(f"\n  systemd-analyze security --offline: {found[1]} ({found[2]}); jobs inherit the unit's "
              "sandbox, its comments say what each missing line would break")
    assert EXPOSURE[0] <= float(found[1]) <= EXPOSURE[1], done.stdout


def test_examples_are_valid_units(analyze):
    """systemd knows all lines of the unit and of every shipped drop-in."""
    with open(os.path.join(SCRIPTS, "ivy-agent@.service.d/10-credentials.conf.example")) as file:
        credentials = file.read()
    with open(TEMPLATE) as file:
        whole = file.read().replace("[Install]", credentials + "\n[Install]")
    folder = f"/tmp/ivytest-unit-{os.getpid()}"
    os.mkdir(folder)
    try:
        path = os.path.join(folder, "ivy-agent@.service")
        with open(path, "w") as file:
            file.write(whole)
        done = analyze("verify", "--man=no", path)
        assert (done.returncode, done.stderr) == (0, ""), done
    finally:
        shutil.rmtree(folder)


# ---- under systemd -------------------------------------------------------------------------------

class Manager:
    """One host's `systemd --user` with the unit installed, and a launcher on node1."""

    DROP_INS = f"{HOME}/.config/systemd/user/ivy-agent@.service.d"
    SOCKET = f"{RUNTIME}/ivyrun-{USER}/agent.sock"

    def __init__(self, hosts):
        self.hosts, self.bed = hosts, hosts.bed
        self.user = hosts.as_user(USER)
        self.log = f"{hosts.directory}/agent.log"
        self.process = None
        self._prepare()

    def _prepare(self):
        """Creates the CA and the certificates as an administrator would, and copies the files of the package."""
        outside = self.hosts.outside(self.hosts.directory)
        for program in ("ivy-agent", "ivy-agent-cert"):
            shutil.copy(os.path.join(BIN, program), outside)
        shutil.copy(TEMPLATE, outside)
        agent, ca = f"{self.hosts.directory}/ivy-agent", f"{self.hosts.directory}/ca"
        self.configuration = f"{self.hosts.directory}/user"
        for words in (("ca", "init", "--ca", ca),
                      ("cert", f"node{NODE}", f"10.77.0.{NODE}", "--serves", USER, "--ca", ca,
                       "--out", f"{self.hosts.directory}/host"),
                      ("cert", "--user", USER, "--ca", ca)):
            done = self.hosts.run_on(1, "env", f"XDG_CONFIG_HOME={self.configuration}", agent,
                                     *words, user=USER)
            assert done.code == 0, done

    def boot(self, script):
        log = open(self.hosts.outside(f"{self.hosts.directory}/systemd.log"), "wb")
        with log:
            self.process = subprocess.Popen(
                [HOSTS, "exec", str(NODE), "/bin/bash", "-c", script, "boot",
                 self.hosts.directory],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "IVY_TESTBED": self.bed.state})

    def await_manager(self, condition):
        def there():
            assert self.process.poll() is None, self.hosts.read("systemd.log").decode()
            return condition()
        return wait_until(there, 20, "systemd answers")

    def start_manager(self):
        self.boot(USER_MANAGER)
        self.await_manager(lambda: os.path.exists(self.place(f"{RUNTIME}/systemd/private")))
        self.set_options(f"--listen 0.0.0.0:{PORT}")
        self.drop_in("10-test.conf", ADAPT.format(log=self.log))

    def init_pid(self):
        """Returns the pid of the first process of the agent's pid namespace, as seen on this machine."""
        return self.bed.init_pid(NODE)

    def place(self, path):
        return f"/proc/{self.init_pid()}/root{path}"

    # ---- commands of an administrator ----
    def as_user(self, *command, limit=60):
        return self.hosts.run_on(NODE, "env", f"XDG_RUNTIME_DIR={RUNTIME}", *command, user=USER,
                                 limit=limit)

    def systemctl(self, *words, check=True):
        done = self.as_user("systemctl", "--user", *words)
        assert not check or done.code == 0, f"{words}: {done}{self.text()}"
        return done

    def agent(self, *words):
        """Runs another ivy-agent command over the unit's socket."""
        return self.as_user("env", f"IVY_AGENT_SOCKET={self.SOCKET}", "ivy-agent", *words)

    def set_options(self, options):
        with open(self.place(f"/etc/ivyrun/agent-{USER}.conf"), "w") as file:
            file.write(f"IVY_AGENT_OPTIONS={options}\n")

    def drop_in(self, name, text):
        with open(os.path.join(self.place(self.DROP_INS), name), "w") as file:
            file.write(text)
        self.systemctl("daemon-reload")

    def show(self, *names):
        done = self.systemctl("show", UNIT, *(f"--property={name}" for name in names))
        values = dict(line.split("=", 1) for line in done.out_lines)
        return values[names[0]] if len(names) == 1 else values

    def wait_for_status(self, text):
        try:
            wait_until(lambda: self.show("StatusText") == text, 5, f"the status is {text!r}")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.show('StatusText')}") from None

    def text(self):
        with contextlib.suppress(FileNotFoundError):
            return self.hosts.read("agent.log").decode(errors="replace")
        return ""

    # ---- processes ----
    def agent_pid(self):
        """Returns the agent's pid as seen on this machine, or None."""
        agents = [process for process in leftovers.processes_of(self.init_pid())
                  if process.name == b"ivy-agent" and process.state != "Z"]
        # Child processes have the agent's name until they execute their program.
        parents = {process.pid for process in agents}
        pids = [process.pid for process in agents if process.parent not in parents]
        assert len(pids) <= 1, pids
        return pids[0] if pids else None

    def workers(self):
        return sorted(process.pid for process in
                      leftovers.processes_of(self.init_pid())
                      if process.state != "Z" and b"IVY_RANK=" in process.environment)

    # ---- jobs ----
    def job(self, *arguments, workers=2, **options):
        return self.user.start(
            "--transport", "agent", "-H", f"node{NODE}", "--nproc_per_node", str(workers),
            *arguments, env={"IVY_AGENT_CONFIG": f"{self.configuration}/ivyrun/agent.toml"},
            **options)

    def run(self, *arguments, **options):
        with self.job(*arguments, **options) as run:
            return run.finish()

    @contextlib.contextmanager
    def counting_job(self, code=7):
        """Runs a job whose two workers count until the block ends, and checks that it was not interrupted: the processes are
        the same, no number is missing or repeated, and the exit code is the workers'."""
        stop = f"{self.hosts.directory}/stop"
        with self.job(self.hosts.script("sequence.py"), "0.05", stop, str(code)) as run:
            run.wait_for("count 3\n", count=2)
            pids = self.workers()
            assert len(pids) == 2, run.said()
            yield run
            assert self.workers() == pids
            seen = {rank: len(texts) for rank, texts in numbers(run.said()).items()}
            # The workers continue after the block, and their output arrives.
            wait_until(lambda: all(len(texts) > seen[rank] + 3 for rank, texts
                                   in numbers(run.said()).items()), 30, "new output of the workers")
            self.hosts.file("stop")
            done = run.finish()
        assert done.code == code, done
        for rank, texts in done.texts_by_rank().items():
            pid = texts[0].split()[1]
            assert texts == [f"pid {pid} count {count}" for count in range(len(texts))], rank

    # ---- removal ----
    def remove(self):
        """Removes everything: the manager, the agent, and jobs that a failed test has left."""
        top = self.bed.host_view(NODE).cgroups[0] + CGROUP.removeprefix("/sys/fs/cgroup")
        removed = remove_cgroup(top)
        if self.process is not None:
            self.process.wait(seconds(10))
        self.hosts.run_on(NODE, "/bin/sh", "-c", REMOVE)
        assert removed, f"{top} cannot be removed"


class SystemManager(Manager):
    """Looks like the host's system manager to the unit: it is process 1 and runs as root."""

    DROP_INS = f"{UNITS}/ivy-agent@.service.d"
    SOCKET = f"/run/ivyrun-{USER}/agent.sock"
    pid = None

    def start_manager(self):
        self.boot(SYSTEM_MANAGER)
        self.pid = self.await_manager(self._first_process)
        self.await_manager(lambda: self.systemctl("is-system-running", check=False).out in
                           (b"running\n", b"degraded\n"))
        self.set_options(f"--listen 0.0.0.0:{PORT}")

    def _first_process(self):
        """Returns the pid of process 1 of the inner namespace when it has become systemd."""
        for process in leftovers.processes_of(self.bed.init_pid(NODE)):
            with contextlib.suppress(OSError):
                with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
                    children = [int(word) for word in file.read().split()]
                for child in children:
                    with open(f"/proc/{child}/comm") as name, open(f"/proc/{child}/status") as status:
                        inner = re.search(r"^NSpid:.*\t1$", status.read(), re.MULTILINE)
                        if inner and name.read() == "systemd\n":
                            return child
        return None

    def init_pid(self):
        return self.pid

    def systemctl(self, *words, check=True):
        done = self.inside("systemctl", *words)
        assert not check or done.code == 0, \
            f"{words}: {done}{self.inside('systemctl', 'status', UNIT)}{self.text()}"
        return done

    def inside(self, *command):
        done = subprocess.run(["nsenter", "-t", str(self.pid), "-a", *command], capture_output=True,
                              stdin=subprocess.DEVNULL, timeout=seconds(60))
        return Finished(done.returncode, done.stdout, done.stderr, 0)


def numbers(said):
    found = {}
    for rank, number in re.findall(rb"^\[(\d+)[^\]]*\] pid \d+ count (\d+)$", said, re.MULTILINE):
        found.setdefault(rank, []).append(int(number))
    return found


def started(kind, hosts):
    if not systemd_is_here():
        pytest.skip("needs systemd's programs")
    with open("/proc/filesystems") as table:
        if "overlay" not in table.read():
            pytest.skip("needs overlay file systems")
    made = kind(hosts)
    try:
        made.start_manager()
        yield made
    finally:
        made.remove()


@pytest.fixture
def manager(hosts):
    yield from started(Manager, hosts)


@pytest.fixture
def system(hosts):
    yield from started(SystemManager, hosts)


def test_an_agent_serves_when_it_is_ready(manager):
    """A request right after `systemctl start` succeeds, over the Unix socket and over the network."""
    manager.systemctl("start", UNIT)
    done = manager.run("hostname")
    assert done.code == 0 and [text for _, _, text in done.labelled()] == [f"node{NODE}"] * 2, done
    for _ in range(5):
        manager.systemctl("restart", UNIT)
        done = manager.agent("status")
        assert done.code == 0, (done, manager.text())
    assert manager.show("ActiveState", "SubState", "NRestarts") == {
        "ActiveState": "active", "SubState": "running", "NRestarts": "0"}
    manager.systemctl("reload", UNIT)
    assert manager.agent("status").code == 0


def test_a_failing_server_is_not_ready_and_is_retried(manager):
    """systemctl start fails. When the cause is fixed, the unit starts by itself."""
    manager.set_options(f"--listen 0.0.0.0:{PORT} --certificates /etc/ivyrun/missing")
    done = manager.systemctl("start", UNIT, check=False)
    assert done.code != 0, done
    assert "/etc/ivyrun/missing" in manager.text()
    wait_until(lambda: int(manager.show("NRestarts")) >= 6, 30,
               "more attempts than systemd's own limit of starts")
    manager.set_options(f"--listen 0.0.0.0:{PORT}")
    wait_until(lambda: manager.show("ActiveState") == "active", 10, "the unit has started by itself")
    assert manager.run("hostname").code == 0


def test_status_counts_jobs(manager):
    manager.systemctl("start", UNIT)
    manager.wait_for_status("0 jobs")
    with manager.counting_job():
        manager.wait_for_status("1 job")
        assert manager.agent("drain").code == 0
        manager.wait_for_status("draining, 1 job")
        assert manager.agent("drain", "--undo").code == 0
    manager.wait_for_status("0 jobs")


def test_jobs_run_in_sibling_cgroups_and_inherit_no_sandbox(manager):
    manager.systemctl("start", UNIT)
    unit = manager.show("ControlGroup")
    pid = manager.agent_pid()
    with open(f"/proc/{pid}/cgroup") as file:
        assert file.read().strip().endswith(f"/{UNIT}/agent")
    done = manager.run("sh", "-c", "grep ^0:: /proc/self/cgroup; grep -E 'NoNewPrivs|Seccomp:' "
                       "/proc/self/status; readlink /proc/self/ns/mnt; env; umask", workers=1)
    assert done.code == 0, done
    said = done.out_lines
    assert re.fullmatch(rf"0::{re.escape(unit)}/jobs/ivy-[^/]+(/.*)?", said[0]), said[0]
    host = os.readlink(f"/proc/{manager.bed.init_pid(NODE)}/ns/mnt")
    assert [line.split() for line in said[1:3]] == [["NoNewPrivs:", "0"], ["Seccomp:", "0"]]
    assert said[3] == host and said[-1] == "0022", said
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "RUNTIME_DIRECTORY", "STATE_DIRECTORY",
                 "INVOCATION_ID", "IVY_AGENT_OPTIONS"):
        assert not any(line.startswith(f"{name}=") for line in said), name


def test_a_restart_does_not_affect_workers(manager):
    """The agent is restarted five times in order, as by an upgrade, and once by kill -9."""
    manager.systemctl("start", UNIT)
    with manager.counting_job():
        pids = [manager.agent_pid()]
        for _ in range(5):
            manager.systemctl("restart", UNIT)
            pids.append(manager.agent_pid())
        os.kill(pids[-1], signal.SIGKILL)
        wait_until(lambda: manager.agent_pid() not in (None, pids[-1]), 10, "the agent runs again after the kill")
        pids.append(manager.agent_pid())
        assert len(set(pids)) == len(pids), pids
        wait_until(lambda: manager.show("ActiveState") == "active", 10, "the agent is ready")
        manager.wait_for_status("1 job")


def frozen_agent_is_replaced(manager, limit):
    manager.systemctl("start", UNIT)
    with manager.counting_job():
        old = manager.agent_pid()
        os.kill(old, signal.SIGSTOP)
        started = time.monotonic()
        wait_until(lambda: manager.agent_pid() not in (None, old), limit, "systemd replaces it")
        took = time.monotonic() - started
        wait_until(lambda: manager.show("ActiveState") == "active", 10, "the new agent is ready")
        assert manager.show("NRestarts") == "1"
    return took


def test_frozen_agent_is_replaced(manager):
    """The watchdog is shortened here. The shipped watchdog is tested with --long."""
    manager.drop_in("20-watchdog.conf", "[Service]\nWatchdogSec=3\n")
    frozen_agent_is_replaced(manager, 3 + 1 + 4)


@pytest.mark.long
def test_frozen_agent_is_replaced_within_35_s(manager):
    # The lease must be longer than the watchdog: it is 60 s without a terminal.
    took = frozen_agent_is_replaced(manager, 35)
    # The last watchdog notification was at most 10 s before.
    assert took > 15, "the shipped watchdog was not used"
    assert manager.show("WatchdogUSec") == "30s"


def test_stop_ends_only_the_agent(manager):
    """KillMode=process: the workers continue, and the job is connected again as soon as an agent runs."""
    manager.systemctl("start", UNIT)
    with manager.counting_job():
        pids = manager.workers()
        manager.systemctl("stop", UNIT)
        assert manager.agent_pid() is None
        assert manager.show("ActiveState", "Result") == {"ActiveState": "inactive",
                                                         "Result": "success"}
        assert manager.workers() == pids
        manager.systemctl("start", UNIT)
        manager.wait_for_status("1 job")


@pytest.mark.long
def test_the_job_ends_if_the_agent_remains_stopped(manager):
    manager.systemctl("start", UNIT)
    with manager.job("sleep", "1000") as run:
        pids = wait_until(lambda: len(manager.workers()) == 2 and manager.workers(), 20, "it runs")
        manager.systemctl("stop", UNIT)
        stopped = time.monotonic()
        while time.monotonic() - stopped < 50:
            assert manager.workers() == pids, "the job ended too early"
            time.sleep(1)
        wait_until(lambda: not manager.workers(), 66 - 50, "the supervisor has ended the workers")
        done = run.finish(30)
        assert done.code != 0 and f"node{NODE}" in done.own_text(), done


def test_drain_for_maintenance(manager):
    """Draining rejects new jobs and stops the running one in order. The unit remains active."""
    manager.systemctl("start", UNIT)
    with manager.job("sleep", "1000") as run:
        wait_until(lambda: len(manager.workers()) == 2, 20, "it runs")
        assert manager.agent("drain").code == 0
        refused = manager.run("hostname")
        assert refused.code != 0 and "drain" in refused.own_text(), refused
        ended = manager.agent("drain", "--stop", "--wait", str(int(40 * SLOW)))
        assert ended.code == 0, ended
        assert manager.workers() == []
        assert run.finish().code != 0
    assert manager.show("ActiveState") == "active"
    assert manager.agent("drain", "--undo").code == 0
    assert manager.run("hostname").code == 0


# ---- under a system manager ----------------------------------------------------------------------

def test_workers_inherit_system_limits(system):
    """The unit is unchanged. It sets the user, limits, directories and removed capabilities."""
    system.systemctl("start", UNIT)
    done = system.run("sh", "-c", "id -un; ulimit -l; ulimit -n; grep -E '^(CapEff|CapBnd|NoNewPrivs):' "
                      "/proc/self/status; readlink /proc/self/ns/mnt; grep ^0:: /proc/self/cgroup; "
                      f"stat -c '%U %a' /run/ivyrun-{USER} {system.SOCKET} /var/lib/ivyrun/{USER}",
                      workers=1)
    assert done.code == 0, done
    said = done.out_lines
    values = dict(line.split(":\t") for line in said[3:6])
    with open(f"/proc/{system.pid}/status") as file:
        everything = int(re.search(r"^CapBnd:\t(\w+)$", file.read(), re.MULTILINE)[1], 16)
    assert said[0] == USER, said
    # If root may not raise limits, as in some containers, systemd sets the closest possible limit.
    if everything & 1 << SYS_RESOURCE:
        assert said[1] == "unlimited", said  # The limit of open files is that of ivyrun's shell.
    taken = sum(1 << bit for bit in TAKEN_AWAY.values())
    assert int(values["CapBnd"], 16) == everything & ~taken, values
    assert (values["CapEff"], values["NoNewPrivs"]) == ("0" * 16, "0")
    assert said[6] == os.readlink(f"/proc/{system.pid}/ns/mnt")
    assert re.match(r"0::/system\.slice/.*/" + re.escape(UNIT) + "/jobs/ivy-", said[7]), said[7]
    assert said[8:] == [f"{USER} 700", f"{USER} 600", f"{USER} 700"], said


def test_restart_and_stop_under_the_system(system):
    system.systemctl("start", UNIT)
    with system.counting_job():
        for words in (("restart",), ("restart",), ("stop", "start")):
            for word in words:
                system.systemctl(word, UNIT)
        system.wait_for_status("1 job")


def test_credentials_are_readable_by_root_only(system):
    """With the shipped drop-in example, only root can read the key's file, and the agent still serves."""
    with open(os.path.join(SCRIPTS, "ivy-agent@.service.d/10-credentials.conf.example")) as file:
        system.drop_in("10-credentials.conf", file.read() + f"StandardError=append:{system.log}\n")
    assert system.inside("chown", "-R", "root:", "/etc/ivyrun/agent").code == 0
    assert system.inside("chmod", "700", "/etc/ivyrun/agent").code == 0
    system.systemctl("start", UNIT)
    done = system.run("sh", "-c", "cat /etc/ivyrun/agent/host.key || readlink /proc/self/ns/mnt",
                      workers=1)
    assert done.code == 0 and "Permission denied" in done.err_text, done
    # The drop-in does not add a sandbox.
    assert done.out_lines == [os.readlink(f"/proc/{system.pid}/ns/mnt")]
