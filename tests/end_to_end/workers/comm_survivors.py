"""comm_survivors.py: rank 1 kills itself. The others print their first error, the store's record of the death, and the error
of their old world after the rank has been restarted."""

import os
import signal
import sys
import time

import ivycomm as ic


def say(*words):
    print(*words, flush=True)


def attempt(what):
    try:
        ic.barrier()
        say(what, "went well")
    except ic.RankDied as error:
        say(what, "rank", error.rank, "signal", error.signal)


def main():
    if "IVY_REJOIN" in os.environ:
        say("rejoins", os.environ["IVY_REJOIN"])
        open("rejoined", "w").close()
        while not os.path.exists("done"):
            time.sleep(0.02)
        return
    ic.init()
    ic.barrier()
    if ic.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if ic.rank() == 0:
        attempt("at once:")
    say("gone", ic.store().get("ivy/gone/1", timeout=20).decode())
    if "replace" in sys.argv:
        while not os.path.exists("rejoined"):
            time.sleep(0.02)
    time.sleep(0.3)
    attempt("later:")
    open(f"told.{ic.rank()}", "w").close()
    while ic.rank() == 0 and not all(os.path.exists(f"told.{r}") for r in range(4) if r != 1):
        time.sleep(0.02)
    if ic.rank() == 0:
        open("done", "w").close()
    os._exit(0)


main()
