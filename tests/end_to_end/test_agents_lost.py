# SPDX-License-Identifier: Apache-2.0
"""Hosts and agents that fail during a job: silence, cut connections, power loss, slow links, and the time limits for each.

Scenarios that have to wait run at the same time, each with its own job on its own hosts.
"""

import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from agents import side_by_side
from host_init import USER
from launching import BIN, HERE, seconds, wait_until
from stalling_fs import Stalling
from test_agents import check_sequences, sequence

GRACE = 5
ABSENCE = 60  # How long a supervisor waits for another transport when its own broke.


# ---- a file system that stops answering ----------------------------------------------------------

def stalling_cache(agents, number):
    """Returns a file system on that host that can stall, and its mount point for the agent's cache."""
    launcher = agents.launcher
    directory = f"{launcher.directory}/stalling"
    program = f"{directory}/stalling_fs.py"
    os.makedirs(launcher.outside(directory))
    shutil.copy(os.path.join(HERE, "../testbed/stalling_fs.py"), launcher.outside(program))
    stalling = Stalling(f"{directory}/backing", f"{directory}/cache", program=program,
                        prefix=agents.bed.exec_command(number, "root", []), outside=launcher.outside)
    return stalling, stalling.mount_point


def test_a_stalled_cache_does_not_stop_other_jobs(agents):
    """The cache stalls for three leases. The other job continues; the new one reports its wait and starts later."""
    stalling, cache = stalling_cache(agents, 2)
    with stalling:
        agent, = agents.prepare(2)
        agent.environment = {"XDG_CACHE_HOME": cache}
        agent.start()
        stop = f"{agents.launcher.directory}/stop"
        lease = 3 + seconds(1)
        with agents.job("--lease", f"{lease:g}s", "-H", "node2", "-n", "2", *sequence(agents, "0.1", stop)) as run:
            run.wait_for("count 2", count=2)
            workers = agents.workers(2)
            stalling.stall()
            with agents.job("--start-timeout", f"{seconds(60):g}s", "-v", "-H", "node2",
                            "sh", "-c", "echo here $RANK") as late:
                time.sleep(3 * lease)
                assert agents.workers(2) == workers, run.said()
                late.wait_for(f"agent: waiting for the file system of {cache}")
                assert b"here 0" not in late.said()
                stalling.go_on()
                told = late.finish()
            agents.launcher.file("stop")
            done = run.finish()
    assert done.code == 0, done
    check_sequences(done, range(2))
    assert told.code == 0 and b"here 0" in told.out, told


def lost(done, host, took, bound):
    assert done.code == 121, done
    assert re.search(rf"host {host}\b", done.own_text()), done
    assert "the state of rank 1 is unknown" in done.own_text(), done
    assert took < seconds(bound), f"the job took {took:.1f} s to end; {done}"


def test_lost_hosts_are_reported_and_short_cuts_are_not(agents):
    agents.start(2, 3, 4, 5)
    bed, launcher = agents.bed, agents.launcher

    def job(name, lease, host, *arguments):
        # node1 is the launcher's own host, so that part of the job is not affected.
        return agents.launcher.start("--lease", lease, "-H", f"node1,{host}",
                                     *(arguments or sequence(agents, "0.1",
                                                             f"{launcher.directory}/{name}")))

    def healed_before_the_lease():
        with job("healed", "15s", "node2") as run:
            run.wait_for("count 2", count=2)
            workers = agents.workers(2)
            bed.cut(2)
            time.sleep(4)
            assert agents.workers(2) == workers
            bed.join(2)
            seen = run.said().count(b"count")
            wait_until(lambda: run.said().count(b"count") > seen + 60, 15, "the job continues")
            assert agents.workers(2) == workers
            launcher.file("healed")
            done = run.finish()
        assert done.code == 0, done
        check_sequences(done, range(2))

    def healed_after_the_lease():
        """One supervisor stops its workers itself while it is cut off. Another one is stopped during that time: when it is
        continued, its job has ended and no launcher accepts it."""
        with job("late", "4s", "node3") as run, job("asleep", "4s", "node3") as other:
            run.wait_for("count 2", count=2)
            other.wait_for("count 2", count=2)
            first = {os.path.basename(path) for path in job_places(bed, 3)}
            assert len(first) == 2
            sleeper = agents.supervisors(3)[0]
            os.kill(sleeper, signal.SIGSTOP)
            moment = time.monotonic()
            bed.cut(3)
            try:
                for each in (run, other):
                    lost(each.finish(), "node3", time.monotonic() - moment, 4 + 2 + GRACE)
                # The host is still cut off, so no message can have reached it.
                wait_until(lambda: len(agents.supervisors(3)) == 1 and len(agents.workers(3)) == 1,
                           4 + GRACE + 2 - (time.monotonic() - moment), "the supervisor ended by itself")
                bed.join(3)
            finally:
                os.kill(sleeper, signal.SIGCONT)
            wait_until(lambda: not agents.supervisors(3) and not agents.workers(3), 4 + GRACE + 2,
                       "the stopped supervisor ends its workers too")
        said = "outcome=\"ended because the launcher was lost\""
        wait_until(lambda: agents[3].text().count(said) == 2, 5, f"twice {said}")
        again = launcher.run("-H", "node3", "hostname")
        assert again.code == 0 and again.out == b"node3\n", again

    def goes(how, number):
        def drill():
            with job(how, "4s", f"node{number}") as run:
                run.wait_for("count 2", count=2)
                moment = time.monotonic()
                getattr(bed, how)(number)
                lost(run.finish(), f"node{number}", time.monotonic() - moment, 4 + 2 + GRACE)
            if bed.is_on(number):
                wait_until(lambda: not agents.supervisors(number) and not agents.workers(number),
                           GRACE + 4, f"node{number} ended its workers itself")
        drill.__name__ = how
        return drill

    side_by_side(healed_before_the_lease, healed_after_the_lease, goes("cut_one_way", 4),
                 goes("power_off", 5))
    agents.wait_clean(5)


def job_places(bed, number):
    parent = bed.host_view(number).place("/tmp/ivyrun-2001")
    return [os.path.join(parent, name) for name in os.listdir(parent)
            if re.fullmatch(r"[0-9a-f]{32}-\d+", name)]


@pytest.mark.long
def test_slow_agent_failures(agents):
    """Agents and launcher are killed together; an agent is stopped for good; a link is slow."""
    agents.start(1, 2, 3, 4, 5)
    launcher = agents.launcher
    # ivy-node has three megabytes: over the slow link it would take longer than the rest, so it is installed before.
    assert launcher.run("-H", "node5", "true").code == 0

    def agents_and_launcher_killed():
        with agents.job("-H", "node[2-3]", launcher.script("stubborn.py")) as run:
            run.wait_for("is ready", count=2)
            pid, victims = run.pid(), [agents[2].pid(), agents[3].pid()]
            for victim in [*victims, pid]:
                os.kill(victim, signal.SIGKILL)
            killed = time.monotonic()
        time.sleep(10)
        assert len(agents.workers(2)) >= 1 and len(agents.workers(3)) >= 1, \
            "the workers do not wait for another agent"
        ours = lambda: [line for line in agents.leftovers_of_ours()  # noqa: E731
                        if line.startswith(("node2:", "node3:"))]
        agents.wait_clean(ABSENCE + GRACE + 1 - (time.monotonic() - killed), ours)
        took = time.monotonic() - killed
        assert took > ABSENCE - 5, f"the workers ended after only {took:.0f} s"

    def agent_stopped_for_good():
        with launcher.start("-H", "node1,node4", launcher.script("counter.py"), "6000",
                            "0.1") as run:
            run.wait_for("count 1", count=2)
            moment = time.monotonic()
            assert agents[4].stop() == 0
            assert agents.workers(4), "the workers do not wait for another agent"
            done = run.finish(ABSENCE + GRACE + 10)
            took = time.monotonic() - moment
        assert done.code == 121, done
        assert "node4" in done.own_text(), done
        assert "Connection refused" in done.own_text(), done
        assert ABSENCE - 5 < took < ABSENCE + seconds(GRACE + 3), took

    def slow_link():
        """With a lease of 5 s and more output than the link can carry, no host is lost."""
        agents.bed.slow(5)
        script = ("i=0; while [ $i -lt 12000 ]; do i=$((i+1)); "
                  "echo line $i ....................................; "
                  "[ $((i % 1000)) = 0 ] && sleep 1; done; exit 0")
        with launcher.start("--lease", "5s", "-H", "node1,node5", "sh", "-c", script) as run:
            done = run.finish(60)
        assert done.code == 0, done
        texts = done.texts_by_rank()
        wanted = [f"line {number} ...................................." for number in
                  range(1, 12001)]
        assert texts == {0: wanted, 1: wanted}, {rank: len(text) for rank, text in texts.items()}
        assert "node5" not in done.own_text(), done
        assert done.took > 10, f"{done.took} s is not a slow link"

    side_by_side(agents_and_launcher_killed, agent_stopped_for_good, slow_link)
    agents.wait_clean(GRACE)


# ---- a suspended launcher ------------------------------------------------------------------------

HEARD_WITHIN = 5  # Seconds of silence after which an agent considers a launcher suspended.
HELD_OPEN = 10    # Seconds for which the agent then keeps the connection open and leaves it to the job's lease.


def suspend(run):
    """Suspends the launcher (Ctrl-Z) for long enough that the agents notice its silence."""
    pid = run.pid()
    os.kill(pid, signal.SIGTSTP)

    def stopped():
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] == b"T"
    wait_until(stopped, 10, "the launcher is suspended")
    time.sleep(HEARD_WITHIN + 1)
    return pid


def resume(run):
    """Continues the launcher and its parents: nsenter, which runs it on its host, has stopped itself, too."""
    chain, wanted = [run.process.pid], run.pid()
    while chain[-1] != wanted:
        with open(f"/proc/{chain[-1]}/task/{chain[-1]}/children") as file:
            chain.append(int(file.read().split()[0]))
    for pid in reversed(chain):
        os.kill(pid, signal.SIGCONT)


def kill_suspended(run):
    pid = suspend(run)
    os.kill(pid, signal.SIGKILL)


@pytest.mark.long
def test_a_suspended_launcher_is_killed(agents):
    """Agents that expect the launcher's silence must still detect its exit."""
    agents.start(2, 3)
    with agents.job("-H", "node[2-3]", *sequence(agents, "0.1", "nothing")) as run:
        run.wait_for("count 1", count=2)
        kill_suspended(run)
        killed = time.monotonic()
        assert agents.workers(2) and agents.workers(3), "the workers do not wait for another connection"
    agents.wait_clean(HELD_OPEN + ABSENCE + GRACE + 5 - (time.monotonic() - killed))
    said = "outcome=\"ended because the launcher was lost\""
    for number in (2, 3):
        agents[number].wait_for(said)


def test_a_suspended_launcher_continues(agents):
    """Its connection is not considered dead, because the kernel answers the agents' TCP probes."""
    agents.start(2, 3)
    stop = f"{agents.launcher.directory}/stop"
    with agents.job("-H", "node[2-3]", *sequence(agents, "0.1", stop)) as run:
        run.wait_for("count 1", count=2)
        suspend(run)
        assert b"suspended; the other hosts stop the job" in run.said()
        assert b"within 60 min" in run.said()
        resume(run)
        seen = run.said().count(b"count")
        wait_until(lambda: run.said().count(b"count") > seen + 10, 10, "the job continues")
        agents.launcher.file("stop")
        done = run.finish()
    assert done.code == 0, done
    check_sequences(done, range(2))


def test_stop_reaches_a_job_without_a_launcher(agents):
    """`ivyctl stop` by agents or on the host itself, and draining: each stops the job in order on that host."""
    agents.start(2, 3, 4)
    place = agents.credentials.place("bin/ivyctl")
    shutil.copy(os.path.join(BIN, "ivyctl"), place)

    def ctl(number, *words):
        return agents.launcher.run_on(number, agents.credentials.path("bin/ivyctl"), *words,
                                      user=USER, limit=60)
    with agents.job("-H", "node[2-4]", *sequence(agents, "0.1", "nothing")) as run:
        run.wait_for("count 1", count=3)
        kill_suspended(run)
    listed = ctl(1, "ps", "-H", "node[2-4]")
    job, = {line.split()[1] for line in listed.out_lines[1:]}
    assert "no launcher here" in ctl(3, "ps").out.decode(), "the launcher runs on node3"
    # The agent stops only its own host's part of the job.
    stopped = ctl(1, "stop", "-H", "node2", job)
    assert stopped.code == 0 and "has finished on node2" in stopped.err_text, stopped
    assert "own time" not in stopped.err_text, stopped
    assert not agents.supervisors(2) and not agents.workers(2)
    agents[2].wait_for(f"stop: job {job}")
    # On the host itself, without its agent.
    agents[3].stop()
    wrong = ctl(3, "stop", "0123")
    assert wrong.code == 1 and "no running jobs" in wrong.err_text, wrong
    # Supervisors of older versions do not write this file.
    for path in job_places(agents.bed, 3):
        os.unlink(os.path.join(path, "stop-grace-ms"))
    stopped = ctl(3, "stop", job, "--now")
    assert stopped.code == 0 and "has finished on this host" in stopped.err_text, stopped
    assert stopped.err_text.count("uses the job's own time from TERM to KILL") == 1, stopped
    assert not agents.supervisors(3) and not agents.workers(3)
    drained = agents.command(4, "drain", "--stop", "--wait", "30", limit=40)
    assert drained.code == 0 and "all jobs have exited" in drained.out.decode(), drained
    assert not agents.supervisors(4) and not agents.workers(4)
    gone = ctl(1, "stop", "-H", "node[2,4]", job)
    assert gone.code == 1 and "you have no running jobs on the agents of these hosts" in gone.err_text, gone
    agents.wait_clean(GRACE)


def test_stop_reaches_a_stubborn_job_with_another_grace(agents):
    """The workers ignore TERM, and the job's own grace period from TERM to KILL is 30 s."""
    agents.start(2, 3)
    place = agents.credentials.place("bin/ivyctl")
    shutil.copy(os.path.join(BIN, "ivyctl"), place)

    def ctl(number, *words):
        return agents.launcher.run_on(number, agents.credentials.path("bin/ivyctl"), *words,
                                      user=USER, limit=60)
    stubborn = "trap '' TERM INT HUP; echo count 1; while :; do sleep 0.05; done"
    with agents.job("--name", "stubborn", "-H", "node[2-3]", "sh", "-c", stubborn) as run:
        run.wait_for("count 1", count=2)
        kill_suspended(run)
    job, = {line.split()[1] for line in ctl(1, "ps", "-H", "node[2-3]").out_lines[1:]}
    moment = time.monotonic()
    wrong = ctl(1, "stop", "-H", "node2", "nameless")
    assert wrong.code == 1 and agents.supervisors(2), wrong
    # By the job's name, which the agents know.
    stopped = ctl(1, "stop", "-H", "node2", "stubborn", "--grace", "1")
    assert stopped.code == 0 and "own time" not in stopped.err_text, stopped
    assert 1 <= time.monotonic() - moment < seconds(10)
    assert not agents.supervisors(2) and not agents.workers(2)
    # On the host itself, without its agent.
    moment = time.monotonic()
    stopped = ctl(3, "stop", job, "--now")
    assert stopped.code == 0 and "has finished on this host" in stopped.err_text, stopped
    assert time.monotonic() - moment < seconds(10)
    assert not agents.supervisors(3) and not agents.workers(3)
    agents.wait_clean(GRACE)


# ---- an unexpected error in an agent --------------------------------------------------------------

def test_an_agent_that_cannot_watch_a_job_reports_it_and_exits(agents):
    """The kernel accepts no further epoll watch. The agent must report such an unexpected error instead of aborting."""
    full = f"{agents.launcher.directory}/full"
    agent, = agents.prepare(2)
    agent.environment = {"LD_PRELOAD": preloaded(agents, "epoll_full"), "EPOLL_FULL": full}
    agent.start()
    agents.launcher.file("full")
    done = agents.run("-H", "node2", "true")
    assert done.code != 0, done
    assert agent.process.wait(seconds(10)) == 1, agent.text()
    said = agent.text()
    assert re.search("unexpected error: .*No space left on device", said), said
    assert "stopping: this error; running jobs wait for the next agent" in said, said
    agent.environment = {}
    agent.start()
    again = agents.run("-H", "node2", "true")
    assert again.code == 0, again
    # The supervisor of the first job has no workers and waits half a minute for a launcher; this test does not.
    for pid in agents.supervisors(2):
        os.kill(pid, signal.SIGKILL)
    agents.wait_clean(GRACE)


# ---- the wall clock jumps ------------------------------------------------------------------------

def preloaded(agents, name):
    """Compiles this source to a shared object on the shared disk."""
    compiler = shutil.which("cc") or pytest.skip("there is no C compiler (cc)")
    path = f"{agents.launcher.directory}/{name}.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", agents.launcher.outside(path),
                    os.path.join(HERE, f"{name}.c")], check=True)
    return path


@pytest.fixture
def wall_clock(agents):
    """See wall_clock.c."""
    return preloaded(agents, "wall_clock")


def test_a_clock_jump_of_an_hour_does_not_affect_a_job(agents, wall_clock):
    """The wall clock of the agents, the launcher and one rank jumps forward and back. The job is not affected.

    The supervisor is a static program, so its clock cannot be replaced; it only reads the monotonic clock.
    """
    launcher = agents.launcher
    odd = {"LD_PRELOAD": wall_clock, "WALL_CLOCK": launcher.file("clock", "0")}
    for agent in agents.prepare(2, 3):
        agent.environment = odd
        agent.start()
    stop = f"{launcher.directory}/stop"
    # Workers inherit the agent's environment and thus its clock. Rank 0 does not.
    worker = (f"[ $RANK = 0 ] && unset LD_PRELOAD; "
              f"exec /usr/bin/python3 -u {launcher.script('sequence.py')} 0.1 {stop}")
    with agents.job("--lease", "5s", "-H", "node[2-3]", "sh", "-c", worker, env=odd) as run:
        run.wait_for("count 2", count=2)
        workers = agents.workers(2), agents.workers(3)
        for jump in ("3600", "-3600"):
            launcher.file("clock", jump)
            seen = run.said().count(b"count")
            # For longer than the lease.
            wait_until(lambda: run.said().count(b"count") > seen + 2 * 60, 20, f"on after {jump}")
            assert (agents.workers(2), agents.workers(3)) == workers
            # A connection that breaks after the jump is also dialled again.
            agents[3].kill()
            agents[3].start()
        launcher.file("clock", "3600")
        launcher.file("stop")
        done = run.finish()
    assert done.code == 0, done
    check_sequences(done, range(2))
    agents[2].wait_for("outcome=\"all workers succeeded\"")
    # The last line, because an earlier line may be about a job that ended while no agent was running.
    opened, ended = re.findall(r"opened=(\S+)Z ended=(\S+)Z", agents[2].text())[-1]
    hours = [time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S")) for text in (opened, ended)]
    assert 3590 < hours[1] - hours[0] < 3700, "the agent's clock did not jump"
