"""Runs commands side by side and prints what they took as a table of ratios."""

import os
import resource
import select
import signal
import statistics
import subprocess
import sys
import time


class Peer:
    """One way to do the thing that is measured. The first peer of a list is ours."""

    def __init__(self, name, argv, check=None, flaw=None, budget=None):
        self.name = name
        self.argv = argv
        self.check = check      # check(output path) -> why the run does not count, or None.
        self.flaw = flaw        # The same for what is worth a remark, though the run counts.
        self.budget = budget    # Ours may take at most this many times as long as this peer.
        self.seconds = []
        self.timeouts = 0
        self.failures = []
        self.flaws = []


def note(text):
    print(text, file=sys.stderr, flush=True)


def end_group(pid):
    """Ends what a peer has left in its process group; sessions of its own are out of reach."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def ended_within(process, limit):
    """Waits on a pidfd: Popen.wait(timeout) sleeps in doubling steps, which would be measured too."""
    descriptor = os.pidfd_open(process.pid)
    try:
        return bool(select.select([descriptor], [], [], limit)[0])
    finally:
        os.close(descriptor)


def run_once(peer, limit, output):
    """One run of a peer, its standard output into a file; what it took goes into the peer."""
    with open(output, "wb") as stdout, open(output + ".err", "wb") as stderr:
        started = time.monotonic()
        process = subprocess.Popen(peer.argv, stdin=subprocess.DEVNULL, stdout=stdout,
                                   stderr=stderr, start_new_session=True)
        in_time = ended_within(process, limit)
        seconds = time.monotonic() - started
        if not in_time:
            end_group(process.pid)
            process.wait()
            peer.timeouts += 1
            return
        code = process.wait()
    end_group(process.pid)
    wrong = f"exit code {code}" if code != 0 else peer.check(output) if peer.check else None
    if wrong:
        with open(output + ".err", errors="replace") as stderr:
            last = stderr.read().strip().splitlines()[-1:] or ["(nothing on standard error)"]
        peer.failures.append(f"{wrong}: {last[0]}")
    else:
        peer.seconds.append(seconds)
        flaw = peer.flaw(output) if peer.flaw else None
        peer.flaws.extend([flaw] if flaw else [])


def interleave(peers, runs, limit, output, warm_up=1):
    """A B C A B C ...: what disturbs the machine disturbs every peer alike."""
    for turn in range(warm_up + runs):
        for peer in peers:
            # A peer that hangs or fails again and again would cost the others their time.
            if peer.timeouts + len(peer.failures) >= 5 and not peer.seconds:
                continue
            run_once(peer, limit, output)
            if turn < warm_up:
                peer.seconds.clear()
                peer.flaws.clear()
        note(f"  round {turn + 1 - warm_up} of {runs}" if turn >= warm_up else "  warm-up")
    for name in (output, output + ".err"):
        if os.path.exists(name):
            os.unlink(name)


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
    """How many times the peer's time ours took, and whether that is within the budget."""
    if peer is ours or not ours.seconds or not peer.seconds:
        return "", ""
    ratio = statistics.median(ours.seconds) / statistics.median(peer.seconds)
    if peer.budget is None:
        return f"{ratio:.2f}", ""
    verdict = "within" if ratio <= peer.budget else "OVER"
    return f"{ratio:.2f}", f"≤ {peer.budget:g}: {verdict}"


def print_table(title, peers, extra=None):
    """extra: (heading, function of a peer -> text), one more column."""
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
    """One line about where the figures come from."""
    with open("/proc/cpuinfo") as file:
        models = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (f"{os.cpu_count()} cores ({models[0] if models else os.uname().machine}), "
            f"{memory:.0f} GiB, Linux {os.uname().release}, load {os.getloadavg()[0]:.1f} at the start")


def raise_open_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
