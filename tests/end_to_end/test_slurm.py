# SPDX-License-Identifier: Apache-2.0
"""Jobs inside a real Slurm's allocations: one srun step starts the hosts, which dial back.

Slurm finds a step's processes by /proc and sends every signal to all of them. With --long all tests also run with a Slurm
that finds them by cgroup and sends all signals except SIGKILL only to the step's tasks; test_slurm_ends_by_cgroup.py
always uses such a Slurm.
"""

import os
import re
import shutil
import signal
import socket
import time

import pytest

from launching import seconds, wait_until
from slurm_jobs import Slurm, control, running_on
from test_main_job import CALM, TRAIN_LIMIT, check_training

FOUR = ("-N", "4")
HOSTS = [f"node{number}" for number in (1, 2, 3, 4)]


@pytest.fixture(scope="module", params=["linuxproc", pytest.param("cgroup", marks=pytest.mark.long)])
def track(request, testbed):
    with running_on(testbed, request.param):
        yield request.param


@pytest.fixture
def slurm(hosts, track):
    with Slurm(hosts.as_user("ivyuser"), track) as made:
        yield made


def sequence(slurm, *arguments):
    return [slurm.launcher.script("sequence.py"), *arguments]


# ---- a job ---------------------------------------------------------------------------------------

def test_training_by_sbatch(slurm):
    if not os.path.isdir("/usr/lib/python3/dist-packages/torch"):
        pytest.skip("python3-torch is not installed")
    job = slurm.batch(FOUR, f"IVYRUN --nproc_per_node 2 {' '.join(CALM)} "
                            "/srv/ivyshared/examples/train_ddp.py --epochs 3")
    done = job.finish(TRAIN_LIMIT)
    check_training(done, world=8, epochs=3)
    placed = {(rank, host) for rank, host, _ in done.labelled()}
    assert placed == {(rank, f"node{rank // 2 + 1}") for rank in range(8)}


def test_hosts_without_ivyrun_installed(slurm):
    """The home is mounted noexec on node5 and full on node6."""
    for number in (2, 5, 6):
        for place in ("/home/ivyuser/.cache/ivyrun", "/tmp/ivyrun-cache-2001",
                      "/dev/shm/ivyrun-cache-2001"):
            shutil.rmtree(slurm.bed.host_view(number).place(place), ignore_errors=True)
    words = ["/bin/sh", "-c", "echo here"]
    done = slurm.run(["-w", "node[2,5-6]"], *words)
    assert done.code == 0, done
    assert sorted(host for _, host, _ in done.labelled()) == ["node2", "node5", "node6"]
    # The second job does not upload anything.
    again = slurm.run(["-w", "node[2,5-6]"], *words)
    assert again.code == 0 and again.took < seconds(3), again


def test_files_travel_by_srun(slurm):
    """--stage and --fetch over the hosts of an srun step, whose /tmp is private to each."""
    places = ("/tmp/travel", "/tmp/staged")
    job = slurm.batch(("-N", "3"), "mkdir -p /tmp/travel && echo text > /tmp/travel/in.txt && "
                      "IVYRUN --stage=/tmp/travel:** --stage-to /tmp/staged --fetch 'out/*.txt:got' --label none "
                      "sh -c 'mkdir -p out && cat in.txt > out/$RANK.txt && pwd' && cat got/*/out/*.txt")
    try:
        done = job.finish()
        assert done.code == 0, done
        lines = done.out_lines
        assert sum(line.startswith("/tmp/staged/trees/travel-") for line in lines) == 3, done
        assert lines.count("text") == 3, done
    finally:
        for number in slurm.bed.numbers():
            for place in places:
                shutil.rmtree(slurm.bed.host_view(number).place(place), ignore_errors=True)


def test_workers_live_in_the_step(slurm):
    """All workers are processes of one step, and Slurm's variables describe them."""
    code = ("import os; print(os.environ['SLURM_JOB_ID'], os.environ['SLURM_STEP_ID'], "
            "os.environ['SLURM_PROCID'], os.environ['SLURM_NTASKS'], os.environ['CALLERS'], "
            "os.environ['SLURM_CPUS_PER_TASK'], [line.strip() for line in open('/proc/self/cgroup') "
            "if 'freezer' in line])")
    done = slurm.run([*FOUR, "-c", "2"], "/usr/bin/python3", "-c", code, env={"CALLERS": "all"})
    assert done.code == 0, done
    texts = done.texts_by_rank()
    assert sorted(texts) == [0, 1, 2, 3]
    for rank, (text,) in texts.items():
        job, step, procid, tasks, callers, cpus, cgroup = text.split(" ", 6)
        assert (procid, tasks, callers, cpus) == (str(rank), "4", "all", "2"), done
        if slurm.track == "cgroup":
            assert f"/job_{job}/step_{step}" in cgroup, done


def test_some_hosts_of_the_allocation(slurm):
    """The hosts are used in the order of -H. The number of tasks in sbatch's options does not count."""
    done = slurm.run([*FOUR, "--ntasks-per-node", "3"], "-H", "node3,node1", "--nproc_per_node", "2",
                     "/bin/sh", "-c", "echo $(hostname)")
    assert done.code == 0, done
    assert sorted((rank, text) for rank, _, text in done.labelled()) == [
        (0, "node3"), (1, "node3"), (2, "node1"), (3, "node1")]


def test_exit_code_and_cause(slurm):
    code = "import os, sys, time; time.sleep(0.3 if os.environ['RANK'] == '2' else 60); sys.exit(7)"
    job = slurm.batch(FOUR, f"IVYRUN /usr/bin/python3 -c \"{code}\"")
    done = job.finish()
    assert done.code == 7, done
    assert "rank 2 failed first (node3" in done.err_text, done


def test_dry_run_lists_the_listening_addresses(slurm):
    done = slurm.run(FOUR, "--dry-run", "-v", "/bin/true")
    assert done.code == 0, done
    text = done.out.decode()
    assert re.search(r"^remote command: srun .*--overlap.*--input=all", text, re.M), done
    assert re.search(r"^listens: 10\.77\.0\.1:\d+ here", text, re.M), done
    ranged = slurm.run(FOUR, "--dry-run", "--port-range", "47000-47009", "/bin/true")
    assert re.search(r"^listens: 10\.77\.0\.1:47009 here", ranged.out.decode(), re.M), ranged


def test_restarts_in_the_same_step(slurm):
    code = ("import os, sys, time; print('attempt', os.environ['IVY_GENERATION'], flush=True); "
            "time.sleep(0.2); "
            "sys.exit(3 if os.environ['RANK'] == '1' and os.environ['IVY_GENERATION'] == '0' else 0)")
    done = slurm.run(FOUR, "--max-restarts", "1", "/usr/bin/python3", "-c", code,
                     env={"IVY_TEST_RESTART_PAUSE": "50ms"})
    assert done.code == 0, done
    assert done.out.count(b"attempt 1\n") == 4, done


# ---- concurrent steps and jobs -------------------------------------------------------------------

def test_the_users_srun_runs_concurrently(slurm):
    """The user's srun gets a task for each processor while ivyrun's step is running."""
    stop = slurm.launcher.directory + "/stop"
    job = slurm.batch([*FOUR, "--exclusive"],
                      f"IVYRUN {' '.join(sequence(slurm, '0.05', stop))} & wait_for=$!\n"
                      "sleep 1; timeout 20 srun -N 4 -n 32 hostname | sort | uniq -c; echo srun $?\n"
                      f"touch {stop}; wait $wait_for; echo ivyrun $?")
    done = job.finish()
    assert "srun 0" in done.err_text and "ivyrun 0" in done.err_text, done
    for host in HOSTS:
        assert re.search(rf"^ +8 {host}$", done.err_text, re.M), done


def test_two_jobs_on_the_same_hosts(slurm):
    words = ["/bin/sh", "-c", "sleep 1; echo $SLURM_JOB_ID $(hostname)"]
    options = [*FOUR, "-c", "2"]
    with slurm.start(options, *words) as one, slurm.start(options, *words) as other:
        ends = [one.finish(60), other.finish(60)]
    for done in ends:
        assert done.code == 0, done
        assert sorted(text.split()[1] for _, _, text in done.labelled()) == HOSTS, done
    jobs = [{text.split()[0] for _, _, text in done.labelled()} for done in ends]
    assert len(jobs[0]) == len(jobs[1]) == 1 and jobs[0] != jobs[1]


# ---- ends ----------------------------------------------------------------------------------------

def test_scancel_leaves_nothing(slurm):
    """This includes processes that ignore TERM and have moved to new sessions."""
    # Slurm's KillWait is 5 s here: ivyrun must finish before Slurm kills it.
    job = slurm.batch(FOUR, "IVYRUN --shutdown-timeout 2s " + slurm.launcher.script("stubborn.py"))
    job.wait_for("is ready", count=4)
    assert slurm.command("scancel", str(job.number)).code == 0
    job.finish()
    slurm.launcher.wait_clean(5)


TAKES_TWO_SECONDS = r"""
import os, signal, time
heard = []
# A line is one write: a second signal may come within the first one's handler.
signal.signal(signal.SIGTERM, lambda *_: (heard.append(1), os.write(1, b"got SIGTERM %d\n" % len(heard))))
print("ready", flush=True)
while not heard: time.sleep(0.05)
end = time.monotonic() + 2
while time.monotonic() < end: time.sleep(0.05)
print("done in peace", flush=True)
"""


def test_scancel_gives_ranks_time_to_exit(slurm):
    """Ranks get Slurm's TERM and have time to exit by themselves."""
    job = slurm.batch(FOUR, f"exec IVYRUN {slurm.launcher.file('slow.py', TAKES_TWO_SECONDS)}")
    job.wait_for("ready", count=4)
    assert slurm.command("scancel", str(job.number)).code == 0
    job.finish()
    texts = [text for _, _, text in job_lines(job)]
    assert texts.count("got SIGTERM 1") == texts.count("done in peace") == 4, job.text()
    # With linuxproc, Slurm has also sent TERM to the ranks.
    assert slurm.track == "linuxproc" or "got SIGTERM 2" not in texts, job.text()


def job_lines(job):
    text = job.text().encode()
    from launching import Finished
    return Finished(0, text, text, 0).labelled()


@pytest.mark.parametrize("who", [[], ["--full"]], ids=["steps", "all"])
def test_a_signal_of_slurm_reaches_ranks_once(slurm, who):
    stop = ["scancel", "--signal=USR1", *who]
    job = slurm.batch(FOUR, f"exec IVYRUN {slurm.launcher.script('signals.py')}")
    job.wait_for("ready", count=4)
    assert slurm.command(*stop, str(job.number)).code == 0
    job.wait_for("got SIGUSR1 1", count=4)
    time.sleep(seconds(1))
    assert "SIGUSR1 2" not in job.text(), job.text()
    # The signal ended no rank.
    assert job.state() == "RUNNING"


def test_launcher_is_killed(slurm):
    """The hosts detect it and clean up, and Slurm's step ends."""
    with slurm.start(FOUR, "--shutdown-timeout", "2s",
                     slurm.launcher.script("stubborn.py")) as run:
        run.wait_for("is ready", count=4)
        run.signal(signal.SIGKILL)
        run.process.wait(seconds(20))
        slurm.launcher.wait_clean(10)
    wait_until(lambda: slurm.idle(6), 20, "six idle hosts")


def test_ctrl_c_twice(slurm):
    with slurm.start(FOUR, slurm.launcher.script("stubborn.py")) as run:
        run.wait_for("is ready", count=4)
        run.signal(signal.SIGINT)
        run.wait_for("again to kill")
        time.sleep(0.2)  # Two signals at the same time would count as one request.
        run.signal(signal.SIGINT)
        done = run.finish()
    assert "interrupted by SIGINT" in done.err_text, done
    slurm.launcher.wait_clean(5)


def test_a_task_of_the_step_is_killed(slurm):
    """Slurm then ends the whole step on that host, and ivyrun reports the lost host."""
    stop = slurm.launcher.directory + "/stop"
    with slurm.start(FOUR, "--lease", "30s", *sequence(slurm, "0.05", stop)) as run:
        run.wait_for("count 5", count=4)
        started = time.monotonic()
        assert slurm.kill(3, "ivy-node") == 1
        done = run.finish()
    assert done.code == 121, done
    assert "node3" in done.own_text() and time.monotonic() - started < seconds(12), done
    # After SIGKILL nothing was cleaned up. The next job on the host removes its files unless they are very recent.
    time.sleep(11)
    assert slurm.run(FOUR, "/bin/true").code == 0
    slurm.launcher.wait_clean(5)


def test_a_host_goes_down(slurm):
    with slurm.start(FOUR, "--lease", "4s", *sequence(slurm, "0.05", "/never")) as run:
        run.wait_for("count 5", count=4)
        slurm.bed.power_off(3)
        done = run.finish(60)
    assert done.code == 121 and "node3" in done.own_text(), done
    slurm.launcher.wait_clean_of_ours(10)
    # Slurm waits until the host itself reports the job's end, so Slurm is restarted.
    slurm.bed.repair()
    control(slurm.bed, "down")
    assert not control(slurm.bed, "up", slurm.track)


# ---- transports ------------------------------------------------------------------------------------

def test_broken_connections_are_replaced(slurm):
    """No output is lost or repeated, and no worker is affected."""
    stop = slurm.launcher.directory + "/stop"
    with slurm.start(FOUR, *sequence(slurm, "0.01", stop)) as run:
        run.wait_for("count 5", count=4)
        for host in (1, 3, 1, 4):
            wait_until(lambda host=host: slurm.kill(host, "ivy-dial"), 10, f"a transport on {host}")
            time.sleep(seconds(0.3))
        slurm.launcher.file("stop")
        done = run.finish()
    assert done.code == 0, done
    for rank, lines in done.texts_by_rank().items():
        pid = lines[0].split()[1]
        assert lines == [f"pid {pid} count {number}" for number in range(len(lines))], rank


def test_a_short_cut_is_survived(slurm):
    stop = slurm.launcher.directory + "/stop"
    with slurm.start(FOUR, "--lease", "30s", *sequence(slurm, "0.05", stop)) as run:
        run.wait_for("count 5", count=4)
        slurm.bed.cut(3)
        time.sleep(6)
        slurm.bed.join(3)
        before = run.said().count(b"[ 2 node3]")
        wait_until(lambda: run.said().count(b"[ 2 node3]") > before + 200, 40, "node3's output")
        slurm.launcher.file("stop")
        done = run.finish()
    assert done.code == 0, done
    lines = done.texts_by_rank()[2]
    pid = lines[0].split()[1]
    assert lines == [f"pid {pid} count {number}" for number in range(len(lines))]


STRANGERS = {
    "garbage": b"\x00\xff" * 300,
    "http": b"GET / HTTP/1.1\r\nHost: node1\r\n\r\n",
    "a large record": b"\x16\x03\x01\x40\x00" + b"x" * 600,
    "a relay's line": b"IVYOPEN 1 new 0123456789abcdef0123456789abcdef 0\n",
}


def openssl(slurm, host, address, *words):
    return slurm.launcher.run_on(host, "/bin/sh", "-c", "sleep 1 | timeout 10 openssl s_client "
                                 f"-connect {address[0]}:{address[1]} {' '.join(words)}",
                                 user="ivyuser")


def test_unauthenticated_connections_are_dropped(slurm):
    """A client without the job's key gets no data and is named in a warning. The job is not affected."""
    stop = slurm.launcher.directory + "/stop"
    with slurm.start(FOUR, *sequence(slurm, "0.02", stop)) as run:
        run.wait_for("count 5", count=4)
        address = slurm.listening(run)
        job_id = job_id_of(slurm)
        for name, text in STRANGERS.items():
            code = ("import socket, sys; s = socket.create_connection((sys.argv[1], int(sys.argv[2])));"
                    "s.settimeout(8); s.sendall(bytes.fromhex(sys.argv[3]));\n"
                    "try: print('got', len(s.recv(100)))\n"
                    "except OSError: print('got 0')")
            said = slurm.launcher.run_on(5, "/usr/bin/python3", "-c", code, address[0],
                                         str(address[1]), text.hex())
            assert said.out == b"got 0\n", (name, address, said)
        key = "ab" * 32
        for words in (["-tls1_3"], ["-tls1_2"], ["-tls1_3", "-psk", key, "-psk_identity", job_id],
                      ["-tls1_3", "-psk", key, "-psk_identity", "0" * 32]):
            said = openssl(slurm, 5, address, *words)
            assert b"Reused, TLSv1.3" not in said.out and said.code != 0, said
        # More silent connections than may be open at a time.
        quiet = ("import socket, sys, time; a = (sys.argv[1], int(sys.argv[2]))\n"
                 "c = [socket.create_connection(a) for _ in range(300)]; time.sleep(1)")
        slurm.launcher.run_on(5, "/usr/bin/python3", "-c", quiet, address[0], str(address[1]))
        # A host of the job can still reconnect.
        assert slurm.kill(2, "ivy-dial")
        count = run.said().count(b"[ 1 node2]")
        wait_until(lambda: run.said().count(b"[ 1 node2]") > count + 50, 10, "node2's output")
        slurm.launcher.file("stop")
        done = run.finish()
    assert done.code == 0, done
    assert "warning: dropped a connection from 10.77.0.5" in done.err_text, done


def job_id_of(slurm):
    import leftovers
    for process in leftovers.processes_of(slurm.bed.init_pid(2)):
        match = re.search(rb"IVY_JOB_ID=([0-9a-f]{32})", process.environment)
        if match:
            return match[1].decode()
    raise AssertionError("no worker on node2")


def test_the_key_is_not_visible(slurm):
    """The key is not in an argument or the environment of any process."""
    import leftovers
    stop = slurm.launcher.directory + "/stop"
    with slurm.start(FOUR, *sequence(slurm, "0.05", stop)) as run:
        run.wait_for("count 2", count=4)
        for host in (1, 2):
            for process in leftovers.processes_of(slurm.bed.init_pid(host)):
                text = process.command + b"\0" + process.environment
                assert b"\nkey " not in text and b"key=" not in text.lower().replace(b"ssh_key=", b"")
        slurm.launcher.file("stop")
        assert run.finish().code == 0


# ---- errors --------------------------------------------------------------------------------------

def test_a_failing_srun_is_reported(slurm):
    done = slurm.run(FOUR, "--srun-args=--no-such-option", "/bin/true")
    assert done.code == 120, done
    assert "unrecognized option '--no-such-option'" in done.err_text, done
    assert "--srun-args" in done.err_text, done


def test_no_srun(slurm):
    salloc = shutil.which("salloc")
    done = slurm.launcher.run_program(
        salloc, "--quiet", *FOUR, "/usr/bin/env", "PATH=/nowhere", slurm.launcher.ivyrun(),
        "/bin/true", env=slurm.environment, limit=60)
    assert done.code == 120, done
    assert "srun must be on the PATH" in done.err_text, done


def test_no_allocation(slurm):
    done = slurm.launcher.run("--transport", "slurm", "/bin/true")
    assert done.code == 2 and "not a Slurm allocation" in done.err_text, done


def test_start_while_another_step_holds_all_resources(slurm):
    """The other step holds every processor and all memory. ivyrun's step needs none and starts immediately."""
    job = slurm.batch([*FOUR, "--exclusive"],
                      "srun -N 4 -n 32 sleep 60 & sleep 1\n"
                      f"IVYRUN --start-timeout {seconds(10):g}s /bin/sh -c 'echo came'; echo code $?\n"
                      "kill %1; wait")
    done = job.finish()
    assert "code 0" in done.err_text and done.err_text.count("came") == 4, done


def test_hosts_without_a_route_to_the_launcher_report_it(slurm):
    """Each host reports the addresses that it tried."""
    done = slurm.run(["-w", "node[2-3]"], "--iface", "lo", "--start-timeout", "8s", "/bin/true")
    assert done.code == 120, done
    assert re.search(r"cannot reach the launcher \(127\.0\.0\.1:\d+: Connection refused",
                     done.err_text), done
    assert "--iface NAME" in done.err_text, done
