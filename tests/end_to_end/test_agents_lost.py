"""Hosts and agents that go away under a job: silence, cuts, power, slow links, and the bounds of it all.

What waits, waits side by side: one job for each drill, on hosts of its own.
"""

import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from agents import side_by_side
from launching import HERE, seconds, wait_until
from test_agents import check_sequences, sequence

GRACE = 5
ABSENCE = 60  # How long a supervisor waits for another carrier when its own broke.


def lost(done, host, took, bound):
    assert done.code == 121, done
    assert re.search(rf"host {host}\b", done.own_text()), done
    assert took < seconds(bound), f"{took:.1f} s until it was over; {done}"


def test_hosts_that_go(agents):
    agents.start(2, 3, 4, 5)
    bed, launcher = agents.bed, agents.launcher

    def job(name, lease, host, *arguments):
        # node1 is the launcher's own host: the job has a part that stays whole.
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
            wait_until(lambda: run.said().count(b"count") > seen + 60, 15, "it goes on")
            assert agents.workers(2) == workers
            launcher.file("healed")
            done = run.finish()
        assert done.code == 0, done
        check_sequences(done, range(2))

    def healed_after_the_lease():
        """One supervisor ends its workers itself while it is cut off. Another one slept over all of
        that: its job is over when it wakes up, and nobody takes it back."""
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
                # Still cut off: nobody could tell it.
                wait_until(lambda: len(agents.supervisors(3)) == 1 and len(agents.workers(3)) == 1,
                           4 + GRACE + 2 - (time.monotonic() - moment), "it ended by itself")
                bed.join(3)
            finally:
                os.kill(sleeper, signal.SIGCONT)
            wait_until(lambda: not agents.supervisors(3) and not agents.workers(3), 4 + GRACE + 2,
                       "the sleeper ends its workers too")
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


def test_what_takes_a_minute(agents):
    """Agents and launcher killed together; an agent that never comes back; a slow link."""
    agents.start(1, 2, 3, 4, 5)
    launcher = agents.launcher
    # Three megabytes over the slow link would take longer than the rest: they are there already.
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
            "they wait for another agent"
        ours = lambda: [line for line in agents.leftovers_of_ours()  # noqa: E731
                        if line.startswith(("node2:", "node3:"))]
        agents.wait_clean(ABSENCE + GRACE + 1 - (time.monotonic() - killed), ours)
        took = time.monotonic() - killed
        assert took > ABSENCE - 5, f"gone after {took:.0f} s already"

    def agent_stopped_for_good():
        with launcher.start("-H", "node1,node4", launcher.script("counter.py"), "6000",
                            "0.1") as run:
            run.wait_for("count 1", count=2)
            moment = time.monotonic()
            assert agents[4].stop() == 0
            assert agents.workers(4), "they wait for another agent"
            done = run.finish(ABSENCE + GRACE + 10)
            took = time.monotonic() - moment
        assert done.code == 121, done
        assert "node4" in done.own_text(), done
        assert "Connection refused" in done.own_text(), done
        assert ABSENCE - 5 < took < ABSENCE + seconds(GRACE + 3), took

    def slow_link():
        """A lease of 5 s, and more output than the link can carry: nobody is lost."""
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


# ---- the wall clock jumps ------------------------------------------------------------------------

@pytest.fixture
def wall_clock(agents):
    """A preloaded object on the shared disk; see wall_clock.c."""
    compiler = shutil.which("cc") or pytest.skip("there is no C compiler (cc)")
    path = f"{agents.launcher.directory}/wall_clock.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", agents.launcher.outside(path),
                    os.path.join(HERE, "wall_clock.c")], check=True)
    return path


def test_the_clock_jumps_by_an_hour(agents, wall_clock):
    """Forward and back, in the agents, the launcher and one rank: nothing happens.

    The supervisor is a static program that cannot be given another clock; it reads none but the
    monotonic one.
    """
    launcher = agents.launcher
    odd = {"LD_PRELOAD": wall_clock, "WALL_CLOCK": launcher.file("clock", "0")}
    for agent in agents.prepare(2, 3):
        agent.environment = odd
        agent.start()
    stop = f"{launcher.directory}/stop"
    # Workers inherit the agent's environment, and its clock; one of them does not.
    worker = (f"[ $RANK = 0 ] && unset LD_PRELOAD; "
              f"exec /usr/bin/python3 -u {launcher.script('sequence.py')} 0.1 {stop}")
    with agents.job("--lease", "5s", "-H", "node[2-3]", "sh", "-c", worker, env=odd) as run:
        run.wait_for("count 2", count=2)
        workers = agents.workers(2), agents.workers(3)
        for jump in ("3600", "-3600"):
            launcher.file("clock", jump)
            seen = run.said().count(b"count")
            # Longer than the lease.
            wait_until(lambda: run.said().count(b"count") > seen + 2 * 60, 20, f"on after {jump}")
            assert (agents.workers(2), agents.workers(3)) == workers
            # A carrier that breaks in another hour is dialled again as well.
            agents[3].kill()
            agents[3].start()
        launcher.file("clock", "3600")
        launcher.file("stop")
        done = run.finish()
    assert done.code == 0, done
    check_sequences(done, range(2))
    agents[2].wait_for("outcome=\"every worker ended well\"")
    # The last line: the first may be about a job that ended when no agent was there to say it.
    opened, ended = re.findall(r"opened=(\S+)Z ended=(\S+)Z", agents[2].text())[-1]
    hours = [time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S")) for text in (opened, ended)]
    assert 3590 < hours[1] - hours[0] < 3700, "the agent's clock did jump"
