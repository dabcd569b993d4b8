# SPDX-License-Identifier: Apache-2.0
"""Fixtures: `local` runs ivyrun on this machine, `hosts` runs it on node1 of six test hosts.

After every test that uses one of them, leftovers (processes, files, cgroups) are searched for. They fail the test and are
removed, so that the next test starts clean. The hosts are always torn down.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid

import pytest

from agents import Agents, Credentials
from launching import BIN, HOSTS, REPOSITORY, SLOW, WORKERS, HostLauncher, Launcher, seconds, stop_if_mounts_are_lost

import leftovers  # noqa: E402  (found by way of launching)
from namespaces import cgroup_mounts, remove_cgroup  # noqa: E402
from testbed import Testbed, TestbedError  # noqa: E402

# A shell starts background commands with SIGINT ignored. All child processes would inherit that, and the tests' Ctrl-C
# would have no effect.
signal.signal(signal.SIGINT, signal.default_int_handler)

HOST_COUNT = 6
SETTLE_SECONDS = 3  # The time for sshd's sessions to close and orphans to be reaped after a test.


def pytest_addoption(parser):
    # tests/frameworks uses this function, too, and the option can be added only once.
    with contextlib.suppress(ValueError):
        parser.addoption("--long", action="store_true",
                         help="also run the tests that repeat for minutes")


def pytest_configure(config):
    # Treat TERM, which timeout(1) sends, like Ctrl-C, so that fixtures stop the processes that the tests have started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    config.addinivalue_line("markers", "long: repeats for minutes; only with --long")
    config.addinivalue_line("markers", "spec(text): which sentence of the specification it proves")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--long"):
        return
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason="only with --long"))


def version_of(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        return (done.stdout or done.stderr).strip().splitlines()[0]
    except (OSError, IndexError, subprocess.TimeoutExpired) as error:
        return f"not there ({type(error).__name__})"


def pytest_report_header():
    kernel = os.uname().release
    return [f"ivyrun: {version_of(os.path.join(BIN, 'ivyrun'), '--version')} in {BIN}",
            f"ivy-node: {version_of(os.path.join(BIN, 'ivy-node'), '--version')}",
            f"kernel {kernel}, {version_of('/usr/bin/python3', '--version')}, "
            f"{version_of('ssh', '-V')}, slow factor {SLOW:g}"]


@pytest.fixture(scope="session", autouse=True)
def binaries():
    for name in ("ivyrun", "ivy-node"):
        path = os.path.join(BIN, name)
        if not os.access(path, os.X_OK):
            pytest.exit(f"{path} is not there: build it (cmake --preset release && "
                        "cmake --build --preset release) or set IVY_BIN", returncode=3)


# ---- this machine --------------------------------------------------------------------------------

def marked_processes(marker):
    """Returns the running processes of this machine whose environment contains the test's marker."""
    needle = f"IVYTEST_MARK={marker}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                process = leftovers.Process(int(entry))
                if needle in process.environment and process.state not in "ZX":
                    found.append(process)
    return found


def job_directories():
    found = set()
    for parent in (f"/tmp/ivyrun-{os.getuid()}", f"/dev/shm/ivyrun-{os.getuid()}"):
        with contextlib.suppress(OSError):
            found |= {f"{parent}/{name}" for name in os.listdir(parent)
                      if leftovers.JOB_DIRECTORY.match(name)}
    return found


def is_alive(path):
    """Returns whether a process listens on the job's socket. Then the job is not one of the tests'."""
    with contextlib.suppress(OSError), open("/proc/net/unix") as table:
        return any(line.rstrip().endswith(f"{path}/command.sock") for line in table)
    return False


def make_cgroup(name):
    """Creates a cgroup for the test and returns its path, or None if this machine does not permit it."""
    mount, _ = cgroup_mounts()
    path = os.path.join(mount or "/nonexistent", name)
    try:
        os.mkdir(path)
    except OSError:
        return None
    return path


def settle(find, limit=SETTLE_SECONDS):
    """Calls find() until it returns an empty list or the limit has passed, and returns its last result."""
    deadline = time.monotonic() + seconds(limit)
    while True:
        lines = find()
        if not lines or time.monotonic() > deadline:
            return lines
        time.sleep(0.05)


class LocalLauncher(Launcher):
    def __init__(self, directory):
        self.marker = uuid.uuid4().hex
        super().__init__(directory, self.marker)
        self.known = job_directories()
        self.cgroup = make_cgroup(f"ivytest-{self.marker[:12]}")

    def command(self, program, env):
        argv, environment = super().command(program, env)
        if self.cgroup:
            # ivyrun creates the job's cgroup below its own.
            enter = f"echo $$ > {self.cgroup}/cgroup.procs; exec \"$@\""
            argv = ["/bin/sh", "-c", enter, "sh", *argv]
        return argv, environment

    def leftovers(self):
        lines = [f"process {process.pid} ({process.name.decode(errors='replace')}, "
                 f"{process.state}): {process.words()}" for process in self.processes()]
        lines += [f"job directory {path}" for path in job_directories() - self.known
                  if not is_alive(path)]
        if self.cgroup:
            lines += [f"cgroup {directory}" for directory, _, _ in os.walk(self.cgroup)
                      if directory != self.cgroup]
        return lines

    def remove(self):
        for process in marked_processes(self.marker):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        shutil.rmtree(self.directory, ignore_errors=True)
        if self.cgroup:
            remove_cgroup(self.cgroup)

    def processes(self):
        """Returns all processes that this test has started and that are still running."""
        return marked_processes(self.marker)

    def wait_clean(self, limit):
        """Waits until nothing is left and returns the seconds that this took. Fails after the limit."""
        return wait_clean(self.leftovers, limit)


def wait_clean(find, limit):
    started = time.monotonic()
    left = settle(find, limit)
    assert not left, f"left after {seconds(limit):g} s:\n" + "\n".join(left)
    return time.monotonic() - started


@pytest.fixture
def local():
    # Not below pytest's own directories, which other users cannot access and whose names are long.
    directory = tempfile.mkdtemp(prefix="ivytest-")
    launcher = LocalLauncher(directory)
    yield launcher
    left = settle(launcher.leftovers)
    launcher.remove()
    assert not left, "left behind:\n" + "\n".join(left)


# ---- test hosts ----------------------------------------------------------------------------------

@contextlib.contextmanager
def made_testbed(count, *arm64):
    """A testbed of the test's own, in which the hosts with the numbers `arm64` emulate aarch64. Skips where that is not
    possible."""
    try:
        Testbed().check_machine(count)
        if arm64:
            Testbed().check_arm64()
    except TestbedError as error:
        pytest.skip(f"no test hosts here: {error}")
    state = tempfile.mkdtemp(prefix="ivytest-bed-", dir="/run")
    environment = {**os.environ, "IVY_TESTBED": state}
    os.rmdir(state)
    try:
        architectures = [f"arm64={','.join(map(str, arm64))}"] if arm64 else []
        subprocess.run([HOSTS, "up", str(count), *architectures], env=environment, check=True)
        bed = Testbed(state)
        shutil.copytree(WORKERS, os.path.join(bed.shared, "workers"))
        shutil.copytree(os.path.join(REPOSITORY, "scripts/examples"),
                        os.path.join(bed.shared, "examples"))
        yield bed
    finally:
        subprocess.run([HOSTS, "down"], env=environment, check=True)


@pytest.fixture(scope="session")
def testbed():
    with made_testbed(HOST_COUNT) as bed:
        yield bed


class BedLauncher(HostLauncher):
    def leftovers(self):
        return self.bed.leftovers()

    def leftovers_of_ours(self):
        """Returns the leftovers without sshd's sessions. On a host that was cut off, these may wait for a reply for hours,
        and only sshd can close them."""
        return [line for line in self.leftovers() if ": connection " not in line]

    def wait_clean(self, limit):
        return wait_clean(self.leftovers, limit)

    def wait_clean_of_ours(self, limit):
        return wait_clean(self.leftovers_of_ours, limit)

    def as_user(self, user):
        return BedLauncher(self.bed, self.name, user, self.host)

    def processes(self, host, name):
        """Returns the pids, as seen on this machine, of the host's processes whose name starts with `name`."""
        init = self.bed.init_pid(host)
        return [process.pid for process in leftovers.processes_of(init)
                if process.state != "Z" and process.name.startswith(name.encode())]


@contextlib.contextmanager
def launcher_on(testbed, request):
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        stop_if_mounts_are_lost(testbed)
    name = "t-" + uuid.uuid4().hex[:8]
    directory = os.path.join(testbed.shared, name)
    os.mkdir(directory)
    os.chmod(directory, 0o777)
    launcher = BedLauncher(testbed, name)
    yield launcher
    was_broken = bool(testbed.broken)
    testbed.repair()
    left = settle(launcher.leftovers_of_ours if was_broken else launcher.leftovers)
    testbed.sweep()
    shutil.rmtree(directory, ignore_errors=True)
    assert not left, "left behind:\n" + "\n".join(left)


@pytest.fixture
def hosts(testbed, request):
    with launcher_on(testbed, request) as launcher:
        yield launcher


@pytest.fixture(scope="module")
def mixed_testbed():
    """node1 is x86-64, node2 aarch64."""
    if not os.path.exists(os.path.join(BIN, "../lib/ivyrun/bundle-aarch64.run")):
        pytest.skip("no programs for aarch64 (scripts/setup arm64; docs/arm.md shows how to build them)")
    with made_testbed(2, 2) as bed:
        yield bed


@pytest.fixture
def mixed_hosts(mixed_testbed, request):
    with launcher_on(mixed_testbed, request) as launcher:
        yield launcher


@pytest.fixture(params=["root", "ivyuser"])
def anyone(request, hosts):
    """Runs the test twice: as root, and as a user who cannot write to any cgroup."""
    return hosts if request.param == "root" else hosts.as_user(request.param)


# ---- agents --------------------------------------------------------------------------------------

@pytest.fixture(scope="session")
def agent_credentials(testbed):
    if not os.access(os.path.join(BIN, "ivy-agent"), os.X_OK):
        pytest.skip(f"{BIN}/ivy-agent is not there: cmake --build --preset release")
    return Credentials(testbed)


@pytest.fixture
def agents(hosts, agent_credentials):
    """Agents of the ordinary user, on the hosts that the test chooses. They are removed before `hosts` searches for
    leftovers."""
    made = Agents(hosts.as_user("ivyuser"), agent_credentials)
    yield made
    made.remove()
