# SPDX-License-Identifier: Apache-2.0
"""The originals' calls on JAX's arrays compared with JAX itself: pmap with jax.vmap, calls with immutable buffers, and rank
0's array as pencils. Prints "NAME: right" for each part."""

import ivycomm as ic
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import ivy.distributed as i_dist

CLOSE = {"rtol": 1e-6, "atol": 1e-6}


def close(got, wanted):
    jax.tree_util.tree_map(lambda a, b: np.testing.assert_allclose(a, b, **CLOSE), got, wanted)
    assert jax.tree_util.tree_structure(got) == jax.tree_util.tree_structure(wanted)


def pmap_beside_vmap(rank, size):
    """Several and uneven numbers of positions for each rank, other axes, trees, and an argument that is not divided."""
    key = jax.random.PRNGKey(0)
    length = 3 * size + 1
    rows, columns = jax.random.normal(key, (length, 4)), jax.random.normal(key, (4, length))
    weights = jax.random.normal(key, (4, 2))

    def layer(row, column, weights):
        hidden = jnp.tanh(row @ weights)
        return {"hidden": hidden, "pair": (hidden.sum(), column[:2])}

    axes = (0, 1, None)
    close(i_dist.pmap(layer, in_axes=axes)(rows, columns, weights), jax.vmap(layer, in_axes=axes)(rows, columns, weights))
    calls = []

    def counted(row):
        calls.append(1)
        return jax.nn.gelu(row)

    close(i_dist.pmap(counted, out_axes=1)(rows), jax.vmap(jax.nn.gelu, out_axes=1)(rows))
    assert len(calls) == 1, "one call of JAX's own vmap maps all positions of a rank"
    gradient = jax.grad(lambda row: (row ** 3).sum())
    close(i_dist.pmap(gradient, dst=-1)(rows), jax.vmap(gradient)(rows))
    at_last = i_dist.pmap(gradient, dst=size - 1)(rows)
    assert (at_last is None) == (rank != size - 1)


def reductions(rank, size):
    """OpHandler's functions reduce axis 0, as the ranks' own reduction does."""
    every = np.arange(1.0, 4 * size + 1).reshape(size, 4)
    for name in "SUM", "MEAN", "MAX", "MIN", "PRODUCT":
        close(i_dist.OpHandler(name).jax_op(jnp.array(every)), i_dist.all_reduce(jnp.array(every[rank]), name))
    try:
        i_dist.OpHandler("BOR").jax_op
    except ValueError as error:
        assert "BOR" in str(error)
    else:
        raise AssertionError("JAX has a reduction BOR")


def moments_beside_one_process(rank, size):
    """Uneven batches, one of them empty, and the derivatives of the sum of all ranks' losses, with and without tracing."""
    lengths = [2 * each + 3 for each in range(size - 1)] + [0]
    whole = jax.random.normal(jax.random.PRNGKey(1), (sum(lengths), 6, 4)) + 3
    mine = slice(sum(lengths[:rank]), sum(lengths[:rank + 1]))
    weights = jnp.arange(1.0, 7.0)

    def loss(part):
        mean, variance, _ = ic.sync_moments(part, (0, 2))
        return (mean * weights + variance ** 2).sum()

    def everybodys(whole):
        return size * (whole.mean((0, 2)) * weights + whole.var((0, 2)) ** 2).sum()

    for call in ic.sync_moments, jax.jit(ic.sync_moments, static_argnums=1):
        mean, variance, count = call(whole[mine], (0, 2))
        assert isinstance(mean, jax.Array) and int(count) == whole.size // 6
        close((mean, variance), (whole.mean((0, 2)), whole.var((0, 2))))
    for gradient in jax.grad(loss), jax.jit(jax.grad(loss)):
        np.testing.assert_allclose(gradient(whole[mine]), jax.grad(everybodys)(whole)[mine], rtol=1e-4, atol=1e-5)
    try:
        ic.sync_moments(whole[:0], (0, 2))
    except ValueError as error:
        assert "no rank has any values" in str(error)
    else:
        raise AssertionError("a mean of nothing")


def calls_with_buffers(rank, size):
    """JAX's arrays are immutable: a buffer only sets shape and type, and the result is a new array."""
    buffer, whole = jnp.zeros(3), jnp.arange(3.0 * size)
    part = i_dist.scatter(buffer, whole if rank == 0 else None)
    assert isinstance(part, jax.Array) and np.array_equal(part, np.arange(3.0) + 3 * rank) and not buffer.any()
    if rank == 0:
        i_dist.send(part + 7, size - 1, None, 5)
    if rank == size - 1:
        got = i_dist.recv(buffer, 0, None, 5)
        assert isinstance(got, jax.Array) and np.array_equal(got, np.arange(3.0) + 7)
    close(i_dist.all_gather(part), whole)
    close(i_dist.all_reduce(part, i_dist.IvyReduceOp.MEAN), whole.reshape(size, 3).mean(axis=0))
    gradient, uneven = jax.grad(lambda weight, x: ((weight * x) ** 2).mean()), jnp.arange(3.0 * size + 1)
    close(i_dist.dp_pipeline(gradient, batch_axis=(None, 0))(2.0, uneven), gradient(2.0, uneven))


def pencils(rank, size):
    """Rank 0's array over all devices, along the mesh's axes and transposed, compared with NumPy's slices."""
    whole = np.random.default_rng(42).normal(size=(32, 16)).astype("f4")
    mesh = Mesh(np.array(jax.devices()).reshape(2, -1), ("a", "b"))
    for spec in (PartitionSpec("a", "b"), PartitionSpec("b", "a"), PartitionSpec(None, ("a", "b")), PartitionSpec()):
        array = ic.scatter_to_sharding(whole if rank == 0 else None, NamedSharding(mesh, spec))
        assert array.shape == whole.shape and array.is_fully_replicated == (spec == PartitionSpec())
        for shard in array.addressable_shards:
            assert np.array_equal(shard.data, whole[shard.index])
    uneven = np.zeros((33, 16), "f4") if rank == 0 else None
    try:
        ic.scatter_to_sharding(uneven, NamedSharding(mesh, PartitionSpec("a", "b")))
    except ValueError as error:
        assert "33" in str(error), error
    else:
        raise AssertionError("33 rows over two devices, and no ValueError on this rank")
    array = ic.scatter_to_sharding(whole if rank == 0 else None, NamedSharding(mesh, PartitionSpec("a", "b")))
    assert not array.is_fully_addressable
    try:
        ic.all_reduce(array)
    except TypeError as error:
        assert "scatter" in str(error) or "addressable" in str(error), error
    else:
        raise AssertionError("an array of which other processes have parts was reduced")


def main():
    jax.distributed.initialize()
    ic.init()
    for part in (pmap_beside_vmap, reductions, moments_beside_one_process, calls_with_buffers, pencils):
        part(ic.rank(), ic.world_size())
        print(f"{part.__name__}: right", flush=True)


if __name__ == "__main__":
    main()
