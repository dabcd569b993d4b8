"""comm_rpc_deaths.py WAY: the last rank ends (kill, exit) or is cut off (cut) while all others wait for calls.

Rank 0 waits for the call during which the last rank ends. Every other rank waits for an earlier call that hangs; with "cut"
rank 0 does, too. Each prints as JSON the exception of its call, and the result of its next call.
"""

import os
import signal
import sys
import time

import ivycomm as ic
from ivycomm import rpc

from comm_deaths import FIELDS, say

hanging = []


@rpc.register
def hang():
    hanging.append(None)
    time.sleep(120)


@rpc.register
def how_many_hang():
    return len(hanging)


@rpc.register
def end(way):
    say(dies=os.getpid())
    if way == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(7)


def outcome(call):
    began = time.monotonic()
    try:
        call()
        return {"kind": "nothing"}
    except ic.IvyError as error:
        return {"kind": type(error).__name__, "text": str(error), "took": time.monotonic() - began,
                **{name: getattr(error, name, None) for name in FIELDS}}


def main():
    way = sys.argv[1]
    ic.init(timeout=60)
    rpc.init_rpc()
    victim = ic.world_size() - 1
    if ic.rank() == victim:
        time.sleep(120)
    hangs = ic.rank() > 0 or way == "cut"
    future = rpc.rpc_async(victim, "hang", timeout=None) if hangs else None
    if ic.rank() == 0:
        while rpc.rpc_sync(victim, "how_many_hang") < victim - (way != "cut"):
            time.sleep(0.01)
        say(ready=True)
    if future:
        told = outcome(future.result)
    else:
        told = outcome(lambda: rpc.rpc_sync(victim, "end", way, timeout=None))
    say(**told)
    say(next=outcome(lambda: rpc.rpc_sync(0 if ic.rank() else 1, "how_many_hang", timeout=30)))
    rpc.shutdown(graceful=False)


if __name__ == "__main__":
    main()
