# SPDX-License-Identifier: Apache-2.0
"""ivyctl over the launchers' sockets, and jobs in the background."""

import contextlib
import glob
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from launching import BIN, parse_label, seconds, wait_until

IVYCTL = os.path.join(BIN, "ivyctl")
COUNTING = ["sh", "-c", "i=0; while :; do i=$((i+1)); echo line $i; sleep 0.05; done"]


def places():
    """Returns the job directories of this user's launchers, without those of supervisors."""
    parent = f"/tmp/ivyrun-{os.getuid()}"
    with contextlib.suppress(OSError):
        return {name for name in os.listdir(parent) if re.fullmatch("[0-9a-f]{32}", name)}
    return set()


def remembered_ends():
    return set(glob.glob(f"/tmp/ivyrun-{os.getuid()}/*.ended"))


class Ctl:
    """Runs ivyctl and finds the test's own jobs on this machine."""

    def __init__(self, local):
        self.local = local

    def run(self, *arguments, **options):
        return self.local.run_program(IVYCTL, *arguments, **options)

    def start(self, *arguments, **options):
        return self.local.start_program(IVYCTL, *arguments, **options)

    def jobs(self):
        """Returns the jobs that were started in this test's directory."""
        listed = json.loads(self.run("ps", "--json").out)
        return [job for job in listed if job.get("working_directory") == self.local.directory]

    def job(self, limit=10):
        """Waits until the test's only job has a socket and all its workers run, and returns it."""
        def running():
            found = [job for job in self.jobs() if job["state"] == "running"]
            return found[0] if found else None
        return wait_until(running, limit, "the job is listed as running")

    def stop_all(self):
        for job in self.jobs():
            self.run("stop", job["job"], "--now")


@pytest.fixture
def ctl(local):
    known, ends = places(), remembered_ends()
    ctl = Ctl(local)
    yield ctl
    ctl.stop_all()
    wait_until(lambda: not ctl.jobs(), 10, "the test's jobs have ended")
    for path in remembered_ends() - ends:
        os.unlink(path)
    left = {name for name in places() - known
            if not os.path.exists(f"/tmp/ivyrun-{os.getuid()}/{name}/launcher.sock")}
    assert not left, f"launchers' directories without a launcher: {left}"


def detach(local, *arguments, **options):
    """Starts a job in the background and returns its short id and its directory."""
    done = local.run("--detach", *arguments, **options)
    assert done.code == 0, done
    job = re.search(r"job ([0-9a-f]{12}) runs in the background, pid (\d+)", done.out.decode())
    folder = re.search(r"output: (.*)", done.out.decode())
    assert job and folder, done
    return job[1], folder[1]


def rank_file(folder, rank, stream="out"):
    for top, _, names in os.walk(folder):
        if f"rank{rank:05d}.{stream}" in names:
            return os.path.join(top, f"rank{rank:05d}.{stream}")
    return None


def test_ps_marks_a_job_whose_parent_has_exited(local, ctl):
    words = " ".join([local.ivyrun(), "-n", "1", *map(shlex.quote, COUNTING)])
    with local.start_program("sh", "-c", f"{words} > /dev/null & echo started; wait") as shell:
        assert not ctl.job()["orphan"]
        shell.process.kill()
        wait_until(lambda: ctl.job()["orphan"], 10, "the job is listed as an orphan")
        assert "running (orphan)" in ctl.run("ps").out.decode()


def test_ps_names_an_ivyrun_with_another_tmp(local, ctl):
    # The programs may be in /tmp themselves.
    inside = (f"mount --bind {os.path.dirname(BIN)} /mnt && mount -t tmpfs tmpfs /tmp && "
              "exec /mnt/bin/ivyrun --wdir / -n 1 sleep 600")
    with local.start_program("unshare", "--mount", "sh", "-c", inside, env={"XDG_RUNTIME_DIR": ""}) as job:
        pid = job.process.pid
        wait_until(lambda: f"nsenter -t {pid} -m ivyctl ps" in ctl.run("ps").err_text, 20, "ivyctl ps names the other /tmp")
        assert not ctl.jobs()
        job.process.terminate()
        job.finish()


def test_ps_shows_a_running_job_and_forgets_an_ended_one(local, ctl):
    with local.start("-n", "2", *COUNTING) as run:
        job = ctl.job()
        assert job["world_size"] == 2 and job["running"] == 2 and not job["detached"]
        assert job["command"][0] == "sh" and job["pid"] == run.pid()
        table = ctl.run("ps").out_lines
        assert table[0].split() == ["JOB", "PID", "STATE", "HOSTS", "RANKS", "TIME", "COMMAND"]
        row = [line for line in table if line.startswith(job["job"][:12])]
        assert row and " running " in row[0] and " 2/2 " in row[0], table
        run.signal(signal.SIGTERM)
        assert run.finish().code == -signal.SIGTERM
    assert not ctl.jobs()
    assert job["job"] not in places()


def test_a_job_is_named_by_any_unique_prefix(local, ctl):
    with local.start("-n", "1", *COUNTING) as run:
        job = ctl.job()["job"]
        unknown = ctl.run("signal", "zzzz", "USR1")
        assert unknown.code == 1 and job[:12] in unknown.err_text, unknown
        assert "no running job matches \"zzzz\"" in unknown.err_text and "fix:   running job" in unknown.err_text
        assert ctl.run("signal", job[:10], "CONT").code == 0
        run.signal(signal.SIGTERM)
        run.finish()


def test_usage_errors_exit_with_2(local, ctl):
    for arguments, hint in ((["stpo"], "ivyctl stop"), (["logs", "--folow"], "--follow"),
                            (["signal", "x", "NOSUCH"], "NOSUCH"), ([], "ivyctl VERB")):
        done = ctl.run(*arguments)
        assert done.code == 2 and hint in done.err_text, done
    assert ctl.run("stop", "--help").code == 0


def test_a_signal_reaches_each_rank_once(local, ctl):
    script = "trap 'echo got it' USR1; echo ready; while :; do sleep 0.05; done"
    with local.start("-n", "2", "sh", "-c", script) as run:
        run.wait_for("ready", count=2)
        job = ctl.job()["job"]
        assert ctl.run("signal", job, "USR1").code == 0
        run.wait_for("got it", count=2)
        run.signal(signal.SIGTERM)
        done = run.finish()
    assert done.out.count(b"got it") == 2, done


def test_a_signal_reaches_only_the_ranks_that_are_named(local, ctl):
    """The signal is for one rank of each of two hosts, and for no rank of the third host."""
    script = "trap 'echo rank $RANK got it' USR1; echo ready; while :; do sleep 0.05; done"
    with local.start("--fake-hosts", "3", "--nproc-per-node", "2", "sh", "-c", script) as run:
        run.wait_for("ready", count=6)
        job = ctl.job()["job"]
        assert ctl.run("signal", job, "USR1", "--ranks", "1,3").code == 0
        run.wait_for("got it", count=2)
        none = ctl.run("signal", job, "USR1", "--ranks", "6-9")
        assert none.code == 1 and "this job has none of these ranks" in none.err_text, none
        assert ctl.run("signal", "USR1", "--ranks", "first-per-host").code == 2
        run.signal(signal.SIGTERM)
        done = run.finish()
    assert sorted(re.findall(r"rank \d got it", done.out.decode())) == ["rank 1 got it", "rank 3 got it"], done


def test_stop_waits_for_the_end_and_reports_why(local, ctl):
    with local.start("-n", "2", "sh", "-c", "trap 'sleep 0.5; exit 0' TERM; echo ready; "
                     "while :; do sleep 0.05; done") as run:
        run.wait_for("ready", count=2)
        done = ctl.run("stop", ctl.job()["job"])
        assert done.code == 0 and "stopped by ivyctl" in done.err_text, done
        assert "exit code 143" in done.err_text, done
        finished = run.finish()
    assert finished.code == -signal.SIGTERM, finished
    assert "stopped by ivyctl" in finished.own_text(), finished


def test_stop_now_kills_processes_that_ignore_term(local, ctl):
    with local.start("-n", "1", "sh", "-c", "trap '' TERM; echo ready; "
                     "while :; do sleep 0.05; done") as run:
        run.wait_for("ready")
        started = time.monotonic()
        done = ctl.run("stop", ctl.job()["job"], "--now")
        assert done.code == 0, done
        assert time.monotonic() - started < seconds(4), "ivyctl waited for the grace period of 30 s"
        run.finish()


def test_stop_reports_what_it_waits_for_and_gives_up_on_a_stopped_launcher(local, ctl):
    with local.start("-n", "1", "sh", "-c", "trap '' TERM; echo ready; "
                     "while :; do sleep 0.05; done") as run:
        run.wait_for("ready")
        job = ctl.job()["job"]
        with ctl.start("stop", job) as stopping:
            stopping.wait_for("is stopping, 1 ranks still running; waiting until it exits", limit=15)
            run.signal(signal.SIGSTOP)
            try:
                done = stopping.finish()
            finally:
                run.signal(signal.SIGCONT)
        assert done.code == 1 and "the job's ivyrun does not respond" in done.err_text, done
        assert ctl.run("stop", job, "--now").code == 0
        run.finish()


def test_stop_can_shorten_the_grace_period(local, ctl):
    with local.start("-n", "1", "sh", "-c", "trap '' TERM; echo ready; "
                     "while :; do sleep 0.05; done") as run:
        run.wait_for("ready")
        started = time.monotonic()
        assert ctl.run("stop", ctl.job()["job"], "--grace", "0.5").code == 0
        assert time.monotonic() - started < seconds(5)
        run.finish()


def test_logs_without_files_show_only_new_output(local, ctl):
    with local.start("-n", "2", *COUNTING) as run:
        run.wait_for("line 3", count=2)
        job = ctl.job()["job"]
        kept = ctl.run("logs", job)
        assert kept.code == 1 and "--log-dir" in kept.err_text, kept
        with ctl.start("logs", "-f", job) as logs:
            logs.wait_for(r"\[0\] line \d+")
            logs.wait_for(r"\[1\] line \d+")
            assert "earlier output is not kept" in logs.err.bytes().decode()
            run.signal(signal.SIGTERM)
            run.finish()
            shown = logs.finish()
        assert shown.code == 0, shown
        for texts in shown.texts_by_rank().values():
            numbers = [int(text.split()[1]) for text in texts]
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), texts


def test_logs_show_files_with_labels_and_choose_ranks(local, ctl):
    with local.start("-n", "3", "--log-dir", "logs", *COUNTING) as run:
        run.wait_for("line 5", count=3)
        job = ctl.job()["job"]
        shown = ctl.run("logs", job, "--rank", "0,2")
        assert shown.code == 0, shown
        assert set(shown.texts_by_rank()) == {0, 2}, shown
        assert all(texts[:5] == [f"line {i}" for i in range(1, 6)]
                   for texts in shown.texts_by_rank().values()), shown
        with ctl.start("logs", "-f", job, "--rank", "1") as logs:
            logs.wait_for("line 5")  # ivyctl must find the job before it ends.
            run.wait_for("line 20", count=3)
            run.signal(signal.SIGTERM)
            finished = run.finish()
            followed = logs.finish()
        assert followed.code == 0, followed
        # The lines of one rank have no labels and are the same as on ivyrun's terminal.
        assert followed.out_lines == [text for text in finished.texts_by_rank()[1]], followed


def test_a_follower_that_does_not_read_does_not_delay_the_job(local, ctl):
    """ivyctl counts every line that it misses. The job has finished printing long before the follower reads."""
    count = 400000
    flood = (f"import os, sys, time\ntime.sleep(1)\nfor i in range({count}): print('x' * 90, i)\n"
             "sys.stdout.flush()\nopen('printed', 'w').close()\n"
             "while not os.path.exists('read'): time.sleep(0.05); print('last', flush=True)")
    script = local.file("flood.py", flood)
    with local.start("-n", "1", sys.executable, script, stdout=subprocess.DEVNULL) as run:
        job = ctl.job()["job"]
        read_end, write_end = os.pipe()
        with ctl.start("logs", "-f", job, stdout=write_end) as follower, open(read_end, "rb") as out:
            os.close(write_end)
            wait_until(lambda: local.exists("printed"), 60, "the job has printed everything")
            lines = []
            for line in out:
                if line == b"last\n":
                    local.file("read")
                else:
                    lines.append(line)
            assert run.finish(60).code == 0
            done = follower.finish()
    assert done.code == 0, done
    gaps = [int(n) for n in re.findall(r"\.\.\. (\d+) lines of rank 0 not shown", done.err_text)]
    whole = [line for line in lines if re.fullmatch(rb"x{90} \d+\n", line)]
    # A gap may start within a line: the printed part gets a newline, and the line counts as lost.
    assert len(lines) - len(whole) <= len(gaps), [line for line in lines if line not in whole][:3]
    # Some of the "last" lines may be in a gap, too.
    assert gaps and count <= len(whole) + sum(gaps) < count + 100, (len(whole), gaps)


# ---- The background -------------------------------------------------------------------------------

def test_detach_returns_when_all_workers_run(local, ctl):
    """The job continues in its own session; messages, output and summary are in its directory."""
    job, folder = detach(local, "-n", "2", "sh", "-c", "echo to out; echo to err >&2; sleep 1.5; "
                         "cat; [ $RANK = 1 ] && exit 7; exit 0")
    assert folder == f"{local.directory}/ivyrun-{job}"
    running = ctl.job()
    assert running["job"].startswith(job) and running["detached"]
    assert os.getsid(running["pid"]) == running["pid"]
    for number in range(3):
        assert not os.readlink(f"/proc/{running['pid']}/fd/{number}").startswith(("/dev/pts", "pipe"))
    wait_until(lambda: not ctl.jobs(), 15, "the job has ended")
    with open(f"{folder}/ivyrun.log") as log:
        text = log.read()
    assert "rank 1 failed first" in text and "exit code 7" in text, text
    for rank in (0, 1):
        with open(rank_file(folder, rank)) as out, open(rank_file(folder, rank, "err")) as err:
            assert (out.read(), err.read()) == ("to out\n", "to err\n")


def test_attach_follows_to_the_end_and_exits_like_the_job(local, ctl):
    script = "for i in 1 2 3 4 5 6 7 8 9 10; do echo line $i; sleep 0.2; done; exit $((RANK * 3))"
    job, _ = detach(local, "-n", "2", "sh", "-c", script)
    done = ctl.run("attach", job, "--tail", "100")
    assert done.code == 3, done
    for rank in (0, 1):
        numbers = [int(text.split()[1]) for text in done.texts_by_rank()[rank]]
        assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) >= 9, done
    assert "rank 1 failed first" in done.err_text, done


def test_ctrl_c_in_attach_does_not_stop_the_job(local, ctl):
    job, folder = detach(local, "-n", "1", *COUNTING)
    with ctl.start("attach", job) as attached:
        attached.wait_for(r"line \d+")
        attached.process.send_signal(signal.SIGINT)
        done = attached.finish()
    assert done.code == 130 and "keeps running" in done.err_text, done
    size = os.path.getsize(rank_file(folder, 0))
    wait_until(lambda: os.path.getsize(rank_file(folder, 0)) > size, 5, "the job prints on")
    assert ctl.run("stop", job).code == 0


def test_detach_fails_in_the_foreground(local, ctl):
    """A job that fails to start leaves nothing in the background."""
    missing = local.run("--detach", "-n", "1", "no-such-program-here")
    assert missing.code == 127 and "no-such-program-here" in missing.err_text, missing
    unwritable = local.run("--detach", "--log-dir", "/proc/nowhere", "-n", "1", "true")
    assert unwritable.code == 122 and "/proc/nowhere" in unwritable.err_text, unwritable
    assert not ctl.jobs()


def test_detach_keeps_the_output_of_two_jobs_in_one_folder_apart(local, ctl):
    for text in ("first", "second"):
        detach(local, "-n", "1", "--log-dir", "logs", "sh", "-c", f"echo {text}; sleep 0.5")
    wait_until(lambda: not ctl.jobs(), 10, "both have ended")
    found = set()
    for top, _, names in os.walk(f"{local.directory}/logs"):
        for name in names:
            if name.endswith(".out"):
                with open(os.path.join(top, name)) as file:
                    found.add(file.read())
    assert found == {"first\n", "second\n"}
    assert local.read("logs/ivyrun.log").count(b"launcher pid") == 2


def test_workers_end_when_a_detached_launcher_is_killed(local, ctl):
    """Without --lease the job ends when its launcher is killed."""
    job, _ = detach(local, "-n", "2", *COUNTING)
    os.kill(ctl.job()["pid"], signal.SIGKILL)
    local.wait_clean(7)


def test_a_hangup_of_the_terminal_does_not_reach_a_detached_job(local, ctl):
    with local.on_terminal("sh") as shell:
        shell.type(f"cd {local.directory}; {local.ivyrun()} --detach -n 1 sh -c "
                   "'echo begun; sleep 2; echo done; exit 0'; echo code=$?\n".encode())
        shell.wait_for("code=0")
        job = ctl.job()
        shell.close_terminal()
        wait_until(lambda: not ctl.jobs(), 15, "the job has ended")
    with open(rank_file(local.directory, 0)) as out:
        assert out.read() == "begun\ndone\n", job


def test_ctrl_c_before_the_workers_run_stops_everything(local, ctl):
    """A host does not answer. Ctrl-C in the foreground reaches the launcher through the terminal."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = f"127.0.0.1:port={silent.getsockname()[1]}"
        with local.on_terminal(local.ivyrun(), "--detach", "-H", host, "-n", "1", "true") as run:
            run.wait_for("hosts 0/1 up", limit=10)
            run.type(b"\x03")
            done = run.finish()
    assert done.code == -signal.SIGINT, done
    assert not ctl.jobs()
    assert b"in the background" not in done.out


# ---- A job that outlives its launcher ---------------------------------------------------------------

def counting(limit, pause="0.02", code=0, rest="0.5"):
    return ["sh", "-c", f"i=0; while [ $i -lt {limit} ]; do i=$((i+1)); echo line $i; sleep {pause}; "
            f"done; sleep {rest}; exit {code}"]


def leads_a_group(pid):
    with contextlib.suppress(OSError):
        return os.getpgid(pid) == pid
    return False


def workers_of(local):
    """Returns the pids of the ranks' own processes, without a shell's children that have not executed a program yet."""
    return {process.pid for process in local.processes() if process.name == b"sh" and
            b"RANK=" in process.environment and leads_a_group(process.pid)}


def kill_launcher(ctl, job):
    pid = next(entry["pid"] for entry in ctl.jobs() if entry["job"].startswith(job))
    os.kill(pid, signal.SIGKILL)

    def is_dead():
        # The process that inherits it may reap it late.
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
        return True
    wait_until(is_dead, 5, "the launcher is dead")


def assert_contiguous(folder, ranks, last=None):
    for rank in range(ranks):
        with open(rank_file(folder, rank)) as file:
            lines = file.read().splitlines()
        count = len(lines) if last is None else last
        assert lines and lines == [f"line {i}" for i in range(1, count + 1)], (rank, len(lines), last)


def test_another_launcher_takes_over_with_the_same_workers_and_every_byte(local, ctl):
    stop = os.path.join(local.directory, "stop")
    until = f"i=0; while [ ! -e {stop} ]; do i=$((i+1)); echo line $i; sleep 0.02; done; exit 3"
    job, folder = detach(local, "--lease", "60", "--fake-hosts", "2", "-n", "4", "sh", "-c", until)
    before = workers_of(local)
    assert len(before) == 4
    for _ in range(3):
        kill_launcher(ctl, job)
        assert workers_of(local) == before
        assert ctl.run("signal", job, "USR1").code == 1, "ivyctl signal succeeded without a launcher"
        with ctl.start("attach", job) as attached:
            attached.wait_for(r"line \d+")
            assert workers_of(local) == before
            attached.process.send_signal(signal.SIGINT)
            assert attached.finish().code == 130
    with ctl.start("attach", job) as attached:
        attached.wait_for(r"line \d+")
        local.file("stop")
        done = attached.finish()
    assert done.code == 3, done
    assert "failed first" in done.err_text, done
    assert_contiguous(folder, 4)


def test_two_concurrent_attaches_follow_the_same_new_launcher(local, ctl):
    """The slower one starts no launcher. It shows the same output and exits with the same code."""
    job, folder = detach(local, "--lease", "60", "-n", "2", *counting(100, code=3))
    pid = ctl.job()["pid"]
    os.kill(pid, signal.SIGKILL)  # Its lock may be held for another moment.
    with ctl.start("attach", job) as first, ctl.start("attach", job) as second:
        ends = [attached.finish() for attached in (first, second)]
    assert [done.code for done in ends] == [3, 3], ends
    assert all("failed first" in done.err_text for done in ends), ends
    assert not any("cannot be taken over" in done.err_text for done in ends), ends
    assert_contiguous(folder, 2, 100)


def test_a_flood_without_a_launcher_waits_and_loses_nothing(local, ctl):
    """The output exceeds the host's credit, so the workers wait for a launcher and then continue."""
    flood = local.file("flood.py", "import time\nfor i in range(1, 200001):\n    print('line', i)\n"
                       "    if i == 1000: time.sleep(5)\n")
    job, folder = detach(local, "--lease", "60", "-n", "2", sys.executable, flood)
    kill_launcher(ctl, job)
    done = ctl.run("attach", job, "--rank", "0", limit=60)
    assert done.code == 0, done
    assert_contiguous(folder, 2, 200000)


def test_exits_without_a_launcher_are_reported_by_the_next(local, ctl):
    job, folder = detach(local, "--lease", "60", "-n", "2", *counting(20, code=9, rest="5"))
    kill_launcher(ctl, job)
    wait_until(lambda: not workers_of(local), 15, "the workers have ended")
    done = ctl.run("attach", job)
    assert done.code == 9 and "with exit 9" in done.err_text, done
    assert_contiguous(folder, 2, 20)


def test_without_another_launcher_the_job_ends_with_its_lease(local, ctl):
    job, _ = detach(local, "--lease", "3", "-n", "2", *COUNTING)
    kill_launcher(ctl, job)
    time.sleep(1.5)
    assert len(workers_of(local)) == 2, "a worker ended before the lease expired"
    local.wait_clean(3 + 6)
    lost = ctl.run("attach", job)
    assert lost.code in (1, 121), lost


def test_a_stop_reaches_a_job_that_was_taken_over(local, ctl):
    job, folder = detach(local, "--lease", "60", "-n", "2", *COUNTING)
    kill_launcher(ctl, job)
    with ctl.start("attach", job) as attached:
        attached.wait_for(r"line \d+")
        assert ctl.run("stop", job).code == 0
        assert attached.finish().code == 143
    with open(f"{folder}/ivyrun.log") as log:
        assert "stopped by ivyctl" in log.read()


def test_a_new_launcher_reports_a_host_without_a_supervisor_as_lost(local, ctl):
    job, _ = detach(local, "--lease", "60", "--fake-hosts", "2", "-n", "2", *COUNTING)
    kill_launcher(ctl, job)
    keepers = [process for process in local.processes() if b"--host\x001\x00" in process.command]
    wardens = {process.pid for process in keepers}
    supervisors = [process.pid for process in keepers if process.parent in wardens]
    assert len(supervisors) == 1, keepers
    os.kill(supervisors[0], signal.SIGKILL)
    wait_until(lambda: len(workers_of(local)) == 1, 10, "the warden has ended its workers")
    done = ctl.run("attach", job)
    assert done.code == 121, done


def test_a_job_without_a_launcher_can_be_read_and_stopped(local, ctl):
    job, _ = detach(local, "--lease", "60", "-n", "2", *counting(4000))
    time.sleep(0.2)
    kill_launcher(ctl, job)
    logs = ctl.run("logs", job)
    assert logs.code == 0 and set(logs.texts_by_rank()) == {0, 1}, logs
    assert "has exited; showing what it had written" in logs.err_text, logs
    follow = ctl.run("logs", "-f", job)
    assert follow.code == 1 and f"ivyctl attach {job} starts another" in follow.err_text, follow
    stopped = ctl.run("stop", job)
    assert stopped.code == 0 and "exit code 143" in stopped.err_text, stopped
    assert not workers_of(local)


@pytest.mark.parametrize("fault", ["none", "stopped", "killed"])
def test_top_exits_with_the_job_or_reports_an_error(local, ctl, fault):
    job, _ = detach(local, "--lease", "60", "-n", "1", "sh", "-c", "echo ready; while [ ! -e end ]; do sleep 0.1; done")
    pid = ctl.job()["pid"]
    with local.on_terminal(IVYCTL, "top", job) as top:
        top.wait_for("RANK")
        if fault == "none":
            local.file("end")
        elif fault == "stopped":
            os.kill(pid, signal.SIGSTOP)
        else:
            kill_launcher(ctl, job)
        try:
            done = top.finish()
        finally:
            if fault == "stopped":
                os.kill(pid, signal.SIGCONT)
    said = {"none": f"job {job} has finished", "stopped": "error: the job's ivyrun does not respond",
            "killed": f"error: the launcher of job {job} has exited"}[fault]
    assert done.code == (0 if fault == "none" else 1) and said in done.out.decode(), done
    if fault != "none":
        assert ctl.run("stop", job, "--now").code == 0


@pytest.mark.parametrize("words", [("attach",), ("logs", "-f")], ids=["attach", "logs"])
def test_following_a_job_names_a_stopped_ivyrun(local, ctl, words):
    job, _ = detach(local, "--lease", "120", "-n", "1", "sh", "-c", "echo ready; sleep 600")
    pid = ctl.job()["pid"]
    with ctl.start(*words, job) as following:
        following.wait_for("ready")
        os.kill(pid, signal.SIGSTOP)
        try:
            following.wait_for(rf"ivyctl: the job's ivyrun \(pid {pid}\) has not responded for [4-9] s; is it stopped\?")
        finally:
            os.kill(pid, signal.SIGCONT)
        following.wait_for("ivyctl: the job's ivyrun responds again")
        following.process.send_signal(signal.SIGINT)
        done = following.finish()
    assert done.code == 130, done
    assert ctl.run("stop", job, "--now").code == 0


@pytest.mark.long
def test_attach_gives_up_on_a_stopped_ivyrun(local, ctl):
    job, _ = detach(local, "--lease", "300", "-n", "1", "sh", "-c", "echo ready; sleep 600")
    pid = ctl.job()["pid"]
    with ctl.start("attach", job) as following:
        following.wait_for("ready")
        os.kill(pid, signal.SIGSTOP)
        try:
            done = following.finish(100)
        finally:
            os.kill(pid, signal.SIGCONT)
    assert done.code == 121 and "has not responded for 60 s" in done.err_text, done
    assert ctl.run("stop", job, "--now").code == 0


def test_a_job_does_not_wait_for_a_stopped_follower(local, ctl):
    with local.start("-n", "1", "sh", "-c", "echo ready; while [ ! -e go ]; do sleep 0.05; done; seq 1 2000000") as run:
        run.wait_for("ready")
        with ctl.start("attach", ctl.job()["job"]) as following:
            following.wait_for("showing output from now on")
            os.kill(following.process.pid, signal.SIGSTOP)
            try:
                local.file("go")
                done = run.finish()
            finally:
                os.kill(following.process.pid, signal.SIGCONT)
            # The follower may also miss the verdict. It then exits with a message.
            late = following.finish()
    assert done.code == 0 and done.out.endswith(b"2000000\n"), done.code
    assert late.code == 0 or (late.code == 121 and "closed the connection" in late.err_text), late


def without_a_launcher(local, ctl):
    """Starts a job and removes its launcher and the launcher's files, as if it had run on another host. Returns the job's id
    and the pids of its supervisors."""
    job, _ = detach(local, "--lease", "60", "-n", "1", *COUNTING)
    whole, = {name for name in places() if name.startswith(job)}
    kill_launcher(ctl, job)
    shutil.rmtree(f"/tmp/ivyrun-{os.getuid()}/{whole}")
    return whole, [process.pid for process in local.processes() if process.name == b"ivy-supervisor"]


def test_stop_waits_for_a_stopped_supervisor(local, ctl):
    """ivyctl connects more often than the socket's backlog allows, and the supervisor does not accept."""
    job, supervisors = without_a_launcher(local, ctl)
    assert supervisors
    for pid in supervisors:
        os.kill(pid, signal.SIGSTOP)
    try:
        with ctl.start("stop", job) as stopping:
            stopping.wait_for("has no launcher on this host")
            time.sleep(16)
            assert b"has finished" not in stopping.said() and workers_of(local), stopping.said()
            for pid in supervisors:
                os.kill(pid, signal.SIGCONT)
            done = stopping.finish()
    finally:
        for pid in supervisors:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    assert done.code == 0 and "has finished on this host" in done.err_text, done
    assert not workers_of(local)


def test_stop_names_a_process_that_outlives_the_supervisor(local, ctl):
    """The process belongs to the job only by IVY_JOB_ID. The supervisor does not know it and exits."""
    job, _ = without_a_launcher(local, ctl)
    left = subprocess.Popen(["sleep", "300"], env={**local.environment, "IVY_JOB_ID": job})
    try:
        done = ctl.run("stop", job)
        assert done.code == 1 and "has finished" not in done.err_text, done
        assert f"pid {left.pid} (sleep)" in done.err_text and f"args -p {left.pid}" in done.err_text, done
        assert not workers_of(local)
    finally:
        left.kill()
        left.wait()


def test_the_exit_code_of_a_job_that_has_ended_is_remembered(local, ctl):
    job, _ = detach(local, "-n", "2", *counting(5, code=7))
    wait_until(lambda: not ctl.jobs(), 20, "the job has ended")
    late = ctl.run("attach", job)
    assert late.code == 7 and "has finished" in late.err_text and "exit code 7" in late.err_text, late
    never = ctl.run("attach", "0" * 32)
    assert never.code == 1, never


def test_the_files_of_a_job_that_has_ended_are_shown(local, ctl):
    job, folder = detach(local, "-n", "2", *counting(5, code=7))
    wait_until(lambda: not ctl.jobs(), 20, "the job has ended")
    for flags in ((), ("-f",)):
        shown = ctl.run("logs", job, *flags)
        assert shown.code == 0 and "has finished" in shown.err_text and "exit code 7" in shown.err_text, shown
        assert {rank: len(texts) for rank, texts in shown.texts_by_rank().items()} == {0: 5, 1: 5}, shown
    one = ctl.run("logs", job, "--rank", "1")
    assert len(one.out_lines) == 5, one
    explained = ctl.run("why", job)
    assert explained.code == 0 and re.search(r"has finished: .*\(exit code 7\)", explained.out.decode()), explained
    assert folder in explained.out.decode(), explained
    for verb in ("logs", "why"):
        never = ctl.run(verb, "0" * 32)
        assert never.code == 1, never


def test_a_finished_job_is_reported_as_succeeded(local, ctl):
    job, folder = detach(local, "-n", "1", *counting(3, code=0))
    wait_until(lambda: not ctl.jobs(), 20, "the job has ended")
    explained = ctl.run("why", job).out.decode()
    assert "has finished: succeeded (exit code 0)" in explained and folder in explained, explained


def test_the_files_of_a_job_that_ended_in_the_foreground_are_shown(local, ctl):
    with local.start("-n", "1", "--log-dir", "logs", *counting(40, code=3)) as run:
        job = ctl.job()["job"]
        assert run.finish().code == 3
    shown = ctl.run("logs", job)
    assert shown.code == 0 and "exit code 3" in shown.err_text and len(shown.out_lines) == 40, shown
    assert "logs/" in ctl.run("why", job).out.decode()


def test_an_unwritable_record_is_reported_and_the_job_keeps_running(local, ctl):
    """A new launcher must not continue unless it can record the number that excludes the previous launcher."""
    job, folder = detach(local, "--lease", "60", "-n", "2", *counting(4000))
    before = workers_of(local)
    kill_launcher(ctl, job)
    full = next(name for name in places() if name.startswith(job))
    blocked = f"/tmp/ivyrun-{os.getuid()}/{full}/record.new"
    os.mkdir(blocked)
    done = ctl.run("attach", job)
    assert done.code == 120 and "cannot be taken over" in done.err_text, done
    assert "record.new" in done.err_text and "it keeps running" in done.err_text, done
    assert workers_of(local) == before
    os.rmdir(blocked)
    assert ctl.run("stop", job).code == 0
