# SPDX-License-Identifier: Apache-2.0
"""The table of README.md that compares launchers: each row is a test, which runs ivyrun and its peers on one program."""

import contextlib
import os
import re
import shutil
import signal
import socket
import time

import pytest

from launching import PATH, REPOSITORY, seconds, wait_until

PEERS = ("ivyrun", "torchrun", "hydra", "openmpi")
LIMIT = 120  # Importing torch takes seconds if many workers share few cores.
FIRST = """import os, subprocess, sys, time
rank = int(next(os.environ[name] for name in ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK") if name in os.environ))
"""
EXITS = FIRST + """
if rank == 1:
    time.sleep(0.5)
    sys.exit(85)
time.sleep(10)
open("went_on", "w").close()
"""
RAISES = FIRST + """
if rank == 1:
    raise RuntimeError("loss is not finite")
time.sleep(5)
"""
# Rank 1 prints a line while rank 0 is in the middle of a line. The file "begun" shows when.
HALF_LINES = FIRST + """
if rank == 0:
    sys.stdout.write("zero begins, ")
    sys.stdout.flush()
    open("begun", "w").close()
    time.sleep(4)
    print("zero ends")
else:
    while not os.path.exists("begun"):
        time.sleep(0.01)
    time.sleep(0.5)
    print("one is whole", flush=True)
"""
# A child in its own session, which ignores TERM like its parent.
STUBBORN = FIRST + """
import signal
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "300"], start_new_session=True)
with open(f"pids.{rank}.new", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename(f"pids.{rank}.new", f"pids.{rank}")
time.sleep(300)
"""


def torch_python():
    """Returns the Python with a current torch if it is installed, else Debian's."""
    places = (os.environ.get("IVY_TORCH_PYTHON"), os.path.join(REPOSITORY, "build/torch/bin/python3"))
    found = [place for place in places if place and os.path.exists(place)]
    return found[0] if found else "/usr/bin/python3"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def command(local, name, program):
    """Returns the command for two labelled ranks of a Python program under a launcher."""
    script = local.file("program.py", program)
    if name == "ivyrun":
        return (local.ivyrun(), "-n", "2", script)
    if name == "torchrun":
        if not (os.path.isdir("/usr/lib/python3/dist-packages/torch") or torch_python() != "/usr/bin/python3"):
            pytest.skip("no torch here")
        return (torch_python(), "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", str(free_port()),
                "-r", "1", "-t", "1", "--log_dir", "logs", script)
    launcher = {"hydra": ("mpiexec.hydra", "-l"),
                "openmpi": ("mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--tag-output")}[name]
    if shutil.which(launcher[0], path=PATH) is None:
        pytest.skip(f"{launcher[0]} is not installed")
    return (*launcher, "-n", "2", "/usr/bin/python3", script)


def run(local, name, program):
    return local.run_program(*command(local, name, program), env={"OMP_NUM_THREADS": "1"}, limit=LIMIT)


@pytest.mark.parametrize("name, code, ends_others, names_rank", [
    ("ivyrun", 85, True, r"rank 1 failed first"),
    ("torchrun", 1, True, r"Root Cause[^=]*rank +: 1 "),
    ("hydra", 85, False, None),
    ("openmpi", 85, True, r"Process name: \[\[\d+,\d+\],1\]")], ids=lambda value: value if value in PEERS else "")
def test_a_rank_exits_with_85(local, name, code, ends_others, names_rank):
    """The worker prints nothing, so all output is the launcher's. The program does not call MPI."""
    done = run(local, name, EXITS)
    assert done.code == code, done
    assert local.exists("went_on") != ends_others, done
    text = done.out.decode() + done.err_text
    assert re.search(names_rank, text, re.DOTALL) if names_rank else not text, done


@pytest.mark.parametrize("name, quotes", [("ivyrun", True), ("torchrun", False), ("hydra", False), ("openmpi", False)])
def test_the_report_quotes_the_exception(local, name, quotes):
    """The worker prints it once, in its traceback."""
    done = run(local, name, RAISES)
    assert done.code == 1, done
    text = done.out.decode() + done.err_text
    assert text.count("RuntimeError: loss is not finite") == (2 if quotes else 1), done


@pytest.mark.parametrize("name, whole", [("ivyrun", True), ("torchrun", False), ("hydra", False), ("openmpi", False)])
def test_lines_of_two_ranks_do_not_mix(local, name, whole):
    done = run(local, name, HALF_LINES)
    assert done.code == 0, done
    mixed = [line for line in done.out.decode().splitlines() if "zero begins" in line and "one is whole" in line]
    assert bool(mixed) != whole, done


def pids(local):
    found = []
    for rank in (0, 1):
        with contextlib.suppress(FileNotFoundError):
            found += [int(word) for word in local.read(f"pids.{rank}").split()]
    return found


def lives(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


@pytest.mark.parametrize("name, leaves", [("ivyrun", False), ("torchrun", True), ("hydra", True), ("openmpi", True)])
def test_a_killed_launcher_leaves_nothing(local, name, leaves):
    """ivyrun's workers must end within 7 s. The workers of the other launchers get the same time."""
    with local.start_program(*command(local, name, STUBBORN), env={"OMP_NUM_THREADS": "1"}) as job:
        wait_until(lambda: len(pids(local)) == 4, LIMIT, "two workers with a child each")
        os.kill(job.process.pid, signal.SIGKILL)
        try:
            if leaves:
                time.sleep(7)
                assert any(map(lives, pids(local))), "no process is left"
            else:
                wait_until(lambda: not any(map(lives, pids(local))), seconds(7), "the end of all processes")
        finally:
            for pid in filter(lives, pids(local)):
                os.kill(pid, signal.SIGKILL)
