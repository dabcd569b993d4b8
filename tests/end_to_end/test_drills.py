# SPDX-License-Identifier: Apache-2.0
"""--drill: the plan, each fault and what is reported about it, faults that leave nothing behind, and training that ends
with the same losses as an undisturbed run."""

import json
import os
import re
import signal

import pytest

from launching import seconds, wait_until

needs_torch = pytest.mark.skipif(not os.path.isdir("/usr/lib/python3/dist-packages/torch"),
                                 reason="python3-torch is not installed")
QUICKLY = {"IVY_TEST_RESTART_PAUSE": "200ms"}
SHORT = ("--lease", "3s", "--shutdown-timeout", "1")
# Spare hosts of the training; with some, faults of hosts take part.
SPARES = 2
SLEEP = ("--no-python", "sleep")
COUNT = "i=0; while [ $i -lt %d ]; do i=$((i+1)); echo step $i; sleep 0.1; done"


def events_of(launcher, name="events"):
    """Returns {number: result} of all faults."""
    lines = [json.loads(line) for line in launcher.read(name).decode().splitlines()]
    return {line["number"]: line for line in lines if line["event"] == "drill" and line["state"] == "result"}


def firewall(launcher, host):
    done = launcher.run_on(host, "iptables", "-S")
    assert done.code == 0, done
    return done.out.decode()


def queues(launcher, host):
    done = launcher.run_on(host, "tc", "qdisc", "show", "dev", "eth0")
    assert done.code == 0, done
    return done.out.decode()


def wait_restored(launcher, host, limit=10):
    wait_until(lambda: "ivyrun-drill" not in firewall(launcher, host), limit, "the firewall is as before")
    wait_until(lambda: "tbf" not in queues(launcher, host), limit, "the interface is as before")


# ---- The plan and bad input -------------------------------------------------------------------------

def test_dry_run_prints_the_plan_and_starts_nothing(local):
    done = local.run("--dry-run", "-n", "4", "--drill", "kill every=15s seed=7", "touch", "started")
    assert done.code == 0 and not local.exists("started"), done
    assert "warning: drill: this job injects faults" in done.err_text, done
    times = re.findall(r"^ +(\d+\.\d) s +kill +rank \d", done.err_text, re.MULTILINE)
    assert times == [f"{15 * i}.0" for i in range(1, 11)], done
    again = local.run("--dry-run", "-n", "4", "--drill", "kill every=15s seed=7", "true")
    assert again.err_text == done.err_text, again


@pytest.mark.parametrize("drill, message", [
    ("explode", 'column 1: "explode" is not a fault'),
    ("kill evry=1s", 'column 6: "evry" is not a key of a drill'),
    ("kill every=0", 'column 12: "0" is too short'),
    ("kill ranks=2", "column 12: there is no rank 2: the job has 2 ranks"),
    ("notice hosts=nowhere", 'column 14: the job has no host "nowhere"'),
    ("cut", "column 1: cut needs another machine"),
])
def test_bad_drills_are_rejected_with_their_column(local, drill, message):
    done = local.run("-n", "2", "--drill", drill, "touch", "started")
    assert done.code == 2 and not local.exists("started"), done
    assert message in done.err_text, done
    assert len(re.findall("error", done.err_text)) == 1, done


def test_a_drill_must_be_typed(local):
    config = local.file("config.toml", 'drill = "kill every=1s"\n')
    for done in (local.run("--config", config, "-n", "1", "true"),
                 local.run("-n", "1", "true", env={"IVY_DRILL": "kill every=1s"})):
        assert done.code == 2 and "must be typed in the command line" in done.err_text, done


def test_a_cut_without_root_is_rejected(hosts):
    user = hosts.as_user("ivyuser")
    done = user.run("-H", "node2,node3", "--drill", "cut hosts=node3 for=5s", "true")
    assert done.code == 122, done
    assert "cut is not possible on node3" in done.err_text and "root" in done.err_text, done


# ---- Faults of ranks --------------------------------------------------------------------------------

def test_killed_ranks_are_named_and_the_table_shows_it(local):
    events = local.file("events")
    done = local.run("-n", "2", "--max-restarts", "9", "--events", events, "--progress-match", r"step (\d+)",
                     "--drill", "kill,segfault every=1500ms times=2 seed=1", "sh", "-c", COUNT % 30, env=QUICKLY)
    assert done.code == 0, done
    assert re.search(r"ivyrun: drill 1: (kill|segfault) rank \d", done.err_text), done
    assert "ivyrun: drill: 2 faults, 0 named wrongly or not at all" in done.err_text, done
    results = events_of(local)
    assert sorted(results) == [1, 2], done
    for result in results.values():
        assert result["named_correctly"] == "yes", done
        assert 0 < result["named_after_s"] <= result["recovered_after_s"], done
        assert result["steps_lost"] > 5, done  # The script always starts at step 1.


def test_a_stopped_rank_continues(local):
    events = local.file("events")
    done = local.run("-n", "2", "--events", events, "--drill", "stop every=500ms times=1 for=1s ranks=first",
                     *SLEEP, "3")
    assert done.code == 0, done
    assert "drill 1: stop rank 0" in done.err_text and "drill 1: rank 0 (localhost) continues" in done.err_text, done
    result = events_of(local)[1]
    assert result["named_correctly"] == "-" and 1 <= result["recovered_after_s"] < 1 + seconds(1), done


def test_a_rank_that_stays_stopped_is_named_in_the_stall_report(local):
    events = local.file("events")
    script = "import time\nfor i in range(200): print('step', i, flush=True); time.sleep(0.05)\n"
    done = local.run("-n", "1", "--events", events, "--stall-timeout", "2s", "--drill",
                     "stop every=500ms times=1 for=8s", local.file("train.py", script), limit=40)
    assert done.code == 0, done
    assert events_of(local)[1]["named_correctly"] == "yes", done


def test_only_the_killed_rank_is_replaced(local):
    events = local.file("events")
    done = local.run("-n", "2", "--on-failure", "replace", "--events", events, "--drill",
                     "kill every=1s times=1 ranks=1", "sh", "-c", "sleep 3", env=QUICKLY)
    assert done.code == 0, done
    result = events_of(local)[1]
    assert result["named_correctly"] == "yes" and result["recovered_after_s"] > 0, done


def test_the_interpreter_lock_is_held(local):
    script = ("import threading, time\n"
              "gaps = []\n"
              "def watch():\n"
              "    last = time.monotonic()\n"
              "    while True:\n"
              "        time.sleep(0.01); now = time.monotonic(); gaps.append(now - last); last = now\n"
              "threading.Thread(target=watch, daemon=True).start()\n"
              "end = time.monotonic() + 4\n"
              "while time.monotonic() < end: time.sleep(0.01)\n"
              "print('longest', max(gaps))\n")
    done = local.run("-n", "1", "--drill", "hold-gil every=1s times=1 for=1500ms", local.file("train.py", script))
    assert done.code == 0, done
    longest = float(re.search(r"longest ([\d.]+)", done.out.decode())[1])
    assert 1.4 < longest < 1.5 + seconds(1), done


def test_a_fatal_fault_ends_the_job_with_its_exit_code(local):
    done = local.run("-n", "2", "--drill", "kill every=500ms ranks=1 times=1", *SLEEP, "10")
    assert done.code == 137, done
    assert re.search(r"1 +kill .* yes", done.err_text), done


# ---- Faults of hosts --------------------------------------------------------------------------------

def test_a_killed_supervisor_is_named(hosts):
    events = hosts.file("events")
    done = hosts.run(*SHORT, "-H", "node2,node3,node4", "--nnodes", "2:3", "--events", events, "--drill",
                     "kill-supervisor every=1s times=1 hosts=node3", *SLEEP, "4", env=QUICKLY, limit=40)
    assert done.code == 0, done
    result = events_of(hosts)[1]
    assert result["named_correctly"] == "yes" and result["hosts"] == ["node3"], done
    assert result["recovered_after_s"] > 0, done
    assert not hosts.processes(3, "sleep")


def test_a_cut_host_is_named_and_connected_again(hosts):
    events = hosts.file("events")
    done = hosts.run(*SHORT, "-H", "node2,node3,node4", "--nnodes", "2:3", "--events", events, "--drill",
                     "cut every=1s times=1 hosts=node3 for=12s", *SLEEP, "4", env=QUICKLY, limit=60)
    assert done.code == 0, done
    assert events_of(hosts)[1]["named_correctly"] == "yes", done
    wait_restored(hosts, 3, 20)
    assert not hosts.processes(3, "ivy-drill") and not hosts.processes(3, "sleep")


def test_a_short_cut_ends_nothing(hosts):
    events = hosts.file("events")
    done = hosts.run("-H", "node2,node3", "--events", events, "--drill", "cut every=1s times=1 hosts=node3 for=2s",
                     *SLEEP, "6", limit=60)
    assert done.code == 0, done
    assert events_of(hosts)[1]["recovered_after_s"] > 2, done
    assert "ivyrun-drill" not in firewall(hosts, 3)


def test_a_slow_host_is_fast_again(hosts):
    with hosts.start("-H", "node2,node3", "--drill", "slow every=500ms times=1 hosts=node3 for=2s rate=1mbit", *SLEEP,
                     "5") as run:
        wait_until(lambda: "tbf" in queues(hosts, 3), 10, "the interface is slow")
        run.wait_for("node3 is as before")
        assert "tbf" not in queues(hosts, 3)
        assert run.finish().code == 0


def test_a_full_disk_is_named_and_freed(local):
    """A file system of the test's own: 1 MiB."""
    directory = os.path.join(local.directory, "small")
    os.mkdir(directory)
    if os.geteuid() != 0 or os.system(f"mount -t tmpfs -o size=1m tmpfs {directory}") != 0:
        pytest.skip("a small file system cannot be mounted here")
    try:
        events = local.file("events")
        script = (f"import os, time\n"
                  f"with open('{directory}/checkpoint', 'wb', buffering=0) as file:\n"
                  f"    for i in range(100):\n"
                  f"        file.write(b'x' * 4096)\n"
                  f"        time.sleep(0.1)\n")
        done = local.run("-n", "1", "--events", events, "--drill",
                         f"full-disk every=1s times=1 for=3s path={directory} size=2M", local.file("train.py", script))
        assert done.code == 1, done
        assert events_of(local)[1]["named_correctly"] == "yes", done
        free = os.statvfs(directory)
        assert free.f_bfree * free.f_bsize > 900 << 10
        done = local.run("-n", "1", "--drill", f"full-disk path={directory} size=64K", "true")
        assert done.code == 122 and "more than size=" in done.err_text, done
    finally:
        os.system(f"umount -l {directory}")


@pytest.mark.parametrize("victim", ["launcher", "supervisor"])
def test_a_killed_job_leaves_no_fault_behind(hosts, victim):
    with hosts.start(*SHORT, "-H", "node2,node3", "--drill", "cut every=1s times=1 hosts=node3 for=60s",
                     "--drill", "slow every=500ms times=1 hosts=node3 for=60s rate=10mbit", *SLEEP, "60") as run:
        run.wait_for("drill 2: cut node3")
        wait_until(lambda: "ivyrun-drill" in firewall(hosts, 3), 10, "node3 is cut")
        if victim == "launcher":
            run.signal(signal.SIGKILL)
        else:
            for pid in hosts.processes(3, "ivy-supervisor"):
                os.kill(pid, signal.SIGKILL)
        # The supervisor of a host that is cut notices the launcher's death when its lease expires.
        wait_restored(hosts, 3, 20)
        wait_until(lambda: not hosts.processes(3, "sleep") and not hosts.processes(3, "ivy-drill"), 20, "nothing runs")


def test_a_notice_and_a_drain_are_handled_like_real_ones(hosts):
    events = hosts.file("events")
    done = hosts.run("-H", "node2,node3", "--events", events, "--drill", "notice every=500ms times=1 hosts=node3",
                     "--drill", "drain every=1s times=1 hosts=node2", "--preempt-signal", "CONT", *SLEEP, "3")
    assert done.code in (0, 75), done
    results = events_of(hosts)
    assert [results[n]["named_correctly"] for n in (1, 2)] == ["yes", "yes"], done
    assert "notice: node3 will be stopped" in done.err_text, done


# ---- Training ---------------------------------------------------------------------------------------

def final_line(done):
    assert done.code == 0, done.err_text[-4000:]
    return re.search(rb"final \S+ \S+ with 4 ranks", done.out)[0]


def train_under_faults(hosts, minutes, pause):
    """Trains on four hosts, with one fault each 15 s, and compares the losses with those of an undisturbed run."""
    steps = int(minutes * 60 / 2 / pause)
    machines = ",".join(f"node{number}" for number in range(1, 5 + SPARES))
    # Each spare replaces one host.
    of_hosts = ("--drill", f"kill-supervisor,cut every=18s after=20s for=5s hosts=node3,node4 times={SPARES} seed=4") if SPARES else ()
    events = hosts.file("events")
    job = ("-H", machines, "--nnodes", "4", *(("--spares", str(SPARES)) if SPARES else ()), "--nproc_per_node", "1", hosts.script("drill_train.py"))
    calm = final_line(hosts.run(*job, f"{hosts.directory}/calm", str(steps), "0", limit=300))
    done = hosts.run(*SHORT, "--max-restarts", "1000", "--progress-match", r"step (\d+)", "--events", events, "--drill",
                     f"kill,stop,segfault every=15s after=8s for=5s times={int(minutes * 4)} seed=4", *of_hosts, *job,
                     f"{hosts.directory}/drilled", str(steps), str(pause), env=QUICKLY, limit=minutes * 200 + 60)
    assert final_line(done) == calm, done
    results = events_of(hosts)
    assert len(results) >= minutes * 2, done
    for number, result in results.items():
        assert result["named_correctly"] == ("-" if result["fault"] == "stop" else "yes"), done.err_text[-2500:]
        # The job may end before the last fault is over.
        assert result["recovered_after_s"] or number == max(results), done.err_text[-2500:]
        assert (result["steps_lost"] or 0) <= 1, done.err_text[-2500:]
    assert "a failure that the drill did not cause" not in done.err_text, done


@needs_torch
def test_training_with_a_fault_every_15_seconds_ends_with_the_same_losses(hosts):
    train_under_faults(hosts, 1, 0.05)


@needs_torch
@pytest.mark.long
def test_half_an_hour_of_faults_changes_no_loss(hosts):
    train_under_faults(hosts, 30, 0.05)
