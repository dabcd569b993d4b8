# SPDX-License-Identifier: Apache-2.0
"""The time from a fault to the first step of the next attempt: ivyrun beside torchrun and NVRx's ft_launcher.

recovery.py [--rounds N] [--nodes N] [--workers N] [--only NAME] [--bin DIRECTORY] [--site DIRECTORY]

Each system starts its workers on several nodes that share this machine: torchrun and ft_launcher with one agent for each
node and the c10d rendezvous, ivyrun with --fake-hosts, once without and once with --preload torch. The workers import
torch and add numbers by Gloo.

    rank   kill -9 of the last rank of the last node; all ranks start again
    host   kill -9 of everything of the last node; the others start again without it

--site: a directory with nvidia_resiliency_ext and its dependencies, such as one made by `pip install --target`; without it
ft_launcher is left out. Prints a Markdown table of medians and the ratio of each ivyrun to the better peer; times are of
loaded Python processes, so only ratios count.
"""

import argparse
import glob
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.realpath(__file__))
REPOSITORY = os.path.realpath(os.path.join(HERE, "../.."))
PYTHON = os.path.join(REPOSITORY, "build/torch/bin/python3")
WORKER = os.path.join(HERE, "recovery_worker.py")
LIMIT_SECONDS = 240


class Attempt:
    """The first steps of one attempt: {rank: (pid, node, time)}."""

    def __init__(self, world, ranks):
        self.world, self.ranks = world, ranks

    def finished_ns(self):
        return max(at for _, _, at in self.ranks.values())


def first_steps(directory, since_ns, worlds):
    """Waits until all ranks of a group with one of these world sizes have done their first step since then."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        by_world = {}
        for name in glob.glob(os.path.join(directory, "*.first")):
            with open(name) as file:
                rank, world, pid, node, at = map(int, file.read().split())
            if at > since_ns and world in worlds:
                by_world.setdefault(world, {})[rank] = (pid, node, at)
        for world, ranks in by_world.items():
            if len(ranks) == world:
                return Attempt(world, ranks)
        time.sleep(0.01)
    return None


class System:
    """A launcher that runs the workers: one process for each node, or one for all."""

    def __init__(self, options, fault):
        self.options, self.fault = options, fault
        self.processes = []

    def nodes(self):
        return f"1:{self.options.nodes}" if self.fault == "host" else str(self.options.nodes)

    def spawn(self, words, log):
        self.processes.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                               start_new_session=True, env=self.environment()))

    def environment(self):
        return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": self.options.site or ""}

    def end(self):
        for process in self.processes:
            try:
                os.killpg(process.pid, signal.SIGTERM)
            except ProcessLookupError:
                pass
        for process in self.processes:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def tree(pid):
    """Returns the process and its descendants."""
    found = [pid]
    for name in glob.glob(f"/proc/{pid}/task/*/children"):
        try:
            with open(name) as file:
                for child in file.read().split():
                    found += tree(int(child))
        except OSError:
            pass
    return found


def kill(pids):
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


class Ivyrun(System):
    name = "ivyrun"
    flags = ()

    def start(self, directory, log):
        self.spawn([os.path.join(self.options.bin, "ivyrun"), "--fake-hosts", str(self.options.nodes), "--nnodes", self.nodes(),
                    "--nproc_per_node", str(self.options.workers), "--max-restarts", "9", *self.flags, "--python", PYTHON,
                    WORKER, directory, "gloo"], log)

    def lose_node(self, attempt):
        # The supervisor is the worker's parent; its warden kills the rest of the host's processes.
        victim = next(pid for pid, node, _ in attempt.ranks.values() if node == self.options.nodes - 1)
        with open(f"/proc/{victim}/stat") as file:
            kill([int(file.read().rpartition(")")[2].split()[1])])


class IvyrunPreload(Ivyrun):
    name = "ivyrun --preload torch"
    flags = ("--preload", "torch")


class Torchrun(System):
    name = "torchrun"
    module = ("-m", "torch.distributed.run")

    def start(self, directory, log):
        for _ in range(self.options.nodes):
            self.spawn([PYTHON, *self.module, "--nnodes", self.nodes(), "--nproc-per-node", str(self.options.workers),
                        "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{29510 + os.getpid() % 400}", "--rdzv-id", "bench",
                        "--max-restarts", "9", "--monitor-interval", "0.1", WORKER, directory, "gloo"], log)
            time.sleep(0.5)  # The first one has the rendezvous' store and becomes node 0 more often.

    def environment(self):
        # In torch 2.15, workers that share the agents' store find the addresses of the attempt before and do not connect.
        return {**super().environment(), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

    def lose_node(self, attempt):
        # The agent that has the rendezvous' store cannot be lost.
        kill(tree(self.processes[-1].pid))


class FtLauncher(Torchrun):
    name = "ft_launcher"
    module = ("-m", "nvidia_resiliency_ext.fault_tolerance.launcher")


def measure(kind, options, fault):
    """Returns the seconds from the fault to the first step of the last rank of the next attempt, or None."""
    system = kind(options, fault)
    world = options.nodes * options.workers
    with tempfile.TemporaryDirectory() as directory, open(os.path.join(directory, "log"), "wb") as log:
        try:
            system.start(directory, log)
            attempt = first_steps(directory, 0, {world})
            if attempt is None:
                print(open(log.name).read()[-3000:], file=sys.stderr)
                return None
            time.sleep(2)
            since = time.time_ns()
            if fault == "rank":
                kill([attempt.ranks[world - 1][0]])
                after = first_steps(directory, since, {world})
            else:
                system.lose_node(attempt)
                after = first_steps(directory, since, {world - options.workers})
            if after is None:
                print(open(log.name).read()[-3000:], file=sys.stderr)
                return None
            return (after.finished_ns() - since) / 1e9
        finally:
            system.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only")
    parser.add_argument("--bin", default=os.path.join(REPOSITORY, "build/bin"))
    parser.add_argument("--site")
    parser.add_argument("--faults", default="rank,host")
    options = parser.parse_args()
    kinds = [Ivyrun, IvyrunPreload, Torchrun] + ([FtLauncher] if options.site else [])
    if options.only:
        kinds = [kind for kind in kinds if kind.name == options.only]
    columns = ["fault", *(kind.name for kind in kinds), *(f"{kind.name} ÷ better peer" for kind in kinds if issubclass(kind, Ivyrun))]
    print("| " + " | ".join(columns) + " |")
    print("|---" * len(columns) + "|")
    for fault in options.faults.split(","):
        times = {kind.name: [] for kind in kinds}
        for _ in range(options.rounds):  # In turn, so that all see the same load.
            for kind in kinds:
                took = measure(kind, options, fault)
                print(f"{fault}: {kind.name}: {took}", file=sys.stderr, flush=True)
                if took is not None:
                    times[kind.name].append(took)
        medians = {name: statistics.median(all_) for name, all_ in times.items() if all_}
        peers = [medians[kind.name] for kind in kinds if not issubclass(kind, Ivyrun) and kind.name in medians]
        cells = [f"{medians[kind.name]:.2f} s" if kind.name in medians else "failed" for kind in kinds]
        cells += [f"{medians[kind.name] / min(peers):.2f}" if peers and kind.name in medians else "–"
                  for kind in kinds if issubclass(kind, Ivyrun)]
        print(f"| {fault} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
