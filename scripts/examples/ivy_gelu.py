"""Each rank applies gelu to its slice of x and all gather the whole; pmap does the same.

    ivyrun -n 2 ivy_gelu.py
    ivyrun --fake-hosts 2 --nproc_per_node 2 ivy_gelu.py
    torchrun --nproc_per_node 2 ivy_gelu.py
    mpirun -n 2 python3 ivy_gelu.py       # Open MPI, MPICH; srun -n 2 as well
    python3 ivy_gelu.py                   # alone: a world of one

Without ivyrun, install the package first: pip install comm/python

Uses torch if it is there, else NumPy.
"""

import math

from ivycomm import i_dist

try:
    import torch
    from torch.nn.functional import gelu

    torch.manual_seed(0)  # The same x on all ranks.
    x = torch.randn(8 * 3, 5)

    def all_close(a, b):
        return torch.allclose(a, b)
except ImportError:
    import numpy

    x = numpy.random.default_rng(0).standard_normal((8 * 3, 5))

    def gelu(a):
        return a * 0.5 * (1 + numpy.vectorize(math.erf)(a / math.sqrt(2)))

    def all_close(a, b):
        return numpy.allclose(a, b)


def main():
    i_dist.init_dist()
    context = i_dist.ParallelContext()
    rank, size = context["rank"], context["world_size"]
    begin, end = (len(x) * r // size for r in (rank, rank + 1))
    if len(x) % size:
        raise SystemExit(f"{len(x)} rows cannot be divided equally among {size} ranks")

    expected = gelu(x)
    gathered = i_dist.all_gather(gelu(x[begin:end]))
    assert all_close(gathered, expected), "all_gather of the slices"
    mapped = i_dist.pmap(gelu)(x)
    assert all_close(mapped, expected), "pmap"
    agreed = i_dist.all_reduce(float(all_close(gathered, mapped)), i_dist.IvyReduceOp.MIN)
    assert agreed == 1, "some rank has another result"
    i_dist.print0(f"gelu of {tuple(x.shape)} on {size} ranks: gather and pmap agree on all of them")


if __name__ == "__main__":
    main()
