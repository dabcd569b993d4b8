"""What the collectives do, shown with threads as ranks: no launcher, no GPU.

    python3 simulated_ranks.py      needs NumPy
"""

import numpy as np
from ivycomm import sim


def show_sharding(comm, array):
    """Each rank computes its own part; together they have what one process would have."""
    mine = np.split(array, comm.size)[comm.rank]
    return comm.all_gather(np.tanh(mine))


def show_reductions(comm):
    value = np.array([comm.rank + 1.0])
    parts = comm.reduce_scatter(np.arange(2.0 * comm.size))
    return comm.all_reduce(value).item(), comm.all_reduce(value, "avg").item(), parts.tolist()


def step(comm, inputs, targets, weights):
    """One step of data-parallel training: a gradient of each rank's rows, averaged."""
    x, y = np.split(inputs, comm.size)[comm.rank], np.split(targets, comm.size)[comm.rank]
    error = x @ weights - y
    return comm.all_reduce(x.T @ error / len(x), "avg"), comm.all_reduce(np.array([(error ** 2).mean()]), "avg").item()


def main():
    world = sim.World(4, show=True)  # Prints tables of before and after.
    array = np.arange(8.0)
    assert all(np.allclose(each, np.tanh(array)) for each in world.run(show_sharding, array))
    assert world.run(show_reductions)[0] == (10.0, 2.5, [0.0, 4.0])
    random = np.random.default_rng(42)
    inputs, weights = random.normal(size=(32, 3)), np.zeros(3)
    targets = inputs @ [1.0, -2.0, 0.5]
    for _ in range(40):
        gradient, loss = sim.World(4).run(step, inputs, targets, weights)[0]
        assert np.allclose(gradient, inputs.T @ (inputs @ weights - targets) / len(inputs))  # One process's.
        weights = weights - 0.7 * gradient
    print(f"weights {weights.round(2)}, loss {loss:.1e}, learnt by 4 simulated ranks")
    assert np.allclose(weights, [1, -2, 0.5], atol=0.01)


if __name__ == "__main__":
    main()
