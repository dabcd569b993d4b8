"""A program of Neurenix, which is not installed, and one of ivy.distributed. Prints "all equal" at the end."""

import neurenix
from neurenix.distributed import (DataParallel, DistributedContext, RpcContext, SyncBatchNorm, barrier, get_rank,
                                  get_world_size, init_distributed, is_main_process, rpc_async, rpc_sync)
from neurenix.nn import Linear, Module
from neurenix.optim import SGD


class SimpleModel(Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.norm, self.fc2 = Linear(784, 32), SyncBatchNorm(32), Linear(32, 10)

    def forward(self, x):
        return self.fc2(self.norm(self.fc1(x).relu()))


def train():
    device = neurenix.get_device(f"cuda:{get_rank()}")
    model = DataParallel(SimpleModel().to(device))
    optimizer = SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(neurenix.tensor.ones(4, 784) * get_rank()).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def check_files():
    """Tensors are saved and loaded again."""
    import tempfile
    random = neurenix.tensor.randn(30, 2)
    assert isinstance(random, neurenix.Tensor) and 0.3 < random.std().item() < 3
    with tempfile.TemporaryDirectory() as folder:
        random.save(folder + "/values.npy")
        again = neurenix.tensor.load(folder + "/values.npy")
    assert isinstance(again, neurenix.Tensor) and again.tolist() == random.tolist() and again.dtype == random.dtype


def main():
    assert is_main_process() and (get_rank(), get_world_size()) == (0, 1)
    barrier()
    context = init_distributed(backend="nccl")
    losses = train()
    assert len(losses) == 5 and all(0 < loss < 10 for loss in losses), losses
    with RpcContext() as calls:
        calls.register_function("square", lambda x: x * x)
        barrier()
        to = (get_rank() + 1) % get_world_size()
        assert rpc_sync(to, "square", 7) == 49 and rpc_async(to, "square", 3).result() == 9
    tensor = neurenix.tensor.Tensor([[1.0, 2.0], [3.0, 4.0]])
    assert (tensor - tensor.mean(dim=0)).numpy().tolist() == [[-1, -1], [1, 1]]
    assert context.is_main_process == (context.rank == 0) and context.is_initialized
    check_files()
    context.shutdown()
    assert not context.is_initialized
    try:
        DistributedContext(backend="carrier pigeon")
    except ValueError as error:
        assert "gloo, mpi, nccl" in str(error), error
    for name, guess in ("distribted", "distributed"), ("get_devise", "get_device"):
        try:
            getattr(neurenix, name)
        except AttributeError as error:
            assert f'did you mean "{guess}"?' in str(error), error
    with DistributedContext(backend="gloo") as again:
        import ivy.distributed as i_dist
        assert i_dist.ParallelContext().world_size == again.world_size
    print("all equal")


main()
