# SPDX-License-Identifier: Apache-2.0
"""Device faults in the report about the failed rank, the wait for free device memory before the next attempt, Intel's GPUs,
and rank order by topology.

Directory trees and a test double of NVML (tests/children/nvml_double.c) replace hosts with devices. The tests with "real"
in their names need NVIDIA's driver: `pytest test_gpu_health.py -k real`.
"""

import json
import os
import re
import signal
import subprocess
import time

import pytest

import device_trees as trees
from launching import wait_until
from test_devices import of_all
from test_ivyctl import IVYCTL

# Prints "up", waits in the first attempt until the file "go" exists, and then fails.
FAIL_ON_ORDER = ("sh", "-c", "echo up; [ $IVY_GENERATION = 0 ] || exit 0; [ $RANK = 3 ] || exec sleep 600; "
                 "while ! test -e go; do sleep 0.05; done; exit 7")
QUICKLY = {"IVY_TEST_RESTART_PAUSE": "200ms"}


@pytest.fixture
def tree(tmp_path):
    return tmp_path / "root"


class Health:
    """Changes the output of NVML and the kernel's log during a job."""

    def __init__(self, tree):
        self.tree = tree

    def nvml(self, lines):
        """Adds lines for single devices by their index: {3: ["ecc 2"]}."""
        text = ""
        for index, line in enumerate(self.tree.nvml):
            text += "\n".join([line, *lines.get(index, [])]) + "\n"
        self.tree.write("nvml.new", text)
        os.rename(self.tree.path + "/nvml.new", self.tree.path + "/nvml")

    def xid(self, bdf, number):
        with open(self.tree.path + "/nvml.xid", "a") as file:
            file.write(f"{bdf} {number}\n")
        time.sleep(0.3)  # NVML's double polls every 20 ms.

    def log(self, line):
        with open(self.tree.path + "/dev/kmsg", "a") as file:
            file.write(line + "\n")


def watches(job):
    """Waits until the supervisor's ivy-probe has started and taken its first reading."""
    def waits():
        found = subprocess.run(["pgrep", "-f", "ivy-probe watch"], capture_output=True, text=True).stdout.split()
        return [pid for pid in found if is_of(pid, job) and "pipe" in syscall_of(pid)]
    wait_until(waits, 20, "ivy-probe has taken its first reading")


def is_of(pid, job):
    try:
        with open(f"/proc/{pid}/environ") as file:
            return job in file.read()
    except OSError:
        return False


def syscall_of(pid):
    """Returns "pipe" if the process is waiting for input from its pipe, so that it is ready."""
    try:
        with open(f"/proc/{pid}/syscall") as file:
            return "pipe" if file.read().split()[:2] == ["0", "0x0"] else ""
    except OSError:
        return ""


def fail_after(local, host, change, *flags, **environment):
    """Runs a job of four ranks whose rank 3 fails after `change` has modified its devices."""
    job = local.start("-n", "4", *flags, *FAIL_ON_ORDER, env=host.environment(**environment))
    watches(host.path)
    change(Health(host))
    local.file("go", "")
    return job.finish()


def test_an_xid_is_shown_with_the_rank(local, tree):
    host = trees.eight_gpus(tree)
    host.write("dev/kmsg", "")
    host.write("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n")

    def change(health):
        health.xid("0000:4e:00.0", 79)
        health.log("3,8,999,-;NVRM: Xid (PCI:0000:07:00): 31, pid=4711, name=python3, Ch 00000008")
        health.nvml({1: ["ecc 2"], 2: ["field 230 0 1"], 4: ["field 91 0 2", "field 215 0 1", "field 215 1 2"]})
        host.write("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n")

    done = fail_after(local, host, change)
    assert done.code == 7, done
    summary = done.err_text[done.err_text.index("error[IVY-R001]"):]
    assert re.search(r"\n  device: GPU 3 on localhost \(rank 3\): Xid 79, fallen off the bus, \d+\.\d s before\n", summary), done
    assert "GPU 0 on localhost (rank 0): Xid 31, memory page fault" in summary and "pid 4711 (python3)" in summary, done
    assert "GPU 1 on localhost (rank 1): 2 uncorrected ECC errors\n" in summary, done
    assert "GPU 2 on localhost (rank 2): needs a reset" in summary, done
    assert "mlx5_0 port 1 on localhost: went from ACTIVE to DOWN\n" in summary, done
    assert "NVLink" not in summary, "a counter without an earlier reading was compared"


def test_nothing_is_reported_without_an_event(local, tree):
    done = fail_after(local, trees.eight_gpus(tree), lambda health: None)
    assert done.code == 7 and "device:" not in done.err_text, done


def test_a_driver_that_hangs_does_not_delay_a_job(local, tree):
    """The device query at the start is not answered either, so the devices are found by files."""
    host = trees.eight_gpus(tree)
    done = local.run("-n", "2", "sh", "-c", "sleep 1.5; exit 3", env={**host.environment(), "NVML_DOUBLE": "hang"})
    assert done.code == 3, done


def test_a_host_without_devices_has_no_watch(local):
    job = local.start("-n", "1", "sh", "-c", "echo $$ up; sleep 1.2; pgrep -x ivy-probe -P $PPID; exit 0")
    done = job.finish()
    assert done.code == 0 and len(done.out_lines) == 1, done


# ---- Device usage of ranks -------------------------------------------------------------------------

def test_top_shows_what_ranks_use_of_gpus(local, tree):
    host = trees.eight_gpus(tree)
    with local.start("--name", "used", "-n", "2", *FAIL_ON_ORDER, env=host.environment()) as job:
        watches(host.path)
        health = Health(host)

        def top(*form):
            return local.run_program(IVYCTL, "top", "used", *form)

        ranks = json.loads(top("--json").out)["ranks"]
        assert "gpus" not in ranks[0] and "GPU%" not in top("--once").out.decode(), ranks
        health.nvml({0: [f"memory {40 << 30}", "busy 87", f"user {ranks[0]['pid']} {30 << 30}", f"user 1 {9 << 30}"]})
        ranks = json.loads(top("--json").out)["ranks"]
        assert (ranks[0]["gpus"], ranks[0]["gpu_percent"], ranks[0]["gpu_memory_bytes"]) == (1, 87, 30 << 30), ranks
        assert "gpus" not in ranks[1], ranks
        lines = top("--once").out_lines
        assert lines[1].split() == ["RANK", "HOST", "PID", "STATE", "CPU%", "MEMORY", "PROCS", "GPU%", "GPUMEM", "OUTPUT", "IN"]
        assert lines[2].split()[8:11] == ["87", "30.0", "GiB"] and lines[3].split()[8:10] == ["-", "-"], lines
        job.signal(signal.SIGTERM)
        job.finish()


def test_a_failure_during_the_device_query_is_reported_with_its_causes(local, tree):
    """Queries for `ivyctl top` and the query after a failure do not interfere."""
    host = trees.eight_gpus(tree)
    host.write("dev/kmsg", "")
    job = local.start("--name", "asked", "-n", "4", *FAIL_ON_ORDER, env=host.environment())
    watches(host.path)
    asking = [subprocess.Popen([IVYCTL, "top", "asked", "--once"], stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL) for _ in range(4)]
    Health(host).xid("0000:4e:00.0", 79)
    local.file("go", "")
    done = job.finish()
    for one in asking:
        one.wait()
    assert done.code == 7 and "(rank 3): Xid 79, fallen off the bus" in done.err_text, done


# ---- Before the next attempt -----------------------------------------------------------------------

def attempt_with_held_memory(local, tree, held, **environment):
    host = trees.eight_gpus(tree)
    for index in range(8):
        host.nvml[index] += "\nmemory 1000000000"
    return fail_after(local, host, lambda health: health.nvml({2: held}), "--max-restarts", "1",
                      **QUICKLY, **environment), host


def test_the_next_attempt_waits_for_device_memory(local, tree):
    host = trees.eight_gpus(tree)
    for index in range(8):
        host.nvml[index] += "\nmemory 1000000000"
    job = local.start("-n", "4", "--max-restarts", "1", *FAIL_ON_ORDER, env=host.environment(**QUICKLY))
    watches(host.path)
    health = Health(host)
    health.nvml({2: [f"memory {40 << 30}", f"user {os.getpid()} {30 << 30}"]})
    local.file("go", "")
    job.wait_for("waits for the memory of the devices")
    health.nvml({})
    done = job.finish()
    assert re.search(rf"localhost: the next attempt waits for the memory of the devices: GPU 2 holds 40960 MiB: "
                     rf"pid {os.getpid()} \(.*\) has 30720 MiB", done.err_text), done
    assert "the memory of the devices became free after" in done.err_text, done
    assert done.out.count(b"up") == 8, done


def test_an_attempt_after_a_quick_failure_waits_too(local, tree):
    """The workers fail before ivy-probe has taken its first reading."""
    host = trees.eight_gpus(tree)
    for index in range(8):
        host.nvml[index] += "\nmemory 1000000000"
    health = Health(host)
    job = local.start("-n", "2", "--max-restarts", "1", "sh", "-c",
                      f"echo up; [ $IVY_GENERATION = 0 ] || exit 0; [ $RANK = 1 ] || exec sleep 600; "
                      f"while ! test -e go; do sleep 0.01; done; mv {host.path}/nvml.full {host.path}/nvml; exit 7",
                      env=host.environment(**QUICKLY))
    text = "".join(line + (f"\nmemory {40 << 30}" if index == 1 else "") + "\n" for index, line in enumerate(host.nvml))
    host.write("nvml.full", text)
    local.file("go", "")
    job.wait_for("the next attempt waits for the memory of the devices: GPU 1 holds 40960 MiB")
    health.nvml({})
    done = job.finish()
    assert done.code == 0 and "the memory of the devices became free after" in done.err_text, done
    assert done.out.count(b"up") == 4, done


def test_the_wait_for_device_memory_times_out(local, tree):
    done, _ = attempt_with_held_memory(local, tree, [f"memory {40 << 30}"], IVY_TEST_DEVICE_MEMORY_WAIT_MS="300")
    assert "the next attempt starts although GPU 2 holds 40960 MiB, and NVML names no process" in done.err_text, done
    assert done.out.count(b"up") == 8, done


def test_the_wait_can_be_interrupted(local, tree):
    host = trees.eight_gpus(tree)
    for index in range(8):
        host.nvml[index] += "\nmemory 1000000000"
    job = local.start("-n", "4", "--max-restarts", "1", *FAIL_ON_ORDER, env=host.environment(**QUICKLY))
    watches(host.path)
    Health(host).nvml({0: [f"memory {40 << 30}"]})
    local.file("go", "")
    job.wait_for("waits for the memory of the devices")
    job.signal(signal.SIGINT)
    done = job.finish(20)
    assert done.out.count(b"up") == 4, "a worker was started again"
    assert "IVY-R001" not in done.err_text or "SIGINT" in done.err_text or done.code != 0, done


# ---- Intel -----------------------------------------------------------------------------------------

INTEL = ("sh", "-c", 'echo "LOCAL_RANK=$LOCAL_RANK MASK=${ZE_AFFINITY_MASK-none} ORDER=$ZE_ENABLE_PCI_ID_DEVICE_ORDER '
         'BDF=$IVY_DEVICE_BDF CUDA=${CUDA_VISIBLE_DEVICES-none}"')


def test_each_worker_gets_a_tile_of_an_intel_gpu(local, tree):
    host = trees.two_intel(tree)
    done = local.run(*INTEL, env=host.environment(nvml=False))
    assert of_all(done, "BDF") == ["0000:1a:00.0"] * 2 + ["0000:9a:00.0"] * 2, done
    assert of_all(done, "MASK") == ["none"] * 4 and of_all(done, "ORDER") == ["1"] * 4, done
    done = local.run("--visible", "own", *INTEL, env=host.environment(nvml=False))
    assert of_all(done, "MASK") == ["0", "1", "2", "3"] and of_all(done, "LOCAL_RANK") == ["0"] * 4, done
    assert of_all(done, "CUDA") == ["none"] * 4, done
    done = local.run("--visible", "own", *INTEL, env=host.environment(nvml=False, ZE_AFFINITY_MASK="3,1"))
    assert of_all(done, "MASK") == ["3", "1"], done


# ---- Rank order by topology ------------------------------------------------------------------------

def test_map_by_switch_groups_ranks_by_pci_switch(local, tree):
    """The mask lists the devices of both switches alternately. Ranks and bindings are grouped by switch."""
    host = trees.eight_gpus(tree).processors("0-255")
    environment = host.environment(CUDA_VISIBLE_DEVICES="0,2,1,3")
    done = local.run("--dry-run", "--map-by", "switch", "/bin/true", env=environment)
    rows = [line.split() for line in done.out.decode().splitlines() if "GPU-" in line]
    assert [row[3] for row in rows] == ["0", "1", "2", "3"], done
    assert [row[6] for row in rows] == [trees.cpulist(3)] * 2 + [trees.cpulist(1)] * 2, done
    assert [row[-1] for row in rows] == ["pci0000:00"] * 2 + ["pci0000:40"] * 2, done
    assert b"PCI switch" in done.out and b"by switch" in done.out, done
    host = trees.eight_gpus(str(tree) + "2")
    show = ("sh", "-c", 'echo "LOCAL_RANK=$LOCAL_RANK MASK=$CUDA_VISIBLE_DEVICES"')
    done = local.run("--map-by", "switch", *show, env=host.environment(CUDA_VISIBLE_DEVICES="0,2,1,3"))
    assert of_all(done, "MASK") == ["0,1,2,3"] * 4, done


def test_flags_of_mpirun_are_rejected_with_the_alternative(local):
    done = local.run("--map-by", "ppr:2:node", "/bin/true")
    assert done.code == 2 and "host, nvlink, switch" in done.err_text and "--nproc-per-node N" in done.err_text, done


# ---- The real driver -------------------------------------------------------------------------------

needs_a_gpu = pytest.mark.skipif(not os.path.exists("/proc/driver/nvidia/version"), reason="NVIDIA's driver is not here")
PROBE = os.path.join(os.environ.get("IVY_BIN") or os.path.join(trees.REPOSITORY, "build/bin"), "ivy-probe")


@needs_a_gpu
def test_real_counters():
    done = subprocess.run([PROBE, "health"], capture_output=True, text=True, timeout=60)
    print(done.stdout)
    assert done.returncode == 0 and "NVML does not answer" not in done.stdout, done
    assert re.search(r"GPU 0 at [0-9a-f]{4}:[0-9a-f:.]+\n  recovery action: ", done.stdout), done
    assert re.search(r"GPU 0 GPU-[0-9a-f-]+: \d+ MiB in use", done.stdout), done


@needs_a_gpu
def test_real_watch():
    done = subprocess.run([PROBE, "watch"], input="look\nmemory\nbegin\nlook\n", capture_output=True, text=True, timeout=60)
    lines = done.stdout.splitlines()
    assert lines[:2] == ["ivy-probe 1", "ivy ready"] and lines.count("ivy end") == 3, done
    assert any(line.startswith("ivy held\tGPU 0\tGPU-") for line in lines), done


@needs_a_gpu
def test_real_job_that_fails(local):
    """With a healthy GPU there is no message and no delay."""
    done = local.run("-n", "1", "sh", "-c", "sleep 3; exit 5")
    assert done.code == 5 and "NVML has not answered" not in done.err_text, done
