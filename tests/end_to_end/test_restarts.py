# SPDX-License-Identifier: Apache-2.0
"""--max-restarts: the group runs again without state of the last attempt, and every way in which a job can end between
two attempts."""

import glob
import os
import re
import shutil
import signal

import pytest

from launching import wait_until
from test_ivyctl import ctl, detach, kill_launcher  # noqa: F401  (ctl is a fixture)

QUICKLY = {"IVY_TEST_RESTART_PAUSE": "200ms"}
# Without QUICKLY the pause is long enough for a test to act between two attempts.
FAIL = ["sh", "-c", "echo up; [ $RANK = 1 ] && exit 7; sleep 600"]
# All ranks wait for each other. In FAIL_BY_ATTEMPT rank 1 then exits with 4 in the first attempt, 5 in the second and so
# on; the others wait to be stopped.
MEET = ("> met.$IVY_GENERATION.$RANK; i=0; while [ $i -lt $WORLD_SIZE ]; do "
        "if test -e met.$IVY_GENERATION.$i; then i=$((i+1)); else sleep 0.02; fi; done; ")
FAIL_BY_ATTEMPT = ["sh", "-c", "echo attempt $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS "
                   "$IVY_GENERATION; " + MEET + "[ $RANK = 1 ] && exit $((4 + TORCHELASTIC_RESTART_COUNT)); "
                   "sleep 600"]
FAIL_ONCE = ["sh", "-c", "echo attempt $IVY_GENERATION; " + MEET + "[ $IVY_GENERATION = 1 ] && exit 0; "
             "[ $RANK = 1 ] && {0}; sleep 600"]

needs_torch = pytest.mark.skipif(not os.path.isdir("/usr/lib/python3/dist-packages/torch"),
                                 reason="python3-torch is not installed")


def fail_once(how):
    return [word.replace("{0}", how) for word in FAIL_ONCE]


def attempts_said(done):
    return re.findall(r"ivyrun: attempt (\d+) of (\d+) failed: (.*); attempt (\d+) starts in", done.err_text)


def test_the_last_attempts_code_and_every_attempts_cause(local):
    done = local.run("-n", "3", "--max-restarts", "2", *FAIL_BY_ATTEMPT, env=QUICKLY)
    assert done.code == 6, done
    said = attempts_said(done)
    assert [(number, of, then) for number, of, _, then in said] == [("1", "3", "2"), ("2", "3", "3")]
    assert "with exit 4" in said[0][2] and "with exit 5" in said[1][2], done
    summary = done.err_text[done.err_text.index("error[IVY-R001]"):]
    assert re.search(r"  attempt 1 of 3: rank 1 .* with exit 4 .*\n  attempt 2 of 3: rank 1 .* with exit 5 "
                     r".*\nivyrun: exit code 6 \(from rank 1 at attempt 3 of 3\)", summary), done
    for attempt in range(3):
        for rank in range(3):
            line = f"[{rank} #{attempt + 1}/3] attempt {attempt} of 2 {attempt}"
            assert done.out_lines.count(line) == 1, (line, done)


def test_attempts_are_not_mentioned_without_restarts(local):
    done = local.run("-n", "2", *FAIL_BY_ATTEMPT)
    assert done.code == 4 and "attempt " not in done.err_text and "#1" not in done.out.decode(), done


@pytest.mark.parametrize("how, cause", [("exit 3", "with exit 3"), ("kill -9 $$", "SIGKILL"),
                                        ("kill -SEGV $$", "SIGSEGV")])
def test_a_successful_attempt_ends_the_job_with_success(local, how, cause):
    done = local.run("-n", "2", "--max-restarts", "5", *fail_once(how), env=QUICKLY)
    assert done.code == 0, done
    assert len(attempts_said(done)) == 1 and cause in attempts_said(done)[0][2], done
    assert "ivyrun: succeeded at attempt 2 of 6" in done.err_text, done


def test_each_attempt_has_its_own_files(local):
    done = local.run("--fake-hosts", "2", "--nproc_per_node", "2", "--max-restarts", "1", "--log-dir", "logs",
                     "--log-to", "both", *fail_once("exit 3"), env=QUICKLY)
    assert done.code == 0, done
    job = os.readlink(os.path.join(local.directory, "logs/latest"))
    for attempt in range(2):
        for rank in range(4):
            assert local.read(f"logs/{job}/{attempt}/rank{rank:05d}.out") == b"attempt %d\n" % attempt


def test_nothing_of_an_attempt_is_left_when_the_next_one_starts(local):
    """A daemon that ignores TERM is killed, even though the worker that started it has exited."""
    script = local.file("leave.sh", "if [ $IVY_GENERATION = 0 ]; then\n"
                        "  (trap '' TERM; setsid sleep 601 </dev/null >/dev/null 2>&1 &)\n  exit 3\nfi\n"
                        "for p in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $p 2>/dev/null; echo; done "
                        "| grep -c '^sleep 601 ' || true\n")
    # No other test uses this number of seconds.
    done = local.run("-n", "1", "--max-restarts", "1", "--shutdown-timeout", "1", "sh", script, env=QUICKLY)
    assert done.code == 0 and done.out_lines[-1] == "0", done


def test_standard_input_is_read_by_the_first_attempt(local):
    reader, writer = os.pipe()
    os.write(writer, b"words\n")
    os.close(writer)
    with os.fdopen(reader) as words:
        done = local.run("-n", "1", "--max-restarts", "1", "--label", "none", "sh", "-c",
                         "cat; exit $((1 - IVY_GENERATION))", stdin=words, env=QUICKLY)
    assert done.code == 0 and done.out == b"words\n", done


def test_attempts_without_progress_end_the_job(local):
    done = local.run("-n", "1", "--max-restarts", "100", "sh", "-c", "exit 9", env={"IVY_TEST_RESTART_PAUSE": "10ms"})
    assert done.code == 9, done
    assert len(attempts_said(done)) == 4, done
    assert "ivyrun: no restart: 5 attempts in a row failed within 10 s of their start; 96 of 100 " in done.err_text


def test_a_program_that_cannot_be_executed_is_not_restarted(local):
    program = local.file("once.sh", "#!/bin/sh\nrm $0\nexit 3\n", 0o755)
    done = local.run("-n", "1", "--max-restarts", "3", program, env=QUICKLY)
    assert done.code == 127 and len(attempts_said(done)) == 1, done
    assert "ivyrun: no restart: a worker could not be started" in done.err_text, done


def test_the_first_pause_is_a_second(local):
    done = local.run("-n", "2", "--max-restarts", "1", *fail_once("exit 3"))
    assert done.code == 0 and done.took >= 1, done
    assert "attempt 2 starts in 1 s" in done.err_text, done


CLEANED = ["/usr/bin/python3", "-B", "-c", """
import os, time
import ivycomm as ic
ic.init()
print("met", ic.all_gather_object(ic.rank()), flush=True)
if os.environ["IVY_GENERATION"] == "0":
    while not os.path.exists("fail"):
        time.sleep(0.05)
    os._exit(3)
"""]


def test_a_job_outlives_a_cleaner_of_tmp(local, ctl):
    """The directories of a running job are removed. ivyctl finds the job again, the next attempt starts, and nothing is left."""
    with local.start("-n", "2", "--max-restarts", "1", *CLEANED, env=QUICKLY) as run:
        run.wait_for(r"met \[0, 1\]", count=2)
        job = ctl.job()["job"]
        removed = glob.glob(f"/tmp/ivyrun-{os.getuid()}/{job}*")
        assert len(removed) == 2, removed
        for directory in removed:
            shutil.rmtree(directory)
        assert ctl.job()["job"] == job
        wait_until(lambda: sorted(glob.glob(f"/tmp/ivyrun-{os.getuid()}/{job}*")) == sorted(removed), 10,
                   "both directories exist again")
        local.file("fail")
        done = run.finish()
    assert done.code == 0 and done.out.count(b"met [0, 1]") == 4, done
    assert glob.glob(f"/tmp/ivyrun-{os.getuid()}/{job}*") == []


# ---- The end of a job between two attempts ---------------------------------------------------------

def between(run):
    run.wait_for(r"attempt 1 of 4 failed: .* attempt 2 starts in 1 s")


def test_ctrl_c_between_two_attempts(local):
    with local.start("-n", "2", "--max-restarts", "3", *FAIL) as run:
        between(run)
        run.signal(signal.SIGINT)
        done = run.finish()
    assert done.code == -signal.SIGINT, done
    assert "interrupted by SIGINT" in done.err_text and "attempt 1 of 4: rank 1" in done.err_text, done
    assert not re.search(r"#2/4", done.out.decode()), done


def test_ivyctl_stop_between_two_attempts(local, ctl):  # noqa: F811
    script = local.file("late.sh", "[ $RANK = 1 ] && sleep 0.5 && exit 7; sleep 600")
    env = {"IVY_TEST_RESTART_PAUSE": "1s"}
    with local.start("-n", "2", "--max-restarts", "3", "sh", script, env=env) as run:
        between(run)
        job, = ctl.jobs()
        assert job["state"] == "restarting" and job["running"] == 0, job
        assert ctl.run("stop", job["job"]).code == 0
        done = run.finish()
    assert done.code == -signal.SIGTERM and "stopped by ivyctl" in done.err_text, done
    assert "#2/4" not in done.out.decode(), done


def test_the_timeout_expires_between_two_attempts(local):
    script = local.file("late.sh", "[ $RANK = 1 ] && sleep 1 && exit 7; sleep 600")
    with local.start("-n", "2", "--max-restarts", "3", "--timeout", "1500ms", "sh", script) as run:
        between(run)
        done = run.finish()
    assert done.code == 124, done


def test_ctrl_c_in_a_later_attempt(local):
    script = local.file("second.sh", "trap 'echo bye; exit 1' INT TERM; " + MEET + "[ $IVY_GENERATION$RANK = 01 ] && exit 3; "
                        "echo up $IVY_GENERATION; while :; do sleep 0.05; done")
    with local.start("-n", "2", "--max-restarts", "3", "sh", script, env=QUICKLY) as run:
        run.wait_for("up 1", count=2)
        run.signal(signal.SIGINT)
        done = run.finish()
    assert done.code == -signal.SIGINT, done
    assert done.out.count(b"bye") == 3 and len(attempts_said(done)) == 1, done


def test_ctrl_c_while_a_failed_attempt_is_stopped(local):
    """Ctrl-C while the failed attempt is being stopped means that the user does not want another attempt."""
    script = local.file("slow.sh", "trap 'echo stopping' TERM; " + MEET + "[ $RANK = 1 ] && exit 3; "
                        "while :; do sleep 0.05; done")
    with local.start("-n", "2", "--max-restarts", "3", "--shutdown-timeout", "20", "sh", script) as run:
        run.wait_for("stopping")
        run.signal(signal.SIGINT)
        done = run.finish()
    assert done.code == 3 and not attempts_said(done), done
    assert "then:  interrupted by SIGINT" in done.err_text, done


@pytest.mark.parametrize("phase", ["between", "later"])
def test_the_launcher_is_killed(local, phase):
    pause = None if phase == "between" else QUICKLY
    script = local.file("work.sh", "[ $IVY_GENERATION$RANK = 01 ] && exit 3; echo up $IVY_GENERATION; sleep 600")
    with local.start("--fake-hosts", "2", "--max-restarts", "3", "sh", script, env=pause) as run:
        if phase == "between":
            between(run)
        else:
            run.wait_for("up 1", count=2)
        run.signal(signal.SIGKILL)
        local.wait_clean(7)


# ---- Following a job ----------------------------------------------------------------------------------

# Prints when the file of its attempt exists, and fails in the first two attempts after all ranks have printed.
FOLLOWED = ("echo attempt $IVY_GENERATION begins; while ! test -e go$IVY_GENERATION; do sleep 0.02; done; "
            "i=0; while [ $i -lt 200 ]; do i=$((i+1)); echo line $i of $IVY_GENERATION; done; " + MEET +
            "[ $IVY_GENERATION = 2 ] && exit 0; exit 4\n")


def follow(local, ctl, verb, *arguments):
    """Runs a job and a follower that starts in the first attempt, and returns the follower's result."""
    script = local.file("work.sh", FOLLOWED)
    with local.start("-n", "2", "--max-restarts", "2", *arguments, "sh", script, env=QUICKLY) as run:
        run.wait_for("attempt 0 begins", count=2)
        with ctl.start(*verb, ctl.job()["job"]) as follower:
            if "--log-dir" in arguments:
                follower.wait_for("attempt 0 begins", count=2)
            else:
                follower.wait_for("earlier output is not kept")
            for attempt in range(3):
                local.file(f"go{attempt}")
                if attempt < 2:
                    follower.wait_for(rf"#{attempt + 2}/3\] attempt {attempt + 1} begins", count=2)
            done = follower.finish()
        assert run.finish().code == 0
    assert done.code == 0, done
    return done


def assert_every_line_once(done):
    for attempt in range(3):
        for rank in range(2):
            label = f"[{rank} #{attempt + 1}/3] "
            lines = [line for line in done.out_lines if line.startswith(label + "line ")]
            assert lines == [f"{label}line {i} of {attempt}" for i in range(1, 201)], (attempt, rank, done)


@pytest.mark.parametrize("verb", [("logs", "-f"), ("attach", "--tail", "1000")], ids=["logs", "attach"])
def test_a_follower_reads_the_files_of_every_attempt(local, ctl, verb):  # noqa: F811
    done = follow(local, ctl, verb, "--log-dir", "logs")
    assert_every_line_once(done)
    if verb[0] == "attach":
        # ivyrun's messages appear between the output of the attempts.
        text = re.sub(r"\n", " ", done.out.decode())
        assert "attempt 1 of 3 failed" in done.err_text and "attempt 2 of 3 failed" in done.err_text, done
        assert text.index("line 200 of 0") < text.index("attempt 1 begins"), done


def test_a_follower_without_files_sees_every_attempt(local, ctl):  # noqa: F811
    assert_every_line_once(follow(local, ctl, ("logs", "-f")))


# ---- A job that outlives its launcher ---------------------------------------------------------------

def output_of(folder, attempt):
    """Returns the output of each rank of an attempt, in rank order."""
    texts = []
    for top, _, names in os.walk(folder):
        for name in sorted(names):
            if os.path.basename(top) == str(attempt) and name.endswith(".out"):
                with open(os.path.join(top, name)) as file:
                    texts.append(file.read())
    return texts


def test_the_next_launcher_restarts_the_group_too(local, ctl):  # noqa: F811
    script = local.file("work.sh", "echo attempt $IVY_GENERATION; while ! test -e fail$IVY_GENERATION; do "
                        "sleep 0.02; test -e end && exit 0; done; exit $((4 + IVY_GENERATION))\n")
    job, folder = detach(local, "--lease", "60", "--fake-hosts", "2", "-n", "2", "--max-restarts", "2", "sh",
                         script, env=QUICKLY)

    def wait_for_attempt(number):
        wait_until(lambda: output_of(folder, number) == [f"attempt {number}\n"] * 2, 20,
                   f"both ranks run in attempt {number}")

    wait_for_attempt(0)
    local.file("fail0")
    wait_for_attempt(1)
    kill_launcher(ctl, job)
    with ctl.start("attach", job) as attached:
        wait_until(lambda: any(entry["job"].startswith(job) for entry in ctl.jobs()), 10, "a new launcher")
        local.file("fail1")
        wait_for_attempt(2)
        local.file("end")
        done = attached.finish()
    assert done.code == 0, done
    assert "attempt 2 of 3 failed" in done.err_text, done
    for attempt in range(3):
        assert output_of(folder, attempt) == [f"attempt {attempt}\n"] * 2, attempt


def test_a_failure_without_a_launcher_is_restarted_by_the_next(local, ctl):  # noqa: F811
    script = local.file("work.sh", "while ! test -e go; do sleep 0.02; done; [ $IVY_GENERATION = 1 ] && exit 0; "
                        "exit 4\n")
    job, _ = detach(local, "--lease", "60", "-n", "2", "--max-restarts", "1", "sh", script, env=QUICKLY)
    kill_launcher(ctl, job)
    local.file("go")
    wait_until(lambda: not [process for process in local.processes() if b"RANK=" in process.environment and
                            process.name == b"sh"], 10, "the workers have ended")
    done = ctl.run("attach", job)
    assert done.code == 0 and "attempt 1 of 2 failed" in done.err_text, done


# ---- The store --------------------------------------------------------------------------------------

def test_a_restart_cannot_read_the_last_attempts_keys(local):
    done = local.run("--fake-hosts", "2", "--nproc_per_node", "2", "--max-restarts", "2",
                     local.script("count_in_store.py"), "3", env=QUICKLY, limit=60)
    assert done.code == 0, done
    for attempt in range(3):
        numbers = sorted(int(number) for number in
                         re.findall(rf"attempt {attempt}: I am number (\d+) of 4", done.out.decode()))
        assert numbers == [1, 2, 3, 4], (attempt, done)


def test_a_restart_cannot_read_the_last_attempts_keys_on_hosts(hosts):
    done = hosts.as_user("ivyuser").run("-H", "node2,node3,node4", "--max-restarts", "1",
                                        hosts.script("count_in_store.py"), "2", env=QUICKLY, limit=60)
    assert done.code == 0, done
    for attempt in range(2):
        numbers = sorted(int(number) for number in
                         re.findall(rf"attempt {attempt}: I am number (\d+) of 3", done.out.decode()))
        assert numbers == [1, 2, 3], (attempt, done)


# ---- torch ------------------------------------------------------------------------------------------

def assert_resumed(done, ranks):
    assert done.code == 0, done
    out = done.out.decode()
    assert len(re.findall(r"attempt 0 begins at step 0", out)) == ranks, done
    assert len(re.findall(r"attempt 1 begins at step 3", out)) == ranks, done
    sums = re.findall(r"finished at step 6 of attempt 1, sum (\S+)", out)
    assert len(sums) == ranks and len(set(sums)) == 1, done
    assert "SIGKILL" in attempts_said(done)[0][2], done


@needs_torch
def test_torch_resumes_from_its_checkpoint(local):
    done = local.run("-n", "2", "--max-restarts", "3", local.script("elastic.py"), "checkpoint", limit=120)
    assert_resumed(done, 2)


@needs_torch
def test_torch_resumes_if_rank_0_serves(local):
    """Without ivyrun's store, rank 0 of the second attempt listens on the same port as rank 0 of the first."""
    done = local.run("-n", "2", "--no-store", "--max-restarts", "3", local.script("elastic.py"), "checkpoint",
                     limit=120)
    assert_resumed(done, 2)


@needs_torch
def test_torch_resumes_on_hosts_as_an_ordinary_user(hosts):
    user = hosts.as_user("ivyuser")
    done = user.run("-H", "node2,node3", "--max-restarts=3", user.script("elastic.py"),
                    f"{user.directory}/checkpoint", limit=120)
    assert_resumed(done, 2)


# ---- Hosts ------------------------------------------------------------------------------------------

def test_agents_restart_the_group(agents):
    agents.start(2, 3)
    done = agents.run("-H", "node2,node3", "--max-restarts", "1",
                      agents.launcher.script("count_in_store.py"), "2", env=QUICKLY, limit=60)
    assert done.code == 0, done
    assert len(re.findall(r"attempt 1: I am number [12] of 2", done.out.decode())) == 2, done


@pytest.mark.parametrize("phase", ["between", "later"])
def test_a_host_is_lost(anyone, phase):
    script = anyone.file("work.sh", "[ $IVY_GENERATION$RANK = 01 ] && exit 3; echo up $IVY_GENERATION; sleep 600")
    env = None if phase == "between" else QUICKLY
    with anyone.start("-H", "node2,node3", "--max-restarts", "3", "--lease", "10", "sh", script, env=env) as run:
        if phase == "between":
            between(run)
        else:
            run.wait_for("up 1", count=2)
        for pid in anyone.processes(3, "ivy-supervisor"):
            os.kill(pid, signal.SIGKILL)
        done = run.finish()
    assert done.code == 121, done
    assert "supervisor on host node3 was lost" in done.err_text, done
    anyone.wait_clean(7)


def test_every_host_exits_when_the_launcher_dies_between_two_attempts(anyone):
    with anyone.start("-H", "node2,node3", "--max-restarts", "3", *FAIL) as run:
        between(run)
        run.signal(signal.SIGKILL)
        anyone.wait_clean(7)


# Prints the steps that the attempt reaches, given by position in a list, and fails.
STEPS = "set -- $STEPS; shift $IVY_GENERATION; echo step $1; [ $RANK = 1 ] && exit ${CODE:-7}; sleep 600"


def test_attempts_without_progress_end_with_a_code_of_their_own(local):
    done = local.run("-n", "2", "--max-restarts", "9", "--progress-match", r"step (\d+)", "sh", "-c", STEPS,
                     env={**QUICKLY, "STEPS": "5 3 8 8 2 1 1"})
    assert done.code == 93, done
    assert [number for number, *_ in attempts_said(done)] == ["1", "2", "3", "4", "5"], done
    summary = done.err_text[done.err_text.index("error[IVY-R001]"):]
    assert re.search(r"error\[IVY-R023\]: 3 attempts in a row made no progress \(none exceeded step 8\); 4 of 9 restarts "
                     r"are not used\n.*\n +cause: attempt 4: rank 1 .* with exit 7.*\n"
                     r" +attempt 5: .*\n +attempt 6: rank 1", summary), done
    assert summary.endswith("ivyrun: exit code 93 (from ivyrun)\n"), done


def test_a_list_of_causes_decides_what_is_restarted(local):
    fails = ["sh", "-c", "[ $IVY_GENERATION = 0 ] && kill -SEGV $$; exit 3"]
    listed = local.run("--max-restarts", "5", "--restart-on", "SIGSEGV,oom", *fails, env=QUICKLY)
    assert listed.code == 3 and len(attempts_said(listed)) == 1, listed
    assert "no restart: exit 3 is not a cause of --restart-on" in listed.err_text, listed
    never = local.run("--max-restarts", "5", "--never-restart", "/disk quota/,77", "sh", "-c",
                      "echo Disk full: disk quota exceeded >&2; exit 1", env=QUICKLY)
    assert never.code == 1 and not attempts_said(never), never
    assert "no restart: exit 1: --never-restart has /disk quota/" in never.err_text, never


def test_flags_about_restarts_need_restarts(local):
    for flag, value in [("--restart-on", "oom"), ("--never-restart", "2"), ("--progress-match", "step (1)")]:
        done = local.run(flag, value, "true")
        assert done.code == 2 and f"{flag} needs --max-restarts N" in done.err_text, done
    done = local.run("--max-restarts", "1", "--progress-match", "step [", "true")
    assert done.code == 2 and "is not a regular expression" in done.err_text, done
    done = local.run("--max-restarts", "1", "--never-restart", "segfault", "true")
    assert done.code == 2 and '"segfault" is not a cause' in done.err_text, done
