# SPDX-License-Identifier: Apache-2.0
"""The job's store compared with Redis and torch's own TCPStore server: latency, throughput, many clients."""

import json
import operator
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile

from measure import StandardError, note

HERE = os.path.dirname(os.path.realpath(__file__))
REPOSITORY = os.path.realpath(os.path.join(HERE, "../.."))
JOB = "0" * 32
TOKEN = "t" * 32
SCENES = ("one", "many", "barrier", "fanout", "gloo")
OURS, OURS_BY_TORCH, REDIS, TORCH = "ivyrun", "ivyrun, torch's protocol", "Redis", "torch's server"
BESIDE = "the build beside"
CROWD = 4096
READERS = 1024
TORCH_SERVER = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


class Servers:
    """One server of each kind, on the first core; the load runs on the second one."""

    def __init__(self, binaries, beside):
        self.folder = tempfile.mkdtemp(prefix="ivy-bench-store-")
        self.processes = []
        self.stderr = StandardError("the servers")
        self.peers = {}
        self.has_cores = (os.cpu_count() or 1) > 1
        try:
            ports, pid = self.start_ours(binaries)
            self.peers[OURS] = ("native", ports[False], pid)
            self.peers[OURS_BY_TORCH] = ("torch", ports[True], pid)
            if beside:
                ports, pid = self.start_ours(beside)
                self.peers[BESIDE] = ("native", ports[False], pid)
            self.start_redis()
            self.start_torch()
        except BaseException:
            self.stderr.tell("one of them did not start")
            self.stop()
            raise

    def start(self, argv, **more):
        process = subprocess.Popen(pinned(argv, 0), stdin=subprocess.PIPE, text=True,
                                   stderr=self.stderr, **more)
        self.processes.append(process)
        return process

    def start_ours(self, binaries):
        """Starts a store of this build and returns ({whether the protocol is torch's: port}, process)."""
        token = os.path.join(self.folder, "token")
        with open(token, "w") as file:
            file.write(TOKEN)
        process = self.start([os.path.join(binaries, "ivy-rendezvous"), "serve", "--job", JOB,
                              "--token-file", token, "--listen", "127.0.0.1:0",
                              "--torch", "127.0.0.1:0"], stdout=subprocess.PIPE)
        ports = {}
        for line in process.stdout:
            found = re.search(r"listening (for torch )?on .*:(\d+)$", line)
            if found:
                ports[bool(found[1])] = int(found[2])
            if line.strip() == "ready":
                break
        return ports, process.pid

    def start_redis(self):
        if not shutil.which("redis-server"):
            note("  Redis: not installed (scripts/setup bench), left out")
            return
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        process = self.start(["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", "",
                              "--appendonly", "no", "--requirepass", TOKEN, "--maxclients", "10000",
                              "--tcp-backlog", "4096", "--dir", self.folder], stdout=subprocess.PIPE)
        for line in process.stdout:
            if "Ready to accept" in line:
                break
        else:
            raise RuntimeError("redis-server did not start")
        self.peers[REDIS] = ("redis", port, process.pid)

    def start_torch(self):
        process = self.start(["/usr/bin/python3", "-c", TORCH_SERVER], stdout=subprocess.PIPE)
        line = process.stdout.readline()
        if not line:
            self.stderr.tell("torch's server did not start (scripts/setup example), left out")
            return
        self.peers[TORCH] = ("torch", int(line), process.pid)

    def words(self, names):
        return ["=".join([name, *map(str, self.peers[name])]) for name in names if name in self.peers]

    def port(self, name):
        return self.peers[name][1]

    def stop(self):
        for process in self.processes:
            process.kill()
            process.wait()
        self.stderr.file.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def pinned(argv, core):
    """Returns argv pinned to a core, so that server and load run on different cores, if there are at least two."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2 or not shutil.which("taskset"):
        return argv
    return ["taskset", "-c", str(cores[core]), *argv]


class Load:
    def __init__(self, program, servers):
        self.program = program
        self.servers = servers

    def run(self, scene, rounds, count, names):
        argv = pinned([self.program, scene, str(rounds), str(count), *self.servers.words(names)], 1)
        done = subprocess.run(argv, stdout=subprocess.PIPE, check=True, text=True)
        return [json.loads(line) for line in done.stdout.splitlines()]


class Table:
    """Rows of one scene. Each figure is the median over rounds, and each ratio the median of the rounds' ratios."""

    def __init__(self, lines):
        self.lines = lines
        self.names = list(dict.fromkeys(line["peer"] for line in lines))

    def values(self, name, what, figure):
        return [line[figure] for line in self.lines if line["peer"] == name and line["what"] == what]

    def median(self, name, what, figure):
        return statistics.median(self.values(name, what, figure))

    def ratio(self, name, what, figure, ours=OURS):
        pairs = zip(self.values(ours, what, figure), self.values(name, what, figure))
        return statistics.median(mine / theirs for mine, theirs in pairs)


def print_rows(title, heading, rows):
    print(f"\n### {title}\n\n| " + " | ".join(heading) + " |\n|" + "---|" * len(heading))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    sys.stdout.flush()


def ours_for(peer):
    """Returns the variant of ivyrun's store to compare with: torch's server is compared in its own protocol."""
    return OURS_BY_TORCH if peer == TORCH else OURS


def verdict(kept, text):
    return f"{text}: {'within' if kept else 'OVER'}"


def bench_one(load, rounds):
    """Latency of one client, with the client libraries and with plain sockets."""
    for scene, names, title in (
            ("clients", [OURS, BESIDE, REDIS], "client libraries (ours, hiredis)"),
            ("one", [OURS, OURS_BY_TORCH, BESIDE, REDIS, TORCH], "bare sockets, the same loop for all")):
        table = Table(load.run(scene, rounds or 30, 500, names))
        rows = []
        for what in ("set", "get"):
            for name in table.names:
                ratio = budget = ""
                if name not in (OURS, OURS_BY_TORCH):
                    value = table.ratio(name, what, "median_us", ours_for(name))
                    ratio = f"{value:.2f}"
                    if name == REDIS:
                        budget = verdict(value <= 1.5, "≤ 1.5")
                rows.append([f"{what}, {name}", f"{table.median(name, what, 'median_us'):.1f} µs",
                             f"{table.median(name, what, 'p99_us'):.1f} µs", ratio, budget])
        print_rows(f"One client, 64 bytes: {title}",
                   ["", "median", "p99", "ivyrun ÷ this", "budget"], rows)


def bench_many(load, rounds):
    table = Table(load.run("many", rounds or 10, 64, [OURS, OURS_BY_TORCH, BESIDE, REDIS, TORCH]))
    rows = []
    for what in ("set", "get"):
        for name in table.names:
            ratio = budget = ""
            if name not in (OURS, OURS_BY_TORCH):
                value = table.ratio(name, what, "per_second", ours_for(name))
                ratio = f"{value:.2f}"
                if name == REDIS:
                    budget = verdict(value >= 1, "≥ 1")
            rows.append([f"{what}, {name}", f"{table.median(name, what, 'per_second') / 1e3:.1f} k/s",
                         f"{table.median(name, what, 'median_us'):.0f} µs",
                         f"{table.median(name, what, 'p99_us'):.0f} µs",
                         f"{table.median(name, what, 'server_us_each'):.2f} µs",
                         f"{100 * table.median(name, what, 'server_busy'):.0f} %",
                         f"{100 * table.median(name, what, 'load_busy'):.0f} %", ratio, budget])
    print_rows("64 clients, one request of 64 bytes under way each",
               ["", "requests", "median", "p99", "server's processor time each",
                "server busy", "load busy",
                "ivyrun's requests ÷ this", "budget"], rows)


def bench_barrier(load, rounds):
    table = Table(load.run("barrier", rounds or 5, CROWD, [OURS, BESIDE, REDIS, TORCH]))
    rows = []
    for name in table.names:
        def cell(figure):
            return table.median(name, "barrier", figure)
        budget = ratio = ""
        if name == OURS:
            kept = max(table.values(OURS, "barrier", "seconds")) <= 5
            memory = max(table.values(OURS, "barrier", "peak_kib_each")) + cell("kernel_kib_each")
            budget = verdict(kept, "≤ 5 s") + "; " + verdict(memory <= 64, "≤ 64 KiB")
        else:
            ratio = f"{table.ratio(name, 'barrier', 'seconds'):.2f}"
        # A round that reuses memory of the previous one shows no growth, so the maximum of all rounds counts.
        rows.append([name, f"{cell('seconds'):.2f} s", f"{cell('server_seconds'):.2f} s",
                     f"{max(table.values(name, 'barrier', 'peak_kib_each')):.1f} KiB",
                     f"{max(table.values(name, 'barrier', 'kernel_kib_each')):.1f} KiB", ratio, budget])
    print_rows(f"{CROWD} connections come, authenticate (not with torch's server) and pass one barrier",
               ["", "from the first connect to the last release", "server's processor time",
                "server memory each, at most", "kernel memory each, both ends", "ivyrun ÷ this",
                "budget"], rows)


def bench_fanout(load, rounds):
    table = Table(load.run("fanout", rounds or 7, READERS, [OURS, OURS_BY_TORCH, BESIDE, REDIS, TORCH]))
    rows = []
    for what, text in (("waiting", "all wait, then it is set"), ("there", "it is there, all ask")):
        for name in table.names:
            ratio = "" if name in (OURS, OURS_BY_TORCH) else \
                f"{table.ratio(name, what, 'milliseconds', ours_for(name)):.2f}"
            rows.append([f"{text}, {name}", f"{table.median(name, what, 'milliseconds'):.1f} ms", ratio])
    print_rows(f"One value of 128 bytes for {READERS} clients, until the last one has it",
               ["", "median", "ivyrun ÷ this"], rows)


def bench_gloo(load, rounds):
    """Gloo's key exchange between 64 processes, done by torch itself."""
    if TORCH not in load.servers.peers:
        return
    workers, seconds = 64, {OURS_BY_TORCH: [], TORCH: []}
    for round_number in range(rounds or 4):
        for name in (list(seconds) if round_number % 2 else list(seconds)[::-1]):
            with StandardError(f"gloo by {name}") as stderr:
                done = subprocess.run(
                    ["/usr/bin/python3", "-B", os.path.join(HERE, "gloo_mesh.py"), str(workers),
                     str(load.servers.port(name)), str(round_number)],
                    stdout=subprocess.PIPE, stderr=stderr, text=True, check=True, timeout=600)
            seconds[name].append(float(done.stdout))
            note(f"  gloo by {name}: {done.stdout.strip()} s")
    # The ports that a round leaves behind slow down the next one with any server. Therefore the ratio is that of each
    # round's two runs, which take turns in running first.
    ratio = statistics.median(map(operator.truediv, seconds[OURS_BY_TORCH], seconds[TORCH]))
    rows = [[name, f"{min(taken):.2f} s", f"{statistics.median(taken):.2f} s",
             f"{ratio:.2f}" if name == TORCH else ""] for name, taken in seconds.items()]
    print_rows(f"Gloo's full mesh: `init_process_group` of {workers} processes, first start to last end",
               ["store", "fastest", "median", "ivyrun ÷ this"], rows)


def bench(options):
    build = os.path.dirname(os.path.dirname(options.ivyrun))
    load_program = os.path.join(build, "bench/store_load")
    if not os.access(load_program, os.X_OK):
        print("\n### The store\n\nSKIPPED: build/bench/store_load is not there (scripts/setup bench)")
        return
    scenes = {"one": bench_one, "many": bench_many, "barrier": bench_barrier, "fanout": bench_fanout,
              "gloo": bench_gloo}
    servers = Servers(os.path.join(build, "bin"), os.path.dirname(options.beside[0]) if options.beside else None)
    try:
        load = Load(load_program, servers)
        for scene in options.scenes or SCENES:
            note(f"store: {scene}")
            scenes[scene](load, options.runs)
    finally:
        servers.stop()
