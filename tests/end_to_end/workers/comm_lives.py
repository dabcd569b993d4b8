"""comm_lives.py END...: worlds one after the other, each ending as it says (abort, mismatch, timeout); the last one is whole.

In it everybody waits long enough for a late rank to look at what has been reported.
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
            while True:  # Who comes late may find what it needs and leave one that has broken.
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
