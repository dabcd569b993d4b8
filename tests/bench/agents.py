# SPDX-License-Identifier: Apache-2.0
"""Jobs by agents, compared with srun on the same hosts: start times, memory, and the throughput of a stream.

The part `agents` of launch.py. It makes test hosts with a Slurm and an agent on each, as an administrator would. Then
`agents.py inside ...` runs on node1 as the ordinary user.
"""

import argparse
import contextlib
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time

from measure import Peer, StandardError, ended_within, interleave, milliseconds, note, remarks

HERE = os.path.dirname(os.path.realpath(__file__))
REPOSITORY = os.path.realpath(os.path.join(HERE, "../.."))
TESTBED = os.path.join(REPOSITORY, "tests/testbed")
HOSTS = os.path.join(TESTBED, "hosts")
SLURM = os.path.join(TESTBED, "slurm")
USER = "ivyuser"
PORT = 7411
SHARED = "/srv/ivyshared/agents"
COUNTS = (4, 16, 64)
WORKERS = (1, 4)
READY_SECONDS = 60
TARGET = 4              # A host without peculiarities; node2 prints at login, node3 has other shells.
IDLE_JOBS = 24          # Jobs with a launcher each, all through one agent.
PROCESSOR_ROUNDS = 5
SETTLE_SECONDS = 2      # Until memory usage is stable after a start or an end.
PAUSE_SECONDS = 5       # Time for which the reader does not read.
LINE = "x" * 95 + " end\n"  # 100 bytes, as in the output part.
STARTS_BUDGET = {(16, 1): ("0.25 s", lambda ours, srun: ours <= 0.25),
                 (64, 1): ("0.8 × srun", lambda ours, srun: ours <= 0.8 * srun)}
# Memory that one stream may need in an agent: read-ahead in both directions, and buffers.
STREAM_BUDGET_BYTES = 4 << 20

# Runs as root on a host and does the same as systemd's Delegate=yes and StateDirectory=.
SERVE = """
d=/sys/fs/cgroup; [ ! -d $d/unified ] || d=$d/unified
mkdir -p $d/ivy-agent.service
chown -R "$1" $d/ivy-agent.service
echo $$ > $d/ivy-agent.service/cgroup.procs
install -d -o "$1" -m 700 /run/ivy-agent-state
user=$1; shift
exec setpriv --reuid $user --regid $user --init-groups env -i HOME=/home/$user USER=$user \\
  PATH=/usr/bin:/bin LANG=C.UTF-8 \\
  STATE_DIRECTORY=/run/ivy-agent-state "$@"
"""


# ---- making the hosts ----------------------------------------------------------------------------

class Site:
    """Test hosts node1 .. nodeN with an agent each, and with Slurm if it is installed."""

    def __init__(self, count, ivyrun):
        sys.path.insert(0, TESTBED)
        from testbed import Testbed  # Imported here because it needs root.
        self.count = count
        self.binaries = os.path.dirname(ivyrun)
        self.environment = {**os.environ, "IVY_TESTBED": f"/run/ivy-bench-{os.getpid()}"}
        self.bed = Testbed(self.environment["IVY_TESTBED"])
        self.has_slurm = shutil.which("slurmctld") is not None

    def __enter__(self):
        note(f"agents: making {self.count} hosts")
        self._run(HOSTS, "up", str(self.count))
        try:
            if self.has_slurm:
                note("agents: starting Slurm")
                self._run(SLURM, "up")
            note("agents: certificates and agents")
            self._make_certificates()
            for number in self.bed.numbers():
                self._start_agent(number)
            self._await_agents()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        # Ends whatever runs there.
        subprocess.run([HOSTS, "down"], check=False, env=self.environment)

    def _run(self, *command):
        subprocess.run(command, check=True, env=self.environment, stdin=subprocess.DEVNULL)

    def outside(self, path):
        return path.replace("/srv/ivyshared", self.bed.shared, 1)

    def _make_certificates(self):
        os.makedirs(self.outside(SHARED))
        os.chmod(self.outside(SHARED), 0o777)
        for program in ("ivy-agent", "ivy-agent-cert"):
            shutil.copy(os.path.join(self.binaries, program), self.outside(SHARED))
        script = [f"export XDG_CONFIG_HOME={SHARED}/user", f"cd {SHARED}", "set -e",
                  "./ivy-agent ca init --ca ca"]
        script += [f"./ivy-agent cert node{number} 10.77.0.{number} --serves {USER} --ca ca "
                   f"--out node{number}"
                   for number in self.bed.numbers()]
        script.append(f"./ivy-agent cert --user {USER} --ca ca")
        subprocess.run([HOSTS, "exec", f"{USER}@1", "bash", "-c", "\n".join(script)], check=True,
                       env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def _start_agent(self, number):
        listen = ["--listen", f"0.0.0.0:{PORT}", "--certificates",
                                         f"{SHARED}/node{number}"]
        command = ["bash", "-c", SERVE, "serve", USER, f"XDG_CONFIG_HOME={SHARED}/user",
                   f"{SHARED}/ivy-agent", "serve", *listen]
        # It ends with the hosts. An intermediate process starts it, so that it need not be waited for.
        child = os.fork()
        if child == 0:
            if os.fork() == 0:
                os.setsid()
                log = os.open(self.outside(f"{SHARED}/agent.{number}.log"),
                              os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                null = os.open("/dev/null", os.O_RDONLY)
                for source, target in ((null, 0), (log, 1), (log, 2)):
                    os.dup2(source, target)
                os.chdir("/")
                with contextlib.suppress(BaseException):
                    self.bed.execute(number, "root", command)
            os._exit(127)
        os.waitpid(child, 0)

    def _await_agents(self):
        deadline = time.monotonic() + READY_SECONDS
        for number in self.bed.numbers():
            path = self.outside(f"{SHARED}/agent.{number}.log")
            while True:
                with contextlib.suppress(OSError), open(path, errors="replace") as log:
                    if "ready\n" in log.read():
                        break
                if time.monotonic() > deadline:
                    raise RuntimeError(f"the agent of node{number} is not ready; see {path}")
                time.sleep(0.02)

    # ---- processes and memory ----
    def processes(self, number, name):
        """Returns the pids, as seen on this machine, of a host's processes."""
        import leftovers
        return [process.pid for process in leftovers.processes_of(self.bed.init_pid(number))
                if process.name.startswith(name.encode()) and process.state != "Z"]

    def agent_memory(self, number):
        """Returns (resident, proportional, private) bytes."""
        (pid,) = self.processes(number, "ivy-agent")
        fields = {}
        with open(f"/proc/{pid}/smaps_rollup") as file:
            for line in file.readlines()[1:]:
                name, amount = line.split()[:2]
                fields[name] = int(amount) * 1024
        return (fields["Rss:"], fields["Pss:"], fields["Private_Clean:"] + fields["Private_Dirty:"])

    def command(self, *command):
        # Runs in a directory that exists on every host, because ivyrun and srun start workers in the caller's directory.
        return [HOSTS, "exec", f"{USER}@1", "env", "-C", SHARED,
                f"IVY_AGENT_CONFIG={SHARED}/user/ivyrun/agent.toml",
                "SLURM_CONF=/srv/ivyshared/slurm/slurm.conf", *command]

    def start(self, *command, **options):
        return subprocess.Popen(self.command(*command), env=self.environment,
                                stdin=subprocess.DEVNULL, start_new_session=True, **options)


# ---- starts: on node1 ----------------------------------------------------------------------------

def start_peers(ivyrun, count, workers):
    names = f"node[2-{count + 1}]"
    ours = [ivyrun, "--transport", "agent", "-H", names, "--nproc_per_node", str(workers), "hostname"]

    def check(output):
        with open(output, "rb") as file:
            seen = len(file.read().splitlines())
        return None if seen == count * workers else f"{seen} lines instead of {count * workers}"

    peers = [Peer("ivyrun", ["env", *ours], check=check)]
    if shutil.which("srun"):
        peers.append(Peer("srun", ["env", "srun", "-N", str(count), "-n", str(count * workers),
                                   "-w", names, "hostname"], check=check))
    return peers


def median(peer):
    return statistics.median(peer.seconds) if peer.seconds else None


def shown(value):
    return "–" if value is None else milliseconds(value)


def start_row(count, workers, peers):
    by_name = {peer.name: peer for peer in peers}
    new = median(by_name["ivyrun"])
    srun = median(by_name["srun"]) if "srun" in by_name else None

    def ratio(value):
        return f"{value / srun:.2f}" if value and srun else "–"

    verdict = ""
    if (count, workers) in STARTS_BUDGET and new:
        text, holds = STARTS_BUDGET[count, workers]
        verdict = f"≤ {text}: " + ("no srun here" if srun is None and "srun" in text else
                                   "within" if holds(new, srun) else "OVER")
    said = "; ".join(f"{peer.name}: {remarks(peer)}" for peer in peers if remarks(peer))
    spread = f"{shown(min(by_name['ivyrun'].seconds, default=None))} – " \
             f"{shown(max(by_name['ivyrun'].seconds, default=None))}"
    print(f"| {count} | {workers} | {shown(new)} | {spread} | {shown(srun)} |"
          f" {ratio(new)} | {verdict} | {said} |", flush=True)


def inside(options):
    print("\n### Starts by agents and srun: one `hostname` per worker, medians of "
          f"{options.runs} rounds in turn\n")
    print("| hosts | workers of each | ivyrun | fastest – slowest | srun | ivyrun ÷ srun | budget | remarks |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for count in options.hosts:
        for workers in WORKERS:
            note(f"agents: {count} hosts, {workers} workers on each")
            peers = start_peers(options.ivyrun, count, workers)
            interleave(peers, options.runs, limit=60, output=f"/dev/shm/ivy-bench-{os.getpid()}")
            start_row(count, workers, peers)


# ---- processor time, which depends little on other load ------------------------------------------

def used_seconds(site):
    """Returns the processor time of all processes on the hosts, or None if cgroups do not count it."""
    total = 0
    for number in site.bed.numbers():
        try:
            with open(os.path.join(site.bed._cgroups(f"node{number}")[0], "cpu.stat")) as file:
                total += next(int(line.split()[1]) for line in file if line.startswith("usage_usec"))
        except OSError:
            return None
    return total / 1e6


def bench_processor_time(site, options):
    if used_seconds(site) is None:
        return
    started, before = time.monotonic(), used_seconds(site)
    time.sleep(SETTLE_SECONDS)
    idle = (used_seconds(site) - before) / (time.monotonic() - started)  # Only agents and daemons.
    print(f"\n### Processor time of a launch, all hosts together, means of {PROCESSOR_ROUNDS}; one worker each\n")
    print("| hosts | ivyrun | srun | ivyrun ÷ srun |\n|---|---|---|---|")
    for count in options.host_counts:
        note(f"agents: processor time, {count} hosts")
        peers = start_peers(options.ivyrun, count, 1)
        totals = {peer.name: 0 for peer in peers}
        for _ in range(PROCESSOR_ROUNDS):
            for peer in peers:
                started, before = time.monotonic(), used_seconds(site)
                with StandardError(peer.name) as stderr:
                    code = subprocess.call(site.command(*peer.argv), env=site.environment,
                                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                           stderr=stderr)
                    if code != 0:
                        stderr.tell(f"exit code {code}")
                        peer.failures.append(f"exit code {code}")
                time.sleep(0.2)  # Processes that end after the launcher count, too.
                totals[peer.name] += (used_seconds(site) - before
                                      - idle * (time.monotonic() - started))
        totals = {peer.name: totals[peer.name] for peer in peers if not peer.failures}
        srun = totals.get("srun")
        cells = [milliseconds(totals[name] / PROCESSOR_ROUNDS) if name in totals else "failed"
                 for name in ("ivyrun", "srun")]
        cells.append(f"{totals['ivyrun'] / srun:.2f}" if srun and "ivyrun" in totals else "–")
        print(f"| {count} | " + " | ".join(cells) + " |", flush=True)


# ---- memory --------------------------------------------------------------------------------------

def mebibytes(value):
    return f"{value / 2**20:.1f} MiB"


def await_workers(site, number, count, seconds=60):
    deadline = time.monotonic() + seconds
    while len(site.processes(number, "sleep")) - site.furniture < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"not {count} idle jobs on node{number} within {seconds} s")
        time.sleep(0.05)


def end_jobs(jobs):
    for job in jobs:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGTERM)
    for job in jobs:
        if not ended_within(job, 60):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()


def memory_while(site, agent, number, workers, command, times):
    """Returns the memory of an agent during so many jobs, when so many workers sleep on the host."""
    with StandardError(f"{times} idle jobs") as stderr:
        jobs = [site.start(*command, stdout=subprocess.DEVNULL, stderr=stderr) for _ in range(times)]
        try:
            await_workers(site, number, workers)
            time.sleep(SETTLE_SECONDS)
            return site.agent_memory(agent)
        finally:
            end_jobs(jobs)


def bench_memory(site, ivyrun):
    note(f"agents: memory, {IDLE_JOBS} idle jobs through one agent")
    site.furniture = len(site.processes(TARGET, "sleep"))
    idle = site.agent_memory(TARGET)
    full = memory_while(site, TARGET, TARGET, IDLE_JOBS,
                        [ivyrun, "--transport", "agent", "-H", f"node{TARGET}", "-n", "1",
                         "sleep", "1000"], IDLE_JOBS)
    print("\n### Memory of an agent\n\n| agent | resident | proportional | private |\n|---|---|---|---|")
    rows = [("after the starts above, idle", idle), (f"with {IDLE_JOBS} idle jobs", full)]
    for name, values in rows:
        print(f"| {name} | " + " | ".join(map(mebibytes, values)) + " |")
    print(f"\nOne relayed job: {(full[2] - idle[2]) / IDLE_JOBS / 1024:.0f} KiB private.", flush=True)


# ---- throughput ----------------------------------------------------------------------------------

def bench_throughput(site, options):
    """Measures the throughput of one worker's output. The commands on node1 are started from here, because the measured times
    are seconds."""
    lines = options.mib * 2**20 // len(LINE)
    program = f"yes '{LINE.strip()}' | head -n {lines}"
    ours = [options.ivyrun, "-n", "1", "--label", "none"]
    output = f"/dev/shm/ivy-bench-{os.getpid()}"

    def check(path):
        with open(path, "rb") as file:
            seen = sum(1 for _ in file)
        return None if seen == lines else f"{seen} lines instead of {lines}"

    def peer(name, command):
        return Peer(name, site.command(*command), check=check)

    peers = [
        peer("ivyrun by an agent",
             [*ours, "--transport", "agent", "-H", f"node{TARGET}", "sh", "-c", program]),
        peer("ivyrun over ssh",
             [*ours, "--transport", "ssh", "-H", f"node{TARGET}", "sh", "-c", program]),
        peer("ivyrun on its own host, no transport", [*ours, "sh", "-c", program]),
        peer("bare ssh", ["ssh", "-o", "BatchMode=yes", f"node{TARGET}", program]),
    ]
    if site.has_slurm:
        peers.append(peer("srun", ["srun", "-N", "1", "-n", "1", "-w", f"node{TARGET}", "sh", "-c", program]))
    note(f"agents: {options.mib} MiB of one worker's output")
    previous, os.environ["IVY_TESTBED"] = os.environ.get("IVY_TESTBED"), site.bed.state
    try:
        interleave(peers, 3, limit=120, output=output, warm_up=0)
    finally:
        del os.environ["IVY_TESTBED"]
        if previous is not None:
            os.environ["IVY_TESTBED"] = previous
    print(f"\n### One worker prints {options.mib} MiB in lines of {len(LINE)} bytes, to a file\n")
    print("| way | median | rate | first ÷ this | remarks |\n|---|---|---|---|---|")
    total = lines * len(LINE)
    for one in peers:
        value = median(one)
        rate = f"{total / 1e6 / value:.0f} MB/s" if value else "–"
        ratio = f"{median(peers[0]) / value:.2f}" if value and median(peers[0]) else "–"
        print(f"| {one.name} | {shown(value)} | {rate} | {ratio} | {remarks(one)} |", flush=True)


def written_bytes(pid):
    with open(f"/proc/{pid}/io") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("wchar:"))


def bench_paused_reader(site, options):
    """ivyrun's output is not read: the worker must block, and the agents' memory must not grow."""
    note("agents: a reader that does not read")
    reader, writer = os.pipe()
    before = {number: site.agent_memory(number)[2] for number in (1, TARGET)}
    with StandardError("a reader that does not read") as stderr:
        job = site.start(options.ivyrun, "-n", "1", "--label", "none", "--transport", "agent", "-H",
                         f"node{TARGET}", "yes", LINE.strip(), stdout=writer, stderr=stderr)
        os.close(writer)
        try:
            deadline = time.monotonic() + 30
            while not site.processes(TARGET, "yes") and time.monotonic() < deadline:
                time.sleep(0.05)
            (pid,) = site.processes(TARGET, "yes")
            time.sleep(PAUSE_SECONDS)
            first = written_bytes(pid)
            time.sleep(1)
            stands_still = written_bytes(pid) == first
            grown = {number: site.agent_memory(number)[2] - before[number] for number in (1, TARGET)}
        finally:
            os.close(reader)
            end_jobs([job])
    bounded = all(value <= STREAM_BUDGET_BYTES for value in grown.values())
    print(f"\nA reader that pauses for {PAUSE_SECONDS} s: the worker stands still after "
          f"{mebibytes(first)}: {'yes' if stands_still else 'NO'}; the job's agent has grown by "
          f"{mebibytes(max(0, grown[TARGET]))}, the one that carries it on by {mebibytes(max(0, grown[1]))} "
          f"(budget {mebibytes(STREAM_BUDGET_BYTES)} each: {'within' if bounded else 'OVER'}).", flush=True)
    return stands_still and bounded


# ---- the part ------------------------------------------------------------------------------------

def bench(options):
    """Returns whether a requirement was violated."""
    if os.geteuid() != 0:
        print("\n### Jobs by agents\n\nSKIPPED: test hosts need root.")
        return False
    if not os.access(os.path.join(os.path.dirname(options.ivyrun), "ivy-agent"), os.X_OK):
        print("\n### Jobs by agents\n\nSKIPPED: ivy-agent is not in ivyrun's directory.")
        return False
    with Site(max(*options.host_counts, TARGET - 1) + 1, options.ivyrun) as site:
        subprocess.run(site.command(
            "/usr/bin/python3", "-B", os.path.join(HERE, "agents.py"), "--ivyrun", options.ivyrun,
            "--runs", str(options.runs or 7), "--hosts", ",".join(map(str, options.host_counts))),
            check=True, env=site.environment, stdin=subprocess.DEVNULL)
        bench_processor_time(site, options)
        bench_memory(site, options.ivyrun)
        bench_throughput(site, options)
        return not bench_paused_reader(site, options)


def counts_of(text):
    return [int(word) for word in text.split(",")]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ivyrun", required=True)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--hosts", type=counts_of, default=list(COUNTS))
    inside(parser.parse_args())
