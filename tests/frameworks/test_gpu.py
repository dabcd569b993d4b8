"""Frameworks on a real GPU, one for all ranks; skipped where there is none. `scripts/test_gpu` runs it."""

import os
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
WORKER = os.path.join(ROOT, "tests", "frameworks", "scripts", "gpu_worker.py")

pytestmark = pytest.mark.skipif(not os.path.exists("/dev/nvidiactl"), reason="there is no GPU: no /dev/nvidiactl")


def run(ranks, scenario, capsys):
    command = [os.path.join(ROOT, "build", "bin", "ivyrun"), "-n", str(ranks), sys.executable, WORKER, scenario]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240)
    with capsys.disabled():
        for line in done.stdout.splitlines():
            if "figure:" in line:
                print(line[line.index("figure:"):])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f"ok {scenario}") == ranks, done.stdout + done.stderr


@pytest.mark.parametrize("scenario", ["arrays", "dlpack_arrays", "works", "graph", "messages", "gradients", "c10d", "ddp",
                                      "calls"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_torch(ranks, scenario, capsys):
    run(ranks, scenario, capsys)


@pytest.mark.parametrize("scenario, module", [("cupy_arrays", "cupy"), ("jax_arrays", "jax")])
@pytest.mark.parametrize("ranks", [1, 2])
def test_others(ranks, scenario, module, capsys):
    pytest.importorskip(module)
    run(ranks, scenario, capsys)
