# SPDX-License-Identifier: Apache-2.0
"""The abort epoch: the state of a rank is immediately visible in every other rank's status page."""

import os
import re
import shutil
import signal
import time

import pytest

from launching import BIN, seconds, wait_until

WORKER = os.path.realpath(os.path.join(BIN, "../children/control_worker"))
IVYCTL = os.path.join(BIN, "ivyctl")
pytestmark = pytest.mark.skipif(not os.access(WORKER, os.X_OK),
                                reason="build child_control_worker first")


def attached(job, count):
    """Returns {rank: pid} of all attached processes."""
    job.wait_for(rb"attached slot=", count=count)
    found = {}
    for line in job.said().split(b"\n"):
        match = re.match(rb"\[[^0-9\]]*(\d+)[^\]]*\] ?attached .*pid=(\d+)", line.rstrip(b"\r"))
        if match:
            found[int(match[1])] = int(match[2])
    return found


def deaths(finished, dead):
    """Returns {rank that saw the death: (line, at_ns)}."""
    seen = {}
    for rank, _, text in finished.labelled():
        match = re.match(rf"(dead rank={dead} .*) at_ns=(\d+)", text)
        if match:
            seen[rank] = (match[1], int(match[2]))
    return seen


def test_kill_is_seen_by_every_other_rank_on_every_host(local):
    with local.start("--fake-hosts", "2", "-n", "4", WORKER, "attach",
                     "2:sleep:60000", "wait-dead:1") as job:
        pids = attached(job, 4)
        killed_at = time.monotonic_ns()
        os.kill(pids[2], signal.SIGKILL)
        finished = job.finish()
    assert finished.code == 137, finished
    seen = deaths(finished, 2)
    assert set(seen) == {0, 1, 3}, finished
    for rank, (line, at_ns) in seen.items():
        assert re.fullmatch(rf"dead rank=2 state=signalled code=9 pid={pids[2]} host=\S+", line)
        assert at_ns - killed_at < seconds(1) * 1e9, (rank, (at_ns - killed_at) / 1e6, "ms")


def test_term_arrives_after_the_epoch_or_immediately_without_support(local):
    script = ('if [ $IVY_RANK = 2 ]; then trap "date +TERM\\ %s.%N; exit 3" TERM; echo waiting; '
              'while :; do sleep 0.05; done; fi; '
              f'exec {WORKER} attach ignore-term wait-dead:1 sleep:60000')
    with local.start("-n", "3", "bash", "-c", script) as job:
        pids = attached(job, 2)
        job.wait_for(rb"waiting")
        killed_at = time.time()
        os.kill(pids[1], signal.SIGKILL)
        job.wait_for(rb"dead rank=1")
        job.wait_for(rb"TERM \d")
        untold = float(re.search(rb"TERM (\d+\.\d+)", job.said())[1]) - killed_at
        job.wait_for(rb"\[0[^\]]*\] TERM\n")
        told = time.time() - killed_at
        finished = job.finish()
    assert finished.code == 137, finished
    assert told >= 1 and told - untold >= 0.5, (told, untold)


def test_only_an_exit_without_leave_is_a_death(local):
    with local.start("-n", "3", WORKER, "attach", "0:leave", "0:exit:0",
                     "1:wait-left:0", "1:exit:0", "2:wait-dead:1") as job:
        finished = job.finish()
    assert finished.code == 0, finished
    texts = finished.texts_by_rank()
    assert "has-left rank=0" in texts[1], finished
    assert [line for line in texts[2] if line.startswith("dead")] and \
        texts[2][-1].startswith("dead rank=1 state=exited code=0"), finished


def test_a_process_below_a_shell_is_watched_too(local):
    script = f"{WORKER} attach 1:sleep:60000 wait-dead:1; exit $?"
    with local.start("--fake-hosts", "2", "-n", "2", "sh", "-c", script) as job:
        pids = attached(job, 2)
        os.kill(pids[1], signal.SIGKILL)
        finished = job.finish()
    assert finished.code == 137, finished
    seen = deaths(finished, 1)
    assert re.match(rf"dead rank=1 state=(signalled code=9|died code=0) pid={pids[1]} ",
                    seen[0][0]), finished


def test_a_report_reaches_every_rank_of_the_job(local):
    with local.start("--fake-hosts", "2", "-n", "4", WORKER, "attach",
                     "3:report:1,rank 1 called broadcast", "wait-report:1", "leave") as job:
        finished = job.finish()
    assert finished.code == 0, finished
    line = "report reporter=3 blamed=1 communicator=world text=rank 1 called broadcast"
    for rank in range(4):
        assert line in finished.texts_by_rank()[rank], finished


def test_each_generation_has_a_new_status_page(local):
    script = (f'[ "$IVY_GENERATION" = 0 ] && exec {WORKER} attach 1:exit:7 wait-dead:1 sleep:60000; '
              f'exec {WORKER} attach segment:w,65536,2 leave')
    with local.start("--max-restarts", "1", "-n", "2", "bash", "-c", script,
                     env={"IVY_TEST_RESTART_PAUSE": "1ms"}) as job:
        finished = job.finish()
    assert finished.code == 0, finished
    text = finished.out.decode()
    assert len(re.findall(r"attached slot=\d generation=1", text)) == 2, finished
    assert len(re.findall(r"segment w", text)) == 2, finished


def test_why_and_stall_timeout_report_the_activity_of_each_rank(local):
    with local.start("--fake-hosts", "2", "--stall-timeout", "1", "-n", "4", "bash", "-c",
                     'echo job $IVY_JOB_ID; exec "$@"', "-", WORKER, "attach", "finish:world,811",
                     "0:enter:world,812", "1:enter:world,812", "2:enter:world,812",
                     "sleep:60000") as job:
        job.wait_for(rb"entered", count=3)
        job_id = re.search(rb"job ([0-9a-f]{32})", job.said())[1].decode()
        done = None

        def said():
            nonlocal done
            done = local.run_program(IVYCTL, "why", job_id)
            return b"#812" in done.out
        wait_until(said, 10, "ivyctl why names the operation")
        line = (r'rank 3 did not enter all_reduce #812 of "world" \(last entered all_reduce #811\); ranks 0-2 wait '
                r"in it \(1024 f32, sum\) for \d+ s\n *"
                r'ranks 0-2 \(hosts \S+, \S+\): in all_reduce #812 of "world" \(1024 f32, sum\), '
                r"waiting for the others, for \S+ s")
        assert re.match(line + "\n" + r"rank 3 \(host \S+, pid \d+\): between operations: finished "
                        r'all_reduce #811 of "world" \d+ s ago', done.out.decode()), done
        job.wait_for(rb"takes longer than --stall-timeout", limit=20)
        job.wait_for(rb"finished all_reduce #811")
        job.signal(signal.SIGINT)
        finished = job.finish()
    assert re.search(r"warning: an operation of rank \d takes longer than --stall-timeout. What each "
                     rf"rank waits for:\n  {line}", finished.err_text), finished


@pytest.fixture
def worker_on_hosts(hosts):
    path = f"{hosts.directory}/control_worker"
    shutil.copy(WORKER, hosts.outside(path))
    return path


def test_a_kill_on_another_host_is_seen_within_a_second(hosts, worker_on_hosts):
    with hosts.start("-H", "node1,node2,node3", worker_on_hosts, "attach", "1:sleep:60000",
                     "wait-dead:1") as job:
        pids = attached(job, 3)
        killed_at = time.monotonic_ns()
        hosts.run_on(2, "kill", "-9", str(pids[1]))
        finished = job.finish()
    assert finished.code == 137, finished
    seen = deaths(finished, 1)
    assert set(seen) == {0, 2}, finished
    for rank, (line, at_ns) in seen.items():
        assert line.endswith("host=node2") and "state=signalled code=9" in line, finished
        assert at_ns - killed_at < seconds(1) * 1e9, (rank, (at_ns - killed_at) / 1e6, "ms")


def test_ranks_of_other_hosts_see_that_a_cut_off_host_is_lost(hosts, worker_on_hosts):
    with hosts.start("-H", "node1,node2,node3", "--lease", "3", worker_on_hosts, "attach",
                     "1:sleep:60000", "wait-dead:1") as job:
        attached(job, 3)
        hosts.bed.cut(2)
        finished = job.finish(60)
        hosts.bed.join(2)
    assert finished.code == 121, finished
    seen = deaths(finished, 1)
    assert set(seen) == {0, 2}, finished
    assert all("state=host-lost" in line for line, _ in seen.values()), finished
