# SPDX-License-Identifier: Apache-2.0
"""Jobs of a real Slurm on the test hosts: sbatch, salloc, and queries about them."""

import contextlib
import os
import re
import signal
import subprocess
import time

import pytest

from launching import REPOSITORY, Finished, wait_until

import leftovers  # (found by way of launching)

SLURM = os.path.join(REPOSITORY, "tests/testbed/slurm")
CONFIGURATION = "/srv/ivyshared/slurm/slurm.conf"


MISSING = 3  # The exit code of `slurm` if this machine lacks something.


def run_control(bed, *words):
    return subprocess.run([SLURM, *words], env={**os.environ, "IVY_TESTBED": bed.state},
                          stdin=subprocess.DEVNULL, capture_output=True, text=True)


def control(bed, *words):
    """Runs `slurm` with these arguments, such as `up cgroup`, and returns the error, or nothing."""
    done = run_control(bed, *words)
    return done.stderr.strip() if done.returncode else ""


@contextlib.contextmanager
def running_on(bed, track):
    """Makes all hosts nodes of a Slurm that finds a step's processes in this way (by cgroup or by /proc)."""
    done = run_control(bed, "up", track)
    if done.returncode:
        control(bed, "down")
        wrong = f"no Slurm here: {done.stderr.strip()}"
        # In CI, where nobody reads why tests were skipped, a Slurm that does not start is a failure.
        if os.environ.get("CI") == "true" and done.returncode != MISSING:
            pytest.fail(wrong)
        pytest.skip(wrong)
    try:
        yield
    finally:
        control(bed, "down")


class Batch:
    """One job of sbatch."""

    def __init__(self, slurm, number, output):
        self.slurm, self.number, self.output = slurm, number, output

    def text(self):
        with contextlib.suppress(FileNotFoundError):
            return self.slurm.launcher.read(self.output).decode(errors="replace")
        return ""

    def state(self):
        """Returns COMPLETED, FAILED, CANCELLED, RUNNING or another state of Slurm."""
        said = self.slurm.command("scontrol", "-o", "show", "job", str(self.number)).out.decode()
        match = re.search(r"JobState=(\S+)", said)
        return match[1] if match else "GONE"

    def exit_code(self):
        said = self.slurm.command("scontrol", "-o", "show", "job", str(self.number)).out.decode()
        return int(re.search(r"ExitCode=(\d+):", said)[1])

    def start_at_once(self, limit=60):
        """Starts a requeued job. Slurm may set its earliest start time only after its state."""
        def is_started():
            if self.state() == "PENDING":
                self.slurm.command("scontrol", "update", f"JobId={self.number}", "StartTime=now")
                time.sleep(1)
            return self.state() != "PENDING"
        wait_until(is_started, limit, f"a start of job {self.number}")

    def wait_for(self, pattern, limit=30, count=1):
        wait_until(lambda: len(re.findall(pattern, self.text())) >= count, limit,
                   f"{count} x {pattern!r} in the output of job {self.number}")

    def finish(self, limit=60):
        """Returns the output as `Finished`. Both streams are one file, as on a terminal."""
        wait_until(lambda: self.state() not in ("PENDING", "RUNNING", "SIGNALING", "COMPLETING"), limit,
                   f"the end of job {self.number}: {self.text()[-3000:]}")
        text = self.text().encode()
        return Finished(self.exit_code(), text, text, 0)


class Slurm:
    """Uses Slurm as an ordinary user on node1."""

    def __init__(self, launcher, track):
        self.launcher, self.track = launcher, track
        self.bed = launcher.bed
        self.environment = {"SLURM_CONF": CONFIGURATION}

    def __enter__(self):
        wait_until(lambda: self.idle(self.bed.count()), 60, "idle hosts")
        return self

    def __exit__(self, *_):
        self.cancel_all()

    def command(self, *words, limit=30):
        return self.launcher.run_program(*words, env=self.environment, limit=limit)

    def start(self, options, *words, env=None):
        """Starts `salloc OPTIONS ivyrun WORDS`."""
        return self.launcher.start_program("salloc", "--quiet", *options, self.launcher.ivyrun(),
                                           *words, env={**self.environment, **(env or {})})

    def run(self, options, *words, limit=60, env=None):
        with self.start(options, *words, env=env) as run:
            return run.finish(limit)

    def batch(self, options, script):
        """Submits a shell script, in which IVYRUN is replaced with the path of ivyrun."""
        text = "#!/bin/bash\n" + script.replace("IVYRUN", self.launcher.ivyrun()) + "\n"
        path = self.launcher.file("job.sh", text, 0o755)
        done = self.command("sbatch", "--parsable", "-o", f"{self.launcher.directory}/job.out",
                            "-D", self.launcher.directory, *options, path)
        assert done.code == 0, done
        return Batch(self, int(done.out), "job.out")

    def submit(self, output, *words):
        """Runs `sbatch WORDS` with that file of the test for the output."""
        done = self.command("sbatch", "--parsable", "-D", self.launcher.directory, *words)
        assert done.code == 0, done
        return Batch(self, int(done.out), output)

    def put_on_path(self, name, text):
        """Writes a program and returns its directory, to be put first on PATH."""
        folder = self.launcher.outside(f"{self.launcher.directory}/bin")
        os.makedirs(folder, exist_ok=True)
        self.launcher.file(f"bin/{name}", "#!/bin/sh\n" + text, 0o755)
        return f"{self.launcher.directory}/bin"

    def idle(self, wanted):
        """Returns whether Slurm could allocate so many hosts immediately."""
        said = self.command("sinfo", "-h", "-t", "idle", "-o", "%D").out.split()
        return sum(int(word) for word in said) >= wanted

    def cancel_all(self):
        self.command("scancel", "-u", "ivyuser")
        self.command("scancel", "-u", "root")
        wait_until(lambda: not self.command("squeue", "-h").out.strip(), 30, "an empty queue")

    def listening(self, run):
        """Returns the (address, port) to which the hosts of this ivyrun connect."""
        pid = run.pid()
        sockets = set()
        for entry in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                sockets.add(os.readlink(f"/proc/{pid}/fd/{entry}"))
        with open(f"/proc/{pid}/net/tcp") as table:
            for line in table.readlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                    address, port = fields[1].split(":")
                    numbers = ".".join(map(str, reversed(bytes.fromhex(address))))
                    # salloc leaves one of its sockets open in its child processes.
                    if numbers != "0.0.0.0":
                        return numbers, int(port, 16)
        return None

    def kill(self, host, name, number=signal.SIGKILL):
        """Sends the signal to every process of that name on a host and returns their number."""
        pids = [process.pid for process in leftovers.processes_of(self.bed.init_pid(host))
                if process.state != "Z" and process.name == name.encode()]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return len(pids)


