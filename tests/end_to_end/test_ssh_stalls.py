# SPDX-License-Identifier: Apache-2.0
"""An SSH login waits for an SSH agent or the file system of known_hosts, which does not respond. Workers on other hosts
continue, the user sees what the login waits for, and --start-timeout and TERM end the job as usual."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest

from launching import HOSTS, REPOSITORY, seconds, wait_until
import leftovers  # (found by way of launching)
from stalling_fs import Stalling

LEASE_S = 6 + seconds(2)  # ivyrun's own timeouts, which must be shorter than the lease, are not scaled.
OPTIONS = ("--transport", "ssh", "-H", "node2,node3", "-n", "2", "--lease", f"{LEASE_S:g}s")
# Exits by itself after a minute, so that it never remains after the test.
WORKER = ("bash", "-c", 'trap "echo rank $RANK got TERM; exit 143" TERM; echo up $RANK; '
          'for i in $(seq 1 600); do test -e {0}/end && exit 0; sleep 0.1; done')

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/fuse"),
                                reason="mounts through /dev/fuse, as root")


def worker(hosts):
    return [word.replace("{0}", hosts.directory) for word in WORKER]


def configuration(hosts, lines):
    """Writes an ssh configuration with these lines before those of the test hosts."""
    usual = hosts.run_on(1, "cat", "/root/.ssh/config").out.decode()
    return hosts.file("ssh_config", lines + "\n" + usual)


def end_relay(hosts, host=2):
    def relays():
        found = leftovers.processes_of(hosts.bed.init_pid(host))
        return [process.pid for process in found if process.command.endswith(b"ivy-node\0relay\0")]
    for pid in wait_until(relays, 10, "a relay runs"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def outlast_the_lease(job, leases=1.5):
    end = time.monotonic() + leases * LEASE_S
    while time.monotonic() < end and job.process.poll() is None:
        time.sleep(0.1)


# ---- an agent ------------------------------------------------------------------------------------

@pytest.fixture
def silent_agent(hosts):
    """An agent that accepts and never responds, like one that is forwarded from a suspended laptop."""
    path = f"{hosts.directory}/silent"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(hosts.outside(path))
        listener.listen(64)
        yield path


@pytest.fixture
def agent(hosts):
    """A real agent with the key of the test hosts, as (socket, process)."""
    path = f"{hosts.directory}/agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", hosts.outside(path)], stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: os.path.exists(hosts.outside(path)), 10, "the agent listens")
        added = hosts.run_on(1, "env", f"SSH_AUTH_SOCK={path}", "ssh-add", "-q", "/root/.ssh/id_ed25519")
        assert added.code == 0, added
        yield path, process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def agent_without_signatures(hosts, agent):
    """An agent that does not answer requests to sign, like one whose user must touch the key first. It forwards all other
    requests to the real agent."""
    path = f"{hosts.directory}/unsigning"
    sign_request = 13

    def serve(near):
        with near, socket.socket(socket.AF_UNIX) as far, contextlib.suppress(OSError):
            far.connect(hosts.outside(agent[0]))
            while request := message_of(near):
                if request[4] == sign_request:
                    continue
                far.sendall(request)
                near.sendall(message_of(far))

    def message_of(end):
        with end.makefile("rb", buffering=0) as file:
            length = file.read(4)
            return length and length + file.read(int.from_bytes(length, "big"))

    def accept():
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(hosts.outside(path))
        listener.listen(64)
        threading.Thread(target=accept, daemon=True).start()
        yield path
        listener.shutdown(socket.SHUT_RDWR)  # Interrupts accept(), unlike close().


def test_start_timeout_names_a_silent_agent(hosts, silent_agent):
    env = {"SSH_AUTH_SOCK": silent_agent, "IVY_SSH_CONFIG": configuration(hosts, "IdentityFile none")}
    with hosts.start(*OPTIONS, "--start-timeout", "8s", "echo", "ran", env=env) as job:  # Less than the 10 s that ivyrun waits for the agent.
        done = job.finish(20)
    assert done.code == 120 and done.out == b"", done
    assert f"no response yet, last step: ssh: waiting for the SSH agent at {silent_agent}" in done.err_text, done
    assert "make sure that ssh-add -l lists your keys" in done.err_text, done


def test_term_ends_a_job_that_waits_for_an_agent(hosts, silent_agent):
    env = {"SSH_AUTH_SOCK": silent_agent, "IVY_SSH_CONFIG": configuration(hosts, "IdentityFile none")}
    with hosts.start(*OPTIONS, "echo", "ran", env=env) as job:
        job.wait_for(rf"node[23] waits for the SSH agent at {silent_agent}, 4 s")
        job.signal(signal.SIGTERM)
        done = job.finish(10)
    assert done.code in (143, -signal.SIGTERM) and done.out == b"", done


@pytest.mark.long
def test_a_job_starts_despite_an_agent_that_does_not_sign(hosts, agent_without_signatures):
    """No IdentityFile is configured, so the agent's keys are tried first, for 30 s."""
    with hosts.start(*OPTIONS, "sh", "-c", "echo ran $RANK", env={"SSH_AUTH_SOCK": agent_without_signatures}) as job:
        job.wait_for(f"node[23] waits for the SSH agent at {agent_without_signatures}, 8 s")
        done = job.finish(60)
    assert done.code == 0 and sorted(text for _, _, text in done.labelled()) == ["ran 0", "ran 1"], done


def test_a_redial_works_despite_a_silent_agent(hosts, agent):
    path, process = agent
    with hosts.start(*OPTIONS, *worker(hosts), env={"SSH_AUTH_SOCK": path}) as job:
        job.wait_for("up [01]", count=2)
        process.send_signal(signal.SIGSTOP)
        end_relay(hosts)
        outlast_the_lease(job)
        hosts.file("end")
        done = job.finish()
    assert done.code == 0 and "got TERM" not in done.out.decode(), done


def test_a_silent_agent_does_not_end_other_hosts(hosts, agent):
    """One host cannot be reached without the agent. The other host ends with the job and not by its lease."""
    path, process = agent
    env = {"SSH_AUTH_SOCK": path, "IVY_SSH_CONFIG": configuration(hosts, "IdentityFile none")}
    with hosts.start(*OPTIONS, *worker(hosts), env=env) as job:
        job.wait_for("up [01]", count=2)
        process.send_signal(signal.SIGSTOP)
        end_relay(hosts)
        done = job.finish()
    assert done.code == 121, done
    assert "node2 was lost" in done.err_text and f"the SSH agent at {path}" in done.err_text, done
    assert "node3 was lost" not in done.err_text and "node3 ended" not in done.err_text, done
    wait_until(lambda: not hosts.processes(2, "ivy-"), 60, "the host that cannot be reached ends by its own lease")


# ---- known_hosts ---------------------------------------------------------------------------------

@pytest.fixture
def home(hosts):
    """A file system on node1 that contains known_hosts and can stall."""
    shutil.copy(os.path.join(REPOSITORY, "tests/testbed/stalling_fs.py"),
                hosts.outside(f"{hosts.directory}/stalling_fs.py"))
    prefix = ["env", f"IVY_TESTBED={hosts.bed.state}", HOSTS, "exec", "root@1"]
    with Stalling(f"{hosts.directory}/backing", f"{hosts.directory}/home", prefix=prefix,
                  program=f"{hosts.directory}/stalling_fs.py", outside=hosts.outside) as file_system:
        copied = hosts.run_on(1, "cp", "/root/.ssh/known_hosts", file_system.mount_point + "/known_hosts")
        assert copied.code == 0, copied
        file_system.known_hosts = file_system.mount_point + "/known_hosts"
        file_system.env = {"IVY_SSH_CONFIG":
                           configuration(hosts, f"UserKnownHostsFile {file_system.known_hosts}")}
        yield file_system


@pytest.mark.long
def test_a_late_answer_about_a_host_key_is_accepted(hosts):
    """The answer arrives after the limit of 30 s for all other steps of a login."""
    known_hosts = hosts.file("empty_known_hosts")
    config = configuration(hosts, f"StrictHostKeyChecking ask\nUserKnownHostsFile {known_hosts}")
    program = [hosts.ivyrun(), "--transport", "ssh", "-H", "node2", "-n", "1", "sh", "-c", "echo ran $RANK"]
    with hosts.on_terminal(*program, env={"IVY_SSH_CONFIG": config}) as job:
        job.wait_for("yes/no")
        time.sleep(32)
        job.type(b"yes\n")
        done = job.finish()
    assert done.code == 0 and b"ran 0" in done.out, done


def test_stalled_known_hosts_delay_the_start(hosts, home):
    home.stall()
    with hosts.start(*OPTIONS, "sh", "-c", "echo ran $RANK", env=home.env) as job:
        job.wait_for(rf"node[23] waits for {home.known_hosts}, 8 s")
        home.go_on()
        done = job.finish()
    assert done.code == 0 and sorted(text for _, _, text in done.labelled()) == ["ran 0", "ran 1"], done


def test_a_stalled_agent_configuration_delays_remote_hosts_only(hosts, home):
    # agent.toml is read for `--transport auto`. Meanwhile the supervisor on this host runs and has a lease.
    env = {**home.env, "IVY_AGENT_CONFIG": home.mount_point + "/agent.toml"}
    options = ("-H", "node1,node2", "-n", "2", "--lease", f"{LEASE_S:g}s")
    home.stall()
    with hosts.start(*options, "sh", "-c", "echo ran $RANK", env=env) as job:
        job.wait_for("reading agent.toml", limit=30)
        outlast_the_lease(job)
        home.go_on()
        done = job.finish()
    assert done.code == 0 and sorted(text for _, _, text in done.labelled()) == ["ran 0", "ran 1"], done


@pytest.mark.parametrize("end", ["well", "TERM"])
def test_a_job_waits_for_the_bundle_of_ivy_node(hosts, home, end):
    # An installation of ivyrun whose lib/ivyrun is on a file system that stalls.
    place = f"{hosts.directory}/installed"
    build = os.path.dirname(os.path.dirname(hosts.ivyrun()))
    made = hosts.run_on(1, "sh", "-c", f"mkdir -p {place}/bin {place}/lib && cp {build}/bin/ivy* {place}/bin && "
                        f"cp {build}/lib/ivyrun/bundle-* {home.mount_point} && "
                        f"ln -s {home.mount_point} {place}/lib/ivyrun")
    assert made.code == 0, made
    home.stall()
    with hosts.start_program(f"{place}/bin/ivyrun", *OPTIONS, "sh", "-c", "echo ran $RANK") as job:
        job.wait_for("ivyrun waits for .*/lib/ivyrun, 4 s", limit=30)
        if end == "TERM":
            job.signal(signal.SIGTERM)
        else:
            home.go_on()
        done = job.finish(30)
        home.go_on()
    if end == "TERM":
        assert done.code in (143, -signal.SIGTERM) and done.out == b"", done
    else:
        assert done.code == 0 and sorted(text for _, _, text in done.labelled()) == ["ran 0", "ran 1"], done


def test_term_ends_a_job_that_waits_for_the_agent_configuration(hosts, home):
    env = {**home.env, "IVY_AGENT_CONFIG": home.mount_point + "/agent.toml"}
    home.stall()
    with hosts.start("-H", "node1,node2", "-n", "2", "echo", "ran", env=env) as job:
        job.wait_for("reading agent.toml", limit=30)
        job.signal(signal.SIGTERM)
        done = job.finish(20)
        home.go_on()
    assert done.code in (143, -signal.SIGTERM) and done.out == b"", done


@pytest.mark.parametrize("end", ["TERM", "--start-timeout"])
def test_a_job_that_waits_for_known_hosts_ends(hosts, home, end):
    limit = f"{seconds(6 if end == '--start-timeout' else 60):g}s"
    home.stall()
    with hosts.start(*OPTIONS, "--start-timeout", limit, "echo", "ran", env=home.env) as job:
        job.wait_for(rf"node[23] waits for {home.known_hosts}, 4 s")
        if end == "TERM":
            job.signal(signal.SIGTERM)
        done = job.finish(20)
        home.go_on()
    assert done.code in ((143, -signal.SIGTERM) if end == "TERM" else (120,)) and done.out == b"", done


def test_a_redial_needs_no_known_hosts(hosts, home):
    with hosts.start(*OPTIONS, *worker(hosts), env=home.env) as job:
        job.wait_for("up [01]", count=2)
        home.stall()
        end_relay(hosts)
        outlast_the_lease(job)
        hosts.file("end")
        done = job.finish()
        home.go_on()
    assert done.code == 0 and "got TERM" not in done.out.decode(), done
