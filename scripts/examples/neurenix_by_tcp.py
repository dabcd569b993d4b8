"""Ranks that no launcher starts: each is told its number, and all meet at an address, as Neurenix's documentation has it.

    for rank in 0 1 2 3; do python3 neurenix_by_tcp.py tcp://localhost:23456 4 $rank & done; wait

Install the package first: pip install comm/python
"""

import sys

import ivycomm  # noqa: F401  Serves the name neurenix where ivyrun is not the launcher.
import neurenix
from neurenix.distributed import barrier, get_rank, get_world_size, init_distributed, is_main_process


def main(init_method, world_size, rank):
    dist_ctx = init_distributed(backend="gloo", init_method=init_method, world_size=world_size, rank=rank)
    assert (get_rank(), get_world_size()) == (rank, world_size)
    model = neurenix.nn.Linear(8, 1).to(neurenix.get_device(f"cuda:{get_rank()}"))
    model = neurenix.distributed.DataParallel(model)
    model(neurenix.tensor.ones(4, 8) * rank).sum().backward()
    # The mean of what the ranks have alone, on each of them.
    assert model.module.weight.grad.allclose(neurenix.tensor.ones(1, 8) * 4 * sum(range(world_size)) / world_size)
    barrier()
    if is_main_process():
        print(f"{get_world_size()} ranks have met by {init_method.partition(':')[0]}")
    dist_ctx.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
