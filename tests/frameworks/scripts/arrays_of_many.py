# SPDX-License-Identifier: Apache-2.0
"""arrays_of_many.py FRAMEWORK[,FRAMEWORK...]: rank i uses arrays of the i-th framework; further ranks use the last one.

Every operation returns arrays of the rank's own framework, whatever the others use. Prints "all equal" at the end.
"""

import os
import sys
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["JAX_ENABLE_X64"] = "1"

import ivycomm as ic

SMALL = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
TYPES = ("float32", "float64", "float16", "int32", "int64", "uint8", "bool", "complex64", *SMALL)


class Numpy:
    cannot = ()

    def __init__(self):
        import ml_dtypes
        import numpy
        self.small, self.numpy = ml_dtypes, numpy

    def plain(self, values, dtype):
        return self.numpy.array(values).astype(getattr(self.small, dtype) if dtype in SMALL else dtype)

    def made(self, values, dtype):
        return self.plain(values, dtype)

    def listed(self, x):
        return self.numpy.asarray(x).astype("complex64").real.tolist()


class Torch:
    cannot = ()

    def __init__(self):
        import torch
        torch.set_num_threads(1)
        self.torch = torch

    def made(self, values, dtype):
        return self.torch.tensor(values).to(getattr(self.torch, dtype))

    def listed(self, x):
        x = self.torch.as_tensor(x)  # The result of scatter, for which this rank passed no array, may be of another framework.
        return (x.real if x.is_complex() else x.to(self.torch.float32)).tolist()


class Jax(Numpy):
    def made(self, values, dtype):
        import jax.numpy as jnp
        return jnp.asarray(self.plain(values, dtype))


class TensorFlow(Numpy):
    def made(self, values, dtype):
        import tensorflow
        return tensorflow.constant(self.plain(values, dtype))


class Mlx(Numpy):
    cannot = ("float64", "float8_e4m3fn", "float8_e5m2")  # MLX does not support these types on every device.

    def made(self, values, dtype):
        import mlx.core
        return mlx.core.array(self.plain(values, dtype))

    def listed(self, x):
        import mlx.core
        if isinstance(x, mlx.core.array):
            x = self.numpy.array(x.astype(mlx.core.complex64))
        return super().listed(x)


class Paddle(Numpy):
    cannot = ("float8_e4m3fn", "float8_e5m2")

    def made(self, values, dtype):
        import paddle
        return paddle.to_tensor(self.numpy.array(values)).astype(dtype)

    def listed(self, x):
        import paddle
        if isinstance(x, paddle.Tensor):
            x = x.astype("complex64").numpy()
        return super().listed(x)


class Ivy(Numpy):
    cannot = SMALL

    def made(self, values, dtype):
        import ivy
        ivy.set_backend("numpy")
        return ivy.array(self.plain(values, dtype))

    def listed(self, x):
        return super().listed(x.data)


FRAMEWORKS = {"numpy": Numpy, "torch": Torch, "jax": Jax, "tensorflow": TensorFlow, "mlx": Mlx, "paddle": Paddle,
              "ivy": Ivy}


def operations(x, r, n):
    """Returns {name: (result, values)} for x = [[0, 1], [1, 0]] on every rank."""
    grid = [[0, 1], [1, 0]]
    return {
        "all_reduce": (ic.all_reduce(x, "max"), grid),
        "asynchronous": (ic.all_reduce(x, "max", async_op=True).wait(30), grid),
        "all_gather": (ic.all_gather(x), grid * n),
        "along axis 1": (ic.all_gather(x, axis=1), [row * n for row in grid]),
        "uneven along axis 1": (ic.all_gather(x, axis=1, uneven=True), [row * n for row in grid]),
        "all_gather_list": (ic.all_gather_list(x)[n - 1], grid),
        "broadcast": (ic.broadcast(x, n - 1), grid),
        "scan": (ic.scan(x, "max"), grid),
        "a tree": (ic.all_reduce({"a": [x, None]}, "max")["a"][0], grid),
        "coalesced": (ic.all_reduce_coalesced([x, x], "max")[1], grid),
        "sendrecv": (ic.sendrecv(x, (r + 1) % n, src=(r - 1) % n), grid),
        "all_to_all": (ic.all_to_all(x, [2] + [0] * (n - 1)), grid * n if r == 0 else []),
    }


def moved(framework, r, n):
    for dtype in TYPES:
        if dtype in all_cannot:
            continue
        x = framework.made([[0, 1], [1, 0]], dtype)
        is_complex = dtype == "complex64"
        for name, (got, expected) in ({} if is_complex else operations(x, r, n)).items():
            what = f"{name} of {dtype}"
            assert type(got) is type(x), f"{what}: a {type(got)}"
            assert got.dtype == x.dtype, f"{what}: {got.dtype}, not {x.dtype}"
            assert framework.listed(got) == expected, f"{what}: {got}"
        total = ic.all_reduce(x)
        assert type(total) is type(x) and total.dtype == x.dtype, f"sum of {dtype}: {type(total)}"
        assert framework.listed(total) == [[0, 1 if dtype == "bool" else n], [1 if dtype == "bool" else n, 0]], total
        part = ic.scatter(framework.made([[i] for i in range(n)], "float32") if r == 0 else None)
        assert framework.listed(part) == [[r]], part
        for one in (ic.reduce(x), ic.gather(x)):
            assert (one is None) == (r != 0) and (one is None or type(one) is type(x))
        assert framework.listed(x) == [[0, 1], [1, 0]], "the input has changed"
    one = framework.made(r, "float32")
    assert framework.listed(ic.all_reduce(one)) == sum(range(n)) and framework.listed(ic.all_gather(one)) == list(range(n))
    empty = framework.made([[], []], "float32")
    assert tuple(ic.all_reduce(empty).shape) == (2, 0) and type(ic.all_reduce(empty)) is type(empty)


def refused(call, kind, *words):
    try:
        call()
    except kind as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError(f"not refused: {words}")


def in_place(framework, r, n):
    """In-place operations. All ranks take part, each as far as its framework supports them."""
    x = framework.made([1, 2, 3], "float32")
    if framework.name in ("jax", "tensorflow", "mlx"):
        refused(lambda: ic.all_reduce_(x), TypeError, "is read-only", "trailing underscore")
        refused(lambda: ic.all_reduce({"a": x}["a"], out=x), TypeError, "is read-only")
        tree = [Numpy().made([1.0], "float32"), x]
        refused(lambda: ic.all_reduce_(tree), TypeError, "is read-only")
        assert framework.listed(x) == [1, 2, 3] and tree[0][0] == 1, "written before it was refused"
    if framework.name == "tensorflow":
        import tensorflow
        x = tensorflow.Variable(x)
        total = ic.all_reduce(x, async_op=True).wait(30)
        assert isinstance(total, tensorflow.Tensor) and framework.listed(x.value()) == [1, 2, 3]
    else:
        total = ic.all_reduce(x, async_op=True).wait(30)
    assert framework.listed(total) == [n, 2 * n, 3 * n]
    if framework.name in ("jax", "mlx"):
        ic.all_reduce(x)  # Matches the other ranks' all_reduce_().
        return
    assert ic.all_reduce_(x) is x
    assert framework.listed(x.value() if framework.name == "tensorflow" else x) == [n, 2 * n, 3 * n]


def mismatched(framework, r, n):
    """Mismatches are reported on every rank. Each of them breaks its group."""
    groups = [ic.new_group(range(n)) for _ in range(2)]
    wrong = [framework.made([1] * (1 + r), "float32"), framework.made([1], "float32" if r else "int32")]
    for group, x in zip(groups, wrong):
        try:
            ic.all_reduce(x, group=group)
        except ic.Mismatch as error:
            assert "all_reduce" in str(error), error
        else:
            raise AssertionError("a mismatch was not noticed")


def own_refusals(framework, r, n):
    """Arrays specific to this framework that are rejected before anything is sent."""
    if framework.name == "jax":
        import jax
        import jax.numpy as jnp
        from jax.experimental import sparse
        x = jnp.ones(4)
        refused(lambda: jax.jit(ic.all_reduce)(x), TypeError, "ivycomm.jax")
        refused(lambda: jax.grad(lambda t: ic.all_reduce(t).sum())(x), TypeError, "ivycomm.jax")
        refused(lambda: ic.all_reduce(sparse.BCOO.fromdense(x)), TypeError, "sparse", "todense()")
        refused(lambda: ic.all_reduce(jax.random.key(0)), TypeError, "key_data")
        devices = jax.devices()
        mesh = jax.sharding.Mesh(devices, ("d",))
        spread = jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d")))
        refused(lambda: ic.all_reduce(spread), TypeError, f"sharded over {len(devices)} devices", "addressable_shards")
        second = jax.device_put(x, devices[1])
        assert ic.all_reduce(second, group=alone).devices() == {devices[1]}
        tree = Pair(x, {"n": jnp.ones(2, "int32")})
        jax.tree_util.register_pytree_node(Pair, lambda p: ((p.a, p.b), None), lambda _, parts: Pair(*parts))
        got = ic.all_reduce(tree, group=alone)
        assert type(got) is Pair and type(got.a) is type(x) and got.b["n"].dtype == "int32"
    elif framework.name == "tensorflow":
        import tensorflow
        x = tensorflow.ones(4)
        refused(lambda: tensorflow.function(ic.all_reduce, autograph=False)(x), TypeError, "py_function")
        refused(lambda: ic.all_reduce(tensorflow.sparse.from_dense(x)), TypeError, "to_dense")
        refused(lambda: ic.all_reduce(tensorflow.ragged.constant([[1.0], [1.0, 2.0]])), TypeError, "to_tensor")
        refused(lambda: ic.all_reduce(tensorflow.constant(["text"])), TypeError, "string")
        # Results that start inside a block are copied, because TensorFlow needs aligned memory.
        assert framework.listed(ic.all_gather_list(tensorflow.ones(3), group=alone)[0]) == [1, 1, 1]
    elif framework.name == "paddle":
        import paddle
        sparse = paddle.sparse.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], [2, 2])
        for call in (ic.all_reduce, ic.all_reduce_):
            refused(lambda call=call: call(sparse), TypeError, "sparse", "to_dense()")
        weights = paddle.ones([2])
        weights.stop_gradient = False
        refused(lambda: ic.all_reduce(weights), TypeError, "gradient", "detach()")
    elif framework.name == "torch":
        import torch
        import torch.distributed.tensor
        torch.utils._pytree._register_pytree_node(Pair, lambda p: ([p.a, p.b], None), lambda parts, _: Pair(*parts))
        got = ic.broadcast(Pair(torch.ones(2), {"n": [torch.ones(1)]}), group=alone)
        assert type(got) is Pair and torch.equal(got.b["n"][0], torch.ones(1))
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        whole = torch.distributed.tensor.distribute_tensor(
            torch.ones(2), torch.distributed.device_mesh.init_device_mesh("cpu", (1,)))
        refused(lambda: ic.all_reduce(whole), TypeError, "DTensor", "to_local()")
        torch.distributed.destroy_process_group()
        refused(lambda: ic.all_reduce(torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])), TypeError, "nested")


class Pair:
    def __init__(self, a, b):
        self.a, self.b = a, b


def main():
    global alone, all_cannot
    warnings.simplefilter("ignore")
    ic.init(timeout=90)
    r, n = ic.rank(), ic.world_size()
    names = sys.argv[1].split(",")
    name = names[min(r, len(names) - 1)]
    framework = FRAMEWORKS[name]()
    framework.name = name
    alone = [ic.new_group([rank]) for rank in range(n)][r]
    all_cannot = {dtype for each in set(names) for dtype in FRAMEWORKS[each].cannot}
    for part in (moved, in_place, own_refusals, mismatched):
        part(framework, r, n)
        ic.barrier()
    print(f"rank {r} has {type(framework.made([1], 'float32')).__module__}: all equal")


if __name__ == "__main__":
    main()
