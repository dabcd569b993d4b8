"""Requests that the store serves per worker, with and without a leaf on each host: HOSTS x WORKERS
clients on this machine, leaves started by hand.

    tests/bench/store_leaf.py [--hosts 8] [--workers 8] [--seconds 60] [PART...]

Parts: value (one 128-byte value, set once, read by all: natively, and an NCCL id as torch does),
steady (torch's check of exception_dump once a second), group (init_process_group and a barrier of real
torch processes with Gloo; --torch-python names the interpreter). Everything is counted by the store
itself (SIGUSR1); reading takes as long as it takes, time is not what is measured."""

import argparse
import hashlib
import hmac
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NODE = os.path.join(os.environ.get("IVY_BIN", os.path.join(REPOSITORY, "build", "bin")), "ivy-node")
JOB = "00112233445566778899aabbccddeeff"
TOKEN = b"t" * 32
SET_ONCE, WAIT_GET = 2, 5
SET, GET, CHECK, WAIT = 1, 3, 5, 6
ID = b"x" * 128
GROUP = """
import datetime, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=900))
dist.barrier()
dist.destroy_process_group()
"""


def text(value):
    return struct.pack("<Q", len(value)) + value


def receive(peer, count):
    data = b""
    while len(data) < count:
        part = peer.recv(count - len(data))
        assert part, "the store hung up"
        data += part
    return data


class Role:
    """`ivy-rendezvous serve` or `leaf` by hand."""

    def __init__(self, verb, token_file, *more):
        self.process = subprocess.Popen(
            [NODE, "rendezvous", verb, "--job", JOB, "--token-file", token_file, "--listen",
             "127.0.0.1:0", "--torch", "127.0.0.1:0", *more], stdout=subprocess.PIPE, text=True)
        self.native = self.process.stdout.readline().split()[-1]
        self.torch = self.process.stdout.readline().split()[-1]
        assert self.process.stdout.readline() == "ready\n"

    def count(self):
        os.kill(self.process.pid, signal.SIGUSR1)
        line = self.process.stdout.readline()
        return int(re.search(r"(\d+) requests served", line)[1])

    def end(self):
        self.process.terminate()
        self.process.wait()
        self.process.stdout.close()


class Job:
    """A store, and a leaf for each host where they are asked for."""

    def __init__(self, options, with_leaves, directory):
        token_file = os.path.join(directory, "token")
        if not os.path.exists(token_file):
            with open(token_file, "wb") as file:
                file.write(TOKEN)
        self.store = Role("serve", token_file)
        self.leaves = [Role("leaf", token_file, "--root", self.store.native)
                       for _ in range(options.hosts if with_leaves else 0)]
        self.workers = options.hosts * options.workers
        self.per_host = options.workers

    def at(self, worker):
        return self.leaves[worker // self.per_host] if self.leaves else self.store

    def connect(self, address):
        host, port = address.rsplit(":", 1)
        peer = socket.create_connection((host, int(port)), 60)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return peer

    def torch_client(self, worker):
        peer = self.connect(self.at(worker).torch)
        peer.sendall(b"\0\xce\xf7\x85\x3c")
        return peer

    def native_client(self, worker):
        peer = self.connect(self.at(worker).native)
        hello = (b"IVYS" + struct.pack("<H", 2) + b"store".ljust(16, b"\0") + bytes.fromhex(JOB) +
                 struct.pack("<IIIQ", 0, worker, os.getpid(), 0) + os.urandom(32))
        peer.sendall(hello)
        challenge = receive(peer, 80)
        derived = hmac.digest(bytes.fromhex(JOB), TOKEN, hashlib.sha256)
        key = hmac.digest(derived, b"ivy store\1", hashlib.sha256)
        peer.sendall(hmac.digest(key, b"client" + hello + challenge, hashlib.sha256))
        assert receive(peer, 9)[4] == 0, "no welcome"
        return peer

    def end(self):
        for role in [*self.leaves, self.store]:
            role.end()


def native_frame(operation, number, payload):
    return struct.pack("<IBI", 5 + len(payload), operation, number) + payload


def short(value):
    return struct.pack("<I", len(value)) + value


def read_value_natively(job):
    clients = [job.native_client(worker) for worker in range(job.workers)]
    before = job.store.count()
    for client in clients[1:]:
        client.sendall(native_frame(WAIT_GET, 1, struct.pack("<Q", 60_000) + short(b"nccl")))
    clients[0].sendall(native_frame(SET_ONCE, 1, short(b"nccl") + short(ID)))
    receive(clients[0], 9)
    for client in clients[1:]:
        assert receive(client, 9 + 4 + 128)[-128:] == ID
    return job.store.count() - before


def read_value_as_torch(job):
    key = text(b"/default_pg/0//cuda//0")
    clients = [job.torch_client(worker) for worker in range(job.workers)]
    before = job.store.count()
    for client in clients[1:]:
        client.sendall(bytes([WAIT]) + struct.pack("<Q", 1) + key)
    clients[0].sendall(bytes([SET]) + key + text(ID))
    for client in clients[1:]:
        assert receive(client, 1) == b"\0"
        client.sendall(bytes([GET]) + key)
    for client in clients[1:]:
        assert receive(client, 8 + 128)[-128:] == ID
    return job.store.count() - before


def check_steadily(job, seconds, warm):
    """Every worker's heartbeat thread, once a second. Warm: some of them have checked before."""
    clients = [job.torch_client(worker) for worker in range(job.workers)]
    request = bytes([CHECK]) + struct.pack("<Q", 1) + text(b"/exception_dump")
    for _ in range(5 if warm else 0):
        for client in clients:
            client.sendall(request)
            receive(client, 1)
    before = job.store.count()
    begin = time.monotonic()
    for second in range(seconds):
        for client in clients:
            client.sendall(request)
        for client in clients:
            assert receive(client, 1) == b"\1"
        pause = begin + second + 1 - time.monotonic()
        select.select([], [], [], max(0, pause))
    count = job.store.count() - before
    # It must still be seen when it comes.
    clients[0].sendall(bytes([SET]) + text(b"/exception_dump") + text(b"0000"))
    for client in clients:
        limit = time.monotonic() + 60
        client.sendall(request)
        while receive(client, 1) != b"\0":
            assert time.monotonic() < limit, "a failure was not seen"
            client.sendall(request)
    return count * 60 / seconds if warm else count


def make_group(job, python):
    before = job.store.count()
    ranks = []
    try:
        for rank in range(job.workers):
            host, port = job.at(rank).torch.rsplit(":", 1)
            env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(job.workers),
                   "MASTER_ADDR": host, "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": "True",
                   "TORCHELASTIC_RESTART_COUNT": "0", "GLOO_SOCKET_IFNAME": "lo",
                   "OMP_NUM_THREADS": "1"}
            ranks.append(subprocess.Popen([python, "-c", GROUP], env=env))
        codes = [rank.wait(1800) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert not any(codes), codes
    return job.store.count() - before


def measure(options, directory):
    def rows():
        if "value" in options.parts:
            yield "one 128-byte value, set once (native)", read_value_natively
            yield "one 128-byte NCCL id (torch: SET, WAIT + GET)", read_value_as_torch
        if "steady" in options.parts:
            yield (f"torch's `exception_dump` check, the first {options.seconds} s",
                   lambda job: check_steadily(job, options.seconds, False))
            yield ("the same, each minute from then on",
                   lambda job: check_steadily(job, options.seconds, True))
        if "group" in options.parts:
            yield ("torch's init_process_group(gloo) and a barrier",
                   lambda job: make_group(job, options.torch_python))
    workers = options.hosts * options.workers
    print(f"| requests at the store per worker, {options.hosts} hosts x {options.workers} workers | "
          "without leaves | with leaves | ratio |\n|---|---|---|---|")
    for name, part in rows():
        counts = []
        for with_leaves in (False, True):
            job = Job(options, with_leaves, directory)
            try:
                counts.append(part(job))
            finally:
                job.end()
        without, leaves = (count / workers for count in counts)
        ratio = f"{without / leaves:.1f}" if leaves else "none are left"
        print(f"| {name} | {without:.2f} | {leaves:.2f} | {ratio} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--torch-python", default="/usr/bin/python3")
    parser.add_argument("parts", nargs="*", default=["value", "steady", "group"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        measure(options, directory)


if __name__ == "__main__":
    sys.exit(main())
