# SPDX-License-Identifier: Apache-2.0
"""The allocation of a real Slurm: its hosts, the variables of the workers, and its end.

Slurm counts time limits in minutes, so tests that wait for one take most of a minute.
"""

import json
import os
import re
import shutil
import time

import pytest

from launching import REPOSITORY, seconds, wait_until
from slurm_jobs import Slurm, running_on

TEMPLATES = os.path.join(REPOSITORY, "scripts/slurm")
RESUME = "/srv/ivyshared/examples/resume.py"
HELLO = "/srv/ivyshared/examples/hello.py"
MINUTE = 90  # The limit for jobs with a time limit of a minute: Slurm checks time limits twice a minute.


@pytest.fixture(scope="module")
def running_slurm(testbed):
    with running_on(testbed, "linuxproc"):
        yield


@pytest.fixture
def slurm(hosts, running_slurm):
    with Slurm(hosts.as_user("ivyuser"), "linuxproc") as made:
        yield made


# ---- hosts ---------------------------------------------------------------------------------------

def test_dry_run_names_the_source_of_the_hosts(slurm):
    """Slurm's tasks do not set the number of workers."""
    job = slurm.batch(["-N", "3", "--ntasks-per-node=4"], "IVYRUN --dry-run hostname")
    done = job.finish()
    text = done.err_text
    assert done.code == 0, done
    assert f"plan: 3 hosts x 1 = 3 ranks (one per host, no accelerators found; hosts of Slurm job {job.number})" in text
    assert f"hosts from: Slurm job {job.number}\n" in text, done
    assert "Slurm's --ntasks-per-node=4 does not set the number of workers: use --nproc-per-node 4" in text, done
    assert re.findall(r"^  (node\d) ", text, re.M) == ["node1", "node2", "node3"], done


def test_hosts_of_another_job_are_rejected(slurm):
    done = slurm.run(["-w", "node[1-2]"], "-H", "node2,node[5-6]", "hostname")
    assert done.code == 2 and done.took < seconds(10), done
    assert re.search(r"-H: node\[5-6\] are not in Slurm job \d+ \(node\[1-2\]\)", done.err_text), done
    assert "--transport ssh" in done.err_text, done


def test_tasks_of_srun_are_rejected(slurm):
    """Each task would start the whole job. One of them reports this."""
    done = slurm.command("srun", "-N", "2", "-n", "8", slurm.launcher.ivyrun(), "-n", "8", "train me.py")
    assert done.code == 2, done
    assert done.err_text.count("srun started ivyrun 8 times") == 1, done
    assert "without srun: ivyrun -n 8 'train me.py'" in done.err_text, done


@pytest.mark.parametrize("flags", [[], ["--fake-hosts", "2"], ["--transport", "local"],
                                   ["-H", "localhost", "--transport", "ssh"]], ids=lambda flags: " ".join(flags))
def test_a_task_rejects_within_a_second(local, flags):
    """This is independent of the source of the hosts."""
    for task, count in ("0", 1), ("5", 0):
        done = local.run(*flags, "touch", "started", env={
            "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "a,b", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "8",
            "SLURM_PROCID": task})
        assert done.code == 2 and done.took < seconds(1), done
        assert done.err_text.count("srun started ivyrun 8 times") == count, done
    assert not local.exists("started")


def test_arguments_for_srun_are_passed(slurm):
    """They follow ivyrun's own arguments, and srun uses the last value of an option."""
    job = slurm.batch(["-N", "1"], "IVYRUN --srun-args=--job-name=mine scontrol -o show step $SLURM_JOB_ID")
    done = job.finish()
    assert done.code == 0 and re.search(r"\bName=mine\b", done.err_text), done


def test_one_task_of_srun_is_a_job(slurm):
    done = slurm.command("srun", "-N", "1", "-n", "1", slurm.launcher.ivyrun(), "-n", "2", "/bin/echo", "came")
    assert done.code == 0 and done.out.count(b"came") == 2, done


# ---- variables of workers ------------------------------------------------------------------------

def test_workers_get_their_ranks_in_slurms_variables(slurm):
    names = ("PROCID LOCALID NODEID NNODES NTASKS NPROCS NTASKS_PER_NODE STEP_NUM_NODES STEP_NUM_TASKS STEP_NODELIST "
             "STEP_TASKS_PER_NODE GTIDS JOB_NUM_NODES").split()
    words = " ".join(f"{name}=$SLURM_{name}" for name in names)
    script = slurm.launcher.file("say.sh", f"#!/bin/sh\necho \"{words} TASK=${{SLURM_TASK_PID-none}}"
                                           " MPI=${HYDRA_BOOTSTRAP-none}\"\n", 0o755)
    job = slurm.batch(["-N", "3", "--ntasks-per-node=3"],
                      f"export HYDRA_BOOTSTRAP=slurm\nIVYRUN -n 4 --nproc-per-node 2 {script}")
    done = job.finish()
    texts = done.texts_by_rank()
    assert sorted(texts) == [0, 1, 2, 3], done
    for rank, lines in texts.items():
        node = rank // 2
        assert lines == [
            f"PROCID={rank} LOCALID={rank % 2} NODEID={node} NNODES=2 NTASKS=4 NPROCS=4 NTASKS_PER_NODE=2 STEP_NUM_NODES=2 "
            f"STEP_NUM_TASKS=4 STEP_NODELIST=node[1-2] STEP_TASKS_PER_NODE=2(x2) GTIDS={2 * node},{2 * node + 1} "
            "JOB_NUM_NODES=3 TASK=none MPI=none"], done


# ---- time limits ---------------------------------------------------------------------------------

def test_ranks_are_notified_and_the_job_is_requeued(slurm):
    """A job of the shipped template saves before the limit, is requeued, resumes and succeeds."""
    slurm.launcher.file("state.json", '{"step": 5}')
    # More steps than fit into the minute: however slow the machine, the first turn ends with the notice.
    options = ["-t", "1", "-N", "2", "-o", f"{slurm.launcher.directory}/turns.out", ivyrun_on_path(slurm)]
    job = slurm.submit("turns.out", *options, template(slurm, "requeue.sbatch"), RESUME, "--step-seconds", "0.1",
                       "--steps", "1000", "--checkpoint", f"{slurm.launcher.directory}/state.json")
    job.wait_for("is being requeued", limit=MINUTE)
    first = job.text()
    saved = int(re.search(r"0 node1\] SIGTERM: saved at step (\d+)", first)[1])
    assert first.count("begins at step 5\n") == 2 and first.count("SIGTERM: saved") == 2, first
    assert "exit code 75 (from ivyrun)" in first, first
    # Slurm would delay the job for two minutes.
    wait_until(lambda: job.state() == "PENDING", 20, "the job is pending again")
    assert json.loads(slurm.launcher.read("state.json")) == {"step": saved}
    # The rest must fit into the second turn, which has half a minute before its own notice.
    slurm.launcher.file("state.json", '{"step": 980}')
    job.start_at_once()
    job.wait_for("begins at step", limit=60, count=4)
    assert job.text().count("begins at step 980\n") == 2, job.text()
    done = job.finish(MINUTE)
    assert done.code == 0 and done.err_text.count("done: 1000 steps") == 2, done


def test_slurms_own_end_notice_is_used(local):
    """Since 23.02 Slurm sets SLURM_JOB_END_TIME, so squeue is not called."""
    local.file("squeue", "#!/bin/sh\ntouch asked\nexit 1\n", 0o755)
    done = local.run("-v", "-n", "2", "--transport", "local", "--stop-before-end", "10s",
                     f"{REPOSITORY}/scripts/examples/resume.py", "--checkpoint", "state.json", env={
                         "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "a", "PATH": f"{local.directory}:/usr/bin:/bin",
                         "SLURM_JOB_END_TIME": str(round(time.time() + 11 + seconds(1)))})
    assert done.code == 75 and done.out.count(b"SIGTERM: saved at step") == 2, done
    assert re.search(r"Slurm job 7 ends at [-0-9]+ [:0-9]+, in 1\d s", done.err_text), done
    assert "sooner than" not in done.err_text and not local.exists("asked"), done


SAVES_SLOWLY = """
import os, signal, time
heard = []
signal.signal(signal.SIGTERM, lambda *_: (heard.append(1), print("heard", len(heard), flush=True)))
while not heard or not os.path.exists("go"): time.sleep(0.05)
print("saved", flush=True)
"""


def test_slurms_term_arrives_after_ivyruns(slurm):
    """Slurm's TERM to ivyrun and to each host of the step arrives while ranks are saving. They already have the notice."""
    worker = slurm.launcher.file("save.py", SAVES_SLOWLY)
    job = slurm.batch(["-N", "2"], f"export SLURM_JOB_END_TIME=$(($(date +%s) + 91 + {round(seconds(1))}))\n"
                      f"exec IVYRUN --stop-before-end 90s {worker}")
    job.wait_for("heard 1", count=2)
    for whom in [], ["--batch"]:
        assert slurm.command("scancel", "--signal=TERM", *whom, str(job.number)).code == 0
    time.sleep(seconds(0.5))
    slurm.launcher.file("go")
    done = job.finish()
    assert done.code == 75 and done.err_text.count("saved") == 2, done
    assert "stopping" not in done.err_text and "interrupted" not in done.err_text, done
    # With linuxproc, Slurm signals the ranks itself.
    assert slurm.track == "linuxproc" or "heard 2" not in done.err_text, done


def test_ranks_get_one_notice_from_any_sender(slurm):
    """Slurm's USR1 to the batch script arrives first, and ivyrun's own timer expires later."""
    delay = 6 + seconds(2)
    job = slurm.batch(["-N", "2"], f"export SLURM_JOB_END_TIME=$(($(date +%s) + 90 + {round(delay)}))\n"
                      "exec IVYRUN --stop-before-end 90s --preempt-signal USR1 " + slurm.launcher.script("signals.py"))
    job.wait_for("ready", count=2)
    assert slurm.command("scancel", "--signal=USR1", "--batch", str(job.number)).code == 0
    job.wait_for("got SIGUSR1 1", count=2, limit=40)
    time.sleep(delay + 2)
    assert "SIGUSR1 2" not in job.text(), job.text()
    assert job.text().count("is about to end") == 1, job.text()


# Slurm's limits are in minutes, so this test cannot be short. A signal of scancel is handled the same way (test_slurm.py).
@pytest.mark.long
@pytest.mark.parametrize("flags", [["--signal=USR1@55"], ["--signal=B:USR1@55"]], ids=["steps", "script"])
def test_slurms_own_signal_is_a_notice(slurm, flags):
    job = slurm.batch(["-N", "2", "-t", "1", *flags],
                      f"exec IVYRUN --preempt-signal USR1 {RESUME} --checkpoint here.json")
    done = job.finish(MINUTE)
    assert done.code == 75, done
    assert done.err_text.count("SIGUSR1: saved at step") == 2, done


@pytest.mark.long
def test_slurm_does_not_cancel_a_job_whose_ranks_ignore_the_notice(slurm):
    started = time.monotonic()
    job = slurm.batch(["-N", "2", "-t", "1"],
                      f"IVYRUN --stop-before-end 40s {slurm.launcher.script('stubborn.py')}\necho code $?")
    done = job.finish(MINUTE)
    assert "code 75" in done.err_text, done
    assert "KILL follows in" in done.err_text and "CANCELLED" not in done.err_text, done
    assert time.monotonic() - started < seconds(70), done


def test_a_job_with_a_failed_worker_is_not_requeued(slurm):
    worker = slurm.launcher.file("fail.py", "import signal, sys, time\n"
                                 "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n"
                                 "print('up', flush=True)\nwhile True: time.sleep(0.1)\n")
    job = slurm.batch(["-N", "1", "-t", "1", "--requeue"],
                      f"IVYRUN --stop-before-end 52s --requeue {worker}\necho code $?")
    done = job.finish(MINUTE)
    assert "code 3" in done.err_text and "put back" not in done.err_text, done


def test_cancelled_work_is_not_requeued(slurm):
    """scancel's TERM looks like an early notice of Slurm."""
    job = slurm.batch(["-N", "1", "-t", "1", "--requeue"],
                      f"exec IVYRUN --stop-before-end 20s --requeue {RESUME} --checkpoint x.json")
    job.wait_for("begins at step")
    time.sleep(1)
    slurm.command("scancel", str(job.number))
    job.finish()
    assert job.state() == "CANCELLED" and "saved at step" in job.text(), job.text()
    assert "is being requeued" not in job.text(), job.text()


def test_a_failing_scontrol_is_reported(slurm):
    """The message quotes scontrol and gives a fix, and the exit code is the same."""
    slurm.put_on_path("scontrol", "echo 'no luck today' >&2\nexit 1\n")
    job = slurm.batch(["-N", "1", "-t", "1"],
                      f"PATH={slurm.launcher.directory}/bin:$PATH\n"
                      f"IVYRUN --stop-before-end 52s --requeue {RESUME} --checkpoint x.json\necho code $?")
    done = job.finish(MINUTE)
    assert "IVY-R012" in done.err_text and "scontrol requeue: no luck today" in done.err_text, done
    assert "code 75" in done.err_text, done


def test_a_hanging_squeue_delays_no_job(slurm):
    slurm.put_on_path("squeue", "exec sleep 1000\n")
    job = slurm.batch(["-N", "1"], f"PATH={slurm.launcher.directory}/bin:$PATH\n"
                      "IVYRUN --stop-before-end 52s /bin/sh -c 'sleep 7; echo came'\necho code $?")
    done = job.finish()
    assert "came" in done.err_text and "code 0" in done.err_text, done
    assert "squeue did not answer within 5 s; --stop-before-end checks again" in done.err_text, done


# ---- the templates -------------------------------------------------------------------------------

def ivyrun_on_path(slurm):
    folder = slurm.put_on_path("ivyrun", f"exec {slurm.launcher.ivyrun()} \"$@\"\n")
    return f"--export=ALL,PATH={folder}:/usr/bin:/bin"


def template(slurm, name):
    shutil.copy(os.path.join(TEMPLATES, name), slurm.launcher.outside(f"{slurm.launcher.directory}/{name}"))
    return f"{slurm.launcher.directory}/{name}"


def run_template(slurm, name, *options):
    return slurm.submit("template.out", ivyrun_on_path(slurm), *options, template(slurm, name), HELLO)


def test_templates_for_nodes(slurm):
    output = f"--output={slurm.launcher.directory}/template.out"
    done = run_template(slurm, "one_node.sbatch", output).finish()
    assert done.code == 0 and "rank 0" in done.err_text, done
    done = run_template(slurm, "several_nodes.sbatch", output, "-N", "3").finish()
    assert done.code == 0 and len(done.texts_by_rank()) == 3, done


def test_template_for_arrays(slurm):
    pattern = f"--output={slurm.launcher.directory}/element.%a.out"
    job = run_template(slurm, "array.sbatch", pattern, "--array=0-2")

    def ended():
        return not slurm.command("squeue", "-h", "-j", str(job.number)).out.strip()
    wait_until(ended, 60, "the end of the array")
    for element in range(3):
        text = slurm.launcher.read(f"element.{element}.out").decode()
        assert "rank 0" in text and "error" not in text, text


# ---- errors --------------------------------------------------------------------------------------

BROKEN = [
    ({"SLURM_JOB_ID": "7"}, "SLURM_JOB_ID=7 is set, but SLURM_JOB_NODELIST is not"),
    ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-"}, "has an unmatched bracket"),
    ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "bgl[000x133]"}, "is not a number or a range"),
    ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "a,a"}, "names a twice"),
    ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "a", "SLURM_JOB_NUM_NODES": "4"}, "SLURM_JOB_NUM_NODES is 4"),
    ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "a", "SLURM_HET_SIZE": "2"}, "heterogeneous job of 2 components"),
]


@pytest.mark.parametrize("variables,words", BROKEN, ids=[words for _, words in BROKEN])
def test_an_invalid_allocation_is_an_error(local, variables, words):
    done = local.run("-n", "1", "/bin/echo", "came", env=variables)
    assert done.code == 2 and b"came" not in done.out and done.took < seconds(2), done
    assert words in done.err_text and "fix:" in done.err_text, done


def test_flags_for_slurm_are_rejected_outside_slurm(local):
    for flags in (["--requeue"], ["--stop-before-end", "60"]):
        done = local.run(*flags, "/bin/true")
        assert done.code == 2 and f"{flags[0]} works only in Slurm jobs" in done.err_text, done
    done = local.run("--preempt-signal", "KILL", "/bin/true")
    assert done.code == 2 and "--preempt-signal" in done.err_text, done


def test_attach_reports_a_job_that_has_ended(slurm):
    variables = {"SLURM_JOB_ID": "4242", "SLURM_JOB_NODELIST": "node[1-2]", **slurm.environment}
    done = slurm.launcher.run("hostname", env=variables, limit=60)
    assert done.code == 120 and done.took < seconds(20), done
    assert "Invalid job id" in done.err_text and "fix:" in done.err_text, done


def test_no_munge(slurm):
    """Without munge srun cannot authenticate."""
    script = ("sed 's#munge.socket#no.socket#' $SLURM_CONF > mine.conf\nexport SLURM_CONF=$PWD/mine.conf\n"
              "IVYRUN hostname\necho code $?")
    done = slurm.batch(["-N", "2"], script).finish(60)
    assert "code 120" in done.err_text and "unge" in done.err_text and "fix:" in done.err_text, done


def test_a_drained_node_continues(slurm):
    """A draining node still runs its jobs, so ivyrun must start a step there."""
    job = slurm.batch(["-w", "node[1-2]"], "touch up\nwhile [ ! -e go ]; do sleep 0.1; done\nIVYRUN hostname\n"
                      "echo code $?")
    wait_until(lambda: job.state() == "RUNNING", 30, "the job runs")
    root = Slurm(slurm.launcher.as_user("root"), "linuxproc")
    root.command("scontrol", "update", "NodeName=node2", "State=DRAIN", "Reason=test")
    try:
        slurm.launcher.file("go")
        done = job.finish()
    finally:
        root.command("scontrol", "update", "NodeName=node2", "State=RESUME")
    assert "code 0" in done.err_text and len(done.texts_by_rank()) == 2, done
