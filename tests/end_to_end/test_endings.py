# SPDX-License-Identifier: Apache-2.0
"""How a job ends: the first cause is reported correctly, in time, and nothing is left on any host.

`anyone` runs a test twice: as root, with the workers in a cgroup, and as an ordinary user, without a cgroup.
"""

import contextlib
import os
import re
import signal
import time

import pytest

from launching import BIN, seconds, wait_until

import leftovers  # (found by way of launching)

THREE = ("-H", "node1,node2,node3")
# The specification's bounds, in seconds.
GRACE = 5            # TERM to KILL after a failure or a lost launcher.
LAUNCHER_KILLED = 7  # Nothing is left anywhere.
HOST_LOST = 12       # The message names the host and TERM has gone to the others.


def wait_for_ranks(run, word, count):
    run.wait_for(word, count=count)


def stubborn(launcher, *flags):
    return launcher.start(*flags, launcher.script("stubborn.py"))


# ---- a worker ends -------------------------------------------------------------------------------

def test_success_prints_nothing(local):
    done = local.run("-n", "3", "/bin/true")
    assert (done.code, done.out, done.err) == (0, b"", b""), done


def test_exit_code_and_cause(anyone):
    done = anyone.run(*THREE, "sh", "-c", "[ $RANK = 1 ] && { echo reason >&2; exit 7; }; sleep 60")
    assert done.code == 7, done
    text = done.own_text()
    assert re.search(r"rank 1 failed first .*node2.*pid \d+.*exit 7", text), done
    assert "IVY-R001" in text, done
    assert "reason" in text, "the summary lacks the last lines of the rank's standard error"
    assert done.took < seconds(5), done.took


@pytest.mark.parametrize("name, code", [("SEGV", 139), ("ABRT", 134), ("KILL", 137), ("TERM", 143)])
def test_a_signal_is_named(local, name, code):
    done = local.run("-n", "2", "sh", "-c", f"[ $RANK = 1 ] && kill -{name} $$; sleep 60")
    assert done.code == code, done
    assert re.search(rf"rank 1 failed first .*SIG{name}", done.own_text()), done


def test_the_traceback_needs_no_decorator(local):
    done = local.run("-n", "4", "--show-ranks", "0", local.script("fail_deep.py"))
    assert done.code == 1, done
    summary = done.own_text()
    assert re.search(r"rank 2 failed first", summary), done
    assert "Traceback (most recent call last)" in summary, done
    assert "in compute" in summary and "ValueError: the answer is not 41" in summary, done
    assert re.search(r"\b3 (other|others)\b", summary), "the other ranks are not in one line"


def test_a_traceback_that_was_just_printed_is_not_repeated(local):
    done = local.run("-n", "4", local.script("fail_deep.py"))
    assert done.code == 1, done
    assert done.err_text.count("Traceback (most recent call last)") == 1, done
    summary = done.own_text()
    assert "    ValueError: the answer is not 41\n    (see the traceback above)\n" in summary, done


def test_a_victim_is_not_the_cause(local):
    """Rank 1 fails first. Rank 0 exits later with another code, because of ivyrun's TERM."""
    done = local.run("-n", "2", "sh", "-c", "if [ $RANK = 1 ]; then sleep 0.3; exit 3; fi; "
                     "trap 'exit 9' TERM; while :; do sleep 0.1; done")
    assert done.code == 3, done
    assert "rank 1 failed first" in done.own_text(), done


def test_a_rank_that_had_finished_before_is_named(local):
    done = local.run("-n", "3", "sh", "-c", "[ $RANK = 1 ] && exit 0; sleep 0.5; [ $RANK = 0 ] && exit 7; sleep 60")
    assert done.code == 7, done
    assert re.search(r"before: rank 1 had exited with code 0, 0\.\d s earlier", done.err_text), done


def test_ranks_that_outlast_a_successful_rank_are_named_once(local):
    hurry = {"IVY_TEST_REMAINING_PATIENCE": "1s"}
    with local.start("-n", "3", "sh", "-c", "[ $RANK = 0 ] && exit 0; exec sleep 9999", env=hurry) as job:
        job.wait_for(r"ivyrun: note: rank 0 exited with code 0, ranks 1-2 still run, and no rank has exited for 1 s. "
                     r"`ivyctl stack` shows where each is\n  --exit-timeout TIME stops a job")
        time.sleep(seconds(2))
        job.signal(signal.SIGINT)
        done = job.finish()
    assert done.err_text.count("still run") == 1, done


def test_ranks_that_outlast_another_report_what_they_wait_for(local):
    local.file("waits.py", "import numpy, ivycomm as ic\nic.init()\nic.barrier()\n"
                           "if ic.rank():\n    ic.recv_(numpy.zeros(1), 3 - ic.rank())\n")
    with local.start("-n", "3", "--python", "/usr/bin/python3", "waits.py",
                     env={"IVY_TEST_REMAINING_PATIENCE": "1s"}) as job:
        job.wait_for(r"rank 0 exited with code 0, ranks 1-2 still run, and no rank has exited for 1 s. What each rank "
                     r"waits for:\n(.*\n)*?  rank 1 .*in recv.*from rank 2")
        job.signal(signal.SIGINT)
        job.finish()


def test_ranks_that_exit_soon_after_another_are_not_named(local):
    done = local.run("-n", "2", "sh", "-c", "sleep $RANK", env={"IVY_TEST_REMAINING_PATIENCE": "20s"})
    assert (done.code, done.err) == (0, b""), done


def test_a_job_whose_last_rank_waits_for_an_exited_rank_can_be_stopped(local):
    done = local.run("--stall-timeout", "1", "--on-stall", "stop", "-n", "2", "sh", "-c",
                     "[ $RANK = 0 ] && exit 0; exec sleep 9999", limit=60)
    assert done.code == 123, done
    assert re.search(r"error\[IVY-R021\]: .*\n *cause: rank 0 exited with code 0\n", done.err_text), done


def test_an_exit_timeout_stops_ranks_that_wait_for_an_exited_rank(local):
    done = local.run("--exit-timeout", "1", "-n", "3", "sh", "-c", "[ $RANK = 0 ] && exit 0; exec sleep 9999", limit=60)
    assert done.code == 123, done
    assert re.search(r"error\[IVY-R021\]: .* \(--exit-timeout\)\n *cause: rank 0 exited with code 0\n", done.err_text), done
    assert "no progress: stopping 2 workers (--exit-timeout)" in done.err_text, done


def test_an_exit_timeout_does_not_stop_ranks_that_work(local):
    done = local.run("--exit-timeout", "1", "-n", "2", "sh", "-c",
                     "[ $RANK = 0 ] && exit 0; for i in 1 2 3 4 5 6 7; do sleep 0.5; echo $i; done", limit=60)
    assert done.code == 0, done


def test_other_candidates_are_shown(local):
    """Two ranks fail independently: the first one is the cause, and the second one is also named.

    ivyrun is stopped during both failures, so that it cannot stop the second rank after the first failure.
    """
    with local.start("-n", "3", "sh", "-c", "echo begun; sleep 1; [ $RANK = 0 ] && exit 5; "
                     "sleep 0.5; [ $RANK = 2 ] && exit 6; sleep 60") as run:
        run.wait_for("begun", count=3)
        run.signal(signal.SIGSTOP)
        time.sleep(2)
        run.signal(signal.SIGCONT)
        done = run.finish()
    assert done.code == 5, done
    assert re.search("rank 0 failed first", done.own_text()), done
    assert re.search(r"rank 2 .*exit 6", done.own_text()), done


def test_workers_that_ignore_term_are_killed(anyone):
    """Workers get TERM, then KILL after the grace period. Daemons, new sessions and open pipes do not protect them."""
    worker = ("sh", "-c", f"[ $RANK = 2 ] || exec /usr/bin/python3 {anyone.script('stubborn.py')}; "
              "sleep 1.5; exit 4")
    done = anyone.run(*THREE, *worker)
    assert done.code == 4, done
    assert done.took < seconds(1.5 + GRACE + 3), done.took
    anyone.wait_clean(1)


def test_a_worker_ends_although_its_daemon_holds_the_pipes(anyone):
    """A worker ends when its process exits, even if its output is still open."""
    done = anyone.run("-H", "node1,node2", anyone.script("stubborn.py"), "leave")
    assert done.code == 0, done
    assert done.took < seconds(2 + GRACE + 3), done.took
    anyone.wait_clean(1)


def test_a_worker_without_its_main_thread_is_stopped(anyone):
    """The kernel shows such a process as a zombie. It still runs and must be stopped like any other process."""
    worker = ("sh", "-c", "[ $RANK = 1 ] || exec /usr/bin/python3 "
              f"{anyone.script('leave_main_thread.py')}; sleep 1.5; exit 4")
    done = anyone.run("-H", "node1,node2", *worker)
    assert done.code == 4, done
    assert b"without main thread" in done.out, done
    assert done.took < seconds(1.5 + GRACE + 3), done.took
    anyone.wait_clean(1)


def test_an_orphan_without_its_main_thread_is_stopped(anyone):
    done = anyone.run("-H", "node1,node2", anyone.script("leave_main_thread.py"), "grandchild")
    assert done.code == 0, done
    anyone.wait_clean(1)


def test_out_of_memory(anyone):
    """The kernel kills rank 1. The summary gives the reason and not only SIGKILL."""
    if anyone.bed.memory_v1 is None:
        pytest.skip("this machine has no v1 memory cgroup to limit a host with")
    limit = os.path.join(anyone.bed.memory_v1, anyone.bed.prefix, "node2/memory.limit_in_bytes")
    try:
        with open(limit, "w") as file:
            file.write(str(250 << 20))
        done = anyone.run("-H", "node1,node2", anyone.script("eat_memory.py"), limit=60)
    finally:
        with open(limit, "w") as file:
            file.write("-1")
    assert done.code == 137, done
    assert re.search(r"rank 1 failed first .*node2", done.own_text()), done
    assert re.search(r"out of memory|out-of-memory|OOM", done.own_text()), done


def test_a_helper_killed_for_memory_does_not_explain_a_later_kill(hosts):
    if hosts.bed.memory_v1 is None:
        pytest.skip("this machine has no v1 memory cgroup to limit a host with")
    limit = os.path.join(hosts.bed.memory_v1, hosts.bed.prefix, "node2/memory.limit_in_bytes")
    script = f"RANK=1 /usr/bin/python3 {hosts.script('eat_memory.py')}; echo helper $?; sleep 4; kill -9 $$"
    try:
        with open(limit, "w") as file:
            file.write(str(250 << 20))
        done = hosts.run("-H", "node2", "-n", "1", "bash", "-c", script, limit=60)
    finally:
        with open(limit, "w") as file:
            file.write("-1")
    assert b"helper 137" in done.out and done.code == 137, done
    assert not re.search(r"out of memory|out-of-memory|OOM", done.own_text()), done


# ---- a program of ivyrun is killed ----------------------------------------------------------------

def test_launcher_killed(anyone):
    with stubborn(anyone, *THREE) as run:
        wait_for_ranks(run, "is ready", 3)
        run.signal(signal.SIGKILL)
        anyone.wait_clean(LAUNCHER_KILLED)


def test_launcher_killed_while_hosts_come_up(hosts):
    for pause in (0.05, 0.15, 0.3, 0.5):
        with hosts.start(*THREE, hosts.script("counter.py"), "600", "0.1") as run:
            run.pid()
            time.sleep(pause)
            run.signal(signal.SIGKILL)
            hosts.wait_clean(LAUNCHER_KILLED)


def test_another_job_continues_when_one_is_killed(hosts):
    with hosts.start("-H", "node1,node2", hosts.script("counter.py"), "40", "0.1") as other:
        other.wait_for("count 1", count=2)
        with stubborn(hosts, "-H", "node1,node2") as run:
            wait_for_ranks(run, "is ready", 2)
            run.signal(signal.SIGKILL)
            done = other.finish()
    assert done.code == 0, done
    assert done.texts_by_rank()[1] == [f"count {number}" for number in range(40)], done
    hosts.wait_clean(LAUNCHER_KILLED)


@pytest.mark.parametrize("role", ["ivy-supervisor", "ivy-warden"])
@pytest.mark.parametrize("host", [1, 2])
def test_supervisor_or_warden_killed(anyone, role, host):
    with stubborn(anyone, "-H", "node1,node2") as run:
        wait_for_ranks(run, "is ready", 2)
        victims = wait_until(lambda: anyone.processes(host, role), 2, f"{role} runs on node{host}")
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        done = run.finish()
    assert done.code == 121, done
    assert re.search(rf"(supervisor|warden).*node{host}", done.own_text()), done
    assert done.took < seconds(20), done.took
    anyone.wait_clean(LAUNCHER_KILLED)


def session_sshd(hosts, number):
    """Returns the processes of sshd that carry ivyrun's connections, without the listening process."""
    init = hosts.bed.init_pid(number)
    return [process.pid for process in leftovers.processes_of(init)
            if process.words().startswith("sshd: root")]


def test_a_lost_connection_is_dialled_again(hosts):
    """The sshd that carries the connection is killed. No line is lost or repeated, and the job continues."""
    with hosts.start("-H", "node1,node2", hosts.script("counter.py"), "50", "0.1") as run:
        run.wait_for("count 5", count=2)
        for pid in session_sshd(hosts, 2):
            os.kill(pid, signal.SIGKILL)
        done = run.finish()
    assert done.code == 0, done
    assert done.texts_by_rank()[1] == [f"count {number}" for number in range(50)], done


def test_a_short_cut_loses_nothing(hosts):
    with hosts.start("-H", "node1,node2", hosts.script("counter.py"), "60", "0.1") as run:
        run.wait_for("count 5", count=2)
        hosts.bed.cut(2)
        time.sleep(2)
        hosts.bed.join(2)
        done = run.finish()
    assert done.code == 0, done
    assert done.texts_by_rank()[1] == [f"count {number}" for number in range(60)], done


# ---- the user stops the job ----------------------------------------------------------------------

def test_ctrl_c_once_is_graceful(anyone):
    with anyone.on_terminal(anyone.ivyrun(), "--dedup=false", *THREE, anyone.script("signals.py")) as run:
        wait_for_ranks(run, "ready", 3)
        run.type(b"\x03")
        done = run.finish()
    assert done.code in (-signal.SIGINT, 130), done
    # INT first, then TERM to the ranks that still run.
    assert len(re.findall(rb"got SIGINT 1.*?got SIGTERM 1", done.out, re.DOTALL)) >= 1, done
    assert len(re.findall(rb"got SIGINT 1", done.out)) == 3, done
    assert len(re.findall(rb"got SIGTERM 1", done.out)) == 3, done
    assert done.took < seconds(10), done.took
    anyone.wait_clean(1)


SAVES = """import os, sys, time
print("ready", flush=True)
try:
    time.sleep(100)
except KeyboardInterrupt:
    time.sleep(0.2)
    print("saved", os.environ["RANK"], flush=True)
    sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize("wrapper, code", [((), 0), ((), 3),
                                           (("bash", "-c", '"$@"; echo went on; exit 4', "-"), 0),
                                           (("bash", "-c", '"$@"; true', "-"), 130)])
def test_ctrl_c_is_a_keyboard_interrupt_on_every_host(hosts, wrapper, code):
    """However the ranks and the shells around them exit, the summary reports that the user stopped the job."""
    script = hosts.file("saves.py", SAVES)
    with hosts.start("-H", "node1,node2", *wrapper, "/usr/bin/python3", script, str(code)) as run:
        wait_for_ranks(run, "ready", 2)
        run.signal(signal.SIGINT)
        done = run.finish()
    assert done.code in (-signal.SIGINT, 130), done
    assert len(re.findall(rb"saved \d", done.out)) == 2, done
    assert "interrupted by SIGINT" in done.own_text() and "failed first" not in done.own_text(), done
    assert "Traceback" not in done.err_text, done


def test_term_and_ivyctl_stop_are_not_a_keyboard_interrupt(local):
    script = local.file("saves.py", SAVES)
    for stop in ("TERM", "ivyctl"):
        with local.start("-n", "2", "sh", "-c", "echo job $IVY_JOB_ID; exec python3 $0 0", script) as run:
            wait_for_ranks(run, "ready", 2)
            if stop == "TERM":
                run.signal(signal.SIGTERM)
            else:
                job = re.search(rb"job ([0-9a-f]{32})", run.said())[1].decode()
                # The job's socket exists a moment after the start.
                wait_until(lambda: local.run_program(os.path.join(BIN, "ivyctl"), "stop", job).code == 0, 10,
                           "ivyctl stops it")
            done = run.finish()
        assert done.code in (-signal.SIGTERM, 143), done
        assert b"saved" not in done.out, done


@pytest.mark.parametrize("name", ["INT", "TERM"])
def test_a_duplicate_request_counts_once(local, name):
    """timeout(1) signals ivyrun and then its whole process group."""
    script = local.file("slow_end.sh", "trap 'sleep 0.3; echo saved $RANK; exit 0' INT TERM\n"
                                       "echo ready $RANK\nwhile :; do sleep 0.1; done\n")
    done = local.run_program("timeout", "-s", name, "3", local.ivyrun(), "-n", "2", "sh", script)
    assert len(re.findall(rb"saved \d", done.out)) == 2, done
    assert b"killing" not in done.err, done


def test_ctrl_c_prints_the_remaining_time_and_twice_kills(anyone):
    with anyone.on_terminal(anyone.ivyrun(), *THREE, anyone.script("stubborn.py")) as run:
        wait_for_ranks(run, "is ready", 3)
        run.type(b"\x03")
        run.wait_for(r"ivyrun: [^\n]*\d+ s", 3)
        time.sleep(0.5)
        assert run.process.poll() is None, "the job ended before the grace period"
        killed = time.monotonic()
        run.type(b"\x03")
        done = run.finish()
    assert done.code in (-signal.SIGINT, 130), done
    assert time.monotonic() - killed < seconds(3), done
    anyone.wait_clean(1)


def test_ctrl_c_three_times_exits_immediately(anyone):
    """One host does not respond. The third Ctrl-C does not wait for it; the host stops its workers after its lease."""
    with anyone.on_terminal(anyone.ivyrun(), "--lease", "3s", *THREE,
                            anyone.script("stubborn.py")) as run:
        wait_for_ranks(run, "is ready", 3)
        anyone.bed.cut(3)
        for _ in range(3):
            run.type(b"\x03")
            time.sleep(0.4)
        left = time.monotonic()
        run.finish()
        assert time.monotonic() - left < seconds(1.5)
        anyone.wait_clean_of_ours(3 + GRACE + 3)


def test_terminal_closed(anyone):
    with anyone.on_terminal(anyone.ivyrun(), *THREE, anyone.script("counter.py"), "6000",
                            "0.1") as run:
        run.wait_for("count 1", count=3)
        run.close_terminal()
        anyone.wait_clean(LAUNCHER_KILLED)


def test_nohup_survives_the_terminal(hosts):
    with hosts.on_terminal("nohup", "sh", "-c", f"exec {hosts.ivyrun()} -H node1,node2 "
                           f"{hosts.script('counter.py')} 40 0.1 > {hosts.directory}/out") as run:
        wait_until(lambda: hosts.exists("out") and b"count 3" in hosts.read("out"), 10, "it runs")
        run.close_terminal()
        run.finish()
    assert len(re.findall(rb"count \d+\n", hosts.read("out"))) == 80, hosts.read("out")


def test_term_stops_the_job_and_sets_its_code(hosts):
    with hosts.start("-H", "node1,node2", hosts.script("signals.py")) as run:
        wait_for_ranks(run, "ready", 2)
        run.signal(signal.SIGTERM)
        done = run.finish()
    assert done.code in (-signal.SIGTERM, 143), done
    assert len(re.findall(rb"got SIGTERM 1", done.out)) == 2, done


def test_signals_are_forwarded_once_per_worker(hosts):
    with hosts.start("-H", "node1:2,node2:2", hosts.script("signals.py")) as run:
        wait_for_ranks(run, "ready", 4)
        run.signal(signal.SIGUSR1)
        run.wait_for("got SIGUSR1 1", count=4)
        run.signal(signal.SIGUSR2)
        run.wait_for("got SIGUSR2 1", count=4)
        time.sleep(0.3)
        run.signal(signal.SIGTERM)
        done = run.finish()
    for texts in done.texts_by_rank().values():
        assert texts == ["ready", "got SIGUSR1 1", "got SIGUSR2 1", "got SIGTERM 1"], done


def test_timeout(hosts):
    done = hosts.run("-H", "node1,node2", "--timeout", "2s", "sh", "-c", "echo begun; sleep 60")
    assert done.code == 124, done
    assert "--timeout" in done.own_text() and done.out.count(b"begun") == 2, done
    assert seconds(1.9) <= done.took or done.took >= 1.9
    assert done.took < seconds(6), done.took


def test_shutdown_timeout_shortens_the_grace(hosts):
    done = hosts.run("-H", "node1,node2", "--timeout", "2s", "--shutdown-timeout", "1s",
                     hosts.script("stubborn.py"))
    assert done.code == 124, done
    assert done.took < seconds(7), done.took


def test_stopped_and_continued(hosts):
    """Ctrl-Z for longer than the lease, then fg: the job is still running and succeeds."""
    with hosts.on_terminal("bash", "--norc", "-i") as shell:
        job = f"{hosts.ivyrun()} --dedup=false --lease 3s -H node1,node2 {hosts.script('counter.py')} 80 0.1\n"
        shell.type(job.encode())
        shell.wait_for("count 5", count=2)
        shell.type(b"\x1a")
        shell.wait_for("Stopped", 5)
        time.sleep(5)
        shell.type(b"fg\n")
        shell.wait_for("count 79", 20, count=2)
        # Until the prompt is back, typed text is rank 0's input.
        shell.wait_for(r"count 79(?s:.)*bash-\S*# ", 10)
        shell.type(b"echo code=$?\n")
        shell.wait_for(r"code=0\b", 5)
        shell.type(b"exit\n")
        shell.finish()


# ---- a host is lost ------------------------------------------------------------------------------

def stamping(hosts):
    """Returns a worker that writes the time of its TERM into the directory that all hosts share."""
    return ("sh", "-c", f"trap 'date +%s.%N > {hosts.directory}/told.$RANK; exit 0' TERM; "
            "echo ready; while :; do sleep 0.1; done")


def told_after(hosts, rank, moment):
    return float(hosts.read(f"told.{rank}").decode()) - moment


def check_lost(hosts, done, host, moment, bound):
    assert done.code == 121, done
    assert re.search(rf"host node{host}", done.own_text().replace("\x1b[K", "")), done
    for rank in range(3):
        if rank != host - 1:
            assert told_after(hosts, rank, moment) < seconds(bound), f"rank {rank}"


def test_host_cut_off_silently(anyone):
    """On a terminal, with the default lease, the host is named and the other ranks get TERM within 12 s."""
    with anyone.on_terminal(anyone.ivyrun(), "--dedup=false", *THREE, *stamping(anyone)) as run:
        wait_for_ranks(run, "ready", 3)
        moment = time.time()
        anyone.bed.cut(3)
        run.wait_for(r"node3[^\n]*lost|lost[^\n]*node3", HOST_LOST)
        done = run.finish()
    check_lost(anyone, done, 3, moment, HOST_LOST)
    # No message can reach the host that is cut off: its supervisor must stop the workers.
    anyone.wait_clean_of_ours(HOST_LOST + GRACE)


def lose_host(launcher, how):
    with launcher.start("--lease", "4s", *THREE, *stamping(launcher)) as run:
        wait_for_ranks(run, "ready", 3)
        moment = time.time()
        getattr(launcher.bed, how)(3)
        done = run.finish()
    check_lost(launcher, done, 3, moment, 4 + 2)
    launcher.wait_clean_of_ours(6 + GRACE)


def test_host_powered_off(anyone):
    lose_host(anyone, "power_off")


@pytest.mark.parametrize("how", ["cut_one_way", "unplug"])
def test_a_host_is_lost_after_other_failures(hosts, how):
    lose_host(hosts, how)


def test_host_of_rank_zero_lost(anyone):
    with anyone.start("--lease", "4s", "-H", "node3,node1,node2", *stamping(anyone)) as run:
        wait_for_ranks(run, "ready", 3)
        anyone.bed.cut(3)
        done = run.finish()
    assert done.code == 121 and "node3" in done.own_text(), done
    anyone.wait_clean_of_ours(6 + GRACE)


@contextlib.contextmanager
def frozen(pids):
    """Stops these processes with SIGSTOP until the block ends."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def frozen_supervisors(hosts, *numbers):
    pids = [pid for number in numbers for pid in hosts.processes(number, "ivy-supervisor")]
    assert len(pids) == len(numbers), pids
    return frozen(pids)


def supervisor_below(pid):
    """Returns the pid of the supervisor on this machine that an ivyrun has started."""
    pending = [pid]
    while pending:
        pid = pending.pop()
        with open(f"/proc/{pid}/comm", encoding="ascii") as file:
            if file.read() == "ivy-supervisor\n":
                return pid
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            pending += map(int, file.read().split())
    raise AssertionError("no supervisor")


def test_a_silent_host_is_named_before_its_lease_is_over(hosts):
    script = f"echo up; while ! test -e {hosts.directory}/end; do sleep 0.1; done"
    with hosts.start("--lease", "60s", "-H", "node1,node2", "sh", "-c", script) as run:
        run.wait_for("up", count=2)
        hosts.bed.cut(2)
        run.wait_for(r"node2: no response for \d+ s.*; the host is considered lost after 60 s", limit=15)
        hosts.bed.join(2)
        run.wait_for("node2 responds again")
        hosts.file("end")
        done = run.finish()
    assert done.code == 0, done


def test_a_stopped_supervisor_on_this_host_is_named(local):
    """Without the message the stopped supervisor would not be noticed, because its workers continue. The job does not end."""
    script = f"echo up; while ! test -e {local.directory}/end; do sleep 0.1; done"
    with local.start("-n", "2", "sh", "-c", script) as run:
        run.wait_for("up", count=2)
        with frozen([supervisor_below(run.pid())]):
            run.wait_for(r"its supervisor has not responded for \d+ s; is it stopped\?", limit=15)
        run.wait_for("responds again")
        local.file("end")
        done = run.finish()
    assert done.code == 0, done


# The rank exits and leaves a process that ignores TERM, so that the supervisor needs 2 s to stop it.
LEAVES = "setsid sh -c 'trap \"\" TERM; echo bye; while :; do sleep 0.2; done' & sleep 0.3; exit 0"


def test_a_host_that_does_not_confirm_the_end_is_named(local):
    with local.start("-n", "1", "sh", "-c", LEAVES) as run:
        run.wait_for("bye")
        time.sleep(1.2)
        with frozen([supervisor_below(run.pid())]):
            run.wait_for("waiting for .* to confirm that no processes of the job are left", limit=15)
        done = run.finish()
    assert done.code == 0, done


@pytest.mark.long
def test_a_supervisor_on_this_host_that_never_confirms_the_end_times_out(local):
    with local.start("-n", "1", "sh", "-c", LEAVES) as run:
        run.wait_for("bye")
        time.sleep(1.2)
        with frozen([supervisor_below(run.pid())]):
            done = run.finish(60)
    assert done.code == 121, done
    assert re.search(r"IVY-R007.*\n(.*\n)?.*it did not respond for 4\d s", done.own_text()), done


def test_frozen_supervisor_is_a_lost_host(hosts):
    """The host still responds and accepts connections, but its supervisor is silent."""
    with hosts.start("--lease", "3s", *THREE, *stamping(hosts)) as run:
        wait_for_ranks(run, "ready", 3)
        moment = time.time()
        with frozen_supervisors(hosts, 3):
            done = run.finish()
    check_lost(hosts, done, 3, moment, 3 + 2)
    # When the supervisor continues, it finds that its launcher is gone, and stops.
    hosts.wait_clean(LAUNCHER_KILLED)


@pytest.mark.long
def test_a_stop_with_frozen_supervisors_times_out(hosts):
    """The supervisors are stopped before the job's end. ivyrun gives up on them 45 s after the grace period."""
    with hosts.start("--shutdown-timeout", "1s", "-H", "node1,node2", "sh", "-c",
                     "echo ready; exec sleep 600") as run:
        wait_for_ranks(run, "ready", 2)
        with frozen_supervisors(hosts, 1, 2):
            run.signal(signal.SIGTERM)
            asked = time.monotonic()
            done = run.finish(46 + 10)
            took = time.monotonic() - asked
    assert done.code in (-signal.SIGTERM, 143), done
    assert 45 < took < 46 + seconds(5), took
    for host in ("node1", "node2"):
        assert re.search(rf"{host}: it did not confirm that the job has stopped", done.own_text()), done
    hosts.wait_clean(LAUNCHER_KILLED)


# ---- many times ----------------------------------------------------------------------------------

@pytest.mark.long
def test_launcher_killed_fifty_times(anyone):
    slowest = 0.0
    for attempt in range(50):
        with stubborn(anyone, *THREE) as run:
            if attempt % 2:
                time.sleep(attempt * 0.02)
                run.pid()
            else:
                wait_for_ranks(run, "is ready", 3)
            run.signal(signal.SIGKILL)
            slowest = max(slowest, anyone.wait_clean(LAUNCHER_KILLED))
    print(f"50 times; slowest to be clean: {slowest:.2f} s")


@pytest.mark.parametrize("count, said", [(1, "stopping 1 worker,"), (2, "stopping 2 workers,")])
def test_messages_use_singular_and_plural(local, count, said):
    with local.start("-n", str(count), "sh", "-c", "echo ready; exec sleep 60") as run:
        run.wait_for("ready", count=count)
        run.signal(signal.SIGTERM)
        done = run.finish()
    assert said in done.err_text, done
