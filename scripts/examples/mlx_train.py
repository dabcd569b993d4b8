"""MLX: a compiled function of loss and gradients, which are averaged over the ranks.

    ivyrun -B mlx -n 2 mlx_train.py
"""

import mlx.core as mx
import mlx.nn as nn

world = mx.distributed.init(strict=True, backend="ring")
mx.random.seed(world.rank())
x = mx.random.normal((64, 4))  # Each rank has rows of its own.
y = x.sum(axis=1, keepdims=True) + 1


def loss_fn(parameters, x, y):
    return mx.mean((x @ parameters["weight"] + parameters["bias"] - y) ** 2)


loss_and_gradients = mx.compile(mx.value_and_grad(loss_fn))
parameters = {"weight": mx.zeros((4, 1)), "bias": mx.zeros((1,))}
losses = []
for _ in range(60):
    loss, gradients = loss_and_gradients(parameters, x, y)
    gradients = nn.average_gradients(gradients)
    parameters = {name: parameters[name] - 0.1 * gradients[name] for name in parameters}
    mx.eval(parameters)
    losses.append(loss.item())
assert losses[-1] < losses[0] / 100, losses
total = mx.distributed.all_sum(parameters["weight"])
assert mx.allclose(total, world.size() * parameters["weight"], atol=1e-5).item(), "the ranks' parameters differ"
print("rank", world.rank(), "of", world.size(), "has learnt", [round(each, 1) for each in parameters["weight"][:, 0].tolist()],
      flush=True)
