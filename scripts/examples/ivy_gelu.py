"""Each rank applies gelu to its slice of x and all gather the whole; pmap does the same.

    ivyrun -n 2 ivy_gelu.py
    ivyrun --fake-hosts 2 --nproc_per_node 2 ivy_gelu.py
    torchrun --nproc_per_node 2 ivy_gelu.py
    mpirun -n 2 python3 ivy_gelu.py       # Open MPI, MPICH; srun -n 2 as well
    python3 ivy_gelu.py                   # alone: a world of one
    ivyrun -n 2 ivy_gelu.py jax           # Ivy over JAX

Without ivyrun, install the package first: pip install comm/python

Uses Ivy where it is installed, over the backend that is named (numpy, if none is); else torch; else NumPy.
"""

import importlib.util
import math
import sys

import ivycomm  # noqa: F401  Serves ivy.distributed where ivyrun is not the launcher.
import ivy.distributed as i_dist  # isort: skip

ROWS, COLUMNS = 24, 5


def by_ivy(backend):
    import ivy
    ivy.set_backend(backend)
    x = ivy.random_normal(shape=(ROWS, COLUMNS), seed=1)  # The same x on all ranks.
    arrays = type(ivy.to_native(x)).__module__.partition(".")[0]
    return (f"Ivy over {arrays}", x, ivy.gelu, lambda x, parts: ivy.split(x, num_or_size_splits=parts),
            lambda a, b: bool(ivy.all(ivy.abs(a - b) < 1e-6)))


def by_torch():
    import torch
    from torch.nn.functional import gelu
    torch.manual_seed(0)
    return "torch", torch.randn(ROWS, COLUMNS), gelu, lambda x, parts: torch.split(x, ROWS // parts), torch.allclose


def by_numpy():
    import numpy
    x = numpy.random.default_rng(0).standard_normal((ROWS, COLUMNS))

    def gelu(a):
        return a * 0.5 * (1 + numpy.vectorize(math.erf)(a / math.sqrt(2)))

    return "NumPy", x, gelu, numpy.split, numpy.allclose


def framework(names):
    """(its name, x, gelu, split, all_close) of what is there."""
    if importlib.util.find_spec("ivy").origin:  # ivycomm's stand-in has no file.
        return by_ivy(names[0] if names else "numpy")
    return by_torch() if importlib.util.find_spec("torch") else by_numpy()


def main(names):
    name, x, gelu, split, all_close = framework(names)
    i_dist.init_dist()
    context = i_dist.ParallelContext()
    if len(x) % context.world_size:
        raise SystemExit(f"{len(x)} rows cannot be divided equally among {context.world_size} ranks")

    def parallel_gelu(x):
        return i_dist.all_gather(gelu(split(x, context.world_size)[context.rank]))

    expected, gathered, mapped = gelu(x), parallel_gelu(x), i_dist.pmap(gelu)(x)
    assert all_close(gathered, expected), "all_gather of the slices"
    assert all_close(mapped, expected), "pmap"
    agreed = i_dist.all_reduce(float(all_close(gathered, mapped)), i_dist.IvyReduceOp.MIN)
    assert agreed == 1, "some rank has another result"
    i_dist.print0(f"gelu of {tuple(x.shape)} on {context.world_size} ranks: gather and pmap agree on all of them, by {name}")


if __name__ == "__main__":
    main(sys.argv[1:])
