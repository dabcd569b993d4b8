#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The overhead of ivyrun's NCCL profiler plug-in.

    tests/bench/nccl_profiler.py              the plug-in's functions, called as by NCCL; no GPU is needed
    tests/bench/nccl_profiler.py --gpu        real NCCL through torch: all_reduce without and with the plug-in, for one
                                              rank and for two ranks that share GPU 0 (with different NCCL_HOSTID, so that
                                              they use NCCL's sockets); then a hang, and its report in the pages

`--build DIR` is the build tree (default: build), `--rounds N` the number of runs of each mode. Prints Markdown.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MODES = ("none", "calls", "kernels")
SIZES = (8, 64 << 10, 1 << 20, 64 << 20)
PORT = 29541


class Supervisor:
    """Runs nccl_caller as a supervisor, which provides status pages and prints them."""

    def __init__(self, build, folder):
        self.path = os.path.join(folder, "control")
        self.process = subprocess.Popen([os.path.join(build, "children/nccl_caller"), "serve", self.path],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "serving\n"

    def pages(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        lines = []
        while (line := self.process.stdout.readline()) not in ("end\n", ""):
            lines.append(line)
        return "".join(lines)

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def environment(build, mode, control, rank, world):
    variables = dict(os.environ, IVY_CONTROL=control, IVY_RANK=str(rank), IVY_WORLD_SIZE=str(world),
                     RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(PORT),
                     NCCL_HOSTID=f"host-{rank}", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")
    variables.pop("NCCL_PROFILER_PLUGIN", None)
    if mode != "none":
        variables["NCCL_PROFILER_PLUGIN"] = os.path.join(build, "lib/ivyrun/libivy_nccl_profiler.so")
        variables["IVY_NCCL_PROFILER"] = mode
    return variables


def measure_size(torch, size, calls):
    """Returns the microseconds per call until it is enqueued and until it is done."""
    tensor = torch.zeros(max(size // 4, 1), device="cuda")
    dist = torch.distributed
    for _ in range(5):
        dist.all_reduce(tensor)
    torch.cuda.synchronize()
    enqueued, done = [], []
    for _ in range(7):
        begin = time.perf_counter()
        for _ in range(calls):
            dist.all_reduce(tensor)
        enqueued.append((time.perf_counter() - begin) / calls * 1e6)
        torch.cuda.synchronize()
        done.append((time.perf_counter() - begin) / calls * 1e6)
    return statistics.median(enqueued), statistics.median(done)


def be_rank(job):
    import torch
    torch.cuda.set_device(0)
    begin = time.perf_counter()
    torch.distributed.init_process_group("nccl")
    torch.distributed.all_reduce(torch.zeros(1, device="cuda"))
    torch.cuda.synchronize()
    result = {"init, ms": ((time.perf_counter() - begin) * 1e3,)}
    for size in json.loads(job)["sizes"]:
        calls = 200 if size <= 1 << 20 else 10
        result[size] = measure_size(torch, size, calls)
    rank = torch.distributed.get_rank()
    if rank == 0:
        print(json.dumps({"nccl": torch.cuda.nccl.version(), "times": result}), flush=True)
    if json.loads(job)["hangs"]:
        if rank == 0:
            torch.distributed.all_reduce(torch.zeros(1000, device="cuda"))
        print("stays", flush=True)
        time.sleep(600)
    torch.distributed.destroy_process_group()


def start_ranks(build, mode, control, job):
    world = job["world"]
    return [subprocess.Popen([sys.executable, __file__, "--rank", json.dumps(job)], stdout=subprocess.PIPE, text=True,
                             env=environment(build, mode, control, rank, world)) for rank in range(world)]


def run_mode(build, mode, supervisor, job):
    ranks = start_ranks(build, mode, supervisor.path, job)
    answer = json.loads(ranks[0].stdout.readline())
    for rank in ranks:
        rank.communicate(timeout=120)
    return answer


def show_hang(build, mode, supervisor):
    ranks = start_ranks(build, mode, supervisor.path, {"world": 2, "sizes": [8], "hangs": True})
    for rank in ranks:
        while rank.stdout.readline() != "stays\n":
            pass
    time.sleep(3)
    print(f"\nPages of two ranks of which rank 1 leaves out the last all_reduce ({mode}):\n\n```\n"
          f"{supervisor.pages()}```")
    for rank in ranks:
        rank.kill()
        rank.wait()


def print_times(world, found):
    print(f"\n{world} rank(s), NCCL {found['none'][0]['nccl']}, us per call enqueued / done:\n")
    print("| bytes | " + " | ".join(MODES) + " |\n|---|" + "---|" * len(MODES))
    for size in found["none"][0]["times"]:
        cells = []
        for mode in MODES:
            pairs = [answer["times"][size] for answer in found[mode]]
            cells.append(" / ".join(f"{statistics.median(side):.2f}" for side in zip(*pairs)))
        print(f"| {size} | " + " | ".join(cells) + " |", flush=True)


def measure_on_gpu(build, rounds):
    with tempfile.TemporaryDirectory() as folder:
        supervisor = Supervisor(build, folder)
        for world, sizes in ((1, SIZES), (2, SIZES[:3])):
            found = {mode: [] for mode in MODES}
            for _ in range(rounds):
                for mode in MODES:
                    found[mode].append(run_mode(build, mode, supervisor, {"world": world, "sizes": sizes,
                                                                          "hangs": False}))
            print_times(world, found)
        for mode in MODES[1:]:
            show_hang(build, mode, supervisor)
        supervisor.end()


def measure_functions(build):
    print("| IVY_NCCL_PROFILER | what | cost |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        supervisor = Supervisor(build, folder)
        for mode, verb in (("calls", "calls"), ("kernels", "calls"), ("calls", "steps")):
            done = subprocess.run([os.path.join(build, "children/nccl_caller"), verb, "500000"], text=True, check=True,
                                  env=environment(build, mode, supervisor.path, 0, 1), stdout=subprocess.PIPE)
            what, cost = done.stdout.strip().split(": ")
            print(f"| {mode} | {what} | {cost} |")
        supervisor.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(REPOSITORY, "build"))
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        return be_rank(options.rank)
    measure_functions(options.build)
    if options.gpu:
        measure_on_gpu(options.build, options.rounds)


if __name__ == "__main__":
    main()
