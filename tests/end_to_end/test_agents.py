# SPDX-License-Identifier: Apache-2.0
"""Jobs by agents, as the ordinary user: start, survive killed and replaced agents, drain.

Nothing of ivyrun is on the hosts before the jobs, except the agent.
"""

import json
import os
import random
import re
import resource
import shutil
import signal
import time

import pytest

from agents import HOME
from launching import BIN, seconds, wait_until
from test_main_job import CALM, TRAIN_LIMIT, check_training

FOUR = ("-H", "node[1-4]")


def sequence(agents, *arguments):
    return [agents.launcher.script("sequence.py"), *arguments]


def check_sequences(done, ranks):
    """Checks that each rank ran as one process and that no number is missing, repeated or torn.

    Returns {rank: number of lines}.
    """
    texts = done.texts_by_rank()
    assert sorted(texts) == list(ranks), done
    for rank, lines in texts.items():
        pid = lines[0].split()[1]
        wanted = [f"pid {pid} count {number}" for number in range(len(lines))]
        assert lines == wanted, f"rank {rank}: {set(lines) ^ set(wanted)}"
    return {rank: len(lines) for rank, lines in texts.items()}


# ---- a job ---------------------------------------------------------------------------------------

def test_training_on_four_hosts(agents):
    if not os.path.isdir("/usr/lib/python3/dist-packages/torch"):
        pytest.skip("python3-torch is not installed")
    agents.start(1, 2, 3, 4)
    # Earlier tests may have left things here: remove everything of ivyrun except the agent.
    for number in (2, 3, 4):
        shutil.rmtree(agents.bed.host_view(number).place(f"{HOME}/.cache/ivyrun"),
                      ignore_errors=True)
    done = agents.run(*FOUR, "--nproc_per_node", "2", *CALM,
                      "/srv/ivyshared/examples/train_ddp.py", "--epochs", "3", limit=TRAIN_LIMIT)
    check_training(done, world=8, epochs=3)
    placed = {(rank, host) for rank, host, _ in done.labelled()}
    assert placed == {(rank, f"node{rank // 2 + 1}") for rank in range(8)}


def test_files_travel_by_agents(agents):
    """--stage and --fetch over agents, to hosts that share nothing: /tmp is private to each."""
    agents.start(1, 2, 3)
    bed = agents.bed
    made = agents.launcher.run_on(1, "sh", "-c", "rm -rf /tmp/travel && mkdir /tmp/travel && echo text > /tmp/travel/in.txt", user="ivyuser")
    assert made.code == 0, made
    try:
        done = agents.run("-H", "node[2-3]", "--stage=/tmp/travel:**", "--stage-to", "/tmp/staged", "--fetch", "out/*.txt:got",
                          "--label", "none", "sh", "-c", "mkdir out && cat in.txt > out/$RANK.txt && pwd")
        assert done.code == 0, done
        assert all(line.startswith("/tmp/staged/trees/travel-") for line in done.out_lines), done
        got = agents.launcher.outside(f"{agents.launcher.directory}/got")
        for number in (2, 3):
            with open(f"{got}/node{number}/out/{number - 2}.txt") as file:
                assert file.read() == "text\n"
    finally:
        for number in (1, 2, 3):
            for name in ("travel", "staged"):
                shutil.rmtree(bed.host_view(number).place(f"/tmp/{name}"), ignore_errors=True)
    agents.wait_clean(10)


def test_the_plan_names_the_transport(agents):
    """With and without an agent on the launcher's host, every other host is dialled directly."""
    agents.start(2, 3)
    hosts = ("-H", "node[1-3]")
    plain = agents.launcher.run(*hosts, "-v", "hostname")
    assert "1 local, 2 by agent\n" in plain.own_text(), plain
    planned = agents.launcher.run(*hosts, "--dry-run", "hostname")
    assert re.search(r"^plan: 3 hosts .*, 1 local, 2 by agent$", planned.out.decode(), re.M), planned
    agents.start(1)
    beside = agents.launcher.run(*hosts, "-v", "hostname")
    assert "1 local, 2 by agent\n" in beside.own_text(), beside
    forced = agents.run(*hosts, "-v", "hostname")
    assert re.search(r", by agent$", forced.own_text(), re.M), forced
    # gRPC logs nothing about names that it does not verify.
    assert "gRPC" not in agents[2].text(), agents[2].text()


def test_auto_falls_back_to_ssh(agents):
    """If agents are configured but ssh is used, a note gives the hosts and the reason, and the plan line shows ssh."""
    agents.credentials.agent("ca", "init", "--ca", agents.credentials.path("strange/ca"))
    agents.credentials.agent("cert", "node4", "--serves-any", "--ca",
                             agents.credentials.path("strange/ca"), "--out",
                             agents.credentials.path("strange/node4"))
    strange, = agents.prepare(4)
    strange.certificates = agents.credentials.path("strange/node4")
    strange.start()
    agents.start(2)
    done = agents.launcher.run(*FOUR, "-v", "hostname")
    shutil.rmtree(agents.credentials.place("strange"))
    assert done.code == 0, done
    assert {host for _, host, _ in done.labelled()} == {f"node{k}" for k in (1, 2, 3, 4)}, done
    text = done.own_text()
    assert "1 local, 1 by agent, 2 by ssh" in text, done
    assert re.search("note: node4: ssh is used: .*certificate", text), done
    assert re.search("note: node3: ssh is used: no agent listens at 10.77.0.3 port 7411", text), done


def test_a_missing_agent_is_an_error_if_agents_are_required(agents):
    agents.start(2)
    done = agents.run("-H", "node[2-3]", "hostname")
    assert done.code == 120 and not done.out, done
    assert re.search("IVY-H003.*1 of 2 hosts", done.own_text()), done
    assert re.search(r"node3(?s:.)*no agent listens at 10\.77\.0\.3 port 7411", done.own_text()), done
    assert "fix:" in done.own_text(), done
    agents.configure(None)
    done = agents.run("-H", "node2", "hostname")
    assert done.code == 120 and "ivy-agent cert --user" in done.own_text(), done


# ---- agents are killed and replaced --------------------------------------------------------------

def restart_under_a_job(agents, times):
    agents.start(1, 2, 3, 4)
    stop = f"{agents.launcher.directory}/stop"
    with agents.job("-v", *FOUR, *sequence(agents, "0.05", stop)) as run:
        run.wait_for("count 2", count=4)
        workers = {number: agents.workers(number) for number in (1, 2, 3, 4)}
        for attempt in range(times):
            # This includes the agent of the launcher's host, which carries the streams of all other hosts at first.
            victim = agents[attempt % 4 + 1]
            victim.kill()
            if victim.number == 4 and attempt >= times // 2 and agents.workers(4):
                # Rank 3 exits with 0 while no agent can report it.
                agents.launcher.file("stop.3", "0")
                wait_until(lambda: not agents.workers(4), 5, "rank 3 ends alone")
            time.sleep(random.random() * 0.3)
            victim.start()
        for number in (1, 2, 3):
            assert agents.workers(number) == workers[number]
        assert not agents.workers(4)
        # Rank 2 fails while all agents are down: its exit code must become the job's.
        for number in (1, 2, 3, 4):
            agents[number].kill()
        agents.launcher.file("stop.2", "7")
        wait_until(lambda: not agents.workers(3), 5, "rank 2 fails alone")
        for number in (1, 2, 3, 4):
            agents[number].start()
        done = run.finish()
    assert done.code == 7, done
    assert re.search(r"rank 2 failed first .*node3.*exit 7", done.own_text()), done
    counts = check_sequences(done, range(4))
    assert min(counts.values()) > times // 2, counts
    assert "rank 3 ended: exit 0\n" in done.own_text(), done
    assert not re.search("rank 3 .*lost", done.own_text()), done
    for number in (3, 4):
        agents[number].wait_for("audit: job=")
        assert agents[number].text().count("audit: job=") == 1, agents[number].text()


def test_agents_killed_twenty_times(agents):
    """The processes stay the same, no output is lost or repeated, and ranks that exit in between have correct exit codes."""
    restart_under_a_job(agents, 20)


@pytest.mark.long
def test_agents_killed_two_hundred_times(agents):
    restart_under_a_job(agents, 200)


def test_an_agent_that_is_stopped_for_a_while_loses_nothing(agents):
    """An agent that is stopped for more than half the lease and then continued loses nothing."""
    agents.start(2, 3)
    stop = f"{agents.launcher.directory}/stop"
    with agents.job("--lease", "20s", "-H", "node[2-3]", *sequence(agents, "0.1", stop)) as run:
        run.wait_for("count 2", count=2)
        agents[2].signal(signal.SIGSTOP)
        time.sleep(6)
        agents[2].signal(signal.SIGCONT)
        seen = run.said().count(b"count")
        wait_until(lambda: run.said().count(b"count") > seen + 20, 10, "the job continues")
        agents.launcher.file("stop")
        done = run.finish()
    assert done.code == 0, done
    check_sequences(done, range(2))


def test_drain_status_and_upgrade_under_a_job(agents):
    agents.start(1, 2, 3)
    # This host's agent has its own copy of the program, which is replaced during the job.
    agents[2].stop()
    agents[2].program = agents.credentials.copy_program("upgraded")
    agents[2].start()
    stop = f"{agents.launcher.directory}/stop"
    with agents.job("-H", "node[1-3]", *sequence(agents, "0.1", stop)) as run:
        run.wait_for("count 2", count=3)
        workers = agents.workers(2)
        status = agents.command(2, "status")
        assert re.search(r"^jobs +1\n  [0-9a-f]{32} host 1 .* attached  3 hosts", status.out.decode(),
                         re.M), status
        drained = agents.command(2, "drain")
        assert drained.code == 0 and "1 job running" in drained.out.decode(), drained
        assert "no (draining)" in agents.command(2, "status").out.decode()
        assert agents.command(2, "drain", "--undo").code == 0
        assert "refused" not in agents.command(2, "status").out.decode()
        assert agents.command(2, "drain").code == 0
        refused = agents.run("-H", "node[2-3]", "hostname")
        assert refused.code == 120 and "draining" in refused.own_text(), refused
        agents.credentials.copy_program("upgraded")
        asked = time.monotonic()
        assert agents[2].stop() == 0, agents[2].text()
        assert time.monotonic() - asked < seconds(3)
        agents[2].start()
        assert agents.workers(2) == workers, "the workers are no longer the same processes"
        # The host stays out of service until the drain is cancelled.
        assert "no (draining)" in agents.command(2, "status").out.decode()
        assert "draining, as before this agent was started" in agents[2].text()
        assert agents.command(2, "drain", "--undo").code == 0
        assert re.search("^accepts jobs +yes", agents.command(2, "status").out.decode(), re.M)
        again = agents.run("-H", "node[2-3]", "hostname")
        assert again.code == 0, again
        seen = run.said().count(b"count")
        wait_until(lambda: run.said().count(b"count") > seen + 10, 10, "the job continues")
        agents.launcher.file("stop")
        done = run.finish()
    assert done.code == 0, done
    check_sequences(done, range(3))
    assert agents.command(2, "drain", "--wait", "5").out.decode().endswith("all jobs have exited\n")


def test_drain_can_stop_the_jobs(agents):
    agents.start(2, 3)
    with agents.job("-H", "node[2-3]", agents.launcher.script("counter.py"), "6000", "0.1") as run:
        run.wait_for("count 1", count=2)
        drained = agents.command(2, "drain", "--stop", "--wait", "30", limit=40)
        assert drained.code == 0 and "all jobs have exited" in drained.out.decode(), drained
        done = run.finish()
    assert done.code != 0, done
    agents.wait_clean(10)


# ---- ps and proxies --------------------------------------------------------------------------------

def test_ps_queries_the_agents_of_hosts(agents):
    agents.start(1, 2, 3)
    ctl = os.path.join(BIN, "ivyctl")
    stop = f"{agents.launcher.directory}/stop"

    def ps(*words):
        return agents.launcher.run_program(ctl, "ps", *words)
    none = ps("-H", "node[2-3]")
    assert none.code == 0 and "the agents of these hosts run no jobs" in none.err_text, none
    with agents.job("-H", "node[2-3]", *sequence(agents, "0.1", stop)) as run:
        run.wait_for("count 1", count=2)
        table = [line.split() for line in ps("-H", "node3,node2").out_lines]
        assert table[0] == ["HOST", "JOB", "TIME", "LAUNCHER", "ATTACHED", "PROGRAM"], table
        assert [row[0] for row in table[1:]] == ["node3", "node2"], "not in the order of the command line"
        job, = {row[1] for row in table[1:]}
        assert all("ivyuser@node1" in row and "yes" in row for row in table[1:]), table
        listed = json.loads(ps("--all-hosts", "--json").out)
        assert {(row["host"], row["job"][:12]) for row in listed} == {("node2", job), ("node3", job)}
        # A host without an agent is named, and the other hosts are still listed.
        partly = ps("-H", "node[2-4]")
        assert partly.code == 1 and "node4: " in partly.err_text, partly
        assert [line.split()[0] for line in partly.out_lines[1:]] == ["node2", "node3"], partly
        agents.launcher.file("stop")
        assert run.finish().code == 0


def test_proxy_variables_are_ignored(agents):
    """No process listens at the proxy, so every program that used it would fail."""
    proxy = {name: "http://127.0.0.1:9" for name in
             ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy")}
    first, second = agents.prepare(1, 2)
    for agent in (first, second):
        agent.environment = dict(proxy)
        agent.start()
    for _ in range(2):
        direct = agents.launcher.run("--transport", "agent", "-H", "node[1-2]", "-v", "hostname",
                                     env=proxy)
        assert direct.code == 0, direct
    assert re.search(r", by agent$", direct.own_text(), re.M), direct
    first.stop()
    alone = agents.run("-H", "node2", "hostname", env=proxy)
    assert alone.code == 0 and alone.out.decode().strip().endswith("node2"), alone
    listed = agents.launcher.run_program(os.path.join(BIN, "ivyctl"), "ps", "-H", "node2", env=proxy)
    assert listed.code == 0, listed


# ---- several jobs --------------------------------------------------------------------------------

def test_two_jobs_on_the_same_hosts(agents):
    """When one launcher is killed, its job ends on all hosts, and the other job is not affected."""
    agents.start(1, 2, 3, 4)
    stop = f"{agents.launcher.directory}/stop"
    with agents.job(*FOUR, *sequence(agents, "0.1", stop)) as other:
        other.wait_for("count 2", count=4)
        workers = {number: agents.workers(number) for number in (2, 3, 4)}
        with agents.job(*FOUR, agents.launcher.script("stubborn.py")) as victim:
            victim.wait_for("is ready", count=4)
            assert all(len(agents.supervisors(number)) == 2 for number in (2, 3, 4))
            victim.signal(signal.SIGKILL)
            wait_until(lambda: all(agents.workers(number) == workers[number]
                                   and len(agents.supervisors(number)) == 1
                                   for number in (2, 3, 4)), 7 + 1, "the killed job is gone")
        agents.launcher.file("stop")
        done = other.finish()
    assert done.code == 0, done
    check_sequences(done, range(4))


# ---- repeated requests start one supervisor -------------------------------------------------------

def open_under_dying_agents(agents, times):
    """Kills the agent between the request and the response, so that the launcher sends the request again over another
    connection. Whether the job succeeds or fails, no rank runs twice and nothing is left."""
    agents.start(2)
    outcomes = {"ran": 0, "failed": 0}
    for attempt in range(times):
        with agents.launcher.start("-H", "node2", "--lease", "5s", "sh", "-c",
                                   f"echo pid $$; sleep {seconds(0.5)}; echo end $$") as run:
            run.pid()
            # The moment of the kill moves from before the first packet to after the response. It is always before the
            # job's end: if an agent dies with the launcher's last message, the supervisor remains for a minute.
            time.sleep(seconds(0.15) * attempt / times)
            agents[2].kill()
            most = 0
            while run.process.poll() is None:
                most = max(most, len(agents.supervisors(2)))
                if not agents[2].is_running():
                    agents[2].start()
            done = run.finish()
        if not agents[2].is_running():
            agents[2].start()
        assert most <= 1, f"attempt {attempt}: {most} supervisors of one job; {done}"
        assert len(re.findall(rb"pid \d+", done.out)) <= 1, done
        if done.code == 0:
            assert done.texts_by_rank() in ({}, {0: done.out_lines}), done
            assert re.fullmatch(rb"pid (\d+)\nend \1\n", done.out), done
            outcomes["ran"] += 1
        else:
            # The agent died before its response, and the start fails immediately if no agent listens. (After the
            # response the launcher reconnects to the next agent.) If the agent had already started a supervisor, that
            # has no workers and waits half a minute for a launcher. This test does not wait so long.
            assert done.code == 120 and "could not be reached" in done.own_text(), done
            assert not agents.workers(2)
            outcomes["failed"] += 1
            for pid in agents.supervisors(2):
                os.kill(pid, signal.SIGKILL)
        agents.wait_clean(7)
    print(outcomes)
    assert outcomes["ran"] > 0, outcomes


def test_an_open_request_is_repeated_if_its_response_is_lost(agents):
    open_under_dying_agents(agents, 6)


@pytest.mark.long
def test_an_open_request_is_repeated_two_hundred_times(agents):
    open_under_dying_agents(agents, 200)


def test_an_agent_disables_core_dumps(agents):
    former = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (former[1], former[1]))
    try:
        agents.start(2)
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, former)
    pid = agents[2].pid()
    with open(f"/proc/{agents[2].process.pid}/limits", encoding="utf-8") as file:
        assert not re.search(r"^Max core file size +0 ", file.read(), re.M), "the test itself runs with a core limit of 0"
    with open(f"/proc/{pid}/limits", encoding="utf-8") as file:
        assert re.search(r"^Max core file size +0 ", file.read(), re.M)
