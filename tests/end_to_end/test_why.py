# SPDX-License-Identifier: Apache-2.0
"""Ranks that wait for each other: `ivyctl why` and the reports of --stall-timeout."""

import os
import re
import signal

import pytest

from launching import BIN, wait_until

IVYCTL = os.path.join(BIN, "ivyctl")
TORCH_LIMIT = 90
WITH_TORCH = pytest.mark.skipif(not os.path.isdir("/usr/lib/python3/dist-packages/torch"),
                                reason="python3-torch is not installed")
# Prints the job's id before it executes the program that follows.
SAY_JOB = ["bash", "-c", 'echo job $IVY_JOB_ID; exec "$@"', "-"]
PYTHON = "/usr/bin/python3"
# The stacks of the ranks' main threads come last, with equal ones folded.
PLACES = (r"\nwhere the ranks are \(ivyctl stack shows all threads\):\n"
          r"(  ranks? \S+ \(host.*\): main thread: .*\n(      .*\n)*)+")


def why(local, job, pattern, limit=10):
    """Runs `ivyctl why` until its output contains the pattern, and returns its result. At first the job has no socket, and the
    store reads requests after the client has sent them."""
    job_id = re.search(rb"job ([0-9a-f]{32})", job.said())[1].decode()
    done = None

    def said():
        nonlocal done
        done = local.run_program(IVYCTL, "why", job_id)
        return re.search(pattern, done.out.decode() + done.err_text)
    try:
        wait_until(said, limit, f"ivyctl why says {pattern}")
    except AssertionError as error:
        raise AssertionError(f"{error}{done!r}") from None
    return done


def end(job):
    job.signal(signal.SIGINT)
    return job.finish()


@WITH_TORCH
def test_why_and_stall_timeout_name_the_key_and_the_silent_client(local):
    with local.start("--stall-timeout", "1", "-n", "2", *SAY_JOB, PYTHON,
                     local.script("torch_waits.py")) as job:
        job.wait_for(rb"both are there", limit=TORCH_LIMIT, count=2)
        job.wait_for(rb"What each rank waits for:\n.*unique-id", limit=20)
        # Debian's torch does not send its process id, so a client is shown as an address.
        line = (r"key '\S*unique-id-of-rank-1': a client at 127\.0\.0\.1:\d+ has waited for \S+ s; "
                r"not waiting for it: a client at 127\.0\.0\.1:\d+ \(silent for \S+ s, "
                r"last: \w+ \S*ready0\)")
        done = why(local, job, "unique-id")
        assert done.code == 0 and re.fullmatch(line + PLACES, done.out.decode()), done
        finished = end(job)
    stalls = re.findall(r"^ivyrun: warning: there is no progress in the job's store. What each "
                        rf"rank waits for:\n  {line}$", finished.err_text, re.MULTILINE)
    assert len(stalls) == 1, finished


def test_clients_that_report_their_process_are_shown_as_ranks(local):
    with local.start("--stall-timeout", "1", "--fake-hosts", "2", *SAY_JOB, PYTHON,
                     local.script("ping_waits.py")) as job:
        job.wait_for(rb"asked, pid", count=2)
        job.wait_for(rb"What each rank waits for:\n", limit=20)
        line = (r"key 'late': rank 0 \(host \S+, pid \d+\) has waited for \S+ s; not waiting for "
                r"it: rank 1 \(host \S+, pid \d+\) \(silent for \S+ s, last: set early\)")
        done = why(local, job, "late")
        assert done.code == 0 and re.fullmatch(line + PLACES, done.out.decode()), done
        # Both ranks have the same stack, on two hosts.
        assert "ranks 0-1 (hosts fake0, fake1): main thread: <module> (" in done.out.decode(), done
        finished = end(job)
    assert len(re.findall(rf"^  {line}$", finished.err_text, re.MULTILINE)) == 1, finished


def test_a_detached_job_writes_its_stall_into_its_log(local):
    done = local.run("--detach", "--stall-timeout", "1", "--log-dir", "logs", "-n", "2", PYTHON,
                     local.script("ping_waits.py"))
    assert done.code == 0, done
    job = re.search(r"job ([0-9a-f]{12}) runs in the background", done.out.decode())[1]

    def log_text():
        for top, _, names in os.walk(os.path.join(local.directory, "logs")):
            if "ivyrun.log" in names:
                with open(os.path.join(top, "ivyrun.log")) as file:
                    return file.read()
        return ""
    try:
        wait_until(lambda: re.search(r"What each rank waits for:\n  key 'late': rank 0 ", log_text()), 20,
                   "the stall is in ivyrun.log")
    finally:
        stopped = local.run_program(IVYCTL, "stop", job, "--now")
    assert stopped.code == 0, stopped


def test_a_short_wait_after_a_long_silence_is_not_a_stall(local):
    done = local.run("--stall-timeout", "2", "-n", "2", PYTHON, local.script("ping_waits.py"),
                     "brief")
    assert done.code == 0 and b"answered" in done.out, done
    assert "What each rank waits for" not in done.err_text, done


def test_unconnected_ranks_are_named(local):
    with local.start("-n", "3", "bash", "-c",
                     'echo job $IVY_JOB_ID; [ $RANK = 1 ] && exec sleep 300; exec "$@"', "-",
                     PYTHON, local.script("ping_waits.py")) as job:
        job.wait_for(rb"asked, pid", count=2)
        why(local, job, "rank 2 .*last: set early.*; not connected: rank 1\n")
        end(job)


def test_clients_on_two_hosts_are_shown_with_their_hosts(hosts):
    user = hosts.as_user("ivyuser")
    with user.start("-H", "node3,node2", *SAY_JOB, PYTHON, user.script("ping_waits.py")) as job:
        job.wait_for(rb"asked, pid", limit=TORCH_LIMIT, count=2)
        why(user, job, r"key 'late': rank 0 \(host node3, pid \d+\) .*: rank 1 \(host node2, "
                       r"pid \d+\) .*last: set early")
        end(job)


def test_why_reports_no_waiting_clients_and_a_missing_store(local):
    with local.start("-n", "2", *SAY_JOB, "sleep", "300") as job:
        job.wait_for(rb"job [0-9a-f]{32}", count=2)
        done = why(local, job, "no blocked requests")
        assert done.code == 0, done
        assert re.match(r"store: no blocked requests \(no clients connected\)\nwhere the ranks are \(.*\):\n"
                        r"  ranks 0-1 \(host \S+\): sleep, sleeping", done.out.decode()), done
        end(job)
    with local.start("--no-store", "-n", "1", *SAY_JOB, "sleep", "300") as job:
        job.wait_for(rb"job [0-9a-f]{32}")
        done = why(local, job, "has no store")
        assert done.code == 0 and "--no-store" in done.out.decode(), done
        assert "rank 0 (host localhost" in done.out.decode(), done
        end(job)
