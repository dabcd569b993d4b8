# SPDX-License-Identifier: Apache-2.0
"""Unauthorized and invalid connections to an agent: the agent rejects them, and both sides report the reason.

During every test a job runs on the same agents and must not be affected.
"""

import contextlib
import os
import re
import shutil
import subprocess
import time

import pytest

from agents import PORT, SOCKET, USER, USER_ID, side_by_side
from launching import seconds, wait_until
from test_agents import check_sequences, sequence
from test_agents_lost import wall_clock  # noqa: F401  (a fixture)

STRANGER = "/srv/ivyshared/workers/stranger.py"
TARGET = ("10.77.0.2", str(PORT))
RECOVERY = 1  # Seconds after which an agent has recovered.


def stranger(agents, *words, host=4, limit=30):
    return agents.launcher.run_on(host, "/usr/bin/python3", STRANGER, *words, user=USER,
                                  limit=limit)


@contextlib.contextmanager
def unaffected_job(agents, host):
    """Runs a job on that host around the block and checks that all of its output arrives."""
    stop = f"{agents.launcher.directory}/stop"
    with agents.job("--lease", "10s", "-H", f"node{host}", *sequence(agents, "0.1", stop)) as run:
        run.wait_for("count 2")
        workers = agents.workers(host)
        yield run
        assert agents.workers(host) == workers
        agents.launcher.file("stop")
        done = run.finish()
    assert done.code == 0, done
    lines = done.out_lines
    assert lines == [f"pid {lines[0].split()[1]} count {number}" for number in range(len(lines))]


def serves_again(agents, host):
    """Returns the seconds from now until a new job has run on that host."""
    started = time.monotonic()
    done = agents.run("-H", f"node{host}", "echo", "well")
    assert done.code == 0 and done.out == b"well\n", done
    return time.monotonic() - started


# ---- certificates --------------------------------------------------------------------------------

def make_bad_users(credentials, clock):
    """Returns {name: (the agent's message, the launcher's message)}, with a configuration for each name."""
    credentials.agent("ca", "init", "--ca", credentials.path("foreign-ca"))
    credentials.make_user("foreign", ca="foreign-ca")
    credentials.make_user("revoked")
    with open(f"{credentials.outside}/yesterday", "w") as file:
        file.write(str(-3 * 86400))
    credentials.make_user("expired", days=1, wrap=(
        "env", f"LD_PRELOAD={clock}", f"WALL_CLOCK={credentials.path('yesterday')}"))
    return {
        "foreign": ("is not signed by this CA", "is not signed by this CA"),
        "expired": ("has expired|expired", "expired(?s:.)*ivy-agent (renew|cert) --user ivyuser"),
        "revoked": ("has been revoked", "closed the connection after it received our certificate user/ivyuser"),
    }


@pytest.fixture
def own_certificates(agents):
    """Copies node2's certificates to a directory where the test may change them."""
    credentials = agents.credentials
    name = credentials.copy("node2", "node2-changing")
    yield name
    for made in (name, "foreign-ca", "foreign", "revoked", "expired"):
        subprocess.run(["rm", "-rf", credentials.place(made)], check=True)


def paths_of(credentials, config):
    """Returns the paths on the hosts of a configuration's certificate and key."""
    return [credentials.path(f"{config}/ivyrun/user.{kind}") for kind in ("crt", "key")]


def test_invalid_certificates_are_rejected(agents, own_certificates, wall_clock):  # noqa: F811
    """The agent logs the address and the reason. The launcher reports as much as it knows."""
    credentials, launcher = agents.credentials, agents.launcher
    agent, = agents.prepare(2)
    agent.certificates = credentials.path(own_certificates)
    agent.start()
    agents.start(3)
    bad = make_bad_users(credentials, wall_clock)
    with unaffected_job(agents, 2):
        agents.configure("revoked")
        assert serves_again(agents, 2) < seconds(5), "the certificate is rejected before it is revoked"
        # The revocation list is replaced while the agent is running.
        serial = serial_of(credentials, "revoked")
        credentials.agent("revoke", "--serial", serial, "--ca", credentials.path("ca"))
        said = len(agent.text())
        fresh = credentials.place(f"{own_certificates}/ca.crl.new")
        with open(credentials.place("ca/ca.crl"), "rb") as source, open(fresh, "wb") as file:
            file.write(source.read())
        os.chmod(fresh, 0o644)
        os.replace(fresh, credentials.place(f"{own_certificates}/ca.crl"))
        agent.wait_for("reloaded", 3, said)
        for name, (for_agent, for_launcher) in bad.items():
            said = len(agent.text())
            answer = stranger(agents, "tls", *TARGET, credentials.path("node2/ca.crt"),
                              *paths_of(credentials, name))
            assert b"closed after" in answer.out, (name, answer)
            assert_rejected(agent, said, for_agent)
            agents.configure(name)
            done = agents.run("-H", "node2", "echo", "started")
            assert done.code == 120 and not done.out, (name, done)
            assert re.search(for_launcher, done.own_text()), (name, done)
        # A user whom the agent rejects is connected by ssh, with a note that gives the reason.
        agents.configure("revoked")
        done = launcher.run("-H", "node2", "-v", "hostname")
        assert done.code == 0 and done.out == b"node2\n", done
        assert re.search("note: node2: ssh is used: .*closed the connection after it received our certificate",
                         done.own_text()), done
        host = credentials.path("node3")
        for words, reason in (
                ((), "it presented no certificate"),
                ((f"{host}/host.crt", f"{host}/host.key"), "is a host's certificate: it cannot launch jobs")):
            said = len(agent.text())
            stranger(agents, "tls", *TARGET, credentials.path("node2/ca.crt"), *words)
            assert_rejected(agent, said, reason)
        agents.configure("user")
        serves_again(agents, 2)


def serial_of(credentials, config):
    """Returns the serial number of a configuration's certificate in the format of `ivy-agent certs`."""
    text = subprocess.run(["openssl", "x509", "-noout", "-serial", "-in",
                           credentials.place(f"{config}/ivyrun/user.crt")],
                          capture_output=True, text=True, check=True).stdout
    return text.strip().removeprefix("serial=").lower()


def assert_rejected(agent, since, reason, address="10.77.0.4"):
    """Waits for a line of the agent's log with the caller and the reason."""
    def found():
        return [line for line in agent.text()[since:].splitlines()
                if "rejected" in line and address in line and re.search(reason, line)]
    try:
        wait_until(found, 3, f"rejected {address}: {reason}")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{agent.text()[since:]}") from None


# ---- other protocols than TLS ----------------------------------------------------------------------

# The hello of a client older than TLS 1.3: one cipher, no compression, no extensions.
HELLO_12 = bytes.fromhex("160301002f0100002b0303") + bytes(32) + bytes.fromhex("000002c02f01000000")

STRANGE = {  # name: (bytes, pause between them, reason, seconds until it is closed)
    "plaintext gRPC": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0, "gRPC without TLS", 1),
    "HTTP": (b"GET / HTTP/1.1\r\nHost: node2\r\n\r\n", 0, "an HTTP request without TLS", 1),
    "SSH": (b"SSH-2.0-OpenSSH_9.2\r\n", 0, "an SSH client", 1),
    "garbage": (bytes(range(255, 0, -1)) * 64, 0, "not TLS: it starts with", 1),
    "old TLS": (HELLO_12, 0, "TLS older than 1.3", 1),
    "a record that is too long": (b"\x16\x03\x01\xff\xff" + bytes(1000), 0, "does not allow", 1),
    "half a hello": (HELLO_12[:20], 0, "ends after 20 bytes", 5),
    "a byte at a time": (HELLO_12[:5] + bytes(40), 0.2, "ClientHello that ends|does not begin with",
                         5),
    "silence": (b"", 0, "silent", 5),
}


def test_unauthorized_callers_are_rejected_with_a_reason(agents):
    agents.start(2)
    agent = agents[2]

    def drill(data, pause, reason, bound):
        def one():
            said = stranger(agents, "say", *TARGET, data.hex(), str(pause)).out.decode()
            took = float(re.search(r"closed after ([\d.]+) s", said)[1])
            # If the client sends a byte at a time, it notices the closed connection only after its last byte.
            assert took < seconds(bound + 1) + len(data) * pause, took
            assert_rejected(agent, 0, reason)
        one.__name__ = reason
        return one
    with unaffected_job(agents, 2):
        side_by_side(*(drill(*strange) for strange in STRANGE.values()))
        assert agent.is_running()
        assert serves_again(agents, 2) < seconds(5)
    # Clients cannot forge lines of the log.
    assert all(line.startswith("ivy-agent: ") for line in agent.text().splitlines())


# ---- too many connections --------------------------------------------------------------------------

@contextlib.contextmanager
def crowd(agents, host, count, *place, user=USER):
    """Keeps so many silent connections from that host open until the block ends."""
    # As root, because the descriptor limit of an ordinary user may be lower.
    launcher = agents.launcher.as_user("root")
    launcher.host = host
    with launcher.start_program("setpriv", "--reuid", user, "--regid", user, "--clear-groups",
                                "/usr/bin/python3", STRANGER, "crowd", str(count), *place,
                                stdin=subprocess.PIPE) as run:
        run.wait_for("there", 60)
        yield
        run.process.stdin.close()
        run.wait_for("gone", 20)
        assert run.finish().code == 0


def memory_mib(pid):
    with open(f"/proc/{pid}/status") as file:
        return int(re.search(r"VmRSS:\s+(\d+) kB", file.read())[1]) / 1024


def test_two_thousand_half_open_connections(agents):
    agents.start(2)
    agent = agents[2]
    with unaffected_job(agents, 2):
        before = memory_mib(agent.pid())
        usual = serves_again(agents, 2)
        with crowd(agents, 4, 2000, *TARGET):
            # Connections from one host do not use up the slots of other hosts.
            assert serves_again(agents, 2) < usual + seconds(3)
            assert agent.descriptors() < 300, agent.descriptors()
            grown = memory_mib(agent.pid()) - before
            assert grown < 32, f"{grown:.1f} MiB more"
            busy, started = agent.cpu_seconds(), time.monotonic()
            time.sleep(1)
            assert agent.cpu_seconds() - busy < 0.5 * (time.monotonic() - started)
        assert serves_again(agents, 2) < usual + seconds(RECOVERY)
    assert_rejected(agent, 0, "64 (of|half-open|connections)")
    assert "were dropped" in agent.text() or agent.text().count("rejected") >= 1900


def test_connections_up_to_the_descriptor_limit(agents):
    """The connections are from another host without a certificate, then from this host's own user, who needs none."""
    agent, = agents.prepare(2)
    agent.limits = ("prlimit", "--nofile=100:100")
    agent.start()
    with unaffected_job(agents, 2):
        usual = serves_again(agents, 2)
        for host, place in ((4, TARGET), (2, (SOCKET,))):
            said = len(agent.text())
            with crowd(agents, host, 500, *place):
                wait_until(lambda: agent.descriptors() < 100, 2, "some are kept free")
                # Connections without a certificate are limited before the descriptors run out.
                agent.wait_for("descriptors are open" if host == 2 else "rejected", 5, said)
                busy, started = agent.cpu_seconds(), time.monotonic()
                time.sleep(1)
                assert agent.cpu_seconds() - busy < 0.5 * (time.monotonic() - started), "the agent uses too much processor time"
            assert serves_again(agents, 2) < usual + seconds(RECOVERY)
    assert agent.is_running()


def test_an_agent_rejects_root_and_certificates_of_users(agents):
    """An agent rejects to run as root or with a user's certificate. One line gives the reason and the fix."""
    program, launcher = agents.credentials.path("bin/ivy-agent"), agents.launcher
    done = launcher.run_on(2, program, "serve", "--certificates", agents.credentials.path("node2"))
    assert done.code == 2 and "cannot run as root" in done.err_text, done
    os.makedirs(agents.credentials.place("swapped"))
    for source, target in (("node2/ca.crt", "ca.crt"), ("user/ivyrun/user.crt", "host.crt"),
                           ("user/ivyrun/user.key", "host.key")):
        shutil.copy(agents.credentials.place(source), agents.credentials.place(f"swapped/{target}"))
        os.chown(agents.credentials.place(f"swapped/{target}"), USER_ID, USER_ID)
    done = launcher.run_on(2, program, "serve", "--listen", str(PORT), "--certificates",
                           agents.credentials.path("swapped"), user=USER)
    shutil.rmtree(agents.credentials.place("swapped"))
    assert done.code == 2 and "is a user's certificate: it cannot serve" in done.err_text, done
    assert "ivy-agent cert HOST" in done.err_text, done
