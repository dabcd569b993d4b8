# SPDX-License-Identifier: Apache-2.0
"""Measures `ivyrun --stage` to one test host and to many, whose links are limited by tc, beside rsync.

stage.py [--hosts N] [--mib N] [--rate RATE]

rsync over SSH is what people use today: one transfer for each host, all at the same time. Budget: many hosts take at most
1.5 times as long as one. Needs root. Prints a Markdown table.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
import uuid

HERE = os.path.dirname(os.path.realpath(__file__))
REPOSITORY = os.path.realpath(os.path.join(HERE, "../.."))
HOSTS = os.path.join(REPOSITORY, "tests/testbed/hosts")
sys.path.insert(0, os.path.join(REPOSITORY, "tests/testbed"))
from testbed import Testbed, ipv4  # noqa: E402

BUDGET = 1.5
DISK = "/mnt"       # On each host: a directory of its own on the machine's disk.
FIRST = 4           # The first host that gets files: rsync cannot use hosts whose shells print, such as node2.


class Bench:
    def __init__(self, options, bed):
        self.options, self.bed = options, bed
        self.ivyrun = os.path.join(options.bin, "ivyrun")

    def on(self, host, command):
        done = subprocess.run([HOSTS, "exec", str(host), "bash", "-c", command], capture_output=True, text=True,
                              env={**os.environ, "IVY_TESTBED": self.bed.state}, stdin=subprocess.DEVNULL, timeout=3600)
        if done.returncode != 0:
            sys.exit(f"host {host}: {command}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def prepare(self):
        for number in self.bed.numbers():
            name = f"disk{number}"
            os.makedirs(os.path.join(self.bed.shared, name), exist_ok=True)
            self.on(number, f"mount --bind /srv/ivyshared/{name} {DISK}")
        self.on(1, f"mkdir -p {DISK}/staged")
        # Half of it cannot be compressed, as weights; the rest is text.
        self.on(1, f"cd {DISK}/staged && head -c {self.options.mib // 2}M /dev/urandom > weights.bin && "
                   f"yes 'a line of some text, 0123456789' | head -c {self.options.mib - self.options.mib // 2}M > text && "
                   "for i in $(seq 1000); do echo $i > small$i; done")
        for number in self.bed.numbers():
            self.bed.slow(number, self.options.rate)

    def stage(self, numbers):
        for number in numbers:
            self.on(number, f"rm -rf {DISK}/stage")
        names = ",".join(f"node{number}" for number in numbers)
        started = time.monotonic()
        done = self.on(1, f"cd {DISK}/staged && {self.ivyrun} -H {names} --stage=. --stage-limit 64G --stage-to {DISK}/stage "
                          "--nproc_per_node 1 /bin/true")
        took = time.monotonic() - started
        print(done.stderr.strip(), file=sys.stderr)
        return took

    def rsync(self, numbers):
        for number in numbers:
            self.on(number, f"rm -rf {DISK}/rsync")
        lines = " ".join(f"rsync -az -e 'ssh -o BatchMode=yes' {DISK}/staged/ {ipv4(number)}:{DISK}/rsync/ & pids+=($!);"
                         for number in numbers)
        started = time.monotonic()
        self.on(1, f'{lines} for pid in "${{pids[@]}}"; do wait $pid || exit 1; done')
        return time.monotonic() - started


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rate", default="200mbit", help="of each host's link, in each direction (default: 200mbit)")
    parser.add_argument("--bin", default=os.path.join(REPOSITORY, "build/bin"))
    parser.add_argument("--without-rsync", action="store_true")
    options = parser.parse_args()
    state = f"/run/ivy-bench-stage-{uuid.uuid4().hex[:8]}"
    bed = Testbed(state)
    bed.up(options.hosts + FIRST - 1)
    try:
        bench = Bench(options, bed)
        bench.prepare()
        many = list(range(FIRST, options.hosts + FIRST))
        # The first contact sends ivy-node, which is not measured.
        bench.on(1, f"cd / && {bench.ivyrun} -H {','.join(f'node{number}' for number in many)} /bin/true")
        rows = [("ivyrun --stage", bench.stage(many[:1]), bench.stage(many))]
        if not options.without_rsync and shutil.which("rsync"):
            rows.append(("rsync -az", bench.rsync(many[:1]), bench.rsync(many)))
        print(f"\n{options.mib} MiB, {options.rate} per link\n")
        print(f"| | 1 host | {options.hosts} hosts | ratio |\n|---|---|---|---|")
        for name, one, all_hosts in rows:
            print(f"| {name} | {one:.1f} s | {all_hosts:.1f} s | {all_hosts / one:.2f} |")
        ratio = rows[0][2] / rows[0][1]
        print(f"\nbudget: at most {BUDGET} x one host; {'kept' if ratio <= BUDGET else 'MISSED'}")
    finally:
        bed.down()


if __name__ == "__main__":
    main()
