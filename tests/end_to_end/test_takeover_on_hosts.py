# SPDX-License-Identifier: Apache-2.0
"""A job on real hosts, reached by SSH or agents, loses its launcher: takeover by a new one, and logs and stop without one."""

import os
import re
import time

import pytest

from host_init import USER
from launching import BIN, wait_until
from test_agents import sequence

IVYCTL = os.path.join(BIN, "ivyctl")
RANKS = 4


class Background:
    """A job on node2 and node3 that outlives its launcher on node1."""

    def __init__(self, agents, transport, lease="60"):
        if transport == "agent":
            agents.start(2, 3)
        self.agents, self.launcher = agents, agents.launcher
        self.stop_file = f"{self.launcher.directory}/stop"
        done = self.launcher.run("--transport", transport, "--detach", "--lease", lease, "--log-dir",
                                 f"{self.launcher.directory}/logs", "-H", "node[2-3]",
                                 "--nproc_per_node", "2",
                                 *sequence(agents, "0.05", self.stop_file, "5"))
        assert done.code == 0, done
        said = re.search(r"job ([0-9a-f]{12}) runs in the background, pid (\d+)", done.out.decode())
        assert said, done
        self.job, self.pid = said[1], said[2]
        self.workers = self.processes()
        assert [len(pids) for pids in self.workers] == [2, 2]
        wait_until(lambda: set(self.ctl("logs", self.job).texts_by_rank()) == set(range(RANKS)), 20,
                   "the output of each rank is in its file")

    def processes(self):
        return [self.agents.workers(number) for number in (2, 3)]

    def kill_launcher(self):
        killed = self.launcher.run_on(1, "kill", "-9", self.pid, user=USER)
        assert killed.code == 0, killed
        wait_until(lambda: self.launcher.run_on(1, "kill", "-0", self.pid, user=USER).code != 0, 5,
                   "the launcher is dead")

    def ctl(self, *words, **options):
        return self.launcher.run_program(IVYCTL, *words, **options)

    def start_ctl(self, *words):
        return self.launcher.start_program(IVYCTL, *words)

    def assert_files_are_whole(self):
        found = {}
        for top, _, names in os.walk(self.launcher.outside(f"{self.launcher.directory}/logs")):
            for name in names:
                if re.fullmatch(r"rank\d+\.out", name):
                    with open(os.path.join(top, name)) as file:
                        found[name] = file.read().splitlines()
        assert len(found) == RANKS, sorted(found)
        for name, lines in found.items():
            pid = lines[0].split()[1]
            assert lines == [f"pid {pid} count {number}" for number in range(len(lines))], name


@pytest.mark.parametrize("transport", ["ssh", "agent"])
def test_another_launcher_takes_over(agents, transport):
    job = Background(agents, transport)
    job.kill_launcher()
    assert job.processes() == job.workers, "a worker ended without the launcher"
    logs = job.ctl("logs", job.job)
    assert logs.code == 0 and "has exited; showing what it had written" in logs.own_text(), logs
    assert set(logs.texts_by_rank()) == set(range(RANKS)), logs
    with job.start_ctl("attach", job.job) as attached:
        attached.wait_for("took over the job", limit=30)
        seen = attached.said().count(b"count")
        wait_until(lambda: attached.said().count(b"count") > seen + 40, 20, "new output arrives")
        assert job.processes() == job.workers, "the workers are not the same processes"
        job.launcher.file("stop")
        done = attached.finish()
    assert done.code == 5, done
    job.assert_files_are_whole()
    # ivyctl attach after the end still reports the result.
    late = job.ctl("attach", job.job)
    assert late.code == 5 and "has finished" in late.own_text(), late
    agents.wait_clean(10)


@pytest.mark.parametrize("transport", ["ssh", "agent"])
def test_stop_needs_no_running_launcher(agents, transport):
    job = Background(agents, transport)
    job.kill_launcher()
    begin = time.monotonic()
    stopped = job.ctl("stop", job.job)
    assert stopped.code == 0 and "exit code 143" in stopped.own_text(), stopped
    assert job.processes() == [[], []], f"stopped after {time.monotonic() - begin:.1f} s"
    agents.wait_clean(10)
