# SPDX-License-Identifier: Apache-2.0
"""A file system of one host stalls, as NFS and Lustre sometimes do. No healthy worker ends because of it, the user sees what
the job waits for, and --start-timeout and TERM end the job as usual."""

import os
import shutil
import signal
import time

import pytest

import leftovers
from launching import HOSTS, REPOSITORY, HostLauncher, seconds, wait_until
from stalling_fs import Stalling

QUICKLY = {"IVY_TEST_RESTART_PAUSE": "200ms"}
# Every stall here lasts longer.
LEASE_S = 2 + seconds(1)
OPTIONS = ("-H", "node1,node2", "-n", "2", "--lease", f"{LEASE_S:g}s")
# bash reads its working directory when it first searches PATH for a command. This makes it do so before "up", while the
# file system is not stalled yet.
READY = "hash sleep; "
TRAP = READY + 'trap "echo rank $RANK got TERM; exit 143" TERM; '
# Rank 1 fails once, when the test creates the file "fail".
REPLACED = TRAP + ('echo up $RANK; if [ $RANK = 1 ] && [ -z "$IVY_REJOIN" ]; then '
                   'while ! test -e {0}/fail; do sleep 0.05; done; exit 1; fi; '
                   'while ! test -e {0}/end; do sleep 0.1; done; echo done $RANK')
RESTARTED = (READY + 'echo up $IVY_GENERATION $RANK; [ $IVY_GENERATION = 1 ] && exit 0; '
             'while ! test -e {0}/fail; do sleep 0.05; done; [ $RANK = 1 ] && exit 1; sleep 600')
RUNNING = TRAP + "echo up $RANK; while ! test -e {0}/end; do echo line; sleep 0.1; done; echo done $RANK"

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/fuse"),
                                reason="mounts through /dev/fuse, as root")


class Drill:
    """Runs jobs on node1 and node2. One directory on node2 is on a file system that can stall."""

    def __init__(self, hosts, place, transport="ssh", agents=None):
        self.hosts, self.place, self.agents = hosts, place, agents
        launcher = agents.launcher if agents else hosts
        home = "/home/ivyuser" if agents else "/root"
        self.launcher = launcher
        self.options = ("--transport", transport, *OPTIONS)
        shared = hosts.directory
        # ivy-node is uploaded to the cache.
        mount_point = f"{home}/.cache/ivyrun" if place == "cache" else f"{shared}/{place}"
        if place == "wd":
            self.options += ("--wdir", mount_point)
        if place == "logs":
            self.options += ("--log-dir", mount_point, "--log-to", "node")
        view = hosts.bed.host_view(2)
        self.program = f"{shared}/stalling_fs.py"
        shutil.copy(os.path.join(REPOSITORY, "tests/testbed/stalling_fs.py"), hosts.outside(self.program))
        prefix = ["env", f"IVY_TESTBED={hosts.bed.state}", HOSTS, "exec", "root@2"]
        # The launcher's own host uses a directory with the same name.
        os.makedirs(hosts.outside(f"{shared}/{place}"), mode=0o777, exist_ok=True)
        os.chmod(hosts.outside(f"{shared}/{place}"), 0o777)
        self.file_system = Stalling(f"/var/tmp/{hosts.name}-{place}", mount_point, prefix=prefix,
                                    program=self.program, outside=view.place)
        self.owner = 2001 if agents else 0

    def __enter__(self):
        for directory in (self.file_system.backing, self.file_system.mount_point):
            outside = self.file_system.outside(directory)
            if not os.path.isdir(outside):
                os.makedirs(outside)
                os.chmod(outside, 0o777)
                os.chown(outside, self.owner, self.owner)
                os.chown(os.path.dirname(outside), self.owner, self.owner)
        self.file_system.__enter__()
        return self

    def __exit__(self, *_):
        self.file_system.__exit__()
        shutil.rmtree(self.file_system.outside(self.file_system.backing), ignore_errors=True)

    def stall(self):
        self.file_system.stall()

    def go_on(self):
        self.file_system.go_on()

    def start(self, *arguments, script, **others):
        return self.launcher.start(*self.options, *arguments, "bash", "-c",
                                   script.replace("{0}", self.hosts.directory), env=QUICKLY, **others)

    def waits(self):
        return rf"node2 waits for the file system of {self.file_system.mount_point}\S*, \d+ s"

    def break_the_connection(self):
        """Kills the relay of node2's supervisor, or restarts the agent."""
        if self.agents:
            return self.agents[2].restart()
        init = self.hosts.bed.init_pid(2)
        relays = [process.pid for process in leftovers.processes_of(init) if process.words().split()[1:2] == ["relay"]]
        assert relays, "no relay on node2"
        for relay in relays:
            os.kill(relay, signal.SIGKILL)
        return None


def outlast_the_lease(job):
    """Waits for two leases, after which a silent host would be lost, or until the job has succeeded."""
    end = time.monotonic() + 2 * LEASE_S
    wait_until(lambda: time.monotonic() > end or job.process.poll() is not None, 60, "the lease")
    assert job.process.poll() in (None, 0), job.finish()


def at_the_start(drill):
    drill.stall()
    with drill.start(script="echo ran $RANK") as job:
        outlast_the_lease(job)
        if drill.place == "wd":
            job.wait_for(drill.waits(), limit=15)
        drill.go_on()
        done = job.finish()
    assert done.code == 0, done
    assert {text for _, _, text in done.labelled()} == {"ran 0", "ran 1"}, done


def while_it_runs(drill):
    with drill.start(script=RUNNING) as job:
        job.wait_for("up", count=2)
        drill.stall()
        outlast_the_lease(job)
        drill.hosts.file("end")
        if drill.place == "logs":
            drill.go_on()
        done = job.finish()
        drill.go_on()
    assert done.code == 0 and "got TERM" not in done.out.decode(), done


def at_a_redial(drill):
    with drill.start(script=RUNNING) as job:
        job.wait_for("up", count=2)
        drill.stall()
        drill.break_the_connection()
        outlast_the_lease(job)
        if (drill.place, drill.agents) == ("cache", None):
            job.wait_for(r"node2 waits for its login shell or the file system of ~/.cache/ivyrun there, \d+ s")
        drill.go_on()
        drill.hosts.file("end")
        done = job.finish()
    assert done.code == 0 and "got TERM" not in done.out.decode(), done


def at_a_restart(drill):
    with drill.start("--max-restarts", "1", script=RESTARTED) as job:
        job.wait_for("up 0 1")
        drill.stall()
        drill.hosts.file("fail")
        outlast_the_lease(job)
        if drill.place == "wd":
            job.wait_for(drill.waits(), limit=15)
        drill.go_on()
        done = job.finish()
    assert done.code == 0, done
    assert "succeeded at attempt 2 of 2" in done.err_text, done


def at_a_replacement(drill):
    with drill.start("--on-failure", "replace", script=REPLACED) as job:
        job.wait_for("up 1")
        drill.stall()
        drill.hosts.file("fail")
        outlast_the_lease(job)
        if drill.place == "wd":
            job.wait_for(drill.waits(), limit=15)
        drill.go_on()
        job.wait_for("up 1", count=2)
        if drill.place == "wd":
            job.wait_for("node2 no longer waits for")
        drill.hosts.file("end")
        done = job.finish()
    assert done.code == 0 and "got TERM" not in done.out.decode(), done


MOMENTS = (at_the_start, while_it_runs, at_a_redial, at_a_restart, at_a_replacement)
# The other combinations run only with --long.
ALWAYS = {("ssh", "wd", at_the_start), ("ssh", "wd", at_a_redial), ("ssh", "cache", at_a_redial), ("ssh", "wd", at_a_restart),
          ("ssh", "wd", at_a_replacement), ("ssh", "logs", while_it_runs), ("ssh", "cache", while_it_runs),
          ("agent", "wd", at_a_replacement)}
CELLS = [pytest.param(transport, place, moment, id=f"{transport}-{place}-{moment.__name__}",
                      marks=() if (transport, place, moment) in ALWAYS else pytest.mark.long)
         for transport in ("ssh", "agent") for place in ("wd", "logs", "cache") for moment in MOMENTS]


@pytest.mark.parametrize("transport, place, moment", CELLS)
def test_no_worker_ends_because_a_file_system_stalls(request, hosts, transport, place, moment):
    agents = request.getfixturevalue("agents") if transport == "agent" else None
    if agents:
        agents.start(1, 2)
    with Drill(hosts, place, transport, agents) as drill:
        if place == "cache":  # Upload ivy-node before the stall.
            done = drill.start(script="exit").finish()
            assert done.code == 0, done
        moment(drill)


def test_start_timeout_names_the_stalled_file_system(hosts):
    with Drill(hosts, "wd") as drill:
        drill.stall()
        with drill.start("--start-timeout", f"{seconds(6):g}s", script="echo ran") as job:
            done = job.finish()
    assert done.code == 120, done
    assert "IVY-H003" in done.err_text, done
    assert f"no response yet, last step: waiting for the file system of {drill.file_system.mount_point}" in done.err_text, done


@pytest.mark.parametrize("way", ["replacement", "restart"])
def test_term_ends_a_job_that_waits_for_a_file_system(hosts, way):
    options = ("--on-failure", "replace") if way == "replacement" else ("--max-restarts", "1")
    with Drill(hosts, "wd") as drill, drill.start(*options, script=REPLACED if way == "replacement" else RESTARTED) as job:
        job.wait_for("up 1" if way == "replacement" else "up 0 1")
        drill.stall()
        hosts.file("fail")
        job.wait_for(drill.waits(), limit=15)
        job.signal(signal.SIGTERM)
        done = job.finish()
    assert done.code in (143, -signal.SIGTERM), done
    assert "IVY-R003" in done.err_text, done


def test_an_agent_names_the_file_system_of_its_certificates_and_continues(request, hosts):
    agents = request.getfixturevalue("agents")
    with Drill(hosts, "certificates", "agent", agents) as drill:
        agent, = agents.prepare(2)
        backing = drill.file_system.outside(drill.file_system.backing)
        for name in os.listdir(agents.credentials.place("node2")):
            shutil.copy(os.path.join(agents.credentials.place("node2"), name), backing)
            os.chown(os.path.join(backing, name), drill.owner, drill.owner)
        agent.certificates = drill.file_system.mount_point
        agent.start()
        drill.stall()
        agent.signal(signal.SIGHUP)
        agent.wait_for(f"certificates: waiting for the file system of {drill.file_system.mount_point}", 15)
        assert "s; the previous ones stay in use" in agent.text()
        done = agents.launcher.run("--transport", "agent", "-H", "node2", "-n", "1", "echo", "ran")
        assert done.code == 0 and b"ran" in done.out, done
        drill.go_on()


def test_a_job_waits_for_a_script_on_a_network_file_system(hosts):
    """The working directory is on FUSE on node2. On node1, where the job starts, the scripts exist immediately."""
    with Drill(hosts, "wd") as drill:
        def start(name):
            return hosts.start(*drill.options, "--python", "/usr/bin/python3", name)
        backing = drill.file_system.outside(drill.file_system.backing)
        hosts.file("wd/late.py", "print('ran')\n")
        with start("late.py") as job:
            time.sleep(2)
            shutil.copy(hosts.outside(f"{hosts.directory}/wd/late.py"), backing)
            done = job.finish()
        assert done.code == 0 and done.out.count(b"ran") == 2, done
        hosts.file("wd/never.py", "print('ran')\n")
        with start("never.py") as job:
            job.wait_for(r"node2 waits for \S+/never.py to appear on its network file system, \d s")
            done = job.finish()
        assert done.code == 127, done
        assert "never.py: No such file or directory (retried for 6 s" in done.err_text, done
        # If the file is missing on the launcher's own host, the name is mistyped, and ivyrun does not wait for it.
        there = HostLauncher(hosts.bed, hosts.name, host=2)
        done = there.run("--wdir", drill.file_system.mount_point, "-n", "1", "--python", "/usr/bin/python3", "never.py")
        assert done.code == 127 and "retried for" not in done.err_text, done

