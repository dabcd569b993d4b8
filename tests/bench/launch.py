# SPDX-License-Identifier: Apache-2.0
"""Measures ivyrun's starts, output and ends, and those of other launchers in the same run.

launch.py [PART...]     parts: local load ssh agents output killed store (default: all)

Prints Markdown tables on standard output and its progress on standard error. See README.md.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import traceback

import agents
import store
from kills import kill_launchers
from measure import (PeakMemory, Peer, StandardError, alternate, interleave, machine, milliseconds, note,
                     print_quartiles, print_table, raise_open_files, remarks, run_once)

HERE = os.path.dirname(os.path.realpath(__file__))
REPOSITORY = os.path.realpath(os.path.join(HERE, "../.."))
HOSTS = os.path.join(REPOSITORY, "tests/testbed/hosts")
MPICH = "mpirun.mpich"
OPEN_MPI = "mpirun.openmpi"
HYDRA = "mpiexec.hydra"
OPEN_MPI_FLAGS = ["--oversubscribe", "--allow-run-as-root"]
PARTS = ("local", "load", "ssh", "agents", "output", "killed", "store")
LINE = "x" * 95 + " end\n"  # 100 bytes.
START_BUDGET = {2: 1.1, 32: 0.7}  # Design budget: ivyrun's time to start so many workers, relative to Hydra's.
GONE_SECONDS = 7            # Design budget: a job leaves nothing 7 s after kill -9.
MEMORY_BUDGET = 64 * 2**20  # Design budget: of launcher and of supervisor, each, ...
MEMORY_RATE = 200e6         # ...at so many bytes of labelled output per second.


def present(*peers):
    """Returns ivyrun and the installed peers, and prints the missing ones."""
    kept = [peers[0]]
    for peer in peers[1:]:
        if shutil.which(peer.argv[0]):
            kept.append(peer)
        else:
            note(f"  {peer.name}: not installed (scripts/setup bench), left out")
    return kept


def scratch(name):
    """Returns a path for a file, in memory if possible, so that the disk does not affect the times."""
    folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
    return os.path.join(folder, f"ivy-bench-{os.getpid()}-{name}")


# ---- one host ----
def copy_of(ivyrun, folder):
    """Copies the programs as an installation would. The kernel caches a file that was written by a linker in single pages, and
    each start would pay for mapping them one by one."""
    source = os.path.dirname(os.path.realpath(ivyrun))
    target = tempfile.mkdtemp(dir=folder)
    os.mkdir(os.path.join(target, "bin"))
    for program in ("ivyrun", "ivy-node", "ivy-probe", "ivy-pmix"):
        if os.path.exists(os.path.join(source, program)):
            shutil.copy(os.path.join(source, program), os.path.join(target, "bin"))
    os.symlink(os.path.join(source, "../lib"), os.path.join(target, "lib"))
    return os.path.join(target, "bin/ivyrun")


def bench_starts(options, ivyrun, beside):
    """Measures the same start many times, with shorter gaps than interleave()."""
    for ranks in (2, 32):
        note(f"local: {options.rounds} rounds of -n {ranks} /bin/true")
        peers = present(
            Peer("ivyrun", [ivyrun, "-n", str(ranks), "/bin/true"]),
            Peer("MPICH Hydra", [shutil.which(MPICH) or MPICH, "-n", str(ranks), "/bin/true"],
                 budget=START_BUDGET[ranks]),
            *(Peer(name, [copy, "-n", str(ranks), "/bin/true"]) for name, copy in beside.items()),
        )
        alternate(peers, options.rounds)
        print_quartiles(f"Start: `-n {ranks} /bin/true`, {len(peers[0].seconds)} rounds in turn", peers)


def bench_local(options):
    with tempfile.TemporaryDirectory() as folder:
        ivyrun = copy_of(options.ivyrun, folder)
        if options.rounds:
            bench_starts(options, ivyrun, {path: copy_of(path, folder) for path in options.beside})
        else:
            bench_launchers(options, ivyrun)


def bench_launchers(options, ivyrun):
    for ranks in (2, 32):
        note(f"local: -n {ranks} /bin/true")
        peers = present(
            Peer("ivyrun", [ivyrun, "-n", str(ranks), "/bin/true"]),
            Peer("MPICH Hydra", [MPICH, "-n", str(ranks), "/bin/true"], budget=START_BUDGET[ranks]),
            Peer("Open MPI", [OPEN_MPI, *OPEN_MPI_FLAGS, "-n", str(ranks), "/bin/true"]),
            Peer("xargs -P (no launcher)",
                 ["sh", "-c", f"seq {ranks} | xargs -P{ranks} -n1 /bin/true"]),
        )
        interleave(peers, options.runs or 20, limit=5, output=scratch("local"))
        print_table(f"One host: `-n {ranks} /bin/true`", peers)


# ---- with other programs running ----
OTHER_PROGRAMS = 4
SUM = [sys.executable, "-c", "x = 0\nfor i in range(12_000_000): x += i"]  # Takes about a second on an idle machine.


def bench_load(options):
    """Measures workers that compute while other programs run all the time, each in a separate session as from a terminal."""
    others = [subprocess.Popen(["sh", "-c", "while :; do :; done"], start_new_session=True)
              for _ in range(OTHER_PROGRAMS)]
    try:
        for ranks in (2, 4):
            note(f"load: -n {ranks} with {OTHER_PROGRAMS} other programs")
            peers = present(
                Peer("ivyrun", [options.ivyrun, "-n", str(ranks), *SUM]),
                Peer("MPICH Hydra", [HYDRA, "-n", str(ranks), *SUM]),
                *(Peer(path, [path, "-n", str(ranks), *SUM]) for path in options.beside),
            )
            interleave(peers, options.runs or 5, limit=60, output=scratch("load"), warm_up=0)
            print_table(f"{ranks} workers that compute while {OTHER_PROGRAMS} other programs run", peers)
    finally:
        for other in others:
            other.kill()
            other.wait()


# ---- several hosts ----
def lines_expected(count):
    def check(output):
        with open(output, "rb") as file:
            seen = len(file.read().splitlines())
        return None if seen >= count else f"{seen} lines instead of {count}"
    return check


def ssh_peers(options):
    names = [f"node{number}" for number in range(2, options.hosts + 2)]
    count = len(names)
    hosts = ",".join(names)
    loop = f"for h in {' '.join(names)}; do ssh -o BatchMode=yes $h hostname & done; wait"
    check = lines_expected(count)
    return present(
        Peer("ivyrun over ssh",
             [options.ivyrun, "-H", hosts, "--nproc_per_node", "1", "hostname"], check=check),
        Peer(f"{count} parallel bare ssh", ["bash", "-c", loop], check=check, budget=1),
        Peer("MPICH Hydra over ssh",
             [HYDRA, "-launcher", "ssh", "-hosts", hosts, "-ppn", "1", "-n", str(count), "hostname"],
             check=check, budget=1),
        Peer("Open MPI over ssh",
             [OPEN_MPI, *OPEN_MPI_FLAGS, "--host", hosts, "-n", str(count), "--map-by", "node",
              "--mca", "oob_tcp_if_include", "10.77.0.0/16", "hostname"], check=check),
    )


def bench_ssh_inside(options):
    """Runs on the testbed's first host, with its ssh configuration and network."""
    peers = ssh_peers(options)
    output = scratch("ssh")
    # The first run also sends ivy-node, as to hosts that have never run ivyrun.
    first = Peer("first run", peers[0].argv, check=peers[0].check)
    run_once(first, 120, output)
    interleave(peers, options.runs or 7, limit=60, output=output)
    print_table(f"{options.hosts} hosts over ssh, one `hostname` each, cold connections", peers)
    if first.seconds:
        print(f"\nivyrun's first run, which also sent its node binary to every host: "
              f"{milliseconds(first.seconds[0])}.")
    else:
        print(f"\nivyrun's first run failed: {remarks(first)}")


def bench_ssh(options):
    if os.geteuid() != 0:
        print("\n### Several hosts over ssh\n\nSKIPPED: test hosts need root.")
        return
    note(f"ssh: making {options.hosts + 1} test hosts")
    state = f"/run/ivy-bench-{os.getpid()}"
    environment = {**os.environ, "IVY_TESTBED": state}
    subprocess.run([HOSTS, "up", str(options.hosts + 1)], check=True, env=environment)
    try:
        # Run in a directory that exists on every host, because launchers start workers in the caller's directory.
        subprocess.run([HOSTS, "exec", "1", "env", "-C", "/", "/usr/bin/python3", "-B",
                        os.path.join(HERE, "launch.py"), "ssh-inside",
                        "--hosts", str(options.hosts), "--runs", str(options.runs),
                        "--ivyrun", options.ivyrun], check=True, env=environment)
    finally:
        subprocess.run([HOSTS, "down"], check=False, env=environment)


# ---- output ----
def bench_output(options):
    ranks, mib = 2, options.mib
    note(f"output: {ranks} ranks, {mib} MiB each")
    lines = mib * 2**20 // len(LINE)
    program = ["sh", "-c", f"yes '{LINE.strip()}' | head -n {lines}"]
    count = str(ranks)

    def complete(output):
        return lost_lines(output, ranks * lines)

    def flawless(output):
        return complete(output) or torn_lines(output)

    def rate(peer):
        total = (1 if peer.name.startswith("one rank") else ranks) * lines * len(LINE)
        return f"{total / 1e6 / statistics.median(peer.seconds):.0f} MB/s" if peer.seconds else "–"

    # A torn line is a failure for ivyrun. The peers tear lines, but their times still count.
    theirs = {"check": complete, "flaw": torn_lines}
    unlabelled = present(
        Peer("ivyrun --label none", [options.ivyrun, "-n", count, "--label", "none", *program],
             check=flawless),
        Peer("MPICH Hydra", [MPICH, "-n", count, *program], **theirs),
        Peer("Open MPI", [OPEN_MPI, *OPEN_MPI_FLAGS, "-n", count, *program], **theirs),
        Peer("one rank, no launcher (half the bytes)", program,
             check=lambda output: lost_lines(output, lines)),
    )
    labelled = present(
        Peer("ivyrun --label rank", [options.ivyrun, "-n", count, "--label", "rank", *program],
             check=flawless),
        *(Peer(f"{path} --label rank", [path, "-n", count, "--label", "rank", *program], check=flawless)
          for path in options.beside),
        Peer("MPICH Hydra -prepend-rank", [MPICH, "-prepend-rank", "-n", count, *program],
             budget=1, **theirs),
        Peer("Open MPI --tag-output",
             [OPEN_MPI, *OPEN_MPI_FLAGS, "--tag-output", "-n", count, *program], budget=1, **theirs),
    )
    for title, peers in (("Output with labels", labelled), ("Output without labels", unlabelled)):
        interleave(peers, options.runs or 3, limit=120, output=scratch("output"), warm_up=0)
        print_table(f"{title}: {ranks} ranks × {mib} MiB in lines of {len(LINE)} bytes, to a file",
                    peers, extra=("rate", rate))
    return not memory_is_within_budget(labelled[0], ranks * lines * len(LINE))


def memory_is_within_budget(peer, total_bytes):
    """Runs ivyrun once more, with labels, and reads the memory of its processes during the run."""
    memory = PeakMemory()
    output = scratch("memory")
    with open(output, "wb") as stdout, StandardError(peer.name) as stderr:
        started = time.monotonic()
        process = subprocess.Popen(peer.argv, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)
        memory.watch(process)
        seconds = time.monotonic() - started
        failed = process.wait() != 0
        if failed:
            stderr.tell(f"exit code {process.returncode}")
    os.unlink(output)
    rate = total_bytes / seconds
    print(f"\n### Memory while {rate / 1e6:.0f} MB/s of labelled output pass, to a file\n")
    print("| process | most resident memory (VmHWM) | budget |\n|---|---|---|")
    kept = not failed
    for name in ("ivyrun", "ivy-supervisor", "ivy-warden"):
        peak = memory.peak_bytes.get(name)
        within = peak is not None and peak < MEMORY_BUDGET
        kept = kept and (within or name == "ivy-warden")
        shown = f"{peak / 2**20:.1f} MiB" if peak else "not seen"
        budget = "" if name == "ivy-warden" else f"< 64 MiB: {'within' if within else 'OVER'}"
        print(f"| {name} | {shown} | {budget} |")
    if rate < MEMORY_RATE:
        print(f"\nThe budget is for {MEMORY_RATE / 1e6:.0f} MB/s; this machine had less to give just now.")
    if failed:
        print("\nThe run failed.")
    sys.stdout.flush()
    return kept


def lost_lines(output, expected):
    with open(output, "rb") as file:
        seen = sum(1 for _ in file)
    return None if seen == expected else f"{seen} lines instead of {expected}"


def torn_lines(output):
    """Counts lines that do not contain exactly one line's text."""
    payload = LINE.strip().encode()
    with open(output, "rb") as file:
        torn = sum(payload not in line or line.count(b"end") != 1 for line in file)
    return f"{torn} lines torn" if torn else None


# ---- kill -9 of the launcher ----
def bench_killed(options):
    runs = options.runs or 50
    contenders = [("ivyrun", [options.ivyrun, "-n", "2"], runs)]
    if not options.alone:
        few = min(runs, 5)  # If a peer leaves processes, each of its runs takes the whole limit.
        contenders += [("MPICH Hydra", [MPICH, "-n", "2"], few),
                       ("Open MPI", [OPEN_MPI, *OPEN_MPI_FLAGS, "-n", "2"], few)]
    print("\n### Launcher killed with -9: 2 ranks that ignore TERM, each with a grandchild in its own"
          f" session\n\n| launcher | runs | not all gone within {GONE_SECONDS} s | most processes left"
          " | gone after: median, slowest | budget |\n|---|---|---|---|---|---|")
    bad = False
    for name, argv, count in contenders:
        if not shutil.which(argv[0]):
            note(f"  {name}: not installed (scripts/setup bench), left out")
            continue
        result = kill_launchers(name, argv, count, GONE_SECONDS)
        gone = sorted(result.gone_after)
        when = f"{statistics.median(gone):.1f} s, {gone[-1]:.1f} s" if gone else "–"
        failed = bool(result.left or result.not_started)
        budget = ("MISSED" if failed else "within") if name == "ivyrun" else ""
        started = f" ({result.not_started} did not start)" if result.not_started else ""
        print(f"| {name} | {count}{started} | {len(result.left)} | {max(result.left, default=0)} |"
              f" {when} | {budget} |", flush=True)
        bad = bad or (name == "ivyrun" and failed)
    return bad


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=" ".join(PARTS))
    parser.add_argument("--ivyrun", default=os.path.join(REPOSITORY, "build/bin/ivyrun"))
    parser.add_argument("--runs", type=int, default=0, help="rounds per table (0: the part's own)")
    parser.add_argument("--rounds", type=int, default=0,
                        help="local: so many starts of ivyrun and Hydra in turn, with quartiles")
    parser.add_argument("--beside", action="append", default=[], metavar="IVYRUN",
                        help="local --rounds, load, output, store: another build of ivyrun to compare with")
    parser.add_argument("--hosts", type=agents.counts_of, metavar="N[,N...]",
                        help="hosts of the ssh part (16), and of the agents part (4,16,64)")
    parser.add_argument("--mib", type=int, default=256, help="output of one rank")
    parser.add_argument("--scenes", action="append", choices=store.SCENES,
                        help="store: only this one (may be repeated)")
    parser.add_argument("--alone", action="store_true", help="killed: without the peers")
    options = parser.parse_args()
    unknown = set(options.parts) - {*PARTS, "ssh-inside"}
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))}; parts: {' '.join(PARTS)}")
    if not os.access(options.ivyrun, os.X_OK):
        parser.error(f"{options.ivyrun} is not there; build it with: cmake --preset release && "
                     "cmake --build build --target ivyrun ivy-node")
    options.ivyrun = os.path.realpath(options.ivyrun)
    options.host_counts = options.hosts or list(agents.COUNTS)
    options.hosts = options.hosts[0] if options.hosts else 16
    return options


def run_part(name, bench, options):
    """Runs a part and returns whether it failed. An error in one part does not stop the others."""
    try:
        return bench(options)
    except Exception:
        note(f"{name}: this part failed:\n{traceback.format_exc()}")
        print(f"\n### {name}\n\nFAILED: see standard error for the reason.", flush=True)
        return True


def main():
    options = parse_arguments()
    raise_open_files()
    if options.parts == ["ssh-inside"]:
        bench_ssh_inside(options)
        return 0
    print(f"Machine: {machine()}.", flush=True)
    benches = {"local": bench_local, "load": bench_load, "ssh": bench_ssh, "agents": agents.bench, "output": bench_output,
               "killed": bench_killed, "store": store.bench}
    bad = [run_part(part, benches[part], options) for part in options.parts or PARTS]
    return 1 if any(bad) else 0


if __name__ == "__main__":
    sys.exit(main())
