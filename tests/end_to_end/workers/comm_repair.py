"""One rank of a world that is repaired. Prints its results as JSON. The first argument is the scenario."""

import argparse
import json
import os
import signal
import sys
import threading
import time

import numpy as np

import ivycomm as ic


def tell(**facts):
    print(json.dumps(facts), flush=True)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def check_sum():
    """A large reduction, which uses slots on a host and streams between hosts."""
    total = ic.all_reduce(np.full(200_000, 1.0, dtype=np.float32))
    assert total[0] == total[-1] == ic.world_size(), total


def leave():
    ic.finalize()
    sys.exit(0)


def lose(victims, end):
    """The victims die one after the other, and the others continue after each death."""
    job_rank = ic.rank()
    for victim in victims:
        try:
            ic.barrier()
            if job_rank == victim:
                end()
            while True:
                ic.all_reduce(np.ones(8))
        except (ic.RankDied, ic.HostLost, ic.Aborted) as error:
            kind = type(error).__name__
        begun = time.monotonic()
        world = ic.shrink(timeout=60)
        check_sum()
        tell(rank=job_rank, error=kind, new=world.rank, ranks=list(world.ranks),
             members=ic.all_gather_object(job_rank), took=round(time.monotonic() - begun, 3))


def old_things():
    """Objects of the old world fail or continue to work as documented."""
    group = ic.new_group([0, 1])
    grid = ic.mesh((1, ic.world_size()), ("x", "y"))
    kept = ic.empty_registered(1 << 16, dtype=np.float32)
    if ic.rank() == 2:
        die()
    pending = ic.all_reduce(np.ones(8), async_op=True)
    inside = []

    def wait_in_thread():
        try:
            ic.recv(np.ones(4), src=1 - ic.rank(), tag=7, group=group)
        except ic.IvyError as error:
            inside.append(type(error).__name__)

    thread = threading.Thread(target=wait_in_thread)
    thread.start()
    time.sleep(0.2)
    ic.shrink(timeout=60)
    thread.join()
    kept[:] = 1.0 + ic.rank()
    ic.all_reduce_(kept)

    def kind_of(call):
        try:
            call()
        except ic.IvyError as error:
            return type(error).__name__
        return None

    tell(rank=ic.rank(), size=ic.world_size(), pending=kind_of(lambda: pending.wait(5)), inside=inside,
         group=kind_of(lambda: ic.barrier(group=group)), mesh=kind_of(lambda: ic.barrier(group=grid.group("y"))),
         registered=float(kept[0]), fresh=ic.new_group([0, 1]).size)


def asleep():
    """The lost rank is restarted before any rank waits for it. The others still see its death."""
    told = {}
    if not ic.restart_count():
        ic.barrier()
        if ic.rank() == 1:
            die()
        time.sleep(4)
        try:
            ic.all_reduce(np.ones(8), timeout=20)
        except ic.RankDied as error:
            told["died"] = error.rank
        except ic.Aborted as error:
            told["died"] = 1 if "must call grow" in str(error) else None
        ic.grow(timeout=60)
    check_sum()
    tell(rank=ic.rank(), size=ic.world_size(), restarts=ic.restart_count(), **told)


def errors():
    """A timeout names the missing ranks, Ctrl-C ends a repair, and repairs fail in a child process and after finalize."""
    told = {}
    if ic.rank() == 1:
        time.sleep(1.5)
    else:
        try:
            ic.shrink(timeout=0.5)
        except ic.Timeout as error:
            told["timeout"] = str(error)
    if ic.rank() == 1:
        try:
            ic.shrink(timeout=30)
        except ic.Timeout as error:
            told["timeout"] = str(error)
    try:
        ic.barrier()
    except ic.FailedPrecondition as error:
        told["between"] = str(error)
    world = ic.shrink(timeout=60)
    told["size"] = world.size
    child = os.fork()
    if child == 0:
        try:
            ic.shrink()
        except ic.NotInitialized:
            os._exit(0)
        os._exit(1)
    told["child"] = os.waitpid(child, 0)[1]
    ic.barrier()
    if ic.rank() == 0:
        signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        try:
            ic.shrink(timeout=60)
        except KeyboardInterrupt:
            told["interrupted"] = "KeyboardInterrupt"
    else:
        time.sleep(1)
        try:
            ic.shrink(timeout=60)
        except ic.Aborted as error:
            told["interrupted"] = str(error)
    ic.finalize()
    try:
        ic.shrink()
    except ic.NotInitialized:
        told["after"] = "NotInitialized"
    tell(**told)


parser = argparse.ArgumentParser()
parser.add_argument("scenario")
parser.add_argument("--method")
parser.add_argument("--rank", type=int)
parser.add_argument("--size", type=int)
parser.add_argument("--victims", type=lambda text: [int(number) for number in text.split(",")], default=[])
options = parser.parse_args()
sys.stdout.reconfigure(line_buffering=True)
ic.init(options.method, rank=options.rank, world_size=options.size, timeout=120)
if options.scenario == "lose":
    lose(options.victims, die)
elif options.scenario == "leave":
    lose(options.victims, leave)
else:
    {"old_things": old_things, "errors": errors, "asleep": asleep}[options.scenario]()
