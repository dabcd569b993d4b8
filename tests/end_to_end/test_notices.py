# SPDX-License-Identifier: Apache-2.0
"""Hosts that will be stopped: notices of clouds (from stand-ins for their metadata services), a TERM to a supervisor, nodes
that Slurm drains; docs/spot-and-preemptible.md."""

import contextlib
import json
import os
import re
import signal
import time

import pytest

from launching import wait_until

import leftovers  # (found by way of launching)
from slurm_jobs import CONFIGURATION, Slurm, running_on

RESUME = "/srv/ivyshared/examples/resume.py"
QUICKLY = {"IVY_TEST_RESTART_PAUSE": "200ms", "IVY_TEST_DRAIN_PERIOD": "1s"}
ADDRESS = "169.254.169.254/32"
SPOT = "/latest/meta-data/spot/instance-action"
PREEMPTED = "/computeMetadata/v1/instance/preempted"
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"


def utc(seconds_from_now, form="%Y-%m-%dT%H:%M:%SZ"):
    return time.strftime(form, time.gmtime(time.time() + seconds_from_now))


def azure_events(*kinds):
    return json.dumps({"DocumentIncarnation": 1, "Events": [
        {"EventId": kind, "EventType": kind, "ResourceType": "VirtualMachine", "Resources": ["vm3"],
         "EventStatus": "Scheduled", "NotBefore": utc(40, "%a, %d %b %Y %H:%M:%S GMT")} for kind in kinds]})


# The answers without and with a notice, and the notice in ivyrun's words.
CLOUDS = {
    "aws": ({}, lambda: {SPOT: json.dumps({"action": "terminate", "time": utc(120)})},
            r"in 1[0-2]\d s \(AWS: spot interruption\)"),
    "gcp": ({PREEMPTED: "FALSE"}, lambda: {PREEMPTED: "TRUE"}, r"in (30|2\d) s \(Google Cloud: preemption\)"),
    "azure": ({NAME: "vm3", EVENTS: azure_events()}, lambda: {NAME: "vm3", EVENTS: azure_events("Preempt")},
              r"in [23]\d s \(Azure: spot eviction\)"),
}


class StandIn:
    """The metadata service of one host."""

    def __init__(self, hosts, host):
        self.hosts, self.host = hosts, host

    def answer(self, answers):
        # Replaced as a whole, because the service reads it for each request.
        path = self.hosts.outside(self.hosts.file("answers.new", json.dumps(answers)))
        os.replace(path, path.replace("answers.new", "answers.json"))

    def requests(self):
        return self.hosts.read("requests.log").decode()


@contextlib.contextmanager
def stand_in(hosts, host, answers):
    made = StandIn(hosts, host)
    made.answer(answers)
    hosts.file("requests.log")
    assert hosts.run_on(host, "ip", "address", "add", ADDRESS, "dev", "lo").code == 0
    service = type(hosts)(hosts.bed, hosts.name, "root", host)
    with service.start_program("python3", hosts.script("metadata_stand_in.py"), f"{hosts.directory}/answers.json",
                               f"{hosts.directory}/requests.log") as run:
        try:
            yield made
        finally:
            for process in leftovers.processes_of(hosts.bed.init_pid(host)):
                if "metadata_stand_in" in process.words():
                    os.kill(process.pid, signal.SIGKILL)
            hosts.run_on(host, "ip", "address", "delete", ADDRESS, "dev", "lo")
            run.finish()


def start_resume(hosts, *flags, steps=100_000):
    return hosts.start("-H", "node2,node3,node4", *flags, RESUME, "--steps", str(steps), "--checkpoint", "state.json",
                       env=QUICKLY)


# ---- Clouds ------------------------------------------------------------------------------------------

@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_cloud_announces_the_end_of_a_host(hosts, cloud):
    """The ranks save their state on the signal, and the group continues on the other hosts."""
    before, after, text = CLOUDS[cloud]
    with stand_in(hosts, 3, before) as service:
        with start_resume(hosts, "--nnodes", "2:3", "--watch-notices", cloud, "--events", "events.jsonl",
                          "--preempt-signal", "USR1") as run:
            run.wait_for("begins at step 0", count=3)
            wait_until(lambda: service.requests().count("GET") > 1, 20, "polls")
            service.answer(after())
            run.wait_for("notice: node3 will be stopped " + text, 20)
            run.wait_for(r"begins at step [1-9]", 30, count=2)
            run.signal(signal.SIGTERM)
            done = run.finish()
    assert re.search(r"SIGUSR1 to 3 ranks; the attempt is stopped in \d+ s, and the next one runs without node3", done.err_text)
    assert re.search(r"attempt 1 of 2 failed: node3 will be stopped \(.+\); attempt 2 starts in", done.err_text), done
    assert done.out.count(b"SIGUSR1: saved at step") == 3, done
    assert {host for _, host, line in done.labelled() if re.search("begins at step [1-9]", line)} == {"node2", "node4"}, done
    events = [json.loads(line) for line in hosts.read("events.jsonl").splitlines()]
    notice, = (event for event in events if event["event"] == "notice")
    assert notice["host"] == "node3" and notice["deadline_unix_ms"] > notice["time_unix_ms"], notice


def test_a_withdrawn_notice_is_named(hosts):
    """Azure gives up a reboot. The job runs on."""
    events = [json.dumps({"Events": [{"EventType": "Reboot", "Resources": ["vm3"], "EventStatus": "Scheduled",
                                      "NotBefore": utc(900, "%a, %d %b %Y %H:%M:%S GMT")}]}), azure_events()]
    with stand_in(hosts, 3, {NAME: "vm3", EVENTS: events[1]}) as service:
        with hosts.start("-H", "node2,node3", "--watch-notices", "azure", "--preempt-signal", "USR1",
                         hosts.script("signals.py"), env=QUICKLY) as run:
            run.wait_for("ready", count=2)
            service.answer({NAME: "vm3", EVENTS: events[0]})
            run.wait_for(r"notice: node3 will be stopped in [89]\d\d s \(Azure: reboot\)", 20)
            run.wait_for("got SIGUSR1 1", count=2)
            service.answer({NAME: "vm3", EVENTS: events[1]})
            run.wait_for(r"notice withdrawn: node3 will not be stopped \(Azure: reboot\)", 20)
            run.signal(signal.SIGTERM)
            done = run.finish(60)
    assert "the time of the notice is up" not in done.err_text, done


def test_a_service_that_is_silent_delays_nothing(hosts):
    """Packets to the address are dropped, as on a host outside the cloud."""
    with hosts.start("-H", "node2,node3", "--watch-notices", "aws", "sleep", "4") as run:
        done = run.finish()
    assert done.code == 0 and "notice" not in done.err_text, done


def test_nothing_polls_outside_of_clouds(hosts):
    if hosts.run_on(2, "test", "-e", "/sys/class/dmi/id/product_name").code == 0:
        pytest.skip("this machine may be in a cloud")
    with hosts.start("-H", "node2", "sleep", "600") as run:
        wait_until(lambda: hosts.processes(2, "ivy-supervisor"), 10, "a supervisor")
        time.sleep(4)
        assert len(hosts.processes(2, "ivy-node")) <= 2  # The warden and the relay.
        run.signal(signal.SIGTERM)
        run.finish()


# ---- A TERM to a supervisor ----------------------------------------------------------------------------

def terminate(hosts, host):
    for pid in hosts.processes(host, "ivy-supervisor"):
        os.kill(pid, signal.SIGTERM)


def test_a_term_to_a_supervisor_is_a_notice(hosts):
    with start_resume(hosts, "--nnodes", "2:3") as run:
        run.wait_for("begins at step 0", count=3)
        terminate(hosts, 2)
        run.wait_for(r"notice: node2 will be stopped in 25 s \(SIGTERM to its supervisor\)")
        run.wait_for(r"begins at step [1-9]", 30, count=2)
        wait_until(lambda: not hosts.processes(2, "ivy-supervisor"), 10, "node2's supervisor has exited")
        run.signal(signal.SIGTERM)
        done = run.finish()
    assert done.out.count(b"SIGTERM: saved at step") == 5, done
    assert {host for _, host, line in done.labelled() if re.search("begins at step [1-9]", line)} == {"node3", "node4"}, done


def test_a_job_that_needs_the_host_ends_with_75(hosts):
    with start_resume(hosts) as run:
        run.wait_for("begins at step 0", count=3)
        terminate(hosts, 3)
        done = run.finish()
    assert done.code == 75, done
    assert re.search(r"SIGTERM to 3 ranks; the job is stopped in 1\d s \(exit code 75\)", done.err_text), done
    assert "IVY-R040" in done.err_text and done.out.count(b"SIGTERM: saved at step") == 3, done


def test_ranks_that_ignore_the_signal_are_stopped_in_time(hosts):
    """A quarter of the time is left for the stop."""
    with hosts.start("-H", "node2,node3", "--notice-time", "8s", "--preempt-signal", "USR2",
                     hosts.script("signals.py"), env=QUICKLY) as run:
        run.wait_for("ready", count=2)
        terminate(hosts, 3)
        run.wait_for("got SIGUSR2 1", count=2)
        done = run.finish(40)
    assert done.code == 75 and "the time of the notice is up: stopping 2 workers" in done.err_text, done
    assert done.out.count(b"got SIGTERM 1") == 2, done


def test_a_second_term_stops_at_once(hosts):
    with hosts.start("-H", "node2,node3", "--preempt-signal", "USR2", hosts.script("signals.py")) as run:
        run.wait_for("ready", count=2)
        terminate(hosts, 3)
        run.wait_for("got SIGUSR2 1", count=2)
        terminate(hosts, 3)
        run.wait_for("the supervisor received SIGTERM", 20)
        done = run.finish()
    assert done.code == 121, done


def test_no_notice_time_stops_at_once(hosts):
    with hosts.start("-H", "node2,node3", "--notice-time", "0", hosts.script("signals.py")) as run:
        run.wait_for("ready", count=2)
        terminate(hosts, 3)
        done = run.finish()
    assert done.code == 121 and "notice:" not in done.err_text, done


def test_two_notices_are_one_signal(hosts):
    with start_resume(hosts, "--nnodes", "1:3") as run:
        run.wait_for("begins at step 0", count=3)
        terminate(hosts, 2)
        terminate(hosts, 4)
        run.wait_for(r"begins at step [1-9]", 30)
        run.signal(signal.SIGTERM)
        done = run.finish()
    assert done.err_text.count("SIGTERM to 3 ranks") == 1, done
    for host in "node2", "node4":
        assert f"notice: {host} will be stopped" in done.err_text, done
    # A single rank has no label.
    assert len(re.findall(rb"^begins at step [1-9]", done.out, re.M)) == 1, done


# ---- Slurm ---------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def running_slurm(testbed):
    with running_on(testbed, "linuxproc"):
        yield


@pytest.fixture
def slurm(hosts, running_slurm):
    with Slurm(hosts.as_user("ivyuser"), "linuxproc") as made:
        yield made


def set_node(hosts, *words):
    done = hosts.run_on(1, "env", f"SLURM_CONF={CONFIGURATION}", "scontrol", "update", "nodename=node3", *words)
    assert done.code == 0, done


def test_a_drained_node_is_left(hosts, slurm):
    """A node that is drained when the job runs gets no new jobs, and this one leaves it."""
    try:
        with slurm.start(["-w", "node[2-4]", "-N", "3"], "--nnodes", "2:3", RESUME, "--steps", "100000", "--checkpoint",
                         f"{slurm.launcher.directory}/state.json", env=QUICKLY) as run:
            run.wait_for("begins at step 0", 40, count=3)
            time.sleep(3)  # The first query.
            set_node(hosts, "state=drain", "reason=bad disk")
            run.wait_for(r"notice: node3 should be left, it has no deadline \(Slurm: drain: bad disk", 30)
            run.wait_for(r"begins at step [1-9]", 60, count=2)
            run.signal(signal.SIGTERM)
            done = run.finish(60)
    finally:
        set_node(hosts, "state=resume")
    assert {host for _, host, line in done.labelled() if re.search("begins at step [1-9]", line)} == {"node2", "node4"}, done


# ---- Wrong input ---------------------------------------------------------------------------------------

@pytest.mark.parametrize("flags, text", [(("--notice-time", "1h"), "at most 10m"),
                                         (("--watch-notices", "ibm"), "--watch-notices")])
def test_wrong_values_are_rejected(local, flags, text):
    done = local.run(*flags, "true")
    assert done.code == 2 and text in done.err_text, done
