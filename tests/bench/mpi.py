"""MPI_Init to MPI_Finalize under ivyrun and under the mpiexec of each MPI: tests/bench/run mpi [--runs N]

Four ranks: on one host, and under ivyrun also on two pretended ones, whose ranks share no memory. In turns, so that
a busy machine is busy for all; medians of the slowest rank's time, and of the whole command's.
"""

import argparse
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import time

HERE = os.path.dirname(os.path.realpath(__file__))
IVYRUN = os.path.join(os.environ.get("IVY_BIN", os.path.join(HERE, "../../build/bin")), "ivyrun")
RANKS = 4


def ways(program, mpiexec):
    return {
        "ivyrun -n 4": [IVYRUN, "-n", "4", program],
        "ivyrun, 2 pretended hosts x 2": [IVYRUN, "--fake-hosts", "2", "--nproc_per_node", "2", program],
        f"{os.path.basename(mpiexec[0])} -n 4": [*mpiexec, "-n", "4", program],
    }


def measure(command):
    """(the slowest rank's time, the command's), in ms."""
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    begin = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    took = 1e3 * (time.monotonic() - begin)
    times = [float(number) for number in re.findall(r"ms ([0-9.]+)", done.stdout)]
    if done.returncode or len(times) != RANKS:
        raise SystemExit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return max(times), took


def compare(name, compiler, mpiexec, runs):
    if not shutil.which(compiler) or not shutil.which(mpiexec[0]):
        print(f"{name}: not here ({compiler}, {mpiexec[0]})")
        return
    with tempfile.TemporaryDirectory() as directory:
        program = os.path.join(directory, "mpi_init")
        subprocess.run([compiler, os.path.join(HERE, "mpi_init.c"), "-o", program], check=True)
        commands = ways(program, mpiexec)
        found = {way: [] for way in commands}
        for _ in range(runs):
            for way, command in commands.items():
                found[way].append(measure(command))
        for way, times in found.items():
            ranks, whole = (statistics.median(column) for column in zip(*times))
            least = min(rank for rank, _ in times)
            print(f"{name:14} {way:32} {ranks:8.1f} {least:8.1f} {whole:8.1f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=11)
    runs = parser.parse_args().runs
    print(f"{'':14} {'ms':32} {'Init-Fin':>8} {'least':>8} {'command':>8}")
    compare("MPICH 4.0", "mpicc.mpich", ["mpiexec.mpich"], runs)
    compare("Open MPI 4.1", "mpicc.openmpi", ["mpirun.openmpi", "--oversubscribe"], runs)


if __name__ == "__main__":
    main()
