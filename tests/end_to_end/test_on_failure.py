# SPDX-License-Identifier: Apache-2.0
"""--on-failure shrink and replace: the job continues after a worker has failed, only this worker is restarted, and every
way in which such a job can end."""

import os
import re
import signal
import time

import pytest

import device_trees as trees
from launching import wait_until
from test_deaths import WORKER, attached
from test_gpu_health import Health, watches
from test_ivyctl import ctl  # noqa: F401  (a fixture)

QUICKLY = {"IVY_TEST_RESTART_PAUSE": "100ms"}
TWO_BY_TWO = ["--fake-hosts", "2", "--nproc_per_node", "2"]
# Every process prints its rank and pid and waits for the file go.RANK, which contains its exit code.
SAY = ("echo up $RANK pid $$ rejoin [$IVY_REJOIN] count $TORCHELASTIC_RESTART_COUNT; ")
WAIT = "while ! [ -e go.$RANK ]; do sleep 0.02; done; exit $(cat go.$RANK)"
WAITING = ["bash", "-c", SAY + WAIT]


def pids(job, rank, count=1):
    """Returns the pids of this rank's processes so far, in the order of their starts."""
    pattern = rf"up {rank} pid (\d+) ".encode()
    job.wait_for(pattern, count=count)
    return [int(pid) for pid in re.findall(pattern, job.said())]


def let_go(local, codes):
    for rank, code in enumerate(codes):
        local.file(f"go.tmp{rank}", str(code))
        os.rename(os.path.join(local.directory, f"go.tmp{rank}"), os.path.join(local.directory, f"go.{rank}"))


@pytest.mark.parametrize("hosts", [["-n", "4"], TWO_BY_TWO], ids=["one-host", "two-hosts"])
def test_the_others_continue_without_a_killed_rank(local, hosts):
    with local.start(*hosts, "--on-failure", "shrink", *WAITING) as job:
        first = {rank: pids(job, rank)[0] for rank in range(4)}
        os.kill(first[2], signal.SIGKILL)
        job.wait_for(rb"ivyrun: lost rank 2 \(\S+, pid \d+\) with SIGKILL after \S+ s; the other 3 workers continue "
                     rb"\(--on-failure shrink\)")
        time.sleep(1.5)
        for rank in (0, 1, 3):
            os.kill(first[rank], 0)
        let_go(local, "0000")
        done = job.finish()
    assert done.code == 0, done
    assert "ivyrun: succeeded without 1 rank of 4\n  lost: rank 2 (" in done.err_text, done


def test_two_ranks_that_exit_with_an_error_count_as_two_deaths(local):
    with local.start("-n", "4", "--on-failure", "shrink", *WAITING) as job:
        for rank in range(4):
            pids(job, rank)
        let_go(local, ["0", "3", "0", "4"])
        done = job.finish()
    # Ranks 0 and 2 may have exited with 0 before.
    assert done.code in (0, 3, 4), done
    assert re.search(r"rank 1 .* with exit 3", done.err_text) and re.search(r"rank 3 .* with exit 4", done.err_text)


def test_the_last_failure_ends_the_job_with_the_code_of_the_first(local):
    script = "sleep 0.$((RANK + 1)); exit $((10 + RANK))"
    done = local.run("-n", "3", "--on-failure", "shrink", "bash", "-c", script)
    assert done.code == 10, done
    assert "rank 2 failed, and the job stops: no other worker is left" in done.err_text, done
    assert re.search(r"error\[IVY-R001\]: rank 0 failed first .* with exit 10", done.err_text), done
    assert "also:  rank 1 " in done.err_text and "exit code 10 (from rank 0)" in done.err_text, done


def test_min_workers(local):
    with local.start("-n", "3", "--on-failure", "shrink", "--min-workers", "2", *WAITING) as job:
        first = [pids(job, rank)[0] for rank in range(3)]
        os.kill(first[1], signal.SIGKILL)
        job.wait_for(rb"the other 2 workers continue")
        os.kill(first[2], signal.SIGTERM)
        done = job.finish()
    assert done.code == 137 and "1 worker is left, and --min-workers is 2" in done.err_text, done


def test_a_failed_job_that_may_shrink_restarts_as_a_whole(local):
    script = "[ $IVY_GENERATION = 1 ] && exit 0; sleep 0.$((RANK + 1)); exit 5"
    done = local.run("-n", "2", "--on-failure", "shrink", "--max-restarts", "1", "bash", "-c", script, env=QUICKLY)
    assert done.code == 0 and "attempt 1 of 2 failed" in done.err_text, done


@pytest.mark.parametrize("hosts", [["-n", "4"], ["--fake-hosts", "4", "--nproc_per_node", "1"]],
                         ids=["one-host", "alone-on-its-host"])
def test_only_the_killed_rank_is_restarted(local, hosts):
    with local.start(*hosts, "--on-failure", "replace", *WAITING, env=QUICKLY) as job:
        first = {rank: pids(job, rank)[0] for rank in range(4)}
        for number in (1, 2):
            os.kill(pids(job, 2, number)[-1], signal.SIGKILL)
            second = pids(job, 2, number + 1)[-1]
            job.wait_for(rf"restarting only this rank in \S+ s, 3 other workers continue \(--on-failure replace, {number} of 3\)")
        assert second != first[2]
        for rank in (0, 1, 3):
            os.kill(first[rank], 0)
        let_go(local, "0000")
        done = job.finish()
    assert done.code == 0, done
    assert "ivyrun: succeeded; 2 workers were replaced\n  replaced: rank 2 (" in done.err_text, done
    said = [re.sub(r"pid \d+ ", "", text) for text in done.texts_by_rank()[2]]
    assert said == [f"up 2 rejoin [{n}] count 0" for n in ("", "1", "2")], done
    assert all(len(done.texts_by_rank()[rank]) == 1 for rank in (0, 1, 3)), done


def test_killed_and_failed_ranks_are_replaced_at_the_same_time(local):
    script = SAY + 'if [ $RANK = 3 ] && [ -z "$IVY_REJOIN" ]; then exit 9; fi; ' + WAIT
    with local.start(*TWO_BY_TWO, "--on-failure", "replace", "bash", "-c", script, env=QUICKLY) as job:
        first = {rank: pids(job, rank)[0] for rank in range(3)}
        os.kill(first[1], signal.SIGKILL)
        os.kill(first[2], signal.SIGKILL)
        for rank in (1, 2, 3):
            pids(job, rank, 2)
        let_go(local, "0000")
        done = job.finish()
    assert done.code == 0 and "3 workers were replaced" in done.err_text, done
    assert re.search(r"lost rank 3 .* with exit 9", done.err_text), done


@pytest.mark.parametrize("hosts", [["-n", "1"], ["-n", "2"], ["--fake-hosts", "2"]],
                         ids=["one-rank", "the-last-of-two", "the-last-of-two-hosts"])
def test_a_job_whose_last_worker_fails_ends(local, hosts):
    """The worker is not replaced, because no other worker is left."""
    done = local.run(*hosts, "--on-failure", "replace", "sh", "-c", "[ $RANK = 0 ] && [ $WORLD_SIZE = 2 ] && exit 0; "
                     "sleep 0.5; exit 3", limit=20)
    assert done.code == 3 and "the job stops: no other worker is left" in done.err_text, done


def test_after_the_last_replacement_the_job_fails(local):
    script = SAY + "[ $RANK = 1 ] && exit 6; " + WAIT
    done = local.run("-n", "3", "--on-failure", "replace", "--max-restarts", "2", "bash", "-c", script, env=QUICKLY)
    assert done.code == 6, done
    assert "the job stops: 2 workers were replaced, and --max-restarts is 2" in done.err_text, done
    assert done.err_text.count("  replaced: rank 1 (") == 2 and len(done.texts_by_rank()[1]) == 3, done
    assert "#" not in done.out.decode(), "a label has the number of an attempt"


def test_five_quick_failures_in_a_row_end_the_job(local):
    script = "[ $RANK = 1 ] && exit 6; sleep 600"
    done = local.run("-n", "2", "--on-failure", "replace", "--max-restarts", "50", "bash", "-c", script,
                     env={"IVY_TEST_RESTART_PAUSE": "20ms"})
    assert done.code == 6 and "5 workers in a row failed within 10 s of their start" in done.err_text, done


def test_a_job_whose_ranks_are_all_killed_cannot_recover(local):
    with local.start("-n", "3", "--on-failure", "replace", "--max-restarts", "50", *WAITING,
                     env={"IVY_TEST_RESTART_PAUSE": "5s"}) as job:
        first = [pids(job, rank)[0] for rank in range(3)]
        for pid in first:
            os.kill(pid, signal.SIGKILL)
        done = job.finish()
    assert done.code == 137 and "no worker is left from which a new one could get the state" in done.err_text, done


def test_a_missing_program_ends_the_job(local):
    program = local.file("program", "#!/bin/bash\n" + SAY + WAIT + "\n", 0o755)
    with local.start("-n", "2", "--on-failure", "replace", program, env=QUICKLY) as job:
        first = [pids(job, rank)[0] for rank in range(2)]
        os.unlink(program)
        os.kill(first[1], signal.SIGKILL)
        done = job.finish()
    assert done.code == 127, done
    assert "rank 1 could not be started: exec: No such file" in done.err_text, done


def test_output_of_both_processes_has_one_label_and_one_file(local):
    script = ('if [ $RANK = 0 ]; then while ! [ -e go.0 ]; do sleep 0.02; done; exit 0; fi; '
              'if [ -z "$IVY_REJOIN" ]; then echo first; printf half; kill -9 $$; fi; '
              "echo second; touch go.0; exit 0")
    done = local.run("-n", "2", "--on-failure", "replace", "--log-dir", "logs", "--log-to", "both", "bash", "-c",
                     script, env=QUICKLY)
    assert done.code == 0 and done.texts_by_rank()[1] == ["first", "half", "second"], done
    job = os.readlink(os.path.join(local.directory, "logs/latest"))
    assert local.read(f"logs/{job}/0/rank00001.out") == b"first\nhalf\nsecond\n"


def test_processes_of_a_dead_rank_are_killed_with_it(local):
    script = (SAY + 'if [ $RANK = 1 ] && [ -z "$IVY_REJOIN" ]; then (trap "" TERM; echo helper $BASHPID; '
              "exec sleep 603) & wait; fi; " + WAIT)
    with local.start("-n", "2", "--on-failure", "replace", "bash", "-c", script, env=QUICKLY) as job:
        job.wait_for(rb"helper \d+")
        helper = int(re.search(rb"helper (\d+)", job.said())[1])
        os.kill(pids(job, 1)[0], signal.SIGKILL)
        pids(job, 1, 2)
        assert not os.path.exists(f"/proc/{helper}"), "the helper still runs after the rank has started again"
        let_go(local, "00")
        assert job.finish().code == 0


@pytest.mark.parametrize("pause", ["5s", "1ms"])
def test_ctrl_c_during_a_replacement_leaves_nothing(local, pause):
    with local.start(*TWO_BY_TWO, "--on-failure", "replace", *WAITING,
                     env={"IVY_TEST_RESTART_PAUSE": pause}) as job:
        first = [pids(job, rank)[0] for rank in range(4)]
        os.kill(first[3], signal.SIGKILL)
        job.wait_for(rb"restarting only this rank")
        job.signal(signal.SIGINT)
        done = job.finish()
    assert done.code == -signal.SIGINT or done.code == 130, done
    # The fixture searches for leftovers.


def test_a_killed_launcher_in_the_pause_leaves_nothing(local):
    with local.start(*TWO_BY_TWO, "--on-failure", "replace", *WAITING,
                     env={"IVY_TEST_RESTART_PAUSE": "1s"}) as job:
        first = [pids(job, rank)[0] for rank in range(4)]
        os.kill(first[3], signal.SIGKILL)
        job.wait_for(rb"restarting only this rank")
        job.signal(signal.SIGKILL)
        job.process.wait()
    local.wait_clean(10)


# ---- Memory of devices -----------------------------------------------------------------------------

MIB = 1 << 20
BEFORE = "memory 1000000000"


def with_devices(local, tmp_path, *flags, **environment):
    """Returns a running job of four ranks with a GPU each, their pids, and an object that changes the GPUs' memory."""
    host = trees.eight_gpus(tmp_path / "root")
    host.nvml = [f"{line}\n{BEFORE}" for line in host.nvml]
    job = local.start("-n", "4", "--on-failure", "replace", *flags, *WAITING,
                      env=host.environment(**QUICKLY, **environment))
    first = [pids(job, rank)[0] for rank in range(4)]
    watches(host.path)
    return job, first, Health(host)


def test_a_rank_waits_for_the_memory_of_its_own_device(local, tmp_path):
    """Memory of survivors on the device and memory of other devices do not count."""
    job, first, health = with_devices(local, tmp_path)
    health.nvml({0: [f"memory {40 << 30}"], 1: [f"memory {39 << 30}", f"user {first[0]} {38 << 30}"],
                 2: [f"memory {30000 * MIB}", f"user {first[0]} {1000 * MIB}"]})
    os.kill(first[1], signal.SIGKILL)
    pids(job, 1, 2)
    os.kill(first[2], signal.SIGKILL)
    job.wait_for(r"localhost: rank 2 waits for the memory of the devices: GPU 2 holds 30000 MiB: pid \d+ \(bash\) has "
                 r"1000 MiB")
    time.sleep(1.2)
    assert len(pids(job, 2)) == 1, "rank 2 has started already"
    os.kill(pids(job, 1, 2)[-1], signal.SIGKILL)
    pids(job, 1, 3)  # Another rank does not wait for rank 2's device.
    assert len(pids(job, 2)) == 1
    health.nvml({2: [f"memory {1500 * MIB}", f"user {first[0]} {1000 * MIB}"]})
    pids(job, 2, 2)
    let_go(local, "0000")
    done = job.finish()
    assert done.code == 0 and "3 workers were replaced" in done.err_text, done
    assert re.search(r"localhost: the memory of the devices became free after \d+\.\d s", done.err_text), done
    assert "rank 1 waits" not in done.err_text, done


def test_two_ranks_wait_for_their_own_devices(local, tmp_path):
    job, first, health = with_devices(local, tmp_path)
    full = {rank: [f"memory {40 << 30}"] for rank in (1, 2)}
    health.nvml(full)
    for rank in (1, 2):
        os.kill(first[rank], signal.SIGKILL)
        job.wait_for(rf"rank {rank} waits for the memory of the devices: GPU {rank} holds")
    health.nvml({1: full[1]})
    pids(job, 2, 2)
    assert len(pids(job, 1)) == 1
    let_go(local, "0000")  # The others exit, and the host still waits for rank 1's device.
    time.sleep(0.5)
    health.nvml({})
    pids(job, 1, 2)
    done = job.finish()
    assert done.code == 0 and "2 workers were replaced" in done.err_text, done


def test_the_wait_of_a_rank_times_out(local, tmp_path):
    job, first, health = with_devices(local, tmp_path, IVY_TEST_DEVICE_MEMORY_WAIT_MS="700")
    health.nvml({1: [f"memory {40 << 30}"]})
    os.kill(first[1], signal.SIGKILL)
    pids(job, 1, 2)
    let_go(local, "0000")
    done = job.finish()
    assert done.code == 0 and re.search(r"rank 1 starts although GPU 1 holds 40960 MiB, and NVML names no process, after "
                                        r"a wait of \d\.\d s", done.err_text), done


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_ends_the_wait_of_a_rank(local, tmp_path, number):
    job, first, health = with_devices(local, tmp_path)
    health.nvml({1: [f"memory {40 << 30}"]})
    os.kill(first[1], signal.SIGKILL)
    job.wait_for("rank 1 waits for the memory of the devices")
    job.signal(number)
    done = job.finish(20)
    assert done.code in (-number, 128 + number), done
    assert len(done.texts_by_rank()[1]) == 1, "rank 1 has been started again"


def test_ranks_that_share_a_device_do_not_wait_for_it(local, tmp_path):
    """On a shared device, ivyrun cannot know which rank owns the memory."""
    host = trees.eight_gpus(tmp_path / "root")
    host.nvml = [f"{line}\n{BEFORE}" for line in host.nvml]
    with local.start("-n", "16", "--oversubscribe", "--on-failure", "replace", *WAITING,
                     env=host.environment(**QUICKLY)) as job:
        first = [pids(job, rank)[0] for rank in range(16)]
        watches(host.path)
        Health(host).nvml({index: [f"memory {40 << 30}"] for index in range(8)})
        os.kill(first[5], signal.SIGKILL)
        pids(job, 5, 2)
        let_go(local, ["0"] * 16)
        done = job.finish()
    assert done.code == 0 and "waits for the memory" not in done.err_text, done


@pytest.mark.skipif(not os.access(WORKER, os.X_OK), reason="build child_control_worker first")
@pytest.mark.parametrize("hosts", [["-n", "3"], ["--fake-hosts", "3", "-n", "3"]], ids=["one-host", "three-hosts"])
def test_the_new_process_may_attach_and_the_others_have_seen_a_death(local, hosts):
    script = (f'if [ -n "$IVY_REJOIN" ]; then exec {WORKER} attach leave; fi; '
              f'exec {WORKER} attach 1:sleep:60000 wait-dead:1 sleep:1500 leave')
    with local.start(*hosts, "--on-failure", "replace", "bash", "-c", script, env=QUICKLY) as job:
        os.kill(attached(job, 3)[1], signal.SIGKILL)
        done = job.finish()
    assert done.code == 0, done
    assert done.out.decode().count("attached slot=") == 4, done
    assert len(re.findall(r"dead rank=1 state=signalled code=9", done.out.decode())) == 2, done


@pytest.mark.parametrize("hosts", [["-n", "4"], TWO_BY_TWO], ids=["one-host", "two-hosts"])
@pytest.mark.parametrize("how", ["shrink", "replace"])
def test_ivycomm_sees_a_death_after_the_rank_was_restarted(local, how, hosts):
    done = local.run(*hosts, "--on-failure", how, local.script("comm_survivors.py"), how, env=QUICKLY, limit=60)
    assert done.code == 0, done
    texts = done.texts_by_rank()
    for rank in (0, 2, 3):
        assert "gone 0" in texts[rank] and "later: rank 1 signal 9" in texts[rank], done
    assert "at once: rank 1 signal 9" in texts[0], done
    if how == "replace":
        assert texts[1] == ["rejoins 1"], done


def test_ivyctl_shows_which_ranks_are_lost_and_replaced(local, ctl):  # noqa: F811
    with local.start("-n", "3", "--on-failure", "replace", *WAITING, env=QUICKLY) as job:
        first = [pids(job, rank)[0] for rank in range(3)]
        ctl.job()
        os.kill(first[1], signal.SIGKILL)
        pids(job, 1, 2)
        listed = wait_until(lambda: [one for one in ctl.jobs() if one["running"] == 3], 10, "all run")[0]
        assert re.match(r"replaced: rank 1 \(.*SIGKILL", listed["losses"][0]), listed
        assert " 3/3 (1 replaced) " in ctl.run("ps").out.decode()
        why = ctl.run("why", listed["job"]).out.decode()
        assert "ranks that exited while the job continued:\n  replaced: rank 1 (" in why, why
        let_go(local, "000")
        assert job.finish().code == 0


@pytest.mark.parametrize("arguments, words", [
    (["--on-failure", "shrink", "-B", "mpi"], "an MPI world cannot lose a rank"),
    (["--on-failure", "replace", "--max-restarts", "0"], "no worker could be replaced"),
    (["--on-failure", "replace", "--min-workers", "2"], "--min-workers needs --on-failure shrink"),
    (["--on-failure", "shrink", "--nnodes", "1:2", "--fake-hosts", "2"], "MIN:MAX"),
    (["--on-failure", "shrink", "--nnodes", "2", "--node-rank", "0"], "every node has its own ivyrun"),
    (["--on-failure", "shrink", "--detach", "--lease", "60s"], "lets another launcher take over the job"),
    (["--on-failure", "rerun"], "restart, shrink"),
])
def test_conflicting_flags_are_one_clear_error(local, arguments, words):
    done = local.run(*arguments, "true")
    assert done.code == 2 and words in done.err_text, done
    assert done.err_text.count("error[IVY-U001]") == 1, done


def test_by_agents(agents):
    agents.start(2, 3)
    with agents.job("-H", "node2,node3", "--nproc_per_node", "2", "--on-failure", "replace", "bash", "-c",
                               SAY + WAIT, env=QUICKLY) as job:
        first = pids(job, 3)[0]
        for rank in range(3):
            pids(job, rank)
        agents.launcher.run_on(3, "kill", "-9", str(first))
        pids(job, 3, 2)
        let_go_on_hosts(agents.launcher)
        done = job.finish()
    assert done.code == 0 and "1 worker was replaced" in done.err_text, done


def test_by_ssh(hosts):
    user = hosts.as_user("ivyuser")
    with user.start("-H", "node2,node3", "--nproc_per_node", "2", "--on-failure", "shrink", "bash", "-c",
                    SAY + WAIT) as job:
        first = {rank: pids(job, rank)[0] for rank in range(4)}
        user.run_on(3, "kill", "-9", str(first[2]))
        job.wait_for(rb"the other 3 workers continue")
        let_go_on_hosts(user)
        done = job.finish()
    assert done.code == 0 and "succeeded without 1 rank of 4" in done.err_text, done


@pytest.mark.parametrize("how", [pytest.param("cut", marks=pytest.mark.long), "supervisor"])
def test_a_lost_host_is_lost_with_its_ranks(hosts, how):
    with hosts.start("-H", "node2,node3", "--nproc_per_node", "2", "--lease", "3s", "--on-failure", "shrink", "bash",
                     "-c", SAY + WAIT) as job:
        for rank in range(4):
            pids(job, rank)
        if how == "cut":
            hosts.bed.cut(3)
        else:
            os.kill(hosts.processes(3, "ivy-supervisor")[0], signal.SIGKILL)
        job.wait_for(rb"node3 was lost, with ranks 2-3; the other 2 workers continue \(--on-failure shrink\)")
        let_go_on_hosts(hosts)
        done = job.finish()
        if how == "cut":
            hosts.bed.join(3)
    assert done.code == 0 and "succeeded without 2 ranks of 4\n  lost: " in done.err_text, done


@pytest.mark.parametrize("how, host", [("replace", 3), ("shrink", 2)], ids=["replace", "the-stores-host"])
def test_a_lost_host_that_is_needed_ends_the_job(hosts, how, host):
    with hosts.start("-H", "node2,node3", "--nproc_per_node", "2", "--on-failure", how, "bash", "-c",
                     SAY + WAIT) as job:
        for rank in range(4):
            pids(job, rank)
        os.kill(hosts.processes(host, "ivy-supervisor")[0], signal.SIGKILL)
        done = job.finish()
    assert done.code == 121 and "error[IVY-R007]" in done.err_text, done


def let_go_on_hosts(launcher):
    for rank in range(4):
        launcher.file(f"go.tmp{rank}", "0")
        os.rename(launcher.outside(f"{launcher.directory}/go.tmp{rank}"),
                  launcher.outside(f"{launcher.directory}/go.{rank}"))
