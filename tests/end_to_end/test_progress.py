# SPDX-License-Identifier: Apache-2.0
"""What is worth a restart, and the end that never comes: --progress-file, --condemn-on, --linger, and the note on attempts
that fail in the same place."""

import json
import os
import re
import signal

import pytest

from launching import seconds, wait_until
from test_restarts import attempts_said

HURRY = {"IVY_TEST_RESTART_PAUSE": "10ms"}


# ---- --progress-file --------------------------------------------------------------------------------

def test_attempts_that_write_no_larger_number_end_the_job_with_93(local):
    script = "[ $IVY_GENERATION -lt 2 ] && echo $((100 * (IVY_GENERATION + 1))) > latest.txt; exit 9"
    done = local.run("-n", "1", "--max-restarts", "20", "--progress-file", "latest.txt", "sh", "-c", script, env=HURRY)
    assert done.code == 93, done
    assert [number for number, *_ in attempts_said(done)] == ["1", "2", "3", "4"], done
    assert re.search(r"error\[IVY-R023\]: 3 attempts in a row made no progress \(--progress-file: latest.txt still has "
                     r"200 \(\S+\)\); 16 of 20 restarts are not used\n  where: --progress-file\n  cause: attempt 3: rank 0 ",
                     done.err_text), done


def test_a_new_checkpoint_is_progress(local):
    """More attempts than could fail without progress. Files of an earlier job count as the start."""
    os.mkdir(os.path.join(local.directory, "ckpt"))
    local.file("ckpt/old.pt")
    script = "[ $IVY_GENERATION = 7 ] && exit 0; echo x > ckpt/step$IVY_GENERATION.pt; exit 9"
    done = local.run("-n", "1", "--max-restarts", "20", "--progress-file", "ckpt/*.pt", "sh", "-c", script, env=HURRY)
    assert done.code == 0 and "succeeded at attempt 8 of 21" in done.err_text, done


def test_a_progress_file_that_moves_backwards_is_named_and_is_no_progress(local):
    script = "echo $((50 - IVY_GENERATION)) > latest.txt; exit 9"
    done = local.run("-n", "1", "--max-restarts", "20", "--progress-file", "latest.txt", "sh", "-c", script, env=HURRY)
    assert done.code == 93, done
    assert re.search(r"ivyrun: note: --progress-file: latest.txt has 49, after 50 \(\S+\); this counts as no progress\n",
                     done.err_text), done
    assert len(attempts_said(done)) == 3, done


def test_files_that_cannot_be_read_in_time_leave_the_progress_unknown(local):
    """The task that reads them is stopped, as by a file system that hangs."""
    script = ("[ $IVY_GENERATION = 1 ] && exit 0; "
              "kill -STOP $(ps --ppid $PPID -o pid=,args= | awk '/[i]vy-node progress/ {print $1}'); exit 9")
    done = local.run("-n", "1", "--max-restarts", "1", "--progress-file", "latest.txt", "sh", "-c", script, env=HURRY,
                     limit=40)
    assert done.code == 0 and 10 <= done.took, done
    assert re.search(r"warning: --progress-file latest.txt on \S+: its file system has not responded for 10 s; the "
                     r"progress of attempt 1 is unknown\n", done.err_text), done


def test_ctrl_c_ends_a_job_that_waits_for_its_progress_file(local):
    script = "kill -STOP $(ps --ppid $PPID -o pid=,args= | awk '/[i]vy-node progress/ {print $1}'); echo up; exit 9"
    with local.start("-n", "1", "--max-restarts", "1", "--progress-file", "latest.txt", "sh", "-c", script) as run:
        run.wait_for("up")
        wait_until(lambda: not [process for process in local.processes() if process.name == b"sh"], 10, "the rank exits")
        run.signal(signal.SIGINT)
        done = run.finish(limit=8)
    assert done.code == 9 and not attempts_said(done), done
    assert "ivyrun: SIGINT: the job ends without another attempt\n" in done.err_text, done


@pytest.mark.parametrize("words, message", [
    (("--progress-file", "latest.txt"), "--progress-file needs --max-restarts N"),
    (("--condemn-on", "9"), "--condemn-on needs --max-restarts N"),
    (("--max-restarts", "1", "--progress-file", ""), "--progress-file has an empty value"),
    (("--max-restarts", "1", "--condemn-on", "9,stall"), "stall is not the failure of a rank"),
    (("--max-restarts", "1", "--condemn-on", "/(/"), "missing"),
    (("--linger", "soon"), "soon"),
])
def test_wrong_values_are_rejected(local, words, message):
    done = local.run("-n", "1", *words, "true")
    assert done.code == 2 and message in done.err_text, done


# ---- --condemn-on -----------------------------------------------------------------------------------

@pytest.mark.parametrize("host", [0, 1])
def test_the_host_that_failed_first_is_left_out(local, host):
    """The first one has the store, which moves."""
    script = f"[ $IVY_GENERATION$RANK = 0{host} ] && exit 9; [ $IVY_GENERATION = 0 ] && sleep 600; echo $RANK of $WORLD_SIZE"
    done = local.run("--fake-hosts", "3", "--nnodes", "2:3", "--nproc_per_node", "1", "--max-restarts", "3",
                     "--condemn-on", "8-9", "--summary", "json", "sh", "-c", script, env=HURRY)
    assert done.code == 0, done
    assert re.search(rf"attempt 1 of 5 failed: rank {host} .*; attempt 2 starts in \S+ s, without fake{host} "
                     r"\(--condemn-on 8-9\)\n", done.err_text), done
    others = sorted({0, 1, 2} - {host})
    assert [f"[ {rank} fake{other} #2/5] {rank} of 2" for rank, other in enumerate(others)] == sorted(done.out_lines), done
    verdict, = [json.loads(line) for line in done.err_text.splitlines() if line.startswith("{")]
    assert verdict["failed_attempts"][0]["condemned"] == f"fake{host} (--condemn-on 8-9)", verdict


def test_the_summary_names_hosts_that_were_left_out(local):
    script = "[ $IVY_GENERATION$RANK = 01 ] && exit 9; [ $IVY_GENERATION = 0 ] && sleep 600; exit 0"
    done = local.run("--fake-hosts", "2", "--nnodes", "1:2", "--nproc_per_node", "1", "--max-restarts", "3",
                     "--condemn-on", "9", "sh", "-c", script, env=HURRY)
    assert done.code == 0, done
    assert re.search(r"succeeded at attempt 2 of 5\n  attempt 1 of 5: rank 1 .*; later attempts without fake1 "
                     r"\(--condemn-on 9\)\n", done.err_text), done


def test_a_host_of_a_fixed_number_is_named_and_used_again(local):
    script = "[ $IVY_GENERATION$RANK = 01 ] && exit 9; [ $IVY_GENERATION = 0 ] && sleep 600; echo $RANK of $WORLD_SIZE"
    done = local.run("--fake-hosts", "2", "--nproc_per_node", "1", "--max-restarts", "3", "--condemn-on", "9", "sh", "-c",
                     script, env=HURRY)
    assert done.code == 0 and len(done.out_lines) == 2, done
    assert ("ivyrun: warning: fake1 cannot be left out (--condemn-on 9): the number of hosts is fixed (see "
            "--spares, --nnodes MIN:MAX); the next attempt runs there again\n" in done.err_text), done


def test_the_last_host_that_the_job_needs_is_named_and_used_again(local):
    script = "[ $IVY_GENERATION = 2 ] && exit 0; [ $((IVY_GENERATION + RANK)) = 1 ] && exit 9; sleep 600"
    done = local.run("--fake-hosts", "2", "--nnodes", "1:2", "--nproc_per_node", "1", "--max-restarts", "3",
                     "--condemn-on", "9", "sh", "-c", script, env=HURRY)
    assert done.code == 0 and "without fake1 (--condemn-on 9)" in done.err_text, done
    assert "warning: fake0 cannot be left out (--condemn-on 9): --nnodes 1:2 needs it; the next" in done.err_text, done


def test_a_cause_that_is_not_listed_condemns_no_host(local):
    script = "[ $IVY_GENERATION$RANK = 01 ] && exit 7; [ $IVY_GENERATION = 0 ] && sleep 600; exit 0"
    done = local.run("--fake-hosts", "2", "--nnodes", "1:2", "--nproc_per_node", "1", "--max-restarts", "3",
                     "--condemn-on", "9,oom,xid", "sh", "-c", script, env=HURRY)
    assert done.code == 0 and "without fake1" not in done.err_text, done


# ---- Operations -------------------------------------------------------------------------------------

def test_attempts_that_fail_after_the_same_number_of_operations_are_noted(local):
    local.file("loops.py", "import os, sys, ivycomm as ic\nic.init()\nfor _ in range(20):\n    ic.barrier()\n"
                           "if ic.rank() == 1:\n    sys.exit(0 if os.environ['IVY_GENERATION'] == '3' else 3)\n"
                           "ic.barrier()\n")
    done = local.run("-n", "2", "--max-restarts", "3", "--python", "/usr/bin/python3", "loops.py", env=HURRY, limit=60)
    assert len(re.findall(r"note: 3 attempts in a row failed in the same place: rank 1 with exit 3 after \d+ operations of "
                          r"ivycomm; with --progress-file or --progress-match", done.err_text)) == 1, done
    assert len(attempts_said(done)) == 3, done


# ---- Processes that ranks leave behind --------------------------------------------------------------

UPLOADS = "(sleep {0}; echo uploaded > done) > /dev/null 2>&1 & exit {1}"


def test_a_process_that_a_rank_leaves_behind_may_finish(local):
    done = local.run("-n", "1", "--linger", "30s", "sh", "-c", UPLOADS.format(5, 0))
    assert done.code == 0 and local.read("done") == b"uploaded\n" and done.took < seconds(15), done
    assert re.search(r"note: \S+: waiting for 2 processes that rank 0 left behind \(sh, sleep\), 2[56] s left \(--linger\); "
                     r"Ctrl-C ends the wait\n", done.err_text), done
    assert "stopped" not in done.err_text, done


def test_a_process_that_outlasts_the_time_is_stopped_and_named(local):
    done = local.run("-n", "2", "--linger", "1s", "sh", "-c", "[ $RANK = 0 ] && " + UPLOADS.format(60, 0))
    assert not local.exists("done") and done.took >= 1, done
    assert re.search(r"stopped 2 processes that ranks left behind on \S+: sh, sleep\n", done.err_text), done


def test_ctrl_c_ends_the_wait_for_a_process_that_a_rank_leaves_behind(local):
    with local.start("-n", "1", "--linger", "60s", "sh", "-c", UPLOADS.format(60, 0)) as run:
        run.wait_for("waiting for 2 processes that rank 0 left behind")
        run.signal(signal.SIGINT)
        done = run.finish(limit=8)
    assert done.code == -signal.SIGINT and not local.exists("done"), done
    assert "stopped 2 processes that ranks left behind" in done.err_text, done


def test_nothing_is_awaited_after_a_failure(local):
    done = local.run("-n", "1", "--linger", "60s", "sh", "-c", UPLOADS.format(60, 3))
    assert done.code == 3 and done.took < seconds(8), done


def test_processes_that_are_killed_at_a_restart_are_named(local):
    script = "[ $IVY_GENERATION = 1 ] && exit 0; (trap '' TERM; setsid sleep 603 </dev/null >/dev/null 2>&1 &); exit 3"
    done = local.run("-n", "1", "--max-restarts", "1", "--shutdown-timeout", "1", "--summary", "json", "sh", "-c", script,
                     env=HURRY)
    assert done.code == 0, done
    named = r"stopped 1 process that ranks left behind on \S+: sleep"
    assert re.search(r"attempt 2 starts in .*\n(?:.*\n)?.*" + named, done.err_text), done
    verdict, = [json.loads(line) for line in done.err_text.splitlines() if line.startswith("{")]
    assert [note for note in verdict["notes"] if re.search(named, note)], verdict
