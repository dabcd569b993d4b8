# SPDX-License-Identifier: Apache-2.0
"""--nnodes MIN:MAX: a job starts without hosts that do not start in time, and continues without hosts that it loses,
even the first one."""

import contextlib
import os
import re
import signal

import pytest

from launching import seconds, wait_until

import leftovers  # (found by way of launching)
from test_ssh_stalls import end_relay

needs_torch = pytest.mark.skipif(not os.path.isdir("/usr/lib/python3/dist-packages/torch"),
                                 reason="python3-torch is not installed")
QUICKLY = {"IVY_TEST_RESTART_PAUSE": "200ms"}
# Before the job continues, the workers of a lost host have the lease and their grace period to end.
SHORT = ("--lease", "3s", "--shutdown-timeout", "1")
LINE = re.compile(r"attempt (\d+) \((\d+)\): rank (\d+) of (\d+), local (\d+), node (\d+) of (\d+), met (\d+) "
                  r"at (\S+)")


def people(done_or_text):
    """Returns {(attempt, rank): (world, local, node, nodes, met, address)} for all lines of the output."""
    text = done_or_text if isinstance(done_or_text, str) else done_or_text.out.decode()
    found = {}
    for attempt, generation, rank, *rest in LINE.findall(text):
        assert attempt == generation
        assert (int(attempt), int(rank)) not in found, f"rank {rank} twice in attempt {attempt}"
        found[int(attempt), int(rank)] = tuple(map(int, rest[:5])) + (rest[5],)
    return found


def hosts_of(done, attempt):
    """Returns the host of each rank of an attempt."""
    return {rank: host for rank, host, text in labelled(done) if text.startswith(f"attempt {attempt} ")}


def labelled(done):
    pattern = re.compile(r"^\[ *(\d+) (\S+?)(?: #\d+/\d+)?\] (.*)$", re.MULTILINE)
    return [(int(rank), host, text) for rank, host, text in pattern.findall(done.out.decode())]


@contextlib.contextmanager
def meeting(launcher, *flags, ranks):
    """Runs meet_peers.py with these flags and yields the run when all ranks of the first attempt have met. The ranks exit when
    the test creates the file "go"."""
    program = (launcher.script("meet_peers.py"), f"{launcher.directory}/go")
    with launcher.start(*SHORT, *flags, *program, env=QUICKLY) as run:
        run.wait_for(r"attempt 0 ", count=ranks)
        yield run


def kill_supervisor(launcher, host):
    for pid in launcher.processes(host, "ivy-supervisor"):
        os.kill(pid, signal.SIGKILL)


def fake_supervisors(local):
    """Returns the supervisors of simulated hosts, ordered by the number of the host."""
    found = [process for process in local.processes() if process.name.startswith(b"ivy-supervis")]
    return sorted(found, key=lambda process: int(re.search(rb"--host[\0 ](\d+)", process.command)[1]))


# ---- The start --------------------------------------------------------------------------------------

def test_a_job_starts_without_a_missing_host(anyone):
    """The host is off. The job starts with the others within --start-timeout and reports the missing host and the reason."""
    anyone.bed.power_off(3)
    go = anyone.file("go")
    done = anyone.run("-H", "node2,node3,node4", "--nnodes", "2:3", "--nproc_per_node", "2", "--start-timeout",
                      f"{seconds(4):g}s", anyone.script("meet_peers.py"), go, limit=40)
    assert done.code == 0, done
    assert len(re.findall(r"ivyrun: warning: starting with 2 of 3 hosts \(--nnodes 2:3\), without node3 \(.+\)\n",
                          done.err_text)) == 1, done
    met = people(done)
    assert sorted(met) == [(0, 0), (0, 1), (0, 2), (0, 3)], done
    assert {entry[:5] for entry in met.values()} == {(4, 0, 0, 2, 4), (4, 1, 0, 2, 4), (4, 0, 1, 2, 4),
                                                     (4, 1, 1, 2, 4)}, done
    assert hosts_of(done, 0) == {0: "node2", 1: "node2", 2: "node4", 3: "node4"}, done


def test_an_unreachable_first_host_is_reported(hosts):
    """A refused connection is known immediately, so the job does not wait for --start-timeout. node3 runs the store."""
    go = hosts.file("go")
    done = hosts.run("-H", "node2:port=2299,node3,node4", "--nnodes", "2:3", "--start-timeout", "60s",
                     hosts.script("meet_peers.py"), go, limit=25)
    assert done.code == 0, done
    assert re.search(r"without node2 \(connecting: .*refused", done.err_text), done
    met = people(done)
    assert sorted(met) == [(0, 0), (0, 1)] and {entry[5] for entry in met.values()} == {"10.77.0.3"}, done


def test_too_few_hosts_start(hosts):
    hosts.bed.power_off(3)
    done = hosts.run("-H", "node2,node3,node4:port=2299", "--nnodes", "2:3", "--start-timeout", f"{seconds(4):g}s", "true",
                     limit=40)
    assert done.code == 120, done
    assert "--nnodes 2:3 needs 2" in done.err_text, done
    assert "node3" in done.err_text and "node4" in done.err_text and not done.out, done


def test_one_number_needs_every_host(hosts):
    done = hosts.run("-H", "node2,node3:port=2299", "--nnodes", "2", "true", limit=25)
    assert done.code == 120 and "1 of 2 hosts could not be reached" in done.err_text, done
    assert "--nnodes" not in done.err_text, done


# ---- Lost hosts -------------------------------------------------------------------------------------

@pytest.mark.parametrize("how", ["cut", "power_off"])
def test_a_host_is_lost(hosts, how):
    with meeting(hosts, "-H", "node2,node3,node4", "--nnodes", "2:3", "--nproc_per_node", "2", ranks=6) as run:
        getattr(hosts.bed, how)(3)
        run.wait_for(r"attempt 1 \(1\): rank", 40, count=4)
        # The lost host must stop its workers itself, because no message can reach it.
        if how != "power_off":
            assert not hosts.processes(3, "ivy-supervisor") and not hosts.processes(3, "python3")
        hosts.file("go")
        done = run.finish()
    assert done.code == 0, done
    assert re.search(r"ivyrun: host node3 was lost: no response for ", done.err_text), done
    assert re.search(r"ivyrun: attempt 1 of 2 failed: host node3 was lost: .*; attempt 2 starts in", done.err_text)
    assert re.search(r"ivyrun: continuing with 2 of 3 hosts \(--nnodes 2:3\), without node3 \(", done.err_text), done
    assert "ivyrun: succeeded at attempt 2 of 2" in done.err_text, done
    assert hosts_of(done, 1) == {0: "node2", 1: "node2", 2: "node4", 3: "node4"}, done
    met = people(done)
    assert {met[1, rank] for rank in range(4)} == {(4, 0, 0, 2, 4, "10.77.0.2"), (4, 1, 0, 2, 4, "10.77.0.2"),
                                                   (4, 0, 1, 2, 4, "10.77.0.2"), (4, 1, 1, 2, 4, "10.77.0.2")}


def test_a_host_that_shuts_down_in_order(hosts):
    """The supervisor gets TERM, as when systemd stops the host's services."""
    with meeting(hosts, "-H", "node2,node3,node4", "--nnodes", "2:3", ranks=3) as run:
        for pid in hosts.processes(2, "ivy-supervisor"):
            os.kill(pid, signal.SIGTERM)
        run.wait_for(r"attempt 1 \(1\): rank", 40, count=2)
        wait_until(lambda: not hosts.processes(2, "ivy-supervisor"), 10, "node2's supervisor has ended")
        hosts.file("go")
        done = run.finish()
    assert done.code == 0, done
    assert "attempt 1 of 2 failed: node2 will be stopped (SIGTERM to its supervisor)" in done.err_text
    assert hosts_of(done, 1) == {0: "node3", 1: "node4"}, done


def test_a_lost_host_that_returns_is_ignored(hosts):
    with meeting(hosts, "-H", "node2,node3", "--nnodes", "1:2", ranks=2) as run:
        hosts.bed.cut(3)
        run.wait_for(r"host node3 was lost", 40)
        hosts.bed.join(3)
        run.wait_for(r"attempt 1 \(1\): rank 0 of 1", 40)
        wait_until(lambda: not hosts.processes(3, "ivy-supervisor"), 15, "node3's supervisor has ended")
        hosts.file("go")
        done = run.finish()
    assert done.code == 0 and len(people(done)) == 3, done


def pids_of(launcher, host, text):
    """Returns the host's processes whose command line starts with `text`."""
    init = launcher.bed.init_pid(host)
    return [process.pid for process in leftovers.processes_of(init) if process.words().startswith(text)]


@contextlib.contextmanager
def silent_sshd(launcher, host):
    """The host's sshd accepts no further connection, but does not refuse any. Open ones continue."""
    pids = pids_of(launcher, host, "sshd: /usr/sbin/sshd")
    assert len(pids) == 1, pids
    os.kill(pids[0], signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pids[0], signal.SIGCONT)


@pytest.mark.long
def test_two_worlds_never_run_at_once_after_a_hang_up(hosts):
    """The connection hangs up and no new one can be made. Then the host's supervisor waits for one longer than the lease,
    and so must the restart: 60 s."""
    log, go = hosts.file("log"), f"{hosts.directory}/go"
    with hosts.start(*SHORT, "-H", "node2,node3", "--nnodes", "1:2", hosts.script("worlds.py"), log, go,
                     env=QUICKLY) as run:
        run.wait_for(r"attempt 0 on", count=2)
        with silent_sshd(hosts, 3):
            end_relay(hosts, 3)
            run.wait_for(r"host node3 was lost: no response for ", 40)
            assert hosts.processes(3, "ivy-supervisor"), "the supervisor does not wait for a new connection"
            run.wait_for(r"attempt 1 on", 120)
        assert not hosts.processes(3, "ivy-supervisor") and not hosts.processes(3, "python3")
        hosts.file("go")
        done = run.finish()
    assert done.code == 0, done
    times = {}
    for line in hosts.read("log").decode().splitlines():
        attempt, host, time = line.split()
        times.setdefault((int(attempt), host), []).append(float(time))
    assert sorted(times) == [(0, "node2"), (0, "node3"), (1, "node2")], done
    assert max(times[0, "node3"]) > max(times[0, "node2"]) + 30, "node3's rank ended with its launcher's lease"
    assert max(times[0, "node3"]) < min(times[1, "node2"]), done


def test_the_first_host_is_lost(anyone):
    """The store and MASTER_ADDR move to the next host, which becomes the host of rank 0."""
    with meeting(anyone, "-H", "node3,node2,node4", "--nnodes", "2:3", ranks=3) as run:
        anyone.bed.cut(3)
        run.wait_for(r"attempt 1 \(1\): rank", 40, count=2)
        anyone.file("go")
        done = run.finish()
    assert done.code == 0, done
    assert hosts_of(done, 0) == {0: "node3", 1: "node2", 2: "node4"}, done
    assert hosts_of(done, 1) == {0: "node2", 1: "node4"}, done
    met = people(done)
    assert {met[0, rank][5] for rank in range(3)} == {"10.77.0.3"}, done
    assert {met[1, rank] for rank in range(2)} == {(2, 0, 0, 2, 2, "10.77.0.2"), (2, 0, 1, 2, 2, "10.77.0.2")}


def test_hosts_are_lost_until_too_few_are_left(hosts):
    with meeting(hosts, "-H", "node2,node3,node4", "--nnodes", "2:3", ranks=3) as run:
        hosts.bed.cut(4)
        run.wait_for(r"attempt 1 \(1\): rank", 40, count=2)
        hosts.bed.cut(3)
        done = run.finish(40)
    assert done.code == 121, done
    assert "error[IVY-R006]: host node3 was lost" in done.err_text, done
    # Hosts with the same reason are printed as one range.
    without = r"(node3 \(.*\), node4 \(.*\)|node\[3-4\] \(.*\))"
    assert re.search(rf"1 of 3 hosts \(--nnodes 2:3\), without {without}: too few", done.err_text), done
    assert re.search(r"  attempt 1 of 2: host node4 was lost", done.err_text), done
    assert (2, 0) not in people(done), done


def test_two_nodes_lost_together_cost_one_restart(hosts):
    """Both hosts are lost in the same attempt, so one restart is enough."""
    with meeting(hosts, "-H", "node2,node3,node4", "--nnodes", "1:3", ranks=3) as run:
        hosts.bed.cut(3)
        hosts.bed.cut(4)
        run.wait_for(r"rank 0 of 1, local 0", 60)
        hosts.file("go")
        done = run.finish()
    assert done.code == 0, done
    assert re.search(r"continuing with 1 of 3 hosts \(--nnodes 1:3\), without node", done.err_text), done
    assert re.search(r"  attempt 1 of 3: host node[34] was lost: .*, host node[34] was lost: ", done.err_text), done
    assert "succeeded at attempt 2 of 3" in done.err_text, done


def test_a_host_is_lost_between_two_attempts(hosts):
    """The host that should run the next generation's store is lost during the pause. The generation is planned again."""
    script = hosts.file("work.sh", "[ $IVY_GENERATION = 2 ] && exit 0\n"
                        "[ $IVY_GENERATION$RANK = 01 ] && sleep 1 && exit 3; echo up $IVY_GENERATION $WORLD_SIZE; "
                        "[ $IVY_GENERATION = 1 ] && exit 0; sleep 600\n")
    with hosts.start(*SHORT, "--max-restarts", "2", "-H", "node2,node3,node4", "--nnodes", "2:3", "sh",
                     script) as run:
        run.wait_for(r"attempt 1 of 4 failed: rank 1 .* attempt 2 starts in 1 s")
        kill_supervisor(hosts, 2)
        done = run.finish(40)
    assert done.code == 0, done
    assert "the supervisor on host node2 was lost" in done.err_text, done
    assert done.out.count(b"up 1 2\n") == 2, done
    hosts.wait_clean(7)


def test_a_worker_that_fails_counts_and_a_lost_host_does_not(hosts):
    """One restart is allowed. The lost host does not use it up, the first failure does, and the second failure ends the job."""
    script = hosts.file("work.sh", "echo up $IVY_GENERATION; [ $IVY_GENERATION = 0 ] && sleep 600\n"
                        "while ! test -e " + hosts.directory + "/fail$IVY_GENERATION; do sleep 0.05; done\n"
                        "[ $RANK = 0 ] && exit $((40 + IVY_GENERATION)); sleep 600\n")
    with hosts.start(*SHORT, "--max-restarts", "1", "-H", "node2,node3", "--nnodes", "1:2", "sh", script,
                     env=QUICKLY) as run:
        run.wait_for("up 0", count=2)
        kill_supervisor(hosts, 3)
        run.wait_for("up 1", 40)
        hosts.file("fail1")
        run.wait_for("up 2", 40)
        hosts.file("fail2")
        done = run.finish()
    assert done.code == 42, done
    assert re.findall(r"  attempt (\d) of (\d): ", done.err_text) == [("1", "3"), ("2", "3")], done
    assert "from rank 0 at attempt 3 of 3" in done.err_text, done


def test_workers_that_fail_because_of_a_lost_host_are_not_the_cause(hosts):
    """The supervisor is killed and its worker with it. The other worker loses its connection and fails."""
    script = hosts.file("peer.py", (
        "import os, socket, sys, time\n"
        "rank, world, attempt = (int(os.environ[n]) for n in ('RANK', 'WORLD_SIZE', 'IVY_GENERATION'))\n"
        "if world == 1: print('alone', flush=True); sys.exit(0)\n"
        "if rank == 0:\n"
        "    server = socket.create_server(('', 7171)); peer, _ = server.accept()\n"
        "else:\n"
        "    while True:\n"
        "        try: peer = socket.create_connection(('10.77.0.2', 7171)); break\n"
        "        except OSError: time.sleep(0.05)\n"
        "print('met', flush=True)\n"
        "peer.recv(1); sys.exit('the peer went away')\n"))
    with hosts.start(*SHORT, "-H", "node2,node3", "--nnodes", "1:2", script, env=QUICKLY) as run:
        run.wait_for("met", count=2)
        kill_supervisor(hosts, 3)
        done = run.finish(40)
    assert done.code == 0 and b"alone" in done.out, done
    assert "attempt 1 of 2 failed: the supervisor on host node3 was lost" in done.err_text, done


def test_ctrl_c_during_the_wait_for_a_lost_host(hosts):
    script, go = hosts.script("meet_peers.py"), f"{hosts.directory}/go"
    with hosts.start("--lease", "3s", "--shutdown-timeout", "20", "-H", "node2,node3", "--nnodes", "1:2", script,
                     go) as run:
        run.wait_for(r"attempt 0 ", count=2)
        hosts.bed.cut(3)
        run.wait_for(r"attempt 1 of 2 failed", 40)
        run.signal(signal.SIGINT)
        done = run.finish(20)
    assert done.code == -signal.SIGINT, done
    assert "attempt 1 of 2: host node3 was lost" in done.err_text, done


# ---- torch ------------------------------------------------------------------------------------------

@needs_torch
def test_torch_continues_from_its_checkpoint_on_fewer_hosts(hosts):
    """The host of rank 0, which ran torch's store, is lost."""
    user = hosts.as_user("ivyuser")
    with user.start(*SHORT, "-H", "node2,node3,node4", "--nnodes", "2:3", user.script("elastic.py"),
                    f"{user.directory}/checkpoint", "6", "wait", env=QUICKLY) as run:
        run.wait_for("step 3 is saved", 60, count=3)
        hosts.bed.cut(2)
        done = run.finish(90)
    assert done.code == 0, done
    out = done.out.decode()
    assert len(re.findall(r"attempt 0 begins at step 0, 3 ranks", out)) == 3, done
    assert len(re.findall(r"attempt 1 begins at step 3, 2 ranks", out)) == 2, done
    sums = re.findall(r"finished at step 6 of attempt 1, sum (\S+)", out)
    assert len(sums) == 2 and len(set(sums)) == 1, done


# ---- On one machine, and by agents ------------------------------------------------------------------

NAMED_RANKS = [("--show-ranks", "1"), ("--stdin", "1"), ("--wrap", "env", "--wrap-ranks", "1")]


@pytest.mark.parametrize("flags", NAMED_RANKS, ids=lambda flags: flags[-2])
def test_a_rank_that_is_named_in_a_flag_is_lost(local, flags):
    """The job continues: the rank may come back with its host."""
    with meeting(local, "--fake-hosts", "2", "--nnodes", "1:2", *flags, "--log-dir", "logs",
                 ranks=1 if "--show-ranks" in flags else 2) as run:
        os.kill(fake_supervisors(local)[1].pid, signal.SIGKILL)
        local.file("go")
        done = run.finish()
    assert done.code == 0 and "continuing with 1 of 2 hosts" in done.err_text, done
    job = os.readlink(os.path.join(local.directory, "logs/latest"))
    assert b"attempt 1 (1): rank 0 of 1" in local.read(f"logs/{job}/1/rank00000.out"), done


@pytest.mark.parametrize("flags", NAMED_RANKS, ids=lambda flags: flags[-2])
def test_a_rank_that_is_named_in_a_flag_is_on_a_missing_host(local, flags):
    done = local.run("-H", "localhost,no-such-host", "--nnodes", "1:2", "--start-timeout", f"{seconds(2):g}s", *flags, "true")
    assert done.code == 0 and f"warning[IVY-P016]: {flags[-2]}: there is no rank 1" in done.err_text, done


def test_simulated_hosts(local):
    """The supervisor of the first host is killed. The other hosts continue, and the store runs on one of them."""
    with meeting(local, "--fake-hosts", "3", "--nnodes", "1:3", "--nproc_per_node", "2", "--log-dir", "logs", ranks=6) as run:
        supervisors = fake_supervisors(local)
        assert len(supervisors) == 3, supervisors
        os.kill(supervisors[0].pid, signal.SIGKILL)
        run.wait_for(r"attempt 1 \(1\): rank", 40, count=4)
        local.file("go")
        done = run.finish()
    assert done.code == 0, done
    met = people(done)
    assert {met[1, rank][:5] for rank in range(4)} == {(4, 0, 0, 2, 4), (4, 1, 0, 2, 4), (4, 0, 1, 2, 4),
                                                       (4, 1, 1, 2, 4)}, done
    job = os.readlink(os.path.join(local.directory, "logs/latest"))
    assert sorted(os.listdir(os.path.join(local.directory, "logs", job, "1"))) == \
        ["attempt.json"] + sorted(f"rank{rank:05d}.{kind}" for rank in range(4) for kind in ("out", "err"))


def test_agents(agents):
    agents.start(2, 3, 4)
    launcher = agents.launcher
    with meeting(launcher, "--transport", "agent", "-H", "node2,node3,node4", "--nnodes", "2:3", ranks=3) as run:
        launcher.bed.cut(2)
        run.wait_for(r"attempt 1 \(1\): rank", 60, count=2)
        launcher.file("go")
        done = run.finish()
    assert done.code == 0 and hosts_of(done, 1) == {0: "node3", 1: "node4"}, done
