# SPDX-License-Identifier: Apache-2.0
"""The time from kill -9 of a worker until it is visible in every other worker's status page, on the same and other hosts.

    ninja -C build ivyrun ivy-node child_control_worker && /usr/bin/python3 tests/bench/deaths.py
    ninja -C build ivyrun ivy-node ivycomm && /usr/bin/python3 tests/bench/deaths.py --named

Prints a row for the same host and one for other hosts: median, 99th percentile and the longest time. The hosts are
simulated on one machine with one clock; a network would add its latency to the second row.

--named: the time until the error that names the dead rank, in ranks that continuously reduce arrays with ivycomm, on one
host (shared memory) and on a host each (TCP), with a histogram.
--abort: the same from one rank's abort of a group to the error in the ranks that wait in the group.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time

BUILD = os.path.realpath(os.path.join(os.path.dirname(__file__), "../../build"))
WORKER = os.path.join(BUILD, "children/control_worker")
ATTACHED = re.compile(rb"\[[^0-9\]]*(\d+) (\S+) *\] ?attached .*pid=(\d+)")
DEAD = re.compile(rb"\[[^0-9\]]*(\d+) (\S+) *\] ?dead rank=(\d+) .*at_ns=(\d+)")
LIMIT_SECONDS = 30


def kill_once(hosts, ranks, victim):
    """Returns (same host, milliseconds) of every survivor."""
    argv = [os.path.join(BUILD, "bin/ivyrun"), "--fake-hosts", str(hosts), "-n", str(ranks), WORKER,
            "attach", f"{victim}:sleep:{LIMIT_SECONDS * 1000}", "wait-dead:1"]
    job = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.DEVNULL)
    place = {}
    killed_ns = 0
    times = []
    try:
        for line in job.stdout:
            if match := ATTACHED.match(line):
                place[int(match[1])] = match[2]
                if victim == int(match[1]):
                    victim_pid = int(match[3])
                if len(place) == ranks:
                    # Wait until all of them sleep.
                    time.sleep(0.05)
                    killed_ns = time.monotonic_ns()
                    os.kill(victim_pid, signal.SIGKILL)
            elif (match := DEAD.match(line)) and int(match[3]) == victim:
                times.append((match[2] == place[victim], (int(match[4]) - killed_ns) / 1e6))
    finally:
        job.kill()
        job.wait()
    return times


# Upper bounds in milliseconds.
BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
ERROR = re.compile(rb"\[[^0-9\]]*(\d+)[^\]]*\] ?(\{.*\})")


def named_once(flags, ranks):
    """Returns the milliseconds of every survivor whose error names the right rank."""
    script = os.path.join(os.path.dirname(__file__), "../end_to_end/workers/comm_deaths.py")
    argv = [os.path.join(BUILD, "bin/ivyrun"), *flags, "-x", "OMP_NUM_THREADS=1", "/usr/bin/python3", "-B",
            script, "all_reduce", "kill"]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_SECONDS * 4)
    said = [(int(match[1]), json.loads(match[2])) for match in map(ERROR.match, done.stdout.splitlines()) if match]
    died_ns = [words["at_ns"] for rank, words in said if "dies" in words]
    if not died_ns:
        return []
    return [(words["at_ns"] - died_ns[0]) / 1e6 for rank, words in said if words.get("rank") == ranks - 1]


# Aborts in one job. A supervisor accepts only a few of a worker's reports in a row, then one each second.
TURNS = 12


def aborted_once(flags):
    """Returns the milliseconds of every rank in every turn."""
    script = os.path.join(os.path.dirname(__file__), "../end_to_end/workers/comm_aborts.py")
    argv = [os.path.join(BUILD, "bin/ivyrun"), *flags, "-x", "OMP_NUM_THREADS=1", "/usr/bin/python3", "-B",
            script, str(TURNS)]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_SECONDS * 4)
    said = [json.loads(match[2]) for match in map(ERROR.match, done.stdout.splitlines()) if match]
    aborts = {words["aborts"]: words["at_ns"] for words in said if "aborts" in words}
    return [(words["at_ns"] - aborts[words["told"]]) / 1e6 for words in said if "told" in words]


def named(runs, is_abort):
    missing = 0
    print("| ranks | told | median | 99th percentile | longest |\n|---|---|---|---|---|")
    histograms = []
    for name, ranks, flags in (("4 on one host", 4, ("-n", "4")),
                               ("4 on a host each", 4, ("--fake-hosts", "4", "--nproc_per_node", "1")),
                               ("4 on two hosts", 4, ("--fake-hosts", "2", "--nproc_per_node", "2"))):
        times = sorted(ms for _ in range(runs)
                       for ms in (aborted_once(flags) if is_abort else named_once(flags, ranks)))
        missing += runs * (TURNS if is_abort else 1) * (ranks - 1) - len(times)
        if not times:
            continue
        p99 = times[min(len(times) - 1, len(times) * 99 // 100)]
        print(f"| {name} | {len(times)} | {times[len(times) // 2]:.1f} ms | {p99:.1f} ms | {times[-1]:.1f} ms |")
        counts = [sum(low < ms <= high for ms in times) for low, high in zip((0, *BUCKETS), (*BUCKETS, 1e9))]
        histograms.append((name, counts))
    print("\n| up to, ms | " + " | ".join(map(str, BUCKETS)) + " | more |\n|" + "---|" * (len(BUCKETS) + 2))
    for name, counts in histograms:
        print(f"| {name} | " + " | ".join(str(count or "") for count in counts) + " |")
    print(f"\nranks that were not told: {missing}")
    return 1 if missing else 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--named", action="store_true")
    parser.add_argument("--abort", action="store_true")
    options = parser.parse_args()
    if options.named or options.abort:
        return named(options.runs, options.abort)
    times = []
    missing = 0
    for turn in range(options.runs):
        one = kill_once(options.hosts, options.ranks, turn % options.ranks)
        missing += options.ranks - 1 - len(one)
        times += one
    print("| distance | ranks told | median | 99th percentile | longest |\n|---|---|---|---|---|")
    for is_near, name in ((True, "the same host"), (False, "another host")):
        sorted_ms = sorted(ms for near, ms in times if near is is_near)
        if sorted_ms:
            p99 = sorted_ms[min(len(sorted_ms) - 1, len(sorted_ms) * 99 // 100)]
            print(f"| {name} | {len(sorted_ms)} | {sorted_ms[len(sorted_ms) // 2]:.1f} ms | "
                  f"{p99:.1f} ms | {sorted_ms[-1]:.1f} ms |")
    print(f"\nranks that were not told: {missing}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
