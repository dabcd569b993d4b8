"""Joins the other ranks as given by its arguments, and prints the result as a line of JSON.

comm_meet.py [--method M] [--rank R] [--size N] [--timeout S] [--worlds K] [--victim V] [--forks PATH]
--worlds: number of times to init and finalize. --victim: that rank is killed, and the others print their errors. --forks:
before that it forks a child, which runs until the file exists.
"""

import argparse
import json
import os
import signal
import time

import ivycomm as ic


def say(**what):
    os.write(1, (json.dumps(what) + "\n").encode())  # A single write, because launchers may split several ones.


def use(world):
    n = ic.world_size()
    ranks = ic.all_gather_object(ic.rank())
    assert ranks == list(range(n)), ranks
    say(rank=ic.rank(), size=n, local=ic.local_world_size(), hosts=ic.num_nodes(), source=ic.source(), world=world)


def fork_child(until):
    """Forks a child that has a copy of every descriptor, like a data loader."""
    if os.fork() == 0:
        for standard in range(3):
            os.close(standard)
        end = time.monotonic() + 60
        while not os.path.exists(until) and time.monotonic() < end:
            time.sleep(0.05)
        os._exit(0)
    say(forked=ic.rank())


def wait_for_death(victim, forks):
    ic.barrier()
    if forks and ic.rank() == victim:
        fork_child(forks)
    until = time.monotonic() + 0.3
    while True:
        ic.barrier()
        if ic.rank() == victim and time.monotonic() > until:
            say(killed=victim, at=time.monotonic(), pid=os.getpid())
            os.kill(os.getpid(), signal.SIGKILL)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--method")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--size", type=int)
    parser.add_argument("--timeout", type=float, default=60)
    parser.add_argument("--worlds", type=int, default=1)
    parser.add_argument("--victim", type=int)
    parser.add_argument("--forks")
    given = parser.parse_args()
    started = time.monotonic()
    try:
        for world in range(given.worlds):
            ic.init(given.method, rank=given.rank, world_size=given.size, timeout=given.timeout)
            use(world)
            if given.victim is not None:
                wait_for_death(given.victim, given.forks)
            ic.finalize()
    except ic.IvyError as error:
        say(error=type(error).__name__, code=error.code, blamed=error.rank, text=str(error),
            at=time.monotonic(), took=time.monotonic() - started)
        raise SystemExit(3) from None


main()
