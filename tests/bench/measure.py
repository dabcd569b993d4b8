# SPDX-License-Identifier: Apache-2.0
"""Runs commands in turn and prints their times as a table of ratios."""

import os
import resource
import select
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time


LAST_LINES = 12  # Lines of a failed run's standard error that are shown.


class Peer:
    """One of the compared commands. The first peer of a list is ivyrun."""

    def __init__(self, name, argv, check=None, flaw=None, budget=None):
        self.name = name
        self.argv = argv
        self.check = check      # check(output path) -> the reason why the run does not count, or None.
        self.flaw = flaw        # The same for a remark about a run that counts.
        self.budget = budget    # ivyrun may take at most this many times as long as this peer.
        self.seconds = []
        self.processor = []     # Only set by alternate().
        self.timeouts = 0
        self.failures = []
        self.flaws = []


def note(text):
    print(text, file=sys.stderr, flush=True)


def end_group(pid):
    """Kills the rest of a peer's process group. Processes in other sessions are not reached."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def ended_within(process, limit):
    """Waits on a pidfd, because Popen.wait(timeout) sleeps in doubling steps, which would be part of the measured time."""
    descriptor = os.pidfd_open(process.pid)
    try:
        return bool(select.select([descriptor], [], [], limit)[0])
    finally:
        os.close(descriptor)


class StandardError:
    """A file for the standard error of programs, which is shown only if they fail: `with StandardError("what") as stderr`.

    After an exception in the block the last lines are shown and the exception continues. tell() shows them without one."""

    def __init__(self, what):
        self.what = what
        self.file = tempfile.TemporaryFile()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            self.tell("failed")
        self.file.close()

    def fileno(self):
        return self.file.fileno()

    def tell(self, wrong):
        self.file.seek(0)
        last = self.file.read().decode(errors="replace").strip().splitlines()[-LAST_LINES:]
        note(f"  {self.what}: {wrong}")
        for line in last or ["(no stderr output)"]:
            note(f"    | {line}")


def run_once(peer, limit, output):
    """Runs a peer once with standard output to a file, and stores the time in the peer."""
    with open(output, "wb") as stdout, StandardError(shlex.join(peer.argv)) as stderr:
        started = time.monotonic()
        process = subprocess.Popen(peer.argv, stdin=subprocess.DEVNULL, stdout=stdout,
                                   stderr=stderr, start_new_session=True)
        in_time = ended_within(process, limit)
        seconds = time.monotonic() - started
        if not in_time:
            end_group(process.pid)
            process.wait()
            peer.timeouts += 1
            stderr.tell(f"no end within {limit} s")
            return
        code = process.wait()
        end_group(process.pid)
        wrong = f"exit code {code}" if code != 0 else peer.check(output) if peer.check else None
        if wrong:
            stderr.tell(wrong)
    if wrong:
        peer.failures.append(wrong)
    else:
        peer.seconds.append(seconds)
        flaw = peer.flaw(output) if peer.flaw else None
        peer.flaws.extend([flaw] if flaw else [])


def interleave(peers, runs, limit, output, warm_up=1):
    """Runs the peers in turn (A B C A B C ...), so that load on the machine affects all of them equally."""
    for turn in range(warm_up + runs):
        for peer in peers:
            # Skip a peer that only hangs or fails, because it would take too much time.
            if peer.timeouts + len(peer.failures) >= 5 and not peer.seconds:
                continue
            run_once(peer, limit, output)
            if turn < warm_up:
                peer.seconds.clear()
                peer.flaws.clear()
        note(f"  round {turn + 1 - warm_up} of {runs}" if turn >= warm_up else "  warm-up")
    if os.path.exists(output):
        os.unlink(output)


# ---- Starts, many and close together ----
def spawn_once(argv, null):
    """Returns the seconds and the seconds of processor time (including children that it waited for) of one run, or None."""
    actions = [(os.POSIX_SPAWN_DUP2, null, descriptor) for descriptor in (0, 1, 2)]
    started = time.monotonic_ns()
    pid = os.posix_spawn(argv[0], argv, os.environ, file_actions=actions)
    status, usage = os.wait4(pid, 0)[1:]
    seconds = (time.monotonic_ns() - started) / 1e9
    return (seconds, usage.ru_utime + usage.ru_stime) if status == 0 else None


def show_failure(argv):
    """Runs the command once more to show its standard error, which measured starts discard."""
    with StandardError(shlex.join(argv)) as stderr:
        code = subprocess.call(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr)
        stderr.tell(f"a run failed; once more: exit code {code}")


def alternate(peers, rounds, warm_up=5):
    """Runs the peers in turn, forwards and backwards, without files, sessions or checks, so that only the start is measured. A
    round in which a peer failed does not count."""
    taken = []
    with open(os.devnull, "r+b") as null:
        for turn in range(warm_up + rounds):
            order = peers if turn % 2 else peers[::-1]
            runs = {peer: spawn_once(peer.argv, null.fileno()) for peer in order}
            for peer in peers:
                if runs[peer] is None:
                    if not peer.failures:
                        show_failure(peer.argv)
                    peer.failures.append("a run failed")
            if turn >= warm_up and all(runs.values()):
                taken.append(runs)
    for peer in peers:
        peer.seconds = [runs[peer][0] for runs in taken]
        peer.processor = [runs[peer][1] for runs in taken]


def print_quartiles(title, peers):
    """Compares ivyrun with each peer by the median of the ratios within one round, which is robust on a noisy machine."""
    ours = peers[0]
    print(f"\n### {title}\n\n| command | lower quartile | median | upper quartile | processor time, mean"
          " | ivyrun ÷ this: lower quartile, median, upper quartile of rounds | budget | remarks |")
    print("|---|---|---|---|---|---|---|---|")
    for peer in peers:
        cells = [peer.name]
        ratio = budget = ""
        if len(peer.seconds) >= 2:
            cells += [milliseconds(value) for value in statistics.quantiles(peer.seconds, n=4)]
            cells.append(milliseconds(statistics.mean(peer.processor)))
        else:
            cells += ["–"] * 4
        if peer is not ours and len(peer.seconds) >= 2:
            pairs = [mine / theirs for mine, theirs in zip(ours.seconds, peer.seconds)]
            quartiles = statistics.quantiles(pairs, n=4)
            ratio = ", ".join(f"{value:.2f}" for value in quartiles)
            if peer.budget is not None:
                budget = f"≤ {peer.budget:g}: {'within' if quartiles[1] <= peer.budget else 'OVER'}"
        print("| " + " | ".join([*cells, ratio, budget, remarks(peer)]) + " |")
    sys.stdout.flush()


# ---- Memory ----
class PeakMemory:
    """The peak resident memory of a launcher and its descendants by name, read while they run."""

    POLL_SECONDS = 0.02

    def __init__(self):
        self.peak_bytes = {}

    def watch(self, process):
        pending = True
        while pending:
            for pid in [process.pid, *descendants(process.pid)]:
                self.note(pid)
            pending = not ended_within(process, self.POLL_SECONDS)

    def note(self, pid):
        try:
            with open(f"/proc/{pid}/status") as file:
                fields = dict(line.split(":", 1) for line in file if ":" in line)
        except OSError:
            return
        if "VmHWM" in fields:
            name = fields["Name"].strip()
            peak = int(fields["VmHWM"].split()[0]) * 1024
            self.peak_bytes[name] = max(peak, self.peak_bytes.get(name, 0))


def descendants(pid):
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                for child in map(int, file.read().split()):
                    found += [child, *descendants(child)]
    except OSError:
        pass
    return found


def milliseconds(seconds):
    value = seconds * 1000
    return f"{value:.1f} ms" if value < 100 else f"{value:.0f} ms" if value < 10e3 else f"{seconds:.1f} s"


def remarks(peer):
    found = []
    if peer.timeouts:
        found.append(f"{peer.timeouts} hung")
    if peer.failures:
        found.append(f"{len(peer.failures)} failed ({peer.failures[0][:80]})")
    if peer.flaws:
        found.append(peer.flaws[-1])
    return "; ".join(found)


def ratio_text(ours, peer):
    """Returns the ratio of ivyrun's time to the peer's, and whether it is within the budget."""
    if peer is ours or not ours.seconds or not peer.seconds:
        return "", ""
    ratio = statistics.median(ours.seconds) / statistics.median(peer.seconds)
    if peer.budget is None:
        return f"{ratio:.2f}", ""
    verdict = "within" if ratio <= peer.budget else "OVER"
    return f"{ratio:.2f}", f"≤ {peer.budget:g}: {verdict}"


def print_table(title, peers, extra=None):
    """Prints the peers' times. `extra` is another column: (heading, function of a peer -> text)."""
    ours = peers[0]
    heading, text_of = extra or ("", None)
    print(f"\n### {title}\n")
    print("| command | median | fastest – slowest | runs |" + (f" {heading} |" if extra else "")
          + " ivyrun ÷ this | budget | remarks |")
    print("|---|---|---|---|" + ("---|" if extra else "") + "---|---|---|")
    for peer in peers:
        done = sorted(peer.seconds)
        median = milliseconds(statistics.median(done)) if done else "–"
        spread = f"{milliseconds(done[0])} – {milliseconds(done[-1])}" if done else "–"
        cells = [peer.name, median, spread, str(len(done))]
        if extra:
            cells.append(text_of(peer))
        print("| " + " | ".join([*cells, *ratio_text(ours, peer), remarks(peer)]) + " |")
    sys.stdout.flush()


def machine():
    """Returns a line about the machine on which the figures were measured."""
    with open("/proc/cpuinfo") as file:
        models = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (f"{os.cpu_count()} cores ({models[0] if models else os.uname().machine}), "
            f"{memory:.0f} GiB, Linux {os.uname().release}, load {os.getloadavg()[0]:.1f} at the start")


def raise_open_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
