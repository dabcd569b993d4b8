# SPDX-License-Identifier: Apache-2.0
"""Acts as one host of a job: starts ivy-pmix as the supervisor does, and ranks as the shim does."""

import os
import signal
import socket
import subprocess
import threading
import time

from launching import BIN, seconds

JOB = "0123456789abcdef0123456789abcdef"


class PmixHost:
    """One ivy-pmix with the ranks of its host. `store`: (address, token file), or None. `environment` is the server's
    alone."""

    def __init__(self, directory, host=0, counts=(2,), store=None, environment=None):
        self.directory = str(directory)
        self.first = sum(counts[:host])
        self.ranks = range(self.first, self.first + counts[host])
        self.events, self.workers = [], {}
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        self.path = f"{self.directory}/pmix.sock"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(self.path)
        listener.listen(64)
        names = ",".join(f"fake{number}" for number in range(len(counts)))
        fd = listener.fileno()
        command = [os.path.join(BIN, "ivy-pmix"), "--listen-fd", str(fd), "--job", JOB, "--generation", "0",
                   "--host", str(host), "--hosts", str(len(counts)), "--ranks-on-hosts", ",".join(map(str, counts)),
                   "--host-names", names, "--directory", self.directory]
        if store:
            command += ["--store", store[0], "--token-file", store[1]]
        self.process = subprocess.Popen(
            command, pass_fds=[fd], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, **(environment or {})})
        listener.close()
        self.notes = b""
        self.readers = [threading.Thread(target=self._read_events), threading.Thread(target=self._read_notes)]
        for reader in self.readers:
            reader.start()

    def _read_events(self):
        for line in self.process.stdout:
            self.events.append(line.decode().rstrip("\n"))

    def _read_notes(self):
        for line in self.process.stderr:
            self.notes += line

    def ask(self, text):
        """Sends a rank's request and returns the texts of the response, which are separated by NUL."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as rank:
            rank.settimeout(seconds(20))
            rank.connect(self.path)
            rank.sendall(text)
            told = b""
            while block := rank.recv(65536):
                told += block
        return [part.decode() for part in told.split(b"\0") if part]

    def start(self, rank, argv, environment=None):
        variables = self.ask(f"rank {rank}\n".encode())
        assert variables and not variables[0].startswith("error:"), variables
        told = dict(variable.split("=", 1) for variable in variables)
        self.workers[rank] = subprocess.Popen(
            argv, env={**os.environ, **told, **(environment or {})}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        return self.workers[rank]

    def start_all(self, argv, environment=None):
        return [self.start(rank, argv, environment) for rank in self.ranks]

    def wait_for(self, *events, limit=20):
        deadline = time.monotonic() + seconds(limit)
        while not set(events) <= set(self.events):
            assert time.monotonic() < deadline, (events, self.events, self.notes)
            time.sleep(0.01)

    def end(self, limit=20):
        """Closes the standard input of ivy-pmix and returns its exit code."""
        for worker in self.workers.values():
            if worker.poll() is None:
                worker.send_signal(signal.SIGKILL)
            worker.communicate()
        self.process.stdin.close()
        code = self.process.wait(timeout=seconds(limit))
        for reader in self.readers:
            reader.join()
        return code


class Store:
    """A real store for the hosts of a job."""

    def __init__(self, directory):
        self.token_file = os.path.join(str(directory), "token")
        with open(self.token_file, "wb", opener=lambda path, flags: os.open(path, flags, 0o400)) as token:
            token.write(os.urandom(32))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.address = "127.0.0.1:%d" % listener.getsockname()[1]
            fd = listener.fileno()
            self.process = subprocess.Popen(
                [os.path.join(BIN, "ivy-rendezvous"), "serve", "--job", JOB, "--token-file", self.token_file,
                 "--generation", "0", "--native-fd", str(fd)], pass_fds=[fd], stdout=subprocess.DEVNULL)

    def end(self):
        self.process.kill()
        self.process.wait()
