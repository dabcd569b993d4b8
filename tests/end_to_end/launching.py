# SPDX-License-Identifier: Apache-2.0
"""Starts ivyrun in every way that a user does: on this machine or a test host, as another user, on a terminal.

`Launcher` knows the host and the user. `Run` is an ivyrun that is running. `Finished` holds its exit code, its output
and the time that it took.
"""

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time

import pytest

HERE = os.path.dirname(os.path.realpath(__file__))
REPOSITORY = os.path.realpath(os.path.join(HERE, "../.."))
BIN = os.path.realpath(os.environ.get("IVY_BIN") or os.path.join(REPOSITORY, "build/bin"))
SLOW = float(os.environ.get("IVY_TEST_SLOW") or 1)
WORKERS = os.path.join(HERE, "workers")
HOSTS = os.path.join(REPOSITORY, "tests/testbed/hosts")
# Debian's Python has torch; the first Python on a developer's PATH may not have it.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# "[ 1 node2] text", or "[1] text" on one host; a mark for stderr precedes the rank, and the number of the attempt
# (" #2/4") ends the label if there may be several.
LABEL = re.compile(rb"^\[[^0-9\]]*(\d+)(?: +([^\s\]#][^\s\]]*))? *(?:#\d+/\d+ *)?\] ?(.*)$", re.DOTALL)


def seconds(value):
    """Scales a time of the specification for slow machines and sanitizers."""
    return value * SLOW


def wait_until(condition, limit, what):
    """Polls `condition` until it returns a true value, and returns that value."""
    deadline = time.monotonic() + seconds(limit)
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {seconds(limit):g} s: {what}"
        time.sleep(0.02)


def pages_that_programs_name():
    """Returns the pages of docs/ that help and messages name, such as "mpi.md"."""
    sources = subprocess.run(["grep", "-rhoE", r"docs/[a-z0-9-]+\.md", *("launcher", "agent", "rendezvous", "proto"),
                              "comm/python/ivycomm", "--include=*.cc", "--include=*.h", "--include=*.py",
                              "--include=ivy-agent-cert"], cwd=REPOSITORY, check=True, capture_output=True, text=True)
    return {line.removeprefix("docs/") for line in sources.stdout.splitlines()}


def stop_if_mounts_are_lost(testbed):
    """Stops the whole test run if the hosts have lost mounts. All later tests on them would fail with misleading messages."""
    lost = testbed.lost_mounts()
    if lost:
        message = (f"the test hosts have lost mounts ({', '.join(lost[:3])}): a program on this machine, such as a package's "
                   "installation, replaced the files below them. Run the tests again when it has finished.")
        if "PYTEST_XDIST_WORKER" in os.environ:
            print(f"\n{message}", file=sys.stderr)  # A worker of xdist does not pass on the reason of its exit.
        pytest.exit(message, returncode=2)


def parse_label(line):
    """Returns (rank, host, text), or None for a line without a label."""
    match = LABEL.match(line)
    return (int(match[1]), (match[2] or b"").decode(), match[3]) if match else None


class Finished:
    def __init__(self, code, out, err, took):
        self.code, self.out, self.err, self.took = code, out, err, took

    @property
    def out_lines(self):
        return self.out.decode(errors="surrogateescape").splitlines()

    @property
    def err_text(self):
        return self.err.decode(errors="surrogateescape")

    def labelled(self, stream="out"):
        """Returns (rank, host, text) of every labelled line, in order."""
        lines = (self.out if stream == "out" else self.err).split(b"\n")
        found = [parse_label(line.rstrip(b"\r")) for line in lines]
        return [(rank, host, text.decode(errors="surrogateescape"))
                for rank, host, text in filter(None, found)]

    def texts_by_rank(self, stream="out"):
        ranks = {}
        for rank, _, text in self.labelled(stream):
            ranks.setdefault(rank, []).append(text)
        return ranks

    def own_text(self):
        """Returns ivyrun's own lines on standard error with their indented continuation lines, without the workers' lines."""
        kept = [line for line in self.err.split(b"\n") if parse_label(line) is None]
        return b"\n".join(kept).decode(errors="surrogateescape")

    def __repr__(self):
        return (f"\n--- exit code {self.code} after {self.took:.2f} s\n--- stdout\n"
                f"{self.out[-6000:].decode(errors='replace')}\n--- stderr\n"
                f"{self.err[-6000:].decode(errors='replace')}\n---")


class Reader(threading.Thread):
    """Collects everything that can be read from a descriptor."""

    def __init__(self, descriptor):
        super().__init__(daemon=True)
        self.descriptor = descriptor
        self.data = bytearray()
        self.start()

    def run(self):
        # A terminal whose other side is closed fails with EIO; a pipe returns end of file.
        with contextlib.suppress(OSError):
            while True:
                piece = os.read(self.descriptor, 1 << 16)
                if not piece:
                    break
                self.data += piece

    def bytes(self):
        return bytes(self.data)


class Run:
    """A running ivyrun. It is killed if the `with` block is left before its end."""

    program = b"ivyrun"  # The name of the process that pid() returns.

    def __init__(self, process, out, err, started, terminal=None):
        self.process, self.out, self.err, self.started = process, out, err, started
        self.terminal = terminal

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            with contextlib.suppress(Exception):
                os.kill(self.pid(), signal.SIGKILL)
            self.process.kill()
            self.process.wait()
        self.close_terminal()

    def pid(self):
        """Returns the pid of ivyrun (or `program`) itself, not of the processes that started it on a test host."""
        def find():
            pending = [self.process.pid]
            while pending:
                pid = pending.pop()
                with contextlib.suppress(OSError):
                    with open(f"/proc/{pid}/cmdline", "rb") as file:
                        if os.path.basename(file.read().split(b"\0")[0]) == self.program:
                            return pid
                    with open(f"/proc/{pid}/task/{pid}/children") as file:
                        pending += map(int, file.read().split())
            return None
        return wait_until(find, 10, f"{self.program.decode()} has a process")

    def signal(self, number):
        os.kill(self.pid(), number)

    def said(self):
        return self.out.bytes() + (b"" if self.err is self.out else self.err.bytes())

    def wait_for(self, pattern, limit=20, count=1):
        """Waits until the output (both streams) contains the pattern `count` times."""
        pattern = pattern.encode() if isinstance(pattern, str) else pattern

        def enough():
            # Checked first: when the readers are done, everything printed before the exit has been read.
            ended = self.process.poll() is not None
            if ended:
                self.out.join(1)
                self.err.join(1)
            found = len(re.findall(pattern, self.said())) >= count
            assert found or not ended, f"it ended without {count} x {pattern!r}: {self.finish()!r}"
            return found

        try:
            wait_until(enough, limit, f"{count} x {pattern!r}")
        except AssertionError as error:
            said = self.said()[-6000:].decode(errors="replace")
            raise AssertionError(f"{error}\n{said}") from None

    def type(self, text):
        os.write(self.terminal, text)

    def close_terminal(self):
        if self.terminal is not None:
            with contextlib.suppress(OSError):
                os.close(self.terminal)
            self.terminal = None

    def finish(self, limit=30):
        try:
            code = self.process.wait(seconds(limit))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"ivyrun has not ended after {seconds(limit):g} s\n"
                                 f"{self.said()[-6000:].decode(errors='replace')}") from None
        took = time.monotonic() - self.started
        self.out.join(seconds(5))
        self.err.join(seconds(5))
        return Finished(code, self.out.bytes(), self.err.bytes(), took)


class Launcher:
    """Runs ivyrun on this machine, as this user, in the test's own directory."""

    def __init__(self, directory, marker):
        self.directory = str(directory)
        self.environment = {"PATH": PATH, "HOME": os.environ.get("HOME", "/"), "LANG": "C.UTF-8",
                            "TERM": "dumb", "IVYTEST_MARK": marker,
                            "USER": os.environ.get("USER", "root")}

    def ivyrun(self):
        return os.path.join(BIN, "ivyrun")

    def script(self, name):
        """Returns the path of a script in workers/."""
        return os.path.join(WORKERS, name)

    def file(self, name, text="", mode=0o644):
        """Writes a file into the test's directory and returns the path that workers see."""
        path = os.path.join(self.directory, name)
        with open(path, "wb") as file:
            file.write(text if isinstance(text, bytes) else text.encode())
        os.chmod(path, mode)
        return path

    def read(self, name):
        with open(os.path.join(self.directory, name), "rb") as file:
            return file.read()

    def exists(self, name):
        return os.path.exists(os.path.join(self.directory, name))

    def command(self, program, env):
        """Returns argv and environment to run any program instead of ivyrun."""
        return list(program), {**self.environment, **(env or {})}

    def start_program(self, *program, env=None, stdin=subprocess.DEVNULL, stdout=None, stderr=None):
        argv, environment = self.command(program, env)
        started = time.monotonic()
        process = subprocess.Popen(argv, env=environment, stdin=stdin, cwd=self.outside_directory(),
                                   stdout=stdout or subprocess.PIPE,
                                   stderr=stderr or subprocess.PIPE, start_new_session=True)
        out = Reader(process.stdout.fileno()) if process.stdout else Nothing()
        err = Reader(process.stderr.fileno()) if process.stderr else Nothing()
        return Run(process, out, err, started)

    def outside_directory(self):
        return self.directory

    def start(self, *arguments, **options):
        return self.start_program(self.ivyrun(), *arguments, **options)

    def run(self, *arguments, limit=30, **options):
        with self.start(*arguments, **options) as run:
            return run.finish(limit)

    def run_program(self, *program, limit=30, **options):
        with self.start_program(*program, **options) as run:
            return run.finish(limit)

    def on_terminal(self, *program, env=None, size=(24, 100)):
        """Starts a program (default: a shell) with its own terminal; `type` is its keyboard."""
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        argv, environment = self.command(["setsid", "-c", *program],
                                         {"TERM": "xterm", **(env or {})})
        started = time.monotonic()
        process = subprocess.Popen(argv, env=environment, stdin=slave, stdout=slave, stderr=slave,
                                   cwd=self.outside_directory())
        os.close(slave)
        reader = Reader(master)
        return Run(process, reader, reader, started, terminal=master)


class Nothing:
    """Replaces the reader of a stream that was passed to another process."""

    def bytes(self):
        return b""

    def join(self, _limit=None):
        pass


class HostLauncher(Launcher):
    """Runs ivyrun on a test host (default: node1), in the directory that all hosts share."""

    def __init__(self, bed, directory, user="root", host=1):
        self.bed, self.user, self.host = bed, user, host
        self.name = directory
        self.directory = f"/srv/ivyshared/{directory}"
        self.environment = {}

    def as_user(self, user):
        return HostLauncher(self.bed, self.name, user, self.host)

    def outside(self, path):
        """Returns the path on this machine of a path below /srv/ivyshared."""
        return path.replace("/srv/ivyshared", self.bed.shared, 1)

    def outside_directory(self):
        return "/"

    def script(self, name):
        return f"/srv/ivyshared/workers/{name}"

    def file(self, name, text="", mode=0o644):
        path = f"{self.directory}/{name}"
        with open(self.outside(path), "wb") as file:
            file.write(text if isinstance(text, bytes) else text.encode())
        os.chmod(self.outside(path), mode)
        return path

    def read(self, name):
        with open(self.outside(f"{self.directory}/{name}"), "rb") as file:
            return file.read()

    def exists(self, name):
        return os.path.exists(self.outside(f"{self.directory}/{name}"))

    def command(self, program, env):
        variables = [os.fsencode(k) + b"=" + os.fsencode(v) for k, v in (env or {}).items()]
        argv = [HOSTS, "exec", f"{self.user}@{self.host}", "env", "-C", self.directory, *variables,
                *program]
        return argv, {**os.environ, "IVY_TESTBED": self.bed.state,
                      "TERM": (env or {}).get("TERM", "dumb")}

    def run_on(self, host, *program, user="root", limit=30):
        """Runs another program than ivyrun on any host."""
        done = subprocess.run([HOSTS, "exec", f"{user}@{host}", *program], capture_output=True,
                              env={**os.environ, "IVY_TESTBED": self.bed.state},
                              timeout=seconds(limit), stdin=subprocess.DEVNULL)
        return Finished(done.returncode, done.stdout, done.stderr, 0)


sys.path.insert(0, os.path.join(REPOSITORY, "tests/testbed"))
