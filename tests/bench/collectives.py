# SPDX-License-Identifier: Apache-2.0
"""Collectives of libivycomm, Gloo, Open MPI and MPICH with the same loop in one run (tests/bench/run collectives).

collectives.py [--ranks 2] [--most BYTES] [--seconds S] [--rounds N] [--over shm|tcp] [--real-time PRIORITY]
               [--registered] [--beside LIB] [--brief]

The libraries take turns in each round; a cell is the median of the rounds' medians. Prints Markdown. --registered also
measures libivycomm with buffers from ivy_mem_alloc; --brief prints libivycomm's time and its ratio to the best peer's.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

from measure import machine, note

HERE = os.path.dirname(os.path.realpath(__file__))
BUILD = os.path.realpath(os.path.join(HERE, "../../build"))
OPERATIONS = "all_reduce broadcast all_gather reduce_scatter all_to_all barrier"
LIMIT = 600  # Seconds for one peer's round. A peer that hangs is left out.
BESIDE = "ivy beside"


def commands(options, folder):
    """Returns {library: argv without the loop's arguments} for the libraries that are installed and built."""
    ranks = str(options.ranks)
    ivyrun = [f"{BUILD}/bin/ivyrun"]
    ours = ["--fake-hosts", ranks, "--nproc_per_node", "1"] if options.over == "tcp" else ["-n", ranks]
    open_mpi = ["--mca", "btl", "tcp,self"] if options.over == "tcp" else []
    found = {
        "ivy": ivyrun + ours + [f"{BUILD}/bench/collectives_ivy"],
        "gloo": ivyrun + ["-n", ranks, "-x", f"BENCH_FOLDER={folder}", f"{BUILD}/bench/collectives_gloo"],
        "openmpi": ["mpirun.openmpi", "--oversubscribe", "--allow-run-as-root", "--bind-to", "none", *open_mpi,
                    "-n", ranks, f"{BUILD}/bench/collectives_openmpi"],
        "mpich": ["mpirun.mpich", "-bind-to", "none", "-n", ranks, f"{BUILD}/bench/collectives_mpich"],
    }
    if options.registered:
        found["ivy registered"] = ivyrun + ours + ["-x", "BENCH_REGISTERED=1", f"{BUILD}/bench/collectives_ivy"]
    if options.beside:
        found[BESIDE] = ivyrun + ours + ["-x", f"LD_LIBRARY_PATH={options.beside}", f"{BUILD}/bench/collectives_ivy"]
    # MPICH always uses shared memory between ranks of one host.
    if options.over == "tcp":
        del found["mpich"]
    wrapped = {}
    for library, argv in found.items():
        if not os.path.exists(argv[-1]) or not shutil.which(argv[0]):
            note(f"{library}: left out, {argv[-1]} is not there")
            continue
        # Ranks of all libraries get the same priority, so that a busy machine affects them equally.
        rank = ["chrt", "-f", str(options.real_time)] if options.real_time else []
        wrapped[library] = argv[:-1] + rank + argv[-1:]
    return wrapped


def rows_of(text):
    rows = []
    for line in text.splitlines():
        begin = line.find("{")
        if begin >= 0:
            rows.append(json.loads(line[begin:]))
    return rows


def measure(library, argv, arguments):
    try:
        done = subprocess.run(argv + arguments, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        note(f"{library}: no end after {LIMIT} s")
        return []
    if done.returncode != 0:
        note(f"{library}: exit code {done.returncode}: {done.stderr.strip()[-300:]}")
    return rows_of(done.stdout)


def new_folder(above, name):
    path = os.path.join(above, name)
    os.mkdir(path)
    return path


def print_beside(cells):
    """Prints the ratio of each cell's median to the other build's."""
    ratios = []
    print("\n### ivy ÷ the build beside\n\n| operation | bytes | ivy, µs | beside, µs | ratio |\n|---|---|---|---|---|")
    for (name, operation, size), (theirs, _) in sorted(cells.items()):
        if name == BESIDE and ("ivy", operation, size) in cells:
            ours = cells["ivy", operation, size][0]
            ratios.append(ours / theirs)
            print(f"| {operation} | {size} | {ours:.2f} | {theirs:.2f} | {ratios[-1]:.2f} |")
    if ratios:
        print(f"\nMedian of {len(ratios)} ratios: {statistics.median(ratios):.2f}")


def print_tables(cells, libraries):
    for operation in OPERATIONS.split():
        sizes = sorted({size for _, name, size in cells if name == operation})
        if not sizes:
            continue
        print(f"\n### {operation}\n")
        print("| bytes | " + " | ".join(f"{name}, µs (p99)" for name in libraries) + " | ivy ÷ best peer |")
        print("|---" * (len(libraries) + 2) + "|")
        for size in sizes:
            medians = {name: cells.get((name, operation, size)) for name in libraries}
            shown = [f"{cell[0]:.2f} ({cell[1]:.1f})" if cell else "–" for cell in medians.values()]
            peers = [cell[0] for name, cell in medians.items() if cell and not name.startswith("ivy")]
            ours = medians.get("ivy")
            ratio = f"{ours[0] / min(peers):.2f}" if ours and peers else "–"
            print(f"| {size} | " + " | ".join(shown) + f" | {ratio} |")


def print_brief(cells, ours):
    """Prints one table of all operations: the median and its ratio to the fastest peer's, in bold if libivycomm is slower."""
    def cell(operation, size):
        if (ours, operation, size) not in cells:
            return "–"
        peers = [one[0] for (name, op, at), one in cells.items()
                 if (op, at) == (operation, size) and not name.startswith("ivy")]
        time = cells[ours, operation, size][0]
        ratio = time / min(peers) if peers else 0
        text = f"{ratio:.2f}"
        return f"{time:.2f} µs, " + (f"**{text}**" if round(ratio, 2) > 1 else text if peers else "–")

    operations = OPERATIONS.split()[:-1]
    sizes = sorted({size for name, operation, size in cells if name == ours and operation in operations})
    print(f"\n### {ours}\n\n| bytes | " + " | ".join(operations) + " |\n" + "|---" * (len(operations) + 1) + "|")
    for size in sizes:
        print(f"| {size} | " + " | ".join(cell(operation, size) for operation in operations) + " |")
    print(f"\nbarrier: {cell('barrier', 0)}")


def print_floors(cells):
    floors = [("memcpy", "every rank copies as many bytes at once"),
              ("stream", "as many bytes both ways over one plain connection")]
    for name, meaning in floors:
        sizes = sorted({size for library, operation, size in cells if operation == name and library == "ivy"})
        if not sizes:
            continue
        print(f"\n### all_reduce beside {name}: {meaning}\n")
        print(f"| bytes | {name}, GB/s | all_reduce, GB/s | ratio | registered |\n|---|---|---|---|---|")
        for size in sizes:
            ours = cells.get(("ivy", "all_reduce", size))
            if not ours or size < 1 << 18:
                continue
            floor = cells["ivy", name, size][0]
            registered = cells.get(("ivy registered", "all_reduce", size))
            print(f"| {size} | {size / floor / 1e3:.2f} | {size / ours[0] / 1e3:.2f} | {floor / ours[0]:.2f} | "
                  + (f"{floor / registered[0]:.2f} |" if registered else "– |"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--most", type=int, default=256 << 20)
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--over", choices=("shm", "tcp"), default="shm")
    parser.add_argument("--real-time", type=int, default=0, metavar="PRIORITY")
    parser.add_argument("--registered", action="store_true")
    parser.add_argument("--beside", metavar="LIB", help="folder with the libivycomm of another build, measured as well")
    parser.add_argument("--brief", action="store_true")
    options = parser.parse_args()
    samples = {}
    with tempfile.TemporaryDirectory(prefix="ivy-bench-") as folder:
        for turn in range(options.rounds):
            peers = commands(options, new_folder(folder, f"{turn}"))
            for library, argv in peers.items():
                note(f"round {turn + 1} of {options.rounds}: {library}")
                floor = " memcpy" if options.over == "shm" else " stream" if options.ranks == 2 else ""
                runs = [(argv, OPERATIONS + (floor if library == "ivy" else ""))]
                if library == "gloo":
                    # It hangs after other operations in the same context.
                    alone = commands(options, new_folder(folder, f"{turn}-alone"))[library]
                    runs = [(argv, OPERATIONS.replace(" reduce_scatter", "")), (alone, "reduce_scatter")]
                for command, operations in runs:
                    for row in measure(library, command, [str(options.most), str(options.seconds), operations]):
                        key = BESIDE if library == BESIDE else row["library"], row["operation"], row["bytes"]
                        samples.setdefault(key, []).append((row["median_us"], row["p99_us"]))
    cells = {key: (statistics.median(one[0] for one in all_of), statistics.median(one[1] for one in all_of))
             for key, all_of in samples.items()}
    print(f"{machine()}; {options.ranks} ranks on one host, float32, over "
          f"{'shared memory' if options.over == 'shm' else 'TCP on loopback'}; {options.rounds} rounds\n")
    if options.brief:
        for ours in [name for name in peers if name.startswith("ivy")]:
            print_brief(cells, ours)
    else:
        print_tables(cells, list(peers))
    print_floors(cells)
    if options.beside:
        print_beside(cells)
    return 0


if __name__ == "__main__":
    sys.exit(main())
