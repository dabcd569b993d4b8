"""comm_lives.py END...: consecutive worlds that end by abort, mismatch or timeout, and a last world that must not break.

In the last world the ranks wait long enough for a late rank to check the reports.
"""

import sys
import time

import ivycomm as ic


def end_by(way):
    ic.init(timeout=60)
    group = ic.split(0, ic.rank())
    is_last = ic.rank() == ic.world_size() - 1
    for each in (group, ic.world()):
        try:
            if way == "abort" and is_last:
                each.abort("enough")
            if way == "timeout" and is_last:
                time.sleep(0.4)
            if way == "mismatch" and is_last:
                ic.split(0, 0, group=each)
            while True:  # A late rank may find all that it needs and leave a barrier that has broken for others.
                ic.barrier(group=each, timeout=0.2 if way == "timeout" else 60)
        except ic.IvyError:
            pass
    ic.finalize()


def main():
    for way in sys.argv[1:]:
        end_by(way)
    ic.init(timeout=60)
    group = ic.split(0, ic.rank())
    for each in (group, ic.world()):
        if ic.rank() == ic.world_size() - 1:
            time.sleep(0.15)
        ic.barrier(group=each)
    ic.finalize()
    print("whole", flush=True)


main()
