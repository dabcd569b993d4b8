# SPDX-License-Identifier: Apache-2.0
"""Resources that ivyrun inherits from its parent, and child processes that it leaves to it."""

import contextlib
import os
import re
import resource
import shlex
import shutil
import signal
import sys
import threading
import time

import pytest

from launching import seconds, wait_until

# This process adopts ivyrun's orphans, like the first process of a container, which often never reaps. It prints for each
# run the exit code and the number of children left.
SUBREAPER = r"""
import ctypes, os, sys
PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
for _ in range(int(sys.argv[1])):
    ivyrun = os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ)
    _, status = os.waitpid(ivyrun, 0)
    left = 0
    try:
        while os.waitpid(-1, os.WNOHANG):
            left += 1
            os.waitpid(-1, 0)
    except ChildProcessError:
        print(os.waitstatus_to_exitcode(status), left)
"""
ROUNDS = 20
# ivyrun waits for the warden for at most half a second, which may not be enough on a busy machine.
ALLOWED = ROUNDS // 4


def expect_no_children(local, code, *words, env=None):
    done = local.run_program(sys.executable, "-c", SUBREAPER, str(ROUNDS), local.ivyrun(), *words, limit=60, env=env)
    assert done.code == 0, done
    runs = [tuple(map(int, line.split())) for line in done.out_lines]
    assert len(runs) == ROUNDS and all(run[0] == code for run in runs), done
    left = [run[1] for run in runs]
    assert sum(left) <= ALLOWED, f"children left by each run: {left}"


@pytest.mark.parametrize("program", ["/bin/true", "sleep 0.01"])
def test_no_child_process_is_left_to_the_caller(local, program):
    expect_no_children(local, 0, "-n", "2", *program.split())


def test_a_rejected_command_line_and_simulated_hosts_leave_no_child(local):
    expect_no_children(local, 2, "-n", "two", "/bin/true")
    os.makedirs(os.path.join(local.directory, "ivyrun"))
    local.file("ivyrun/config.toml", "fake-hosts = 2\n")
    expect_no_children(local, 0, "-n", "2", "/bin/true", env={"XDG_CONFIG_HOME": str(local.directory)})


@pytest.mark.parametrize("closed", ["<&-", "<&- 2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_not_used_as_transport(local, closed):
    done = local.run_program("/bin/sh", "-c", f'"$@" {closed}', "-", local.ivyrun(), "-n", "2", "--fake-hosts", "1",
                             "sh", "-c", "exit 7", limit=30)
    assert done.code == 7, done


@pytest.mark.parametrize("mpirun", ["mpiexec.hydra", "mpirun.openmpi"])
def test_tasks_of_mpirun_are_rejected(local, mpirun):
    """Each task would start the whole job. The first one reports this."""
    if shutil.which(mpirun) is None:
        pytest.skip(f"{mpirun} is not installed")
    root = ["--allow-run-as-root", "--oversubscribe"] if "openmpi" in mpirun else []
    done = local.run_program(mpirun, *root, "-n", "2", local.ivyrun(), "-n", "2", "./my program", limit=30)
    assert done.code == 2, done
    assert done.err_text.count("mpirun started ivyrun 2 times") == 1, done
    assert "run it without mpirun: ivyrun -n 2 './my program'" in done.err_text, done
    done = local.run_program(mpirun, *root, "-n", "1", local.ivyrun(), "-n", "1", "true", limit=30)
    assert done.code == 0, done


def test_a_hostfile_that_can_be_read_only_once(local):
    """Like a shell's <(...)."""
    path = os.path.join(local.directory, "hosts.pipe")
    os.mkfifo(path)

    def write():
        with open(path, "w") as file:
            file.write("localhost slots=2\n")
    threading.Thread(target=write, daemon=True).start()
    done = local.run("--hostfile", path, "echo", "here")
    assert done.code == 0 and sorted(done.texts_by_rank()) == [0, 1], done


def test_a_hostfile_may_be_standard_input(local):
    done = local.run_program("sh", "-c", f"echo localhost slots=2 | {local.ivyrun()} --hostfile - echo here")
    assert done.code == 0 and sorted(done.texts_by_rank()) == [0, 1], done


def core_limit(pid):
    """Returns the soft limit of a process's core dumps."""
    with open(f"/proc/{pid}/limits", encoding="utf-8") as file:
        return re.search(r"^Max core file size +(\w+)", file.read(), re.M).group(1)


def test_a_launcher_leaves_no_core_with_its_secrets(local):
    """The workers keep the user's limit."""
    script = "ulimit -S -c 1024 && exec " + shlex.join([local.ivyrun(), "-n", "1", "sh", "-c", "ulimit -S -c; sleep 60"])
    with local.start_program("sh", "-c", script) as run:
        run.wait_for("1024")
        assert core_limit(run.pid()) == "0"
        run.signal(signal.SIGTERM)
        run.finish()


LIMITS = "umask; ulimit -Sn; ulimit -Ss; nice"


def test_workers_have_the_limits_of_the_shell(local):
    """ivyrun raises its own limit of open files, but not the workers', unless it is the kernel's default of 1024. Then the
    workers get at most 65536."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    for soft, expected in ((256, 256), (1024, 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536))):
        script = (f"umask 027; ulimit -Sn {soft}; ulimit -Ss 4096; exec nice -n 3 "
                  + shlex.join([local.ivyrun(), "--fake-hosts", "2", "--label", "none", "sh", "-c", LIMITS]))
        done = local.run_program("sh", "-c", script)
        assert sorted(done.out_lines) == sorted(2 * ["0027", str(expected), "4096", str(os.nice(0) + 3)]), done


def test_limits_travel_to_other_hosts(hosts):
    script = ("umask 002; ulimit -Ss 4096; exec "
              + shlex.join([hosts.ivyrun(), "-H", "node1,node2", "--label", "none", "sh", "-c", "umask; ulimit -Ss"]))
    done = hosts.run_program("sh", "-c", script)
    assert sorted(done.out_lines) == ["0002", "0002", "4096", "4096"], done


CPU = "/sys/fs/cgroup/cpu" if os.path.isdir("/sys/fs/cgroup/cpu") else "/sys/fs/cgroup"


@pytest.mark.skipif(os.geteuid() != 0 or not os.access(f"{CPU}/cgroup.procs", os.W_OK) or len(os.sched_getaffinity(0)) < 2,
                    reason="makes a cgroup with a quota, as root, on two processors")
def test_threads_fit_the_processor_quota_of_the_cgroup(local):
    group = f"{CPU}/ivytest-quota-{os.getpid()}"
    os.mkdir(group)
    try:
        limit = ("cpu.cfs_quota_us", "150000") if os.path.exists(f"{group}/cpu.cfs_quota_us") else ("cpu.max", "150000 100000")
        if not os.path.exists(f"{group}/{limit[0]}"):
            pytest.skip("the cgroup has no cpu controller")
        with open(f"{group}/{limit[0]}", "w") as file:
            file.write(limit[1])
        inside = f"echo $$ > {group}/cgroup.procs; exec "
        job = shlex.join([local.ivyrun(), "-n", "1", "sh", "-c", "echo $OMP_NUM_THREADS"])
        assert local.run_program("sh", "-c", inside + job).out_lines == ["1"]
        assert int(local.run_program("sh", "-c", job).out_lines[0]) >= 2
    finally:
        wait_until(lambda: not open(f"{group}/cgroup.procs").read(), 10, "the group is empty")
        os.rmdir(group)


def test_processes_that_outlive_a_rank_are_named(local):
    """These processes end with the job. Without the message a helper that uploads results would disappear unnoticed."""
    done = local.run("-n", "2", "sh", "-c", "setsid sleep 30 & sleep 0.5; exit 0")
    assert done.code == 0 and "stopped 2 processes that ranks left behind" in done.err_text, done
    assert "sleep (2)" in done.err_text, done


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor")
def test_workers_with_a_processor_each_have_a_session_each(local):
    """The kernel shares processors among sessions. Ranks with a processor each get a session each, so that they compete with
    other users' load. Ranks that share processors are in one session."""
    processors = len(os.sched_getaffinity(0))
    for workers, sessions in ((processors, processors), (processors + 1, 1)):
        done = local.run("-n", str(workers), sys.executable, "-c", "import os; print(os.getsid(0))")
        assert done.code == 0, done
        assert len({text for _, _, text in done.labelled()}) == sessions, done


def test_ctrl_z_suspends_processes_below_a_shell(local):
    """As in a terminal, this includes DataLoader workers, programs below `bash run.sh` and --wrap tools."""
    count = os.path.join(local.directory, "count")
    script = f"bash -c 'for i in $(seq 1 1000); do echo >> {count}; sleep 0.05; done'; true"

    def lines():
        with contextlib.suppress(OSError):
            return os.path.getsize(count)
        return 0

    def grows():
        before = lines()
        time.sleep(seconds(0.5))
        return lines() > before

    with local.start("-n", "1", "bash", "-c", script) as job:
        wait_until(lambda: lines() > 2, 20, "the inner program runs")
        pid = job.pid()
        os.kill(pid, signal.SIGTSTP)
        wait_until(lambda: open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] == "T", 10,
                   "ivyrun is suspended")
        assert not grows(), "the program below the shell still runs"
        os.kill(pid, signal.SIGCONT)
        wait_until(grows, 10, "the program continues")
        job.signal(signal.SIGTERM)
        job.finish()


def test_signals_that_the_parent_had_blocked_still_end_the_job(local):
    """Runtimes such as the JVM's start programs from threads that block signals."""
    block = ("import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, "
             "signal.SIGHUP, signal.SIGCHLD}); os.execv(sys.argv[1], sys.argv[1:])")
    with local.start_program(sys.executable, "-c", block, local.ivyrun(), "-n", "2", "sh", "-c",
                             "echo ready; exec sleep 60") as run:
        run.wait_for("ready", count=2)
        run.signal(signal.SIGTERM)
        done = run.finish()
    assert done.code in (143, -signal.SIGTERM), done
