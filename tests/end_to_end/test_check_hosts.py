# SPDX-License-Identifier: Apache-2.0
"""The health gate: --check, --expect-gpus and --check-load before the start and before each restart.

A host that fails is left out with --nnodes MIN:MAX; otherwise the job is rejected.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

import device_trees as trees
from launching import HOSTS, REPOSITORY, seconds, wait_until
from stalling_fs import Stalling

QUICKLY = {"IVY_TEST_RESTART_PAUSE": "200ms"}
REJECTED = 122
TWO = ("--fake-hosts", "2")
# One healthy host is enough.
ONE_OF_TWO = (*TWO, "--nnodes", "1:2")
SHOW = ("sh", "-c", "echo rank $RANK of $WORLD_SIZE")


def only_on(host, action):
    """Returns a check that fails on one host."""
    return f'test "$IVY_HOST_INDEX" != {host} || {{ {action}; }}'


def events_of(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def at(local, name):
    return os.path.join(local.directory, name)


# ---- Commands --------------------------------------------------------------------------------------

def test_a_job_starts_when_all_hosts_pass(local):
    check = 'echo "$IVY_HOST_INDEX in $PWD" >> checked; echo fine'
    done = local.run(*TWO, "--check", check, "--check", "true", *SHOW)
    assert done.code == 0 and sorted(done.texts_by_rank()) == [0, 1], done
    assert "check" not in done.own_text(), done
    assert sorted(local.read("checked").decode().splitlines()) == [f"{n} in {os.path.realpath(local.directory)}" for n in (0, 1)]


def test_a_job_without_checks_starts_none(local):
    done = local.run("-v", "-v", *TWO, *SHOW)
    assert done.code == 0 and "ivy-node check" not in done.err_text, done


def test_a_host_that_fails_is_left_out(local):
    check = only_on(1, 'echo GPU 0 is fine; echo GPU 3 fell off the bus; exit 3')
    done = local.run(*ONE_OF_TWO, "--events", "events", "--summary", "json", "--check", check, *SHOW)
    assert done.code == 0 and b"rank 0 of 1" in done.out, done
    warning = re.search(r"ivyrun: warning: starting with 1 of 2 hosts \(--nnodes 1:2\), without (\S+) \(--check '.*': "
                        r"exit code 3: GPU 3 fell off the bus\)", done.err_text)
    assert warning, done
    assert re.search(r"ivyrun: host \S+ failed a check before the start: --check '.*': exit code 3: GPU 3", done.err_text), done
    failed, = [event for event in events_of(at(local, "events")) if event["event"] == "check_failed"]
    assert failed["host"] == warning[1] and failed["left_out"] is True and failed["attempt"] == 1, failed
    assert failed["reason"] == "exit code 3: GPU 3 fell off the bus" and failed["id"] == "IVY-H020", failed
    verdict = events_of(at(local, "events"))[-1]
    assert [host["host"] for host in verdict["left_out"]] == [warning[1]], verdict
    assert "GPU 3 fell off the bus" in verdict["left_out"][0]["reason"], verdict


def test_a_job_that_needs_every_host_is_rejected(local):
    done = local.run(*TWO, "--events", "events", "--check", only_on(1, "echo line 1; echo the disk is broken; exit 1"), *SHOW)
    assert done.code == REJECTED and not done.out, done
    assert re.search(r"error\[IVY-H020\]: host (\S+) failed a check before the start: --check '", done.err_text), done
    assert "exit code 1: the disk is broken" in done.err_text and "line 1" in done.err_text, done
    assert "--exclude" in done.err_text and "--nnodes MIN:MAX" in done.err_text, done
    failed, = [event for event in events_of(at(local, "events")) if event["event"] == "check_failed"]
    assert failed["left_out"] is False, failed


def test_all_hosts_that_fail_are_in_one_message(local):
    done = local.run(*TWO, "--check", "no-such-tool --all", *SHOW)
    assert done.code == REJECTED, done
    assert len(re.findall("error\\[", done.err_text)) == 1 and "hosts " in done.err_text, done
    assert "exit code 127" in done.err_text and "install it there" in done.err_text, done


def test_a_report_in_json_is_the_reason(local):
    report = json.dumps({"ok": False, "reason": "2 of 8 NVLinks are down"})
    done = local.run("-n", "1", "--check", f"echo starting; echo '{report}'; echo done", *SHOW)
    assert done.code == REJECTED and "2 of 8 NVLinks are down" in done.err_text, done
    done = local.run("-n", "1", "--check", "echo '{\"ok\": true}'", *SHOW)
    assert done.code == 0, done


def test_a_check_that_hangs_is_killed_with_all_its_children(local):
    # Children in the background, in sessions of their own, and ones that ignore TERM.
    hang = "sleep 4711 & setsid sleep 4711 & (trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 4711; sleep 4711') & sleep 4711"
    started = time.monotonic()
    done = local.run(*ONE_OF_TWO, "--check-timeout", "2s", "--check", only_on(1, hang), *SHOW)
    assert done.code == 0 and b"rank 0 of 1" in done.out, done
    assert time.monotonic() - started < seconds(12), done
    assert "did not finish within --check-timeout 2 s; it was killed with all its children" in done.err_text, done
    local.wait_clean(7)


def test_processes_that_a_check_leaves_behind_are_killed(local):
    done = local.run("-n", "1", "--check", "setsid sleep 4711 & echo fine", *SHOW)
    assert done.code == 0, done
    local.wait_clean(2)


def test_megabytes_of_output_are_bounded(local):
    done = local.run("-n", "1", "--check", "yes spam | head -c 20000000; echo the last line; exit 1", *SHOW)
    assert done.code == REJECTED and "exit code 1: the last line" in done.err_text, done
    assert re.search(r"it printed 19 MiB, of which the last 64 KiB were kept", done.err_text), done
    assert len(done.err) < 4000, done


def test_ctrl_c_ends_the_checks(local):
    with local.start(*TWO, "--check", "sleep 4711 & echo up >> up; sleep 4711", *SHOW) as run:
        wait_until(lambda: local.exists("up") and local.read("up").count(b"up") == 2, 20, "the checks run")
        run.signal(signal.SIGINT)
        done = run.finish(15)
    assert done.code == -signal.SIGINT, done
    local.wait_clean(7)


def test_nothing_is_left_if_the_launcher_is_killed_meanwhile(local):
    with local.start(*TWO, "--check", "setsid sleep 4711 & echo up >> up; sleep 4711", *SHOW) as run:
        wait_until(lambda: local.exists("up") and local.read("up").count(b"up") == 2, 20, "the checks run")
        run.signal(signal.SIGKILL)
        run.finish(15)
    local.wait_clean(7)


# ---- Restarts --------------------------------------------------------------------------------------

# Both ranks start; the first attempt fails.
FAILS_ONCE = ("sh", "-c", "echo attempt $IVY_GENERATION rank $RANK of $WORLD_SIZE; "
              "test $IVY_GENERATION != 0 || test $RANK = 1 || { sleep 0.5; exit 7; }")


def test_a_host_that_fails_before_the_second_attempt_is_left_out(local):
    check = f'test "$IVY_GENERATION" = 0 || {only_on(1, "echo too hot; exit 2")}'
    done = local.run(*ONE_OF_TWO, "--max-restarts", "1", "--events", "events", "--check", check, *FAILS_ONCE, env=QUICKLY)
    assert done.code == 0, done
    assert b"attempt 0 rank 1 of 2" in done.out and b"attempt 1 rank 0 of 1" in done.out, done
    assert re.search(r"ivyrun: host \S+ failed a check before attempt 2: --check '.*': exit code 2: too hot", done.err_text), done
    assert re.search(r"ivyrun: continuing with 1 of 2 hosts \(--nnodes 1:2\), without \S+ \(", done.err_text), done
    failed, = [event for event in events_of(at(local, "events")) if event["event"] == "check_failed"]
    assert failed["attempt"] == 2 and failed["left_out"] is True, failed


def test_a_restart_is_rejected_if_a_needed_host_fails(local):
    check = f'test "$IVY_GENERATION" = 0 || {only_on(1, "echo too hot; exit 2")}'
    done = local.run(*TWO, "--max-restarts", "1", "--check", check, *FAILS_ONCE, env=QUICKLY)
    assert done.code == REJECTED and b"attempt 1" not in done.out, done
    assert "failed a check before attempt 2" in done.err_text and "too hot" in done.err_text, done


def test_the_first_host_fails_before_the_second_attempt(hosts):
    """The store moves to the next host, as if the first one were lost."""
    script = hosts.file("check.sh", f'test "$IVY_GENERATION" = 0 || {only_on(0, "echo too hot; exit 2")}\n')
    done = hosts.run("-H", "node2,node3", "--nnodes", "1:2", "--max-restarts", "1", "--check", f"sh {script}", *FAILS_ONCE,
                     env=QUICKLY, limit=60)
    assert done.code == 0 and b"attempt 1 rank 0 of 1" in done.out, done
    assert "node2 failed a check before attempt 2" in done.err_text, done
    assert re.search(r"continuing with 1 of 2 hosts \(--nnodes 1:2\), without node2 \(", done.err_text), done


@pytest.mark.long
def test_a_stalled_file_system_of_one_host_keeps_only_this_host_out(hosts):
    """It stalls between two attempts and for longer than the lease. The other hosts run the second attempt, once."""
    program = f"{hosts.directory}/stalling_fs.py"
    shutil.copy(os.path.join(REPOSITORY, "tests/testbed/stalling_fs.py"), hosts.outside(program))
    os.makedirs(hosts.outside(f"{hosts.directory}/data"))
    prefix = ["env", f"IVY_TESTBED={hosts.bed.state}", HOSTS, "exec", "root@4"]
    go = f"{hosts.directory}/go"
    script = (f"echo attempt $IVY_GENERATION rank $RANK of $WORLD_SIZE; test $IVY_GENERATION = 0 || exit 0; "
              f"while ! test -e {go}; do sleep 0.1; done; test $RANK = 1 || exec sleep 60; exit 7")
    flags = ("--lease", "3s", "--nnodes", "2:3", "--max-restarts", "3", "--check-timeout", f"{seconds(3):g}s", "--events",
             f"{hosts.directory}/events")
    with Stalling(f"{hosts.directory}/backing", f"{hosts.directory}/data", prefix=prefix, program=program,
                  outside=hosts.outside) as data:
        with hosts.start("-H", "node2,node3,node4", *flags, "--check", f"ls {data.mount_point}", "sh", "-c", script,
                         env=QUICKLY) as run:
            run.wait_for("attempt 0", count=3)
            data.stall()
            hosts.file("go")
            run.wait_for(rf"checking the hosts, .*: waiting for node4 \(--check 'ls {data.mount_point}'\)", 40)
            done = run.finish(60)
        data.go_on()
    assert done.code == 0, done
    assert sorted(re.findall(rb"attempt 1 rank (\d) of (\d)", done.out)) == [(b"0", b"2"), (b"1", b"2")], done
    assert {host for _, host, text in done.labelled() if text.startswith("attempt 1")} == {"node2", "node3"}, done
    assert "succeeded at attempt 2 of" in done.err_text and "was lost" not in done.err_text, done
    failed, = [event for event in events_of(hosts.outside(f"{hosts.directory}/events")) if event["event"] == "check_failed"]
    assert failed["host"] == "node4" and failed["id"] == "IVY-H023" and "did not finish within" in failed["reason"], failed


# ---- Accelerators ----------------------------------------------------------------------------------

def test_the_expected_number_of_devices(local, tmp_path):
    host = trees.eight_gpus(tmp_path / "root")
    done = local.run("--expect-gpus", "8", "sh", "-c", "echo $RANK", env=host.environment())
    assert done.code == 0 and sorted(done.texts_by_rank()) == list(range(8)), done
    done = local.run("--expect-gpus", "16", "sh", "-c", "echo $RANK", env=host.environment())
    assert done.code == REJECTED and not done.out, done
    assert "error[IVY-H021]: host localhost failed a check before the start: --expect-gpus 16" in done.err_text, done
    assert "8 usable accelerators instead of 16" in done.err_text, done


def test_a_mask_explains_missing_devices(local, tmp_path):
    host = trees.eight_gpus(tmp_path / "root")
    done = local.run("--expect-gpus", "8", "true", env={**host.environment(), "CUDA_VISIBLE_DEVICES": "0,1"})
    assert done.code == REJECTED, done
    assert re.search(r"2 usable accelerators instead of 8: .*CUDA_VISIBLE_DEVICES=0,1", done.err_text), done


def test_simulated_hosts_divide_the_devices(local, tmp_path):
    host = trees.eight_gpus(tmp_path / "root")
    done = local.run(*TWO, "--expect-gpus", "4", "sh", "-c", "echo $RANK", env=host.environment())
    assert done.code == 0, done


# ---- Load ------------------------------------------------------------------------------------------

@pytest.mark.long
def test_a_slow_link_is_found(hosts):
    """The link of one of four hosts is limited, and it is left out. Its partners are not blamed."""
    hosts.bed.slow(4, "20mbit")
    done = hosts.run("-H", "node1,node2,node3,node4", "--nnodes", "2:4", "--check-load", "--events", f"{hosts.directory}/events",
                     *SHOW, limit=90)
    assert done.code == 0, done
    failed = [event for event in events_of(hosts.outside(f"{hosts.directory}/events")) if event["event"] == "check_failed"]
    slow = [event for event in failed if event["reason"].startswith("network: ")]
    assert [event["host"] for event in slow] == ["node4"], failed
    assert re.search(r"network: [\d.]+ MB/s, 0\.\d\d x the median of 4 hosts, .*\(the bound is 0\.7 x\)", slow[0]["reason"])


def test_load_is_measured_on_simulated_hosts(local):
    """They share a machine, so only the figures can be checked, not the verdict."""
    started = time.monotonic()
    done = local.run("--fake-hosts", "3", "--nnodes", "1:3", "--check-load", "-v", *SHOW, limit=60)
    assert time.monotonic() - started > 2, done
    assert done.code in (0, REJECTED), done
    assert done.code == 0 or "x the median of 3 hosts" in done.err_text, done
    assert len(re.findall(r"ivyrun: --check-load: fake\d: [\d.]+ [MG]operations/s, [\d.]+ [MG]B/s\n", done.err_text)) == 3, done
    local.wait_clean(7)


# ---- A gRPC service --------------------------------------------------------------------------------

# Serves nvhcd.HealthCheckService at sys.argv[1]; sys.argv[2] is the response as JSON.
SERVICE = """
import json, sys
from concurrent import futures
import grpc
answer = json.loads(sys.argv[2])
def text(number, value):
    data = value.encode()
    size = b""
    rest = len(data)
    while rest > 127:
        size, rest = size + bytes([rest & 127 | 128]), rest >> 7
    return bytes([number << 3 | 2]) + size + bytes([rest]) + data
def run(request, context):
    assert request == b"\\x0a\\x0a--no-slurm", request
    return (b"\\x08\\x01" if answer["success"] else b"") + bytes([0x10, answer.get("exit_code", 0)]) + text(
        3, answer.get("output", "")) + text(4, answer.get("error", ""))
server = grpc.server(futures.ThreadPoolExecutor(1))
handler = grpc.unary_unary_rpc_method_handler(run, request_deserializer=bytes, response_serializer=bytes)
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("nvhcd.HealthCheckService", {"RunHealthCheck": handler}),))
assert server.add_insecure_port("unix:" + sys.argv[1])
server.start()
print("ready", flush=True)
sys.stdin.read()
"""


def service_response(local, **answer):
    """Returns the result of a job whose check queries a service that responds with this answer."""
    pytest.importorskip("grpc", reason="needs python3-grpcio")
    path = at(local, "nvhcd.sock")
    with subprocess.Popen([sys.executable, "-c", SERVICE, path, json.dumps(answer)], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as server:
        assert server.stdout.readline() == b"ready\n"
        try:
            return local.run("-n", "1", "--python", sys.executable, "--check", f"unix:{path}", *SHOW)
        finally:
            server.stdin.close()


def test_a_grpc_health_service_passes(local):
    done = service_response(local, success=True, output=json.dumps({"fail_count": 0, "checks": ["x" * 300]}))
    assert done.code == 0, done


@pytest.mark.parametrize("answer, reason", [
    ({"success": True, "output": '{"fail_count": 2, "failed": ["GPU 3", "IB 1"]}'}, "2 failed: "),
    ({"success": False, "error": "the script timed out"}, "the script timed out"),
    ({"success": False, "exit_code": 9}, "its script exited with code 9")])
def test_a_grpc_health_service_reports_a_failure(local, answer, reason):
    done = service_response(local, **answer)
    assert done.code == REJECTED and reason in done.err_text, done


def test_a_grpc_health_service_is_missing(local):
    pytest.importorskip("grpc", reason="needs python3-grpcio")
    done = local.run("-n", "1", "--python", sys.executable, "--check", "unix:/nowhere/nvhcd.sock", *SHOW)
    assert done.code == REJECTED and "/nowhere/nvhcd.sock: UNAVAILABLE" in done.err_text, done


# ---- Other ways to use it --------------------------------------------------------------------------

def test_dry_run_lists_the_checks(local):
    done = local.run(*TWO, "--dry-run", "--check", "touch ran", "--expect-gpus", "8", "--check-load", "true")
    assert done.code == 0 and not local.exists("ran"), done
    assert re.search(r"ivyrun: checks on each host before the start and each restart, within 60 s .*--expect-gpus 8; "
                     r"--check 'touch ran'; --check-load", done.err_text), done


def test_doctor_reports_the_checks(local):
    done = local.run("--doctor", *TWO, "--check", only_on(1, "echo broken; exit 1"))
    assert done.code == 1, done
    assert re.search(r"^FAIL check \S+: --check '.*': exit code 1: broken$", done.out.decode(), re.M), done


def test_a_full_disk_is_rejected(hosts):
    """`--check default` runs only ivyrun's own checks."""
    full = f"{hosts.directory}/full"
    for number in (1, 2):
        hosts.run_on(number, "mkdir", "-p", "/run/full")
    hosts.run_on(2, "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/run/full")
    try:
        done = hosts.run("-H", "node1,node2", "--wdir", "/run/full", "--check", "default", *SHOW)
        assert done.code == REJECTED, (full, done)
        assert "error[IVY-H024]: host node2 failed a check before the start: disk" in done.err_text, done
        assert hosts.run("-H", "node1,node2", "--wdir", "/run/full", *SHOW).code == 0, "without a check it may start"
    finally:
        hosts.run_on(2, "umount", "/run/full")


def test_hosts_are_checked_as_the_user_over_ssh(anyone):
    done = anyone.run("-H", "node2,node3", "--check", "id -un; exit 1", *SHOW)
    assert done.code == REJECTED and f"exit code 1: {anyone.user}" in done.err_text, done
    anyone.wait_clean(7)


def test_a_host_that_hangs_does_not_delay_the_others(hosts):
    """The process that runs the checks stops on one of three hosts, as if it waited for a file system. The others start after
    the limit."""
    script = hosts.file("check.sh", only_on(1, "kill -STOP $(ps -o ppid= -p $(ps -o sid= -p $$)); sleep 4711") + "\n")
    with hosts.start("-H", "node1,node2,node3", "--nnodes", "2:3", "--check-timeout", "3s", "--check", f"sh {script}",
                     *SHOW) as run:
        done = run.finish(40)
    assert done.code == 0 and done.out.count(b"of 2") == 2, done
    assert re.search(r"without node2 \(the checks: they did not finish within --check-timeout 3 s; it still waits for "
                     r"--check", done.err_text), done


def test_checks_by_agents(agents):
    agent, = agents.prepare(2)
    agent.start()
    with agents.job("-H", "node2", "--check", "echo no; exit 1", *SHOW) as run:
        done = run.finish(30)
    assert done.code == REJECTED and "exit code 1: no" in done.err_text, done


@pytest.mark.parametrize("arguments, reason", [
    (("--check", " "), "needs a command"),
    (("--check", "unix:nvhcd.sock"), "must be absolute"),
    (("--check-timeout", "5s"), "needs a check"),
    (("--check-load", "--check-timeout", "3s"), "must be 10 s or more"),
    (("--expect-gpus", "many"), "--expect-gpus")])
def test_wrong_flags_are_rejected(local, arguments, reason):
    done = local.run(*arguments, "true")
    assert done.code == 2 and reason in done.err_text, done
