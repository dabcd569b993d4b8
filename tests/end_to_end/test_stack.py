# SPDX-License-Identifier: Apache-2.0
"""Stacks of ranks: `ivyctl stack`, stalls without output, flight records, and aborts of watchdogs."""

import json
import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from launching import BIN, REPOSITORY, seconds, wait_until

IVYCTL = os.path.join(BIN, "ivyctl")
PYTHON = "/usr/bin/python3"
NCCL_CALLER = os.path.join(os.path.dirname(BIN), "children/nccl_caller")
DUMPS = os.path.join(REPOSITORY, "tests/launcher/flight_dumps")
WITH_GDB = pytest.mark.skipif(shutil.which("gdb") is None, reason="gdb is not installed")
# A Python with torch 2.10 or newer (scripts/setup torch): Debian's torch has no flight recorder.
TORCH = next((python for python in (os.environ.get("IVY_TORCH_PYTHON"),
                                    os.path.join(REPOSITORY, "build/torch/bin/python3"))
              if python and os.path.exists(python)), None)
ABSENT = (r"rank 2 did not enter all_reduce #4 of \"default_pg\" \(last entered all_reduce #3 \d+ s "
          r"ago\); ranks 0-1 wait in it \(\[\[1000\]\] Float\) for \d+ s\n")


def job_of(job, ranks=3):
    job.wait_for(rb"ready [0-9a-f]{32}", count=ranks)
    return re.search(rb"ready ([0-9a-f]{32})", job.said())[1].decode()


def stack(local, job_id, *flags, pattern="", limit=10):
    """Runs `ivyctl stack` until its output contains the pattern, and returns it. At first the job has no socket yet, and its
    workers are not yet at their final position."""
    done = None

    def said():
        nonlocal done
        done = local.run_program(IVYCTL, "stack", job_id, *flags, limit=90)
        return done.code == 0 and re.search(pattern, done.out.decode(), re.DOTALL)
    try:
        wait_until(said, limit, f"ivyctl stack says {pattern}")
    except AssertionError as error:
        raise AssertionError(f"{error}{done!r}") from None
    return done.out.decode()


def end(job):
    # Not SIGINT, because Python would print its traceback.
    job.signal(signal.SIGTERM)
    return job.finish()


def pids_of(job):
    return {int(rank): int(pid) for rank, pid in
            re.findall(rb"\[!?(\d+)\] ready [0-9a-f]+ pid (\d+)", job.said())}


def state_of(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(") ", 1)[1][0]


def test_equal_stacks_are_folded_over_ranks(local):
    with local.start("-n", "4", PYTHON, local.script("hangs.py"), "plain") as job:
        job_id = job_of(job, 4)
        text = stack(local, job_id, pattern="where_others_are.*where_two_is")
        assert re.fullmatch(
            r"ranks 0-1,3 \(host \S+\): main thread: where_others_are \(\S+/hangs.py:\d+\)\n"
            r"    main \(\S+/hangs.py:\d+\)\n    <module> \(\S+/hangs.py:\d+\)\n"
            r"rank 2 \(host \S+, pid \d+\): main thread: where_two_is \(\S+\)\n"
            r"    main \(\S+\)\n    <module> \(\S+\)\n", text), text
        text = stack(local, job_id, "--ranks", "2-3")
        assert "rank 2 (" in text and "rank 3 (" in text and "rank 0" not in text, text
        none = local.run_program(IVYCTL, "stack", job_id, "--ranks", "7")
        assert none.code == 1 and "this job has none of these ranks" in none.err_text, none
        finished = end(job)
    # The stacks do not appear in the workers' output.
    assert "where_" not in finished.out.decode() + finished.err_text, finished


def test_a_shell_in_front_of_the_program(local):
    with local.start("-n", "1", "bash", "-c", f'{PYTHON} "$@"; exit $?', "-",
                     local.script("hangs.py"), "plain") as job:
        stack(local, job_of(job, 1), pattern="rank 0 .*main thread: where_others_are")
        end(job)


def test_a_stall_without_output_is_reported_once(local):
    with local.start("--stall-timeout", "2", "-n", "3", PYTHON, local.script("hangs.py"),
                     "plain") as job:
        job.wait_for(rb"no progress for \d+ s. Where each rank is:\n(  .*\n)*?  rank 2 .*where_two_is",
                     limit=20)
        time.sleep(4)
        finished = end(job)
    assert finished.err_text.count("Where each rank is") == 1, finished
    assert re.search(r"  ranks 0-1 \(host \S+\): main thread: where_others_are", finished.err_text)


def test_output_caused_by_an_inspection_is_not_progress(local):
    with local.start("--stall-timeout", "4", "-n", "2", PYTHON, local.script("hangs.py"), "echo") as job:
        job.wait_for(rb"no progress for 4 s. Where each rank is:\n", limit=20)
        time.sleep(6)
        finished = end(job)
    assert b"interrupted" in finished.out, "the inspection did not make the workers print"
    assert finished.err_text.count("Where each rank is") == 1, finished


def test_a_stalled_job_is_stopped_on_request(local):
    done = local.run("--stall-timeout", "2", "--on-stall", "stop", "--summary", "json", "-n", "3", PYTHON,
                     local.script("hangs.py"), "plain", limit=60)
    assert done.code == 123, done
    assert re.search(r"no progress for \d+ s. Where each rank is:\n(  .*\n)*?  rank 2 .*where_two_is", done.err_text), done
    assert "no progress: stopping 3 workers (--on-stall stop)\n" in done.err_text, done
    verdict = json.loads(done.err_text.splitlines()[-1])
    assert (verdict["reason"], verdict["origin"], verdict["stopped"]) == ("stalled", "launcher", [0, 1, 2]), verdict
    assert verdict["message"]["id"] == "IVY-R021", verdict


def test_a_stalled_operation_ends_the_job_despite_output_of_others(local):
    local.file("waits.py", "import time, ivycomm as ic\nic.init()\nif ic.rank() == 0:\n    ic.barrier()\n"
                           "while True:\n    print('alive', flush=True)\n    time.sleep(0.2)\n")
    done = local.run("--stall-timeout", "2", "--on-stall", "stop", "-n", "2", "--python", PYTHON, "waits.py", limit=60)
    assert done.code == 123 and b"alive" in done.out, done
    assert re.search(r"an operation of rank 0 takes longer than --stall-timeout. What each rank waits for:\n"
                     r"  rank 1 did not enter barrier", done.err_text), done
    assert "error[IVY-R021]" in done.err_text, done


@pytest.mark.parametrize("hangs, code", [("== '0'", 0), ("!= 'never'", 123)])
def test_a_stalled_job_is_restarted(local, hangs, code):
    local.file("hangs_first.py", f"import os, time\nif os.environ['TORCHELASTIC_RESTART_COUNT'] {hangs}:\n"
                                 "    time.sleep(1000)\nprint('ended well')\n")
    done = local.run("--stall-timeout", "2", "--on-stall", "stop", "--max-restarts", "1", "-n", "2", "--python",
                     PYTHON, "hangs_first.py", env={"IVY_TEST_RESTART_PAUSE": "0.1"}, limit=90)
    assert done.code == code, done
    assert "attempt 1 of 2 failed: its ranks made no progress (--on-stall stop); attempt 2" in done.err_text, done
    assert done.out.count(b"ended well") == (2 if code == 0 else 0), done
    assert ("error[IVY-R021]" in done.err_text) == (code != 0), done


def test_a_job_without_output_has_not_stalled(local):
    done = local.run("--stall-timeout", "2", "-n", "2", PYTHON, local.script("hangs.py"), "quiet")
    assert done.code == 0 and "Where each rank is" not in done.err_text, done


@WITH_GDB
def test_a_program_in_c(local):
    with local.start("-n", "2", "bash", "-c", "echo ready $IVY_JOB_ID; exec sleep 1000") as job:
        text = stack(local, job_of(job, 2), pattern="nanosleep", limit=60)
        assert re.match(r"ranks 0-1 \(host \S+\): main thread: .*nanosleep", text), text
        end(job)


def test_without_any_debugger_the_kernels_view_is_shown(local):
    local.environment["PATH"] = local.directory
    for name in ("gdb", "py-spy"):
        local.file(name, "no program", mode=0o755)
    with local.start("-n", "1", "/bin/bash", "-c", "echo ready $IVY_JOB_ID; exec /bin/sleep 1000") \
            as job:
        text = stack(local, job_of(job, 1), pattern="no stack: .*gdb.*system call")
        assert re.match(r"rank 0 \(host \S+, pid \d+\): sleep, sleeping", text), text
        end(job)


def test_a_stopped_worker_stays_stopped(local):
    with local.start("-n", "3", PYTHON, local.script("hangs.py"), "plain") as job:
        job_id = job_of(job)
        victim = pids_of(job)[1]
        os.kill(victim, signal.SIGSTOP)
        wait_until(lambda: state_of(victim) == "T", 5, "the rank is stopped")
        text = stack(local, job_id, pattern="stopped by a signal", limit=60)
        assert "rank 1 (" in text, text
        assert state_of(victim) == "T"
        os.kill(victim, signal.SIGCONT)
        stack(local, job_id, pattern=r"ranks 0-1 \(host \S+\): main thread: where_others_are",
              limit=60)
        end(job)


def test_stack_does_not_wait_for_uninterruptible_sleep(local):
    with local.start("-n", "2", PYTHON, local.script("hangs.py"), "uninterruptible") as job:
        job_id = job_of(job, 2)
        wait_until(lambda: state_of(pids_of(job)[0]) == "D", 10, "it sleeps uninterruptibly")
        began = time.monotonic()
        text = stack(local, job_id)
        assert time.monotonic() - began < seconds(5)
        assert re.search(r"rank 0 \(.*\): python3, uninterruptible.*: no debugger can attach", text)
        assert "rank 1" in text and "where_others_are" in text, text
        end(job)


def test_hundreds_of_threads(local):
    with local.start("-n", "1", PYTHON, local.script("hangs.py"), "threads") as job:
        text = stack(local, job_of(job, 1), pattern="where_others_are")
        assert text.index("main thread: where_others_are") < text.index("threads: where_two_is")
        end(job)


def test_the_stack_of_a_thread_that_runs_is_not_read(local):
    with local.start("-n", "1", PYTHON, local.script("hangs.py"), "busy") as job:
        text = stack(local, job_of(job, 1), pattern="main thread: where_others_are")
        assert "(only the main thread is shown: other threads kept running" in text, text
        assert "runs_python" not in text, text
        end(job)


def test_a_debugger_that_hangs_has_a_deadline(local):
    local.environment["PATH"] = local.directory + ":" + local.environment["PATH"]
    local.file("gdb", "#!/bin/sh\necho $$ > gdb.pid\ntrap '' TERM\n/bin/sleep 1000\n", mode=0o755)
    with local.start("-n", "1", "bash", "-c", "echo ready $IVY_JOB_ID; exec sleep 1000") as job:
        job_id = job_of(job, 1)
        began = time.monotonic()
        text = stack(local, job_id, limit=60)
        assert time.monotonic() - began < seconds(25)
        assert "gdb did not answer in time" in text, text
        end(job)


def test_frames_of_c_are_read_with_py_spy(local):
    local.environment["PATH"] = local.directory + ":" + local.environment["PATH"]
    local.file("py-spy", "#!/bin/sh\necho \"Process $3: $0 $*\"\necho 'Python v3.11.2'\necho\n"
                         "echo \"Thread $3 (idle): \\\"MainThread\\\"\"\n"
                         "echo '    ncclGroupEnd (libnccl.so.2)'\necho '    step (train.py:12)'\n"
                         f"echo \"$*\" > {local.directory}/asked\n", mode=0o755)
    with local.start("-n", "1", PYTHON, local.script("hangs.py"), "plain") as job:
        job_id = job_of(job, 1)
        text = stack(local, job_id, "--native", pattern="ncclGroupEnd")
        told = re.fullmatch(r"rank 0 \(host \S+, pid (\d+)\): main thread: ncclGroupEnd \(libnccl.so.2\)\n"
                            r"    step \(train.py:12\)\n", text)
        assert told, text
        with open(os.path.join(local.directory, "asked")) as asked:
            assert asked.read() == f"dump --pid {told[1]} --native\n"
        end(job)


def test_a_worker_that_exits_while_its_stack_is_read(local):
    local.environment["PATH"] = local.directory + ":" + local.environment["PATH"]
    local.file("gdb", '#!/bin/sh\nwhile [ "$1" != -p ]; do shift; done\nkill -9 $2\n/bin/sleep 0.5\n',
               mode=0o755)
    with local.start("-n", "2", "bash", "-c",
                     "echo ready $IVY_JOB_ID; [ $RANK = 0 ] && exec sleep 1000; trap '' TERM; "
                     "while :; do /bin/sleep 1; done") as job:
        job_id = job_of(job, 2)
        text = stack(local, job_id, "--ranks", "0")
        assert "it exited while its stack was read" in text, text
        finished = job.finish(60)
    assert finished.code == 137, finished


def test_flight_records_name_missing_ranks(local):
    with local.start("--stall-timeout", "2", "-n", "3", PYTHON, local.script("hangs.py"), "flight",
                     DUMPS) as job:
        job_id = job_of(job)
        text = stack(local, job_id, pattern="did not enter")
        assert re.match(ABSENT, text), text
        assert "ranks 0-1 (" in text and "where_two_is" in text, text
        why = local.run_program(IVYCTL, "why", job_id)
        # The same verdict, and the stacks of the waiting ranks and the missing rank.
        assert re.match(ABSENT, why.out.decode()), why
        assert re.search(r"^  ranks 0-1 \(host \S+\): main thread: where_others_are \(.*\n(      .*\n)+"
                         r"  rank 2 \(host \S+, pid \d+\): main thread: where_two_is \(",
                         why.out.decode(), re.MULTILINE), why
        job.wait_for(rb"Where each rank is:\n  rank 2 did not enter all_reduce #4", limit=20)
        end(job)


def test_flight_records_name_an_exited_rank_that_others_wait_for(local):
    with local.start("-n", "3", PYTHON, local.script("hangs.py"), "leave", DUMPS,
                     env={"IVY_TEST_REMAINING_PATIENCE": "1s"}) as job:
        job.wait_for(rb"note: rank 2 exited with code 0, ranks 0-1 still run, and no rank has exited for 1 s: ranks 0-1 wait "
                     rb"for rank 2 in all_reduce #4 of \"default_pg\" \(torch\)\. What each rank waits for:\n"
                     rb"(  .*\n)*  no flight record of rank 2\n", limit=20)
        end(job)


def test_warnings_of_nccl_are_reported(local):
    with local.start("-n", "3", PYTHON, local.script("hangs.py"), "nccl") as job:
        job_id = job_of(job)
        said = "ranks 0,2: NCCL says: socketPollConnect: no route\n"
        assert stack(local, job_id, pattern="where_two_is").startswith(said)
        assert said in local.run_program(IVYCTL, "why", job_id).out.decode()
        end(job)
    # NCCL_DEBUG and NCCL_DEBUG_FILE of the user are kept.
    done = local.run("-n", "1", "-x", "NCCL_DEBUG=INFO", "bash", "-c", "echo $NCCL_DEBUG,$NCCL_DEBUG_FILE.")
    assert b"INFO,.\n" in done.out, done


@pytest.mark.parametrize("hosts_", [("-n", "3"), ("--fake-hosts", "3", "--nproc_per_node", "1")], ids=["one", "hosts"])
def test_nccls_health_service_is_queried(local, hosts_):
    said = ("NCCL's health service says: #0-0 (27a079b828ff1a75) MISMATCH: Communicator ranks have different AllReduce "
            "operation counts, 2 ranks have launched up to operation 4, Rank 2 has launched up to operation 3 -- GPU 2 "
            "managed by process 77 on node 10.0.0.1\n")
    with local.start("--stall-timeout", "2", *hosts_, PYTHON, local.script("hangs.py"), "health") as job:
        job_id = job_of(job)
        job.wait_for(re.escape(said).encode(), limit=20)
        text = stack(local, job_id, pattern="where_two_is")
        assert text.startswith(said), text
        before = local.read("asked").count(b"VERBOSE STATUS")
        assert said in local.run_program(IVYCTL, "why", job_id).out.decode()
        # Only one host is queried for all ranks.
        assert local.read("asked").count(b"VERBOSE STATUS") == before + 1
        end(job)


@pytest.mark.parametrize("shell", [(), ("bash", "-c", '"$@"; exit $?', "bash")], ids=["alone", "behind_a_shell"])
def test_a_watchdogs_abort_is_reported_as_a_symptom(local, shell):
    done = local.run("-n", "3", *shell, PYTHON, local.script("hangs.py"), "abort", DUMPS)
    assert done.code == 134, done
    text = done.err_text
    said = text.index("a collective's watchdog killed a rank, which is a symptom")
    assert said < text.index("rank 0 failed first"), text
    # The stacks are read before any rank is stopped, so the other ranks are still where they hang.
    assert re.search(r"rank 2 \(host \S+, pid \d+\): main thread: where_two_is", text), text
    assert re.search(r"^  symptom: .*: rank 2 did not enter all_reduce #4", text, re.MULTILINE), text


def test_a_record_that_is_not_json_is_named(local):
    records = os.path.join(local.directory, "records")
    os.mkdir(records)
    for rank in range(3):
        local.file(f"records/absent-{rank}.json", '{"entries":[{ cut')
    with local.start("-n", "3", PYTHON, local.script("hangs.py"), "flight", records) as job:
        text = stack(local, job_of(job), pattern="cannot be read")
        assert "rank 1: its flight record cannot be read: not JSON: " in text, text
        end(job)


def test_settings_of_the_user_are_kept(local):
    mine = os.path.join(local.directory, "mine")
    os.mkdir(mine)
    local.file("mine/sitecustomize.py", "print('my own sitecustomize')\n")
    show = ("import os, sys; print(os.environ.get('TORCH_FR_BUFFER_SIZE'), "
            "os.environ.get('TORCH_FR_DUMP_TEMP_FILE'), 'IVY_STACK_FILE' in os.environ, "
            "sys.modules['sitecustomize'].__file__)")
    # A sitecustomize may follow ivyrun's on the path, like a distribution's, or precede it.
    site = subprocess.run([PYTHON, "-c", "import sitecustomize; print(sitecustomize.__file__)"],
                          capture_output=True, text=True, check=False).stdout.strip()
    done = local.run("-n", "1", PYTHON, "-c", show)
    assert re.search(r"1000 None False \S+/sitecustomize.py", done.out.decode()), done
    if site:
        assert site in done.out.decode(), done
    done = local.run("-n", "1", "-x", f"PYTHONPATH={mine}", "-x", "TORCH_NCCL_TRACE_BUFFER_SIZE=7",
                     "-x", "TORCH_FR_DUMP_TEMP_FILE=/x/y", PYTHON, "-c", show)
    assert "my own sitecustomize" in done.out.decode(), done
    assert re.search(r"None /x/y True ", done.out.decode()), done


def test_an_old_python_loads_only_its_own_sitecustomize(local):
    """Python 2 and 3.5, the system's own on old clusters, inherit PYTHONPATH from a worker and must not fail because of it."""
    old = shutil.which("python2.7")
    found = old and subprocess.run([old, "-c", "import sys; print(sys.executable)"], capture_output=True, text=True,
                                   check=False)
    if not found or found.returncode:
        pytest.skip("Python 2 is not installed")
    mine = os.path.join(local.directory, "mine")
    os.mkdir(mine)
    local.file("mine/sitecustomize.py", "print('my own sitecustomize')\n")
    done = local.run("-n", "1", "-x", f"PYTHONPATH={mine}", "sh", "-c",
                     f"PYTHONPATH=${{PYTHONPATH##*:}}:{mine} {found.stdout.strip()} -c 'import json; print(\"ran\")'")
    assert done.code == 0 and "my own sitecustomize" in done.out.decode() and "ran" in done.out.decode(), done
    assert b"sitecustomize" not in done.err, done


def test_no_python_hook(local):
    with local.start("--no-python-hook", "-n", "1", "bash", "-c",
                     "echo ready $IVY_JOB_ID $IVY_STACK_FILE $PYTHONPATH; exec sleep 100") as job:
        job_of(job, 1)
        assert b"/stack-" not in job.said() and b"/tmp/ivyrun-" not in job.said()
        end(job)


def test_a_detached_job_on_two_hosts(hosts):
    user = hosts.as_user("ivyuser")
    done = user.run("--detach", "--stall-timeout", "3", "--log-dir", "logs", "-H", "node3,node2,node4",
                    PYTHON, user.script("hangs.py"), "plain", limit=60)
    assert done.code == 0, done
    job = re.search(r"job ([0-9a-f]{12}) runs in the background", done.out.decode())[1]
    try:
        text = stack(user, job, pattern="where_others_are.*where_two_is", limit=60)
        assert re.match(r"ranks 0-1 \(hosts node3, node2\): main thread: where_others_are", text), text
        assert re.search(r"rank 2 \(host node4, pid \d+\)", text), text

        def log_text():
            # Read on that host, because its disks may differ.
            return user.run_program("/bin/sh", "-c", "cat $(find logs -name ivyrun.log)").out.decode()
        wait_until(lambda: "Where each rank is:\n" in log_text(), 30, "its log")
    finally:
        stopped = user.run_program(IVYCTL, "stop", job, "--now")
    assert stopped.code == 0, stopped


@pytest.mark.skipif(not os.path.exists(NCCL_CALLER), reason="nccl_caller is not built (target ivy_test_children)")
@pytest.mark.parametrize("choice", ["calls", "kernels"])
def test_ranks_that_a_collective_of_nccl_waits_for(local, choice):
    absent = (r"rank 2 did not enter all_reduce #5 of NCCL communicator 0x1a2b \"tp\" \(last entered all_reduce #4 "
              r"\d+ s ago\); ranks 0-1 wait in it \(1024 f32\) for \d+ s\n")
    with local.start("--nccl-profiler", choice, "-n", "3", NCCL_CALLER, "rank", "5", "2") as job:
        job_id = job_of(job)
        stack(local, job_id, pattern=absent)
        done = local.run_program(IVYCTL, "why", job_id, limit=60)
        assert re.search(absent, done.out.decode()), done
        end(job)


@pytest.mark.skipif(not os.path.exists(NCCL_CALLER), reason="nccl_caller is not built (target ivy_test_children)")
def test_a_stalled_nccl_collective_is_reported(local):
    with local.start("--nccl-profiler", "kernels", "--stall-timeout", "2", "-n", "3", NCCL_CALLER, "rank", "5",
                     "2") as job:
        job_of(job)
        job.wait_for(rb"rank 2 did not enter all_reduce #5 of NCCL communicator")
        end(job)


def test_nccls_profiler_plug_in_is_the_users_choice(local):
    show = ("bash", "-c", "echo plug-in: $NCCL_PROFILER_PLUGIN $IVY_NCCL_PROFILER")
    assert re.search(r"plug-in: /\S+/libivy_nccl_profiler.so$", local.run("-n", "1", *show).out.decode().strip())
    assert "plug-in: off\n" in local.run("--nccl-profiler", "off", "-n", "1", *show).out.decode()
    mine = local.run("-n", "1", "-x", "NCCL_PROFILER_PLUGIN=none", *show)
    assert "plug-in: none\n" in mine.out.decode(), mine
    wrong = local.run("--nccl-profiler", "all", "-n", "1", *show)
    assert wrong.code == 2 and "kernels" in wrong.err_text, wrong


WITH_TORCH = pytest.mark.skipif(not TORCH, reason="no current torch: scripts/setup torch")
NEVER = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
sizes = dist.new_group([0, 1, 2], group_desc="sizes")
kinds = dist.new_group([0, 1, 2], group_desc="kinds")
for _ in range(3):
    dist.all_reduce(torch.ones(16))
if rank in (0, 1):
    works = [dist.broadcast(torch.ones(1000 - rank), 2, group=sizes, async_op=True),
             dist.broadcast(torch.ones(8), 2, group=kinds, async_op=True) if rank == 0 else
             dist.all_reduce(torch.ones(8), group=kinds, async_op=True)]
print("ready", os.environ["IVY_JOB_ID"], "pid", os.getpid(), flush=True)
if rank == 2:
    time.sleep(1000)
dist.all_reduce(torch.ones(1000))
"""


@WITH_TORCH
def test_real_torch_names_ranks_that_did_not_enter_a_collective(local):
    script = local.file("never.py", NEVER)
    absent = (r'rank 2 did not enter all_reduce #4 of "default_pg" \(last entered all_reduce #3 \d+ s ago\); '
              r"ranks 0-1,3 wait in it \(\[\[1000\]\] Float, at never.py:16\) for \d+ s\n")
    others = (r'ranks differ at collective #1 of "sizes": rank 0 is in broadcast \(\[\[1000\]\] Float\); rank 1 is '
              r"in broadcast \(\[\[999\]\] Float\)\n"
              r'ranks differ at collective #1 of "kinds": rank 0 is in broadcast \(\[\[8\]\] Float\); rank 1 is in '
              r"all_reduce \(\[\[8\]\] Float\)\n")
    with local.start("--stall-timeout", "3", "-n", "4", TORCH, script) as job:
        job.wait_for(rb"ready", count=4, limit=120)
        job_id = job_of(job, 4)
        text = stack(local, job_id, pattern="did not enter.*rank 2", limit=30)
        assert re.match(absent + others, text), text
        why = local.run_program(IVYCTL, "why", job_id).out.decode()
        assert re.match(absent + others, why), why
        assert re.search(r"^  ranks 0-1,3 \(host \S+\): main thread: all_reduce \(torch/distributed/"
                         r".*\n(      .*\n)+  rank 2 \(host \S+, pid \d+\): main thread: <module> \(",
                         why, re.MULTILINE), why
        job.wait_for(rb"no progress for \d+ s. Where each rank is:\n  rank 2 did not enter all_reduce #4", limit=30)
        # A stopped rank does not answer, and ivyctl must not wait for it.
        victim = pids_of(job)[1]
        os.kill(victim, signal.SIGSTOP)
        wait_until(lambda: state_of(victim) == "T", 5, "the rank is stopped")
        began = time.monotonic()
        why = local.run_program(IVYCTL, "why", job_id).out.decode()
        assert time.monotonic() - began < seconds(8)
        assert re.match(absent.replace("0-1,3", "0,3"), why) and "no flight record of rank 1\n" in why, why
        os.kill(victim, signal.SIGCONT)
        finished = end(job)
    # torch would warn about deprecated variables and about the server that it opens.
    assert "deprecated" not in finished.err_text and "Server" not in finished.err_text, finished


@WITH_TORCH
def test_torchs_worker_server_neither_breaks_forks_nor_keeps_a_process(local):
    script = local.file("server.py", """
import glob, os, stat, sys, torch.distributed as dist
mine = os.path.dirname(os.environ["IVY_TOKEN_FILE"]) + "/stack-*.torch"
print("before", glob.glob(mine))
dist.init_process_group("gloo")
for path in glob.glob(mine):
    print("socket", path.endswith(f".{os.getpid()}.torch"), oct(os.stat(path).st_mode), flush=True)
child = os.fork()
if child == 0:
    sys.exit(5)
print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), "socket", len(glob.glob(mine)))
sys.exit(7)
""")
    done = local.run("-n", "1", TORCH, script, limit=120)
    assert done.code == 7, done
    text = done.out.decode()
    assert "before []" in text and "socket True 0o140600" in text and "child 5 socket 1" in text, done
    assert "WorkerServer" not in done.err_text, done


@pytest.mark.long
@WITH_TORCH
def test_without_torchs_flight_record_the_stacks_show_ranks_inside(local):
    with local.start("-n", "4", "-x", "TORCH_FR_BUFFER_SIZE=0", TORCH, local.file("never.py", NEVER)) as job:
        job.wait_for(rb"ready", count=4, limit=120)
        text = stack(local, job_of(job, 4), pattern="all_reduce.*rank 2", limit=30)
        found = "ranks 0-1,3 are in torch's all_reduce at never.py:16; rank 2 is in no collective\n"
        assert text.startswith(found), text
        end(job)
