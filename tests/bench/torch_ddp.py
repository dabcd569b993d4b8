# SPDX-License-Identifier: Apache-2.0
"""A DDP step with backend ivy and the same step with gloo, in turn in one run of two ranks.

    tests/bench/run torch [--rounds N] [--steps N] [--ranks N]

A round has N steps (forward, backward, optimizer) of a model with ivy, then of the same model with gloo. The result is the
median over the rounds of a step's time on the slowest rank. `--calls` adds single calls on tensors of some sizes. Needs
`scripts/setup torch`; --python /usr/bin/python3 measures Debian's torch.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.realpath(__file__))
REPOSITORY = os.path.realpath(os.path.join(HERE, "../.."))
MODELS = {"64-64-10": (64, 64, 10), "256-256-256-10": (256, 256, 256, 10), "1024-1024-1024-10": (1024, 1024, 1024, 10)}
SIZES = (4, 1024, 65536, 1 << 20, 1 << 24)


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--calls", action="store_true")
    parser.add_argument("--realtime", action="store_true", help="as root, on a machine that others use: ahead of them")
    parser.add_argument("--python", default=os.environ.get("IVY_TORCH_PYTHON") or
                        os.path.join(REPOSITORY, "build/torch/bin/python3"))
    return parser.parse_args()


def measure(ways, rounds):
    """Returns {name: median of the slowest rank's seconds}. The ways are called in turn, after an uncounted call of each."""
    import torch
    import torch.distributed as dist

    times = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            dist.barrier()
            begin = time.perf_counter()
            way()
            longest = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
            dist.all_reduce(longest, dist.ReduceOp.MAX)
            if number > 0:
                times[name].append(longest.item())
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def net(widths):
    import torch

    torch.manual_seed(0)
    layers = []
    for above, below in zip(widths, widths[1:]):
        layers += [torch.nn.Linear(above, below), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def stepper(widths, group, steps):
    import torch
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(net(widths), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(32, widths[0])

    def way():
        for _ in range(steps):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

    return way


def caller(call, count, group, repeats):
    import torch

    x = torch.ones(count // 4)

    def way():
        for _ in range(repeats):
            call(x, group)

    return way


def row(name, found, each):
    ours, theirs = (1e6 * found[way] / each for way in ("ivy", "gloo"))
    print(f"| {name} | {ours:.0f} µs | {theirs:.0f} µs | {ours / theirs:.2f} |", flush=True)


def work(args):
    """Runs on each rank."""
    import torch
    import torch.distributed as dist

    if torch.__version__.startswith("1."):
        import ivycomm.torch  # noqa: F401
    torch.set_num_threads(1)
    if args.realtime:  # Threads that start later inherit it.
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(3))
    dist.init_process_group("ivy")
    groups = {"ivy": None, "gloo": dist.new_group(backend="gloo")}
    is_first = dist.get_rank() == 0
    if is_first:
        print(f"torch {torch.__version__}, {dist.get_world_size()} ranks\n")
        print("| | ivy | gloo | ivy ÷ gloo |\n|---|---|---|---|")
    for name, widths in MODELS.items():
        found = measure({way: stepper(widths, group, args.steps) for way, group in groups.items()}, args.rounds)
        if is_first:
            row(f"DDP step, MLP {name}", found, args.steps)
    calls = {"all_reduce": lambda x, group: dist.all_reduce(x, group=group),
             "all_reduce, async_op": lambda x, group: dist.all_reduce(x, group=group, async_op=True).wait()}
    for name, call in calls.items() if args.calls else ():
        for size in SIZES:
            repeats = 100 if size < 1 << 20 else 5
            found = measure({way: caller(call, size, group, repeats) for way, group in groups.items()}, args.rounds)
            if is_first:
                row(f"{name}, {size} B", found, repeats)
    dist.destroy_process_group()


def main():
    args = options()
    if os.environ.get("RANK") is not None:
        return work(args)
    if not os.path.exists(args.python):
        sys.exit(f"{args.python} is not there: scripts/setup torch")
    ivyrun = os.path.join(os.environ.get("IVY_BIN", os.path.join(REPOSITORY, "build/bin")), "ivyrun")
    return subprocess.call([ivyrun, "-n", str(args.ranks), "--label", "none", "--python", args.python,
                            os.path.realpath(__file__), *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
