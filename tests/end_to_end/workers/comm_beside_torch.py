"""torch's process group and ivycomm in one process, started in either order. Prints "both" at the end."""

import sys

import ivycomm as ic
import torch
import torch.distributed as dist


def main():
    def begin_torch():
        dist.init_process_group("gloo")

    for begin in (begin_torch, ic.init) if sys.argv[1] == "torch" else (ic.init, begin_torch):
        begin()
    theirs = torch.ones(3)
    dist.all_reduce(theirs)
    ours = ic.all_reduce(torch.ones(3))
    assert torch.equal(theirs, ours) and ours[0] == ic.world_size() == dist.get_world_size()
    assert ic.rank() == dist.get_rank()
    ic.barrier()
    dist.destroy_process_group()
    print(f"rank {ic.rank()}: both", flush=True)


main()
