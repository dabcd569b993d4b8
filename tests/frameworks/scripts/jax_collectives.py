# SPDX-License-Identifier: Apache-2.0
"""ivycomm.jax on every rank of a job: each call's values and derivatives are compared with those of a world that is
simulated in one process, and the calls of a program run in its order. Prints `right` once for each part."""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import ivycomm as ic
import ivycomm.jax as icj

world = ic.init()
rank, size = world.rank, world.size
rows = np.random.default_rng(1).normal(size=(size, 2 * size, 3)).astype("float32")  # x of each rank.
weights = np.random.default_rng(2).normal(size=(size, 2 * size * size, 3)).astype("float32")


def only(root, x):
    return jnp.stack([x if each == root else jnp.zeros_like(x) for each in range(size)])


def parts(x):
    return x.reshape(size, -1, *x.shape[1:])


# Each call, and its result for [x of rank 0, x of rank 1, ...].
last, around = size - 1, [(each + 1) % size for each in range(size)]
CALLS = {
    "sum": (icj.all_reduce, lambda xs: jnp.stack([xs.sum(0)] * size)),
    "mean": (functools.partial(icj.all_reduce, op="mean"), lambda xs: jnp.stack([xs.mean(0)] * size)),
    "max": (functools.partial(icj.all_reduce, op="max"), lambda xs: jnp.stack([xs.max(0)] * size)),
    "min": (functools.partial(icj.all_reduce, op="min"), lambda xs: jnp.stack([xs.min(0)] * size)),
    "product": (functools.partial(icj.all_reduce, op="product"), lambda xs: jnp.stack([xs.prod(0)] * size)),
    "reduce": (functools.partial(icj.reduce, dst=last), lambda xs: only(last, xs.sum(0))),
    "reduce mean": (functools.partial(icj.reduce, dst=last, op="mean"), lambda xs: only(last, xs.mean(0))),
    "scan": (icj.scan, lambda xs: jnp.cumsum(xs, 0)),
    "broadcast": (functools.partial(icj.broadcast, src=last), lambda xs: jnp.stack([xs[last]] * size)),
    "all_gather": (icj.all_gather, lambda xs: jnp.stack([jnp.concatenate(xs)] * size)),
    "all_gather of columns": (functools.partial(icj.all_gather, axis=1),
                              lambda xs: jnp.stack([jnp.concatenate(xs, 1)] * size)),
    "reduce_scatter": (icj.reduce_scatter, lambda xs: parts(xs.sum(0))),
    "reduce_scatter mean": (functools.partial(icj.reduce_scatter, op="mean"), lambda xs: parts(xs.mean(0))),
    "gather": (functools.partial(icj.gather, dst=last), lambda xs: only(last, jnp.concatenate(xs))),
    "scatter": (functools.partial(icj.scatter, src=last), lambda xs: parts(xs[last])),
    "all_to_all": (icj.all_to_all, lambda xs: jnp.swapaxes(jax.vmap(parts)(xs), 0, 1).reshape(xs.shape)),
    "sendrecv": (functools.partial(icj.sendrecv, dst=around[rank], src=rank - 1 if rank else last),
                 lambda xs: jnp.roll(xs, 1, 0)),
    "sendrecv in a line": (functools.partial(icj.sendrecv, dst=rank + 1 if rank < last else None,
                                             src=rank - 1 if rank else None),
                           lambda xs: jnp.concatenate([jnp.zeros_like(xs[:1]), xs[:-1]])),
}


def agree(name, mine, theirs):
    np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-5, err_msg=name)


def weighed(y, each):
    return (jnp.sin(y) * weights[each].ravel()[:y.size].reshape(y.shape)).sum()


def loss(call, x):
    return weighed(call(x), rank)


def loss_of_all(model, xs):
    ys = model(xs)
    return sum(weighed(ys[each], each) for each in range(size))


# One program for all calls, because compilation takes most of the time.
def every(make):
    return jax.jit(lambda x: {name: make(*pair)(x) for name, pair in CALLS.items()})


def values():
    mine, whole = every(lambda call, _: call)(rows[rank]), every(lambda _, model: model)(rows)
    twice = every(lambda call, _: jax.vmap(call))(jnp.stack([rows[rank]] * 2))
    behind = every(lambda call, _: jax.vmap(call, 1, 1))(jnp.stack([rows[rank]] * 2, 1))
    for name, (call, _) in CALLS.items():
        agree(name, mine[name], whole[name][rank])
        agree(name, twice[name], jnp.stack([whole[name][rank]] * 2))
        agree(name, behind[name], jnp.stack([whole[name][rank]] * 2, 1))
        if name in ("sum", "reduce", "sendrecv in a line"):
            agree(name, call(rows[rank]), whole[name][rank])


def gradients():
    mine = every(lambda call, _: jax.grad(functools.partial(loss, call)))(rows[rank])
    whole = every(lambda _, model: jax.grad(functools.partial(loss_of_all, model)))(rows)
    pushed = every(lambda call, _: lambda x: jax.jvp(call, (x,), (jnp.cos(x),))[1])(rows[rank])
    whole_pushed = every(lambda _, model: lambda xs: jax.jvp(model, (xs,), (jnp.cos(xs),))[1])(rows)
    for name in CALLS:
        agree(name, mine[name], whole[name][rank])
        agree(name, pushed[name], whole_pushed[name][rank])
    agree("eager", jax.grad(lambda x: (icj.all_reduce(x) ** 2).sum())(rows[rank]), 2 * size * rows.sum(0))
    once = jax.grad(lambda x: (icj.all_reduce(x, grad="identity") ** 2).sum())(rows[rank])
    agree("identity", once, 2 * rows.sum(0))


# Fifty independent calls: if another rank ran them in another order, they would not match.
def fifty(x):
    results, calls = [], list(CALLS.items())
    for turn in range(50):
        name, (call, _) = calls[(7 * turn) % len(calls)]
        results.append((name, call(x + turn)))
    icj.barrier()
    return results


def expected_of_fifty(xs):
    calls = list(CALLS.items())
    return [(calls[(7 * turn) % len(calls)][0], calls[(7 * turn) % len(calls)][1][1](xs + turn)[rank])
            for turn in range(50)]


# The input of each call takes long on one rank and no time on the other. A program that runs operations when they are
# ready would use another order on each rank.
def crossed(x):
    def late(x):
        return lax.fori_loop(0, 20_000, lambda _, x: jnp.sin(x) + 0.1, x) * 0 + rows[rank]

    first, second = (late(x), x) if rank % 2 == 0 else (x, late(x))
    sums = icj.all_reduce(first), icj.all_gather(second)
    return *sums, icj.all_reduce(second, "max"), icj.scan(first)


def order():
    for mine, name in zip(jax.jit(crossed)(rows[rank]), ("sum", "all_gather", "max", "scan")):
        agree(name, mine, CALLS[name][1](rows)[rank])
    results = jax.jit(lambda x: [y for _, y in fifty(x)])(rows[rank])
    expected = jax.jit(lambda xs: [y for _, y in expected_of_fifty(xs)])(rows)
    for turn, (mine, whole) in enumerate(zip(results, expected)):
        agree(f"call {turn}", mine, whole)
    if rank == 0:  # The calls must run even though their results are not used.
        jax.jit(lambda x: [icj.send(x * each, dst=last, tag=each) for each in range(3)] and None)(rows[0])
    if rank == last:
        for each in range(3):
            agree("recv", jax.jit(lambda like, each=each: icj.recv(like, src=0, tag=each))(rows[0]), rows[0] * each)


def step(carry, x):
    here = lax.cond(x[0, 0] > -1e9, lambda x: icj.all_reduce(x, "mean"), lambda x: icj.scan(x), x * carry.sum())
    icj.barrier()
    return carry + here.sum(), icj.all_gather(x)


def in_control_flow():
    xs = np.stack([rows] * 10, 1)  # [rank, step, ...]
    run = jax.jit(lambda xs: lax.scan(step, jnp.ones(()), xs))
    carry, gathered = run(xs[rank])
    whole = jnp.ones(())
    for each in range(10):
        whole = whole + (xs[:, each] * whole).mean(0).sum()
    agree("scan", carry, whole)
    agree("scan", gathered[3], np.concatenate(rows))
    count = jax.jit(lambda x: lax.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + 1, icj.all_reduce(s[1], "mean")), (0, x)))
    agree("while", count(rows[rank])[1], rows.mean(0))


def train(parameters, batches, mean):
    def loss(parameters, batch):
        return ((jnp.tanh(batch @ parameters["a"]) @ parameters["b"] - 1) ** 2).mean()

    def step(parameters, batch):
        value, gradient = jax.value_and_grad(loss)(parameters, batch)
        return jax.tree_util.tree_map(lambda p, g: p - 0.1 * g, parameters, mean(gradient)), value

    return lax.scan(step, parameters, batches)


def training():
    parameters = {"a": jnp.ones((3, 4)) / 3, "b": jnp.ones((4,), "float32")}
    batches = np.random.default_rng(3).normal(size=(20, size, 6, 3)).astype("float32")
    mine, _ = jax.jit(lambda p, b: train(p, b, lambda g: icj.all_reduce(g, "mean")))(parameters, batches[:, rank])
    whole, _ = jax.jit(lambda p, b: train(p, b, lambda g: g))(parameters, batches.reshape(20, -1, 3))
    for name in parameters:
        agree(name, mine[name], whole[name])


# The loss is a loop over all ranks: forward and backward, with stored and recomputed values.
def through_loops():
    def run(x, reduce):
        @jax.checkpoint
        def step(carry, _):
            carry = jnp.tanh(reduce(carry) * 0.3)
            return carry, carry.sum()
        return lax.scan(step, x, None, length=4)[1].sum()

    mine = jax.jit(jax.grad(lambda x: run(x, icj.all_reduce)))(rows[rank])
    model = CALLS["sum"][1]
    agree("grad of scan", mine, jax.grad(lambda xs: run(xs, model))(rows)[rank])


def types():
    for name in ("int8", "uint8", "int32", "uint32", "float16", "bfloat16", "float32", "complex64", "bool"):
        x = jnp.asarray(rows[rank] > 0 if name == "bool" else 3 * np.ones((2, 2))).astype(name)
        y = jax.jit(lambda x: icj.all_reduce(x, "max" if "complex" not in name else "sum"))(x)
        assert y.dtype == x.dtype and y.shape == x.shape, name
    even = icj.all_reduce({"a": jnp.ones(3), "b": [jnp.ones((), "int32"), jnp.zeros((0, 2))]})
    assert even["a"][0] == size and even["b"][0] == size and even["b"][1].shape == (0, 2)
    group = ic.new_group([0, last])
    if group.is_member:
        assert jax.jit(lambda x: icj.all_reduce(x, group=group))(jnp.ones(2))[0] == 2


for part in (values, gradients, order, in_control_flow, training, through_loops, types):
    if len(sys.argv) == 1 or part.__name__ in sys.argv[1:]:
        part()
        if rank == 0:
            print(f"{part.__name__}: right", flush=True)
