# SPDX-License-Identifier: Apache-2.0
"""Frameworks and ivyrun on a real GPU that all ranks share; skipped without a GPU. `scripts/test_gpu` runs the tests with
"alone" in their names one by one, because they measure time or memory, and all others in parallel."""

import json
import os
import re
import subprocess
import sys
import threading
import time

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
BIN = os.path.join(ROOT, "build", "bin")
SCRIPTS = os.path.join(ROOT, "tests", "frameworks", "scripts")
WORKER, DRIVER_WORKER = os.path.join(SCRIPTS, "gpu_worker.py"), os.path.join(SCRIPTS, "gpu_driver_worker.py")

pytestmark = pytest.mark.skipif(not os.path.exists("/dev/nvidiactl"), reason="there is no GPU: no /dev/nvidiactl")


def ivyrun(*arguments):
    return [os.path.join(BIN, "ivyrun"), *arguments]


def run(ranks, scenario, capsys):
    command = ivyrun("-n", str(ranks), sys.executable, WORKER, scenario)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240)
    with capsys.disabled():
        for line in done.stdout.splitlines():
            if "figure:" in line:
                print("\n" + line[line.index("figure:"):])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f"ok {scenario}") == ranks, done.stdout + done.stderr


@pytest.mark.parametrize("scenario", ["arrays", "messages", "gradients", "c10d", "compiled"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_torch(ranks, scenario, capsys):
    run(ranks, scenario, capsys)


def test_mistakes_are_reported_on_both_ranks(capsys):
    run(2, "mistakes", capsys)


@pytest.mark.parametrize("scenario", ["dlpack_arrays", "works", "graph", "calls", "sizes", "ddp"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_torch_alone(ranks, scenario, capsys):
    run(ranks, scenario, capsys)


@pytest.mark.parametrize("scenario, module", [("cupy_arrays", "cupy"), ("cupyx_group", "cupy"), ("jax_arrays", "jax")])
@pytest.mark.parametrize("ranks", [1, 2])
def test_other_frameworks(ranks, scenario, module, capsys):
    pytest.importorskip(module)
    run(ranks, scenario, capsys)


def test_without_a_driver_a_tensor_of_the_gpu_is_rejected():
    done = subprocess.run(ivyrun("-n", "1", "-x", "IVY_CUDA_LIB=/nowhere/libcuda.so", sys.executable, WORKER, "arrays"),
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "/nowhere/libcuda.so" in done.stdout + done.stderr


def test_alone_a_gpu_fault_is_shown_with_the_rank(capsys):
    done = subprocess.run(ivyrun("-n", "2", sys.executable, DRIVER_WORKER, "fault"), stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=120)
    report = done.stdout + done.stderr
    assert done.returncode == 5 and "rank 0 failed first" in report, report
    found = re.search(r"device: GPU 0 on \S+ \(ranks? 0\S*\): (Xid \d+.*)", report)
    assert found, report
    with capsys.disabled():
        print(f"\nfigure: a kernel that writes to an unmapped address is reported as: {found.group(1)}")


def test_alone_top_shows_the_memory_of_a_rank():
    with subprocess.Popen(ivyrun("-n", "1", "--name", "holding", sys.executable, DRIVER_WORKER, "hold", "60"),
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as job:
        try:
            assert "held" in job.stdout.readline()
            rank, end = {}, time.monotonic() + 20
            while "gpus" not in rank and time.monotonic() < end:  # ivy-probe starts half a second after the workers.
                top = subprocess.run([os.path.join(BIN, "ivyctl"), "top", "holding", "--json"], capture_output=True, text=True)
                rank = json.loads(top.stdout)["ranks"][0] if top.returncode == 0 else {}
        finally:
            job.terminate()
    assert rank.get("gpus") == 1 and rank["gpu_memory_bytes"] >= 4 << 30 and 0 <= rank["gpu_percent"] <= 100, rank


# A process outside the job allocates 4 GiB during the job and frees them when the note names it.
def test_alone_the_next_attempt_waits_for_the_memory_of_its_devices(tmp_path):
    go, text = tmp_path / "go", []
    job = subprocess.Popen(ivyrun("-n", "1", "--max-restarts", "1", sys.executable, DRIVER_WORKER, "fail", str(go)),
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    watchdog = threading.Timer(150, job.kill)
    watchdog.start()
    holder = None
    try:
        for line in job.stdout:
            text.append(line)
            if line.rstrip().endswith("ready"):
                holder = subprocess.Popen([sys.executable, DRIVER_WORKER, "hold", "120"], stdout=subprocess.PIPE, text=True,
                                          env={**os.environ, "PYTHONPATH": os.path.join(ROOT, "comm", "python")})
                assert holder.stdout.readline() == "held\n"
                go.touch()
            if "waits for the memory" in line:
                holder.kill()
        code = job.wait()
    finally:
        watchdog.cancel()
        for process in (job, holder):
            if process is not None:
                process.kill()
                process.wait()
    said = "".join(text)
    assert code == 0 and "ok fail" in said, said
    assert f"pid {holder.pid} (python3)" in said, said
