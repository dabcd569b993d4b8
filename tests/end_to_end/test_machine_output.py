# SPDX-License-Identifier: Apache-2.0
"""Output for programs: --events, --dry-run=json, --summary json, attempt.json, ivyctl's --json; names and ended jobs."""

import glob
import json
import os
import re
import signal
import stat
import subprocess
import sys

import pytest

from launching import BIN, seconds, wait_until

CTL = os.path.join(BIN, "ivyctl")


def ctl(*words):
    return subprocess.run([CTL, *words], capture_output=True, text=True, timeout=seconds(30))


def ctl_json(*words):
    done = ctl(*words, "--json")
    assert done.returncode == 0, done
    return json.loads(done.stdout)


def events_of(path):
    with open(path, encoding="utf-8") as stream:
        events = [json.loads(line) for line in stream]
    assert {event["schema"] for event in events} == {"ivyrun/1"}
    return events


def named(events, name):
    return [event for event in events if event["event"] == name]


def test_events_describe_a_job_that_fails_and_restarts(local):
    done = local.run("--events", "run.jsonl", "--name", "twice", "--log-dir", "logs", "--fake-hosts", "2", "-n", "2",
                     "--max-restarts", "1", "sh", "-c", "echo here; test $RANK = 0 || exit 7; sleep 60",
                     env={"IVY_TEST_RESTART_PAUSE": "10ms"})
    assert done.code == 7, done
    events = events_of(os.path.join(local.directory, "run.jsonl"))
    assert {event["name"] for event in events} == {"twice"} and len({event["job"] for event in events}) == 1
    plan, = named(events, "plan")
    assert [(host["host"], host["ranks"]) for host in plan["hosts"]] == [("fake0", [0]), ("fake1", [1])]
    assert plan["command"][0].endswith("sh") and plan["world_size"] == 2
    assert [(event["attempt"], event["max_attempts"]) for event in named(events, "start")] == [(1, 2), (2, 2)]
    assert sorted(event["rank"] for event in named(events, "first_output")) in ([0, 0, 1, 1], [0, 1, 1], [1, 1])
    exits = named(events, "exit")
    assert [event["exit_code"] for event in exits if event["rank"] == 1] == [7, 7]
    assert all(event["after_stop"] and event["signal"] == "SIGTERM" for event in exits if event["rank"] == 0), exits
    restart, = named(events, "restart")
    assert restart["failed_attempt"] == 1 and "rank 1" in restart["cause"]
    verdict = events[-1]
    assert verdict["event"] == "verdict" and (verdict["exit_code"], verdict["reason"]) == (7, "worker")
    assert verdict["first"]["rank"] == 1 and verdict["stopped"] == [0] and len(verdict["failed_attempts"]) == 1
    assert events.index(restart) > events.index(named(events, "start")[0])

    latest = os.path.join(local.directory, "logs/latest")
    assert os.readlink(latest) == verdict["job"]
    for attempt in (0, 1):
        with open(f"{latest}/{attempt}/attempt.json", encoding="utf-8") as stream:
            kept = json.load(stream)
        assert kept["schema"] == "ivyrun/1" and kept["attempt"] == attempt + 1 and kept["first"]["rank"] == 1, kept


def test_an_event_reports_a_lost_supervisor(local):
    with local.start("--events", "run.jsonl", "--fake-hosts", "2", "--nproc-per-node", "2", "sh", "-c",
                     "echo up $RANK under $PPID; [ $RANK = 2 ] && exit; sleep 600") as run:
        run.wait_for("up", count=4)
        path = os.path.join(local.directory, "run.jsonl")
        wait_until(lambda: named(events_of(path), "exit"), 10, "rank 2 exited")
        os.kill(int(re.search(rb"up 3 under (\d+)", run.said())[1]), signal.SIGKILL)
        done = run.finish()
    assert done.code == 121, done
    events = events_of(path)
    lost, = named(events, "host_lost")
    assert (lost["host"], lost["reason"], lost["ranks"]) == ("fake1", "supervisor_lost", [3]) and lost["cause"], lost
    assert events[-1]["reason"] == lost["reason"] and events.index(lost) < len(events) - 1


def test_an_event_reports_a_lost_host(hosts):
    with hosts.start("--events", "run.jsonl", "--lease", "3s", "-H", "node1,node2", "sh", "-c",
                     "echo up; sleep 600") as run:
        run.wait_for("up", count=2)
        hosts.bed.power_off(2)
        done = run.finish()
    assert done.code == 121, done
    lost, = named(events_of(hosts.outside(f"{hosts.directory}/run.jsonl")), "host_lost")
    assert (lost["host"], lost["reason"], lost["ranks"]) == ("node2", "host_lost", [1]), lost
    assert lost["cause"].startswith("no response for"), lost


def test_events_go_to_a_descriptor_that_workers_do_not_have(local):
    done = local.run_program("sh", "-c", f"exec {BIN}/ivyrun --events fd:5 -n 1 ls /proc/self/fd 5>pipe.jsonl", limit=30)
    assert done.code == 0 and b"5" not in done.out.split(), done
    events = [event["event"] for event in events_of(os.path.join(local.directory, "pipe.jsonl"))]
    # The output and the exit of such a short worker may be reported in either order.
    assert events[:2] + sorted(events[2:4]) + events[4:] == ["plan", "start", "exit", "first_output", "verdict"]


@pytest.mark.parametrize("name", ["events", "metrics", "attempt"])
def test_a_stalled_file_for_programs_does_not_stop_a_job(local, name):
    """A pipe without a reader replaces a file. For two leases the hosts still get heartbeats from their launcher, and the job
    ends normally."""
    pipe = os.path.join(local.directory, name)
    # --metrics-file first writes to a temporary file whose name ends in the launcher's process id.
    place = {"events": ("--events", pipe), "metrics": ("--metrics-file", pipe), "attempt": ("--log-dir", pipe)}[name]
    program = "sleep 7"
    if name == "attempt":
        program = f"[ $RANK = 0 ] && mkfifo {pipe}/$IVY_JOB_ID/0/attempt.json; sleep 7"
    elif name == "events":
        os.mkfifo(pipe)
    else:
        program = f"[ $RANK = 0 ] && mkfifo {pipe}.$(cat {local.directory}/launcher); sleep 7"
    with local.start("--fake-hosts", "2", "-n", "2", "--lease", "3s", *place, "sh", "-c",
                     f"until [ -e {local.directory}/launcher ]; do sleep 0.01; done; {program}") as run:
        with open(os.path.join(local.directory, "launcher.new"), "w", encoding="utf-8") as file:
            file.write(str(run.process.pid))
        os.rename(file.name, os.path.join(local.directory, "launcher"))
        done = run.finish(limit=40)
    assert done.code == 0, done
    assert done.took > 6 and "lost" not in done.own_text() and "lease" not in done.own_text(), done
    assert name != "metrics" or not os.path.exists(pipe), "the launcher did not write to the pipe"
    assert name != "attempt" or stat.S_ISFIFO(os.stat(glob.glob(f"{pipe}/*/0/attempt.json")[0]).st_mode)


def test_events_on_standard_output(local):
    done = local.run("--events", "-", "-n", "1", "sh", "-c", "echo words >&2")
    events = [json.loads(line)["event"] for line in done.out_lines]
    assert sorted(events) == ["exit", "first_output", "plan", "start", "verdict"] and events[-1] == "verdict", done
    assert os.listdir(local.directory) == [], "a file named '-' was created"


def test_invalid_targets_for_events_are_rejected(local):
    refused = local.run("--events", "fd:77", "-n", "1", "true")
    assert refused.code == 2 and "descriptor 77 is not open" in refused.err_text, refused
    refused = local.run("--events", ".", "-n", "1", "true")
    assert refused.code == 2 and "is a directory" in refused.err_text, refused
    full = local.run("--events", "/dev/full", "-n", "1", "false")
    assert full.code == 1 and "--events /dev/full: No space left on device" in full.err_text, full


def test_dry_run_as_an_object(local):
    done = local.run("--dry-run=json", "--fake-hosts", "2", "--nproc-per-node", "2", "true", "a b")
    plan = json.loads(done.out)
    assert done.code == 0 and plan["schema"] == "ivyrun/1" and plan["dry_run"] and plan["world_size"] == 4
    assert [host["ranks"] for host in plan["hosts"]] == [[0, 1], [2, 3]] and plan["hosts"][0]["cores"] > 0
    assert plan["command"][1:] == ["a b"]
    refused = local.run("--dry-run=yaml", "true")
    assert refused.code == 2, refused


@pytest.mark.parametrize("command, code, reason", [("true", 0, "ok"), ("kill -9 $$", 137, "worker")])
def test_summary_as_one_line(local, command, code, reason):
    done = local.run("--summary", "json", "-q", "-n", "1", "sh", "-c", command)
    verdict = json.loads(done.err_text.strip().splitlines()[-1])
    assert done.code == code and (verdict["exit_code"], verdict["reason"]) == (code, reason), done
    assert "error[" not in done.err_text
    quiet = local.run("--summary", "off", "-n", "1", "sh", "-c", command)
    assert quiet.code == code and not quiet.err, quiet


def test_summary_of_a_rejection_has_the_message(local):
    done = local.run("--summary", "json", "-n", "1", "/nowhere/program")
    verdict = json.loads(done.err_text.strip().splitlines()[-1])
    assert (verdict["reason"], verdict["message"]["id"], verdict["exit_code"]) == ("refused", "IVY-P004", 127), verdict


def test_a_name_finds_a_running_and_an_ended_job(local):
    name = f"named-{os.getpid()}"
    started = local.run("--detach", "--name", name, "--log-dir", "logs", "-n", "2", sys.executable, "-c",
                        "import time; print('hello', flush=True); time.sleep(600)")
    assert started.code == 0, started
    try:
        row = ctl_json("status", name)
        assert (row["name"], row["state"], row["world_size"], row["schema"]) == (name, "running", 2, "ivyrun/1")
        assert name in ctl("ps").stdout
        assert row["job"] in [job["job"] for job in ctl_json("ps")]
        why = ctl_json("why", name)
        assert why["job"] == row["job"] and why["schema"] == "ivyrun/1"
        stacks = ctl_json("stack", name)["stacks"]
        assert any("sleep" in line or "<string>" in line for line in stacks), stacks
        wait_until(lambda: "hello" in ctl("logs", name).stdout, 10, "the output by name")
    finally:
        stopped = ctl("stop", name)
    assert stopped.returncode == 0, stopped
    ended = ctl_json("status", name)
    assert (ended["state"], ended["exit_code"], ended["job"]) == ("ended", 143, row["job"])
    assert row["job"] not in [job["job"] for job in ctl_json("ps")]
    listed, = [job for job in ctl_json("ps", "-a") if job["job"] == row["job"]]
    assert listed["exit_code"] == 143 and listed["ended_unix_ms"] > listed["since_unix_ms"]
    assert "exit 143" in ctl("ps", "-a").stdout
    assert "hello" in ctl("logs", name).stdout
    assert ctl_json("why", name)["exit_code"] == 143
    refused = ctl("status", "no-such-job")
    assert refused.returncode == 1 and "no-such-job" in refused.stderr + "no-such-job", refused


def test_invalid_job_names_are_rejected(local):
    for name in ("a b", "../x", "-x", "x" * 65):
        refused = local.run(f"--name={name}", "-n", "1", "true")
        assert refused.code == 2 and "is not a name" in refused.err_text, refused


def test_every_message_can_be_explained():
    done = ctl("explain", "IVY-H003")
    assert done.returncode == 0 and "hosts could not be reached" in done.stdout, done
    assert re.search(r"^ *exit: +120$", done.stdout, re.MULTILINE), done.stdout
    assert ctl("explain", "h3").stdout == done.stdout
    unknown = ctl("explain", "IVY-Z999")
    assert unknown.returncode == 2 and 'there is no message "IVY-Z999"' in unknown.stderr, unknown
