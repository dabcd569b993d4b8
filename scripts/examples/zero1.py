"""ZeRO stage 1: every rank keeps the optimizer's state of its part of the parameters, and no other.

    ivyrun -n 4 zero1.py

Gradients are reduced so that each rank gets the mean of its own part (reduce_scatter), the rank takes an Adam step there,
and the new parameters are gathered (all_gather). The parts need not be equal. The result is that of one process with all
the state.
"""

import ivycomm as ic
import numpy as np


class Adam:
    """Adam over one flat array."""

    def __init__(self, length, rate=0.05):
        self.first, self.second, self.steps, self.rate = np.zeros(length), np.zeros(length), 0, rate

    def step(self, parameters, gradient):
        self.steps += 1
        self.first += 0.1 * (gradient - self.first)
        self.second += 0.001 * (gradient**2 - self.second)
        first, second = self.first / (1 - 0.9**self.steps), self.second / (1 - 0.999**self.steps)
        return parameters - self.rate * first / (np.sqrt(second) + 1e-8)


def gradient_of(parameters, x, y):
    """Of the mean squared error of a linear model."""
    return 2 * x.T @ (x @ parameters - y) / len(x)


def main():
    ic.init()
    rank, size = ic.rank(), ic.world_size()
    rng = np.random.default_rng(0)  # The same data on all ranks, of which each uses its rows.
    parts = [4] * (size - 1) + [7]  # So many parameters are each rank's.
    columns, begin = sum(parts), sum(parts[:rank])
    x, y = rng.normal(size=(16 * size, columns)), rng.normal(size=16 * size)
    mine = slice(16 * rank, 16 * (rank + 1))

    whole, alone = np.zeros(columns), np.zeros(columns)
    part, everything = Adam(parts[rank]), Adam(columns)
    for _ in range(20):
        gradient = ic.reduce_scatter(gradient_of(whole, x[mine], y[mine]), "avg", split=parts)
        own = part.step(whole[begin:begin + parts[rank]], gradient)
        whole = ic.all_gather(own, uneven=True)
        alone = everything.step(alone, gradient_of(alone, x, y))
    assert np.allclose(whole, alone), "another result than one process's"
    if rank == 0:
        state, everybodys = part.first.nbytes + part.second.nbytes, everything.first.nbytes + everything.second.nbytes
        print(f"{size} ranks with {state} bytes of optimizer state, the last with more, reach what one with {everybodys} does")


if __name__ == "__main__":
    main()
