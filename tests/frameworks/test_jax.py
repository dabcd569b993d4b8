# SPDX-License-Identifier: Apache-2.0
"""The current and the oldest supported JAX under ivyrun: unmodified scripts join their world by the import hook or only by
variables, stops are quick, and errors are reported in one line."""

import os
import re
import signal
import time

import pytest

from environments import python_of, script
from launching import seconds
from slurm_jobs import Slurm, running_on

TWO_BY_TWO = ("--fake-hosts", "2", "--nproc_per_node", "2")
# Variables of a Slurm step, mpirun and Kubernetes that do not belong to this job.
FOREIGN = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "elsewhere", "SLURM_NTASKS": "9", "SLURM_PROCID": "7",
           "SLURM_LOCALID": "7", "OMPI_MCA_orte_hnp_uri": "1.0;tcp://10.9.9.9:1", "OMPI_COMM_WORLD_SIZE": "9",
           "OMPI_COMM_WORLD_RANK": "7", "OMPI_COMM_WORLD_LOCAL_RANK": "7", "KUBERNETES_SERVICE_HOST": "10.9.9.9"}


@pytest.fixture(params=["jax", "jax-old"])
def python(request):
    return python_of(request.param)


def ranks_of(done):
    return sorted(re.findall(r"process (\d+) of (\d+)", done.out.decode()))


def world_of(size):
    return [(str(rank), str(size)) for rank in range(size)]


def run(launcher, python, name, *flags, arguments=(), **options):
    return launcher.run(*flags, "--python", python, script(launcher, name), *arguments, limit=90, **options)


def test_initialize_without_arguments(local, python):
    done = run(local, python, "jax_train.py", *TWO_BY_TWO)
    assert done.code == 0, done
    assert ranks_of(done) == world_of(4), done
    assert done.out.count(b"1 of 4 devices, loss 0.00") == 4, done
    assert "IVY-" not in done.err_text, done


def test_variables_of_other_launchers_are_ignored(local, python):
    done = run(local, python, "jax_psum.py", *TWO_BY_TWO, env=FOREIGN)
    assert done.code == 0 and ranks_of(done) == world_of(4), done


def test_launcher_variables_set_by_a_wrapper_are_ignored(local, python):
    words = [f"{name}={value}" for name, value in FOREIGN.items() if name.startswith("SLURM_")]
    done = local.run("--fake-hosts", "2", "env", *words, python, script(local, "jax_psum.py"), limit=90)
    assert done.code == 0 and ranks_of(done) == world_of(2), done


def test_jax_initializes_from_variables_only(local, python):
    done = run(local, python, "jax_arguments.py", *TWO_BY_TWO, "--no-python-hook", "-B", "jax", env=FOREIGN)
    assert done.code == 0 and ranks_of(done) == world_of(4), done


def test_a_sum_with_variables_only(local):
    done = run(local, python_of("jax"), "jax_psum.py", *TWO_BY_TWO, "--no-python-hook", "-B", "jax")
    assert done.code == 0 and ranks_of(done) == world_of(4), done


def test_devices_of_the_cpu(local, python):
    done = run(local, python, "jax_arguments.py", "--fake-hosts", "2", "--cpu-devices", "3", env=FOREIGN)
    assert done.code == 0 and done.out.count(b"3 of 6 devices") == 2, done


def test_training_on_devices_of_the_cpu(local):
    """Only with current JAX: Gloo in 0.4.31 needs a core for each device."""
    done = run(local, python_of("jax"), "jax_train.py", "--fake-hosts", "2", "--cpu-devices", "3",
               "-x", "XLA_FLAGS=--xla_cpu_enable_fast_math=false")
    assert done.code == 0 and done.out.count(b"3 of 6 devices, loss 0.0") == 2, done


def test_every_kind_of_collective_on_the_cpu(local, python):
    done = run(local, python, "jax_cpu_collectives.py", *TWO_BY_TWO)
    assert done.code == 0 and ranks_of(done) == world_of(4), done


def test_a_stop_does_not_wait_for_the_grace_period(local, python):
    with local.start(*TWO_BY_TWO, "--shutdown-timeout", "60", "--python", python,
                     script(local, "jax_waits.py")) as job:
        job.wait_for("up \\d", 60, count=4)
        started = time.monotonic()
        job.signal(signal.SIGTERM)
        assert job.finish().code == -signal.SIGTERM and time.monotonic() - started < 30


def test_a_failing_rank_does_not_wait_for_the_others(local, python):
    """With JAX alone, every process waits at its exit for all others."""
    for rank in "0", "1":
        done = run(local, python, "jax_waits.py", "--fake-hosts", "2", arguments=[rank])
        assert done.code == 3 and f"rank {rank} failed first" in done.own_text(), done


def test_jax_reports_no_notice_after_an_ordinary_term(local, python):
    with local.start("--fake-hosts", "2", "--python", python, script(local, "jax_notice.py")) as job:
        job.wait_for("stepping", 60, count=2)
        job.signal(signal.SIGTERM)
        done = job.finish(10)
        assert done.code == -signal.SIGTERM and b"saves" not in done.out, done


def test_a_notice_reaches_every_rank(local, python):
    """One rank gets the notice, and JAX passes it on to the others."""
    with local.start(*TWO_BY_TWO, "--preempt-signal", "TERM", "--python", python,
                     script(local, "jax_notice.py")) as job:
        job.wait_for("stepping", 60, count=4)
        victim = next(p.pid for p in local.processes() if "jax_notice.py" in str(p.words()) and p.name.startswith(b"python"))
        os.kill(victim, signal.SIGTERM)
        done = job.finish(60)
    assert done.code == 0, done
    steps = re.findall(r"process (\d) saves at step (\d+)", done.out.decode())
    assert len({rank for rank, _ in steps}) == 4 and len({step for _, step in steps}) == 1, done


@pytest.mark.long
def test_the_end_of_a_slurm_job_is_a_notice(local):
    """With the oldest JAX; test_in_a_slurm_job covers the current one."""
    python = python_of("jax-old")
    end = str(round(time.time() + 10 + seconds(5)))
    done = local.run("-n", "2", "--transport", "local", "--stop-before-end", "10s", "--python", python,
                     script(local, "jax_notice.py"), limit=60,
                     env={"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "a", "SLURM_JOB_END_TIME": end})
    assert done.code == 75, done
    steps = re.findall(r"process (\d) saves at step (\d+)", done.out.decode())
    assert len(steps) == 2 and steps[0][1] == steps[1][1], done


def test_a_rank_that_never_initializes_is_named(local, python):
    with local.start(*TWO_BY_TWO, "--start-timeout", "6", "--python", python,
                     script(local, "jax_late.py"), "3") as job:
        job.wait_for(r"IVY-P033\]: rank 3 \(fake1\) has not called jax.distributed.initialize\(\)", 60)
        job.signal(signal.SIGTERM)
        done = job.finish(20)
    assert done.err.count(b"IVY-P033") == 1, done


def test_a_rank_0_that_never_initializes_is_named_once(local):
    with local.start(*TWO_BY_TWO, "--start-timeout", "6", "--python", python_of("jax"),
                     script(local, "jax_late.py"), "0") as job:
        job.wait_for(r"IVY-P033\]: rank 0 \(fake0\) has not called", 60)
        job.signal(signal.SIGTERM)
        assert job.finish(20).err.count(b"IVY-P033") == 1


def test_a_coordinator_that_cannot_be_reached_is_named(local, python):
    wrapper = local.file("astray.sh", '[ "$RANK" = 1 ] && export JAX_COORDINATOR_ADDRESS=127.0.0.1:1\nexec "$@"\n')
    with local.start("--fake-hosts", "2", "--start-timeout", "3", "sh", wrapper, python,
                     script(local, "jax_waits.py")) as job:
        job.wait_for(r"IVY-P032\]: rank 1 \(fake1\) cannot reach JAX's coordinator, rank 0 \(fake0\), at "
                     r"127.0.0.1:1: .*refused", 60)
        job.signal(signal.SIGTERM)
        job.finish(20)


def test_different_versions_are_rejected(local):
    new, old = python_of("jax"), python_of("jax-old")
    wrapper = local.file("choose.sh", f'[ "$RANK" = 1 ] && exec {old} "$@"\nexec {new} "$@"\n')
    done = local.run("--fake-hosts", "2", "sh", wrapper, script(local, "jax_psum.py"), limit=90)
    assert done.code == 122, done
    line = re.search(r"IVY-P031\]: jaxlib is (\S+) on rank 1 \(fake1\) and (\S+) on rank 0 \(fake0\)", done.err_text)
    assert line and line[1] == "0.4.31", done
    assert f"pip install jax=={line[2]}" in done.err_text, done


def test_the_coordinator_does_not_use_the_port_of_the_store(local, python):
    done = run(local, python, "jax_arguments.py", *TWO_BY_TWO,
               arguments=["address=$MASTER_ADDR:$MASTER_PORT", "num_processes=$WORLD_SIZE", "process_id=$RANK"])
    assert done.code == 0 and ranks_of(done) == world_of(4), done
    assert done.err.count(b"belongs to the job's store") == 1, done


def test_another_rank_than_the_jobs_is_noted(local, python):
    """JAX accepts that each rank is a separate world. One line reports it."""
    done = run(local, python, "jax_arguments.py", "--fake-hosts", "2",
               arguments=["address=127.0.0.1:4${RANK}711", "num_processes=1", "process_id=0"])
    assert done.code == 0, done
    assert "this is rank" in done.err_text and done.err.count(b"was called with process_id=0, num_processes=1") == 1, done


def test_a_python_without_jax_is_named(local):
    python_of("jax")
    done = run(local, "/usr/bin/python3", "jax_psum.py", "--fake-hosts", "2")
    assert done.code == 1 and "has no module jax" in done.err_text, done


def test_restarted_ranks_synchronize_again(local, python):
    done = run(local, python, "jax_restarts.py", *TWO_BY_TWO, "--max-restarts", "2")
    assert done.code == 0, done
    assert done.out.count(b"attempt 1: sum 10.0") == 4, done


def services(local):
    return [p.pid for p in local.processes() if b"get_distributed_runtime_service" in p.command]


def test_the_jax_service_serves_each_attempt(local, python):
    done = run(local, python, "jax_restarts.py", "--fake-hosts", "2", "--max-restarts", "2", "--app", "jax-service")
    assert done.code == 0, done
    assert done.out.count(b"attempt 1: sum 3.0") == 2, done


def test_the_job_ends_when_the_service_is_killed(local):
    with local.start("--fake-hosts", "2", "--app", "jax-service", "--python", python_of("jax"),
                     script(local, "jax_waits.py")) as job:
        job.wait_for("up \\d", 60, count=2)
        (service,) = services(local)
        os.kill(service, signal.SIGKILL)
        done = job.finish(20)
    assert "IVY-R016" in done.err_text and "killed by signal 9" in done.own_text(), done
    assert not services(local)


def test_a_service_that_cannot_start_reports_why(local):
    """jaxlib is not installed for Debian's Python."""
    done = local.run("--app", "jax-service", "--python", "/usr/bin/python3", "-m", "timeit", "-n1",
                     "-r1", "import time; time.sleep(30)", limit=60)
    assert "IVY-R016" in done.err_text and "/usr/bin/python3 has no jaxlib" in done.err_text, done


def test_an_invalid_app_is_rejected(local):
    done = local.run("--app", "jax-service", "true")
    assert done.code == 122 and "IVY-P034" in done.err_text, done
    done = local.run("--app", "ray", "true")
    assert done.code == 122 and "IVY-P035" in done.err_text, done
    assert local.run("--app", "no-such-app", "true").code == 2


def test_other_programs_get_no_service_of_jax(local):
    done = local.run("-B", "jax", "--on-failure", "replace", "-n", "1", "echo", "fine")
    assert done.code == 0 and done.out == b"fine\n", done


@pytest.mark.parametrize("flags", [("--app", "jax-service"), ("-B", "jax")], ids=["asked for", "by itself"])
def test_rank_0_reconnects(local, flags):
    done = run(local, python_of("jax"), "jax_rejoins.py", "--fake-hosts", "3", *flags, "--on-failure", "replace")
    assert done.code == 0 and done.out.count(b"of 3: back 1") == 3, done


ON_HOSTS = ("-H", "node1,node2", "--nproc_per_node", "2")


def check_on_hosts(launcher, python, *flags):
    done = run(launcher, python, "jax_train.py", *ON_HOSTS, *flags)
    assert done.code == 0 and ranks_of(done) == world_of(4), done


def test_by_ssh(hosts, python_on_hosts):
    check_on_hosts(hosts, python_on_hosts)
    lonely = run(hosts, python_of("jax"), "jax_psum.py", *ON_HOSTS)
    assert lonely.code != 0 and "node2" in lonely.own_text() and "--python" in lonely.own_text(), lonely


def test_by_agents(agents, python_on_hosts):
    agents.start(1, 2)
    check_on_hosts(agents.launcher, python_on_hosts, "--transport", "agent")


def test_in_a_slurm_job(hosts, python_on_hosts):
    with running_on(hosts.bed, "linuxproc"), Slurm(hosts.as_user("ivyuser"), "linuxproc") as slurm:
        path = script(hosts, "jax_train.py")
        job = slurm.batch(["-N", "2"], f"exec IVYRUN --nproc_per_node 2 --python {python_on_hosts} {path}")
        done = job.finish(120)
        assert done.code == 0 and ranks_of(done) == world_of(4), done
        notice = slurm.batch(["-N", "2", "-t", "1"], "exec IVYRUN --stop-before-end 40s --python "
                             f"{python_on_hosts} {script(hosts, 'jax_notice.py')}")
        done = notice.finish(120)
        assert done.code == 75 and done.out.count(b" saves at step ") == 2, done


def test_separate_jax_worlds_are_reported_once(local, python):
    """There is no report if the script imports another library to reach the other ranks, or calls initialize()."""
    for first, count in (("", 1), ("import ivycomm", 0), ("jax.distributed.initialize()", 0)):
        path = local.file("alone.py", f"import jax\n{first}\nprint('counts', jax.device_count())\n")
        done = local.run("-n", "2", "--python", python, path, limit=60)
        assert done.code == 0 and done.out.count(b"counts") == 2, done
        assert done.err.count(b"IVY-P036") == count, done
        assert count == 0 or b"jax.distributed.initialize()" in done.err, done
