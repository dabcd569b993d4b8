"""comm_many_groups.py N: rank 0 aborts N groups in a row while the other ranks wait in each.

Each rank prints in how many groups it got the abort, and other errors.
"""

import sys

import ivycomm as ic


def main():
    ic.init(timeout=60)
    groups = [ic.split(0, ic.rank()) for _ in range(int(sys.argv[1]))]
    works = [] if ic.rank() == 0 else [ic.barrier(group=group, async_op=True) for group in groups]
    ic.barrier()
    if ic.rank() == 0:
        for group in groups:
            group.abort("enough")
    ends = [end_of(work) for work in works]
    others = [repr(end) for end in ends if not isinstance(end, ic.Aborted)]
    print(f"{len(ends) - len(others)} aborted", *others[:1], flush=True)
    ic.barrier()
    ic.finalize()


def end_of(work):
    try:
        work.wait()
        return None
    except ic.IvyError as error:
        return error


main()
