"""DataParallel, SyncBatchNorm and their parts, compared with one process that has all samples; prints "all equal"."""

import copy

import ivycomm as ic
import numpy as np
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = torch.nn.Linear(20, 300), torch.nn.Linear(300, 300), torch.nn.Linear(300, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.middle(torch.relu(self.first(x)))))


def check_gradients(expected, got):
    for mine, theirs in zip(expected.parameters(), got.parameters()):
        assert torch.allclose(mine.grad, theirs.grad, atol=1e-6, rtol=1e-6), (mine.grad - theirs.grad).abs().max()


def check_data_parallel(rank, size):
    torch.manual_seed(5)
    expected = Model()
    model = copy.deepcopy(expected)
    if rank:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1)  # The count of rank 0.
    parallel = ic.DataParallel(model, bucket_cap_mb=0.1)
    assert isinstance(parallel, torch.nn.parallel.DistributedDataParallel)
    assert torch.distributed.get_backend() == "ivy" and torch.distributed.get_world_size() == size
    x, y = torch.randn(4 * size, 20), torch.randn(4 * size, 3)
    mine = slice(4 * rank, 4 * rank + 4)
    loss = torch.nn.functional.mse_loss
    for _ in range(3):
        expected.zero_grad()
        parallel.zero_grad()
        loss(expected(x), y).backward()
        loss(parallel(x[mine]), y[mine]).backward()
        check_gradients(expected, model)
    expected.zero_grad()
    parallel.zero_grad()
    for _ in range(2):
        loss(expected(x), y).backward()
    with parallel.no_sync():
        loss(parallel(x[mine]), y[mine]).backward()
    loss(parallel(x[mine]), y[mine]).backward()
    check_gradients(expected, model)
    for wrong, instead in (({"device_ids": [0, 1]}, "nproc_per_node"), ({"weighting": "ranks"}, "multiply the loss"),
                           ({"group": ic.world()}, "process_group=")):
        try:
            ic.DataParallel(Model(), **wrong)
        except (TypeError, ValueError) as error:
            assert instead in str(error), error
            continue
        raise AssertionError(wrong)


def check_that_broken_passes_are_not_silent(rank, size):
    """A backward pass that raised, parameters used by two checkpoints, and a forward pass without a backward pass."""
    from torch.utils.checkpoint import checkpoint
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    parallel = ic.DataParallel(model, bucket_cap_mb=1e-6)

    def fail(_):
        raise ArithmeticError("a loss that is not a number")

    hidden = model[0].weight.register_hook(fail)
    try:
        parallel(torch.randn(3, 4)).sum().backward()
        raise AssertionError("the hook was not called")
    except ArithmeticError:
        hidden.remove()
    check_equal_or_error(parallel, lambda: parallel(torch.randn(3, 4)).sum().backward())

    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.shared = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        def forward(self, x):
            x = self.first(x)
            for _ in range(2):
                x = checkpoint(self.shared, x, use_reentrant=True)
            return x

    parallel = ic.DataParallel(Twice())
    check_equal_or_error(parallel, lambda: parallel(torch.randn(3, 4)).sum().backward())

    parallel = ic.DataParallel(torch.nn.Linear(4, 4))
    if rank == 0:
        parallel(torch.randn(3, 4))  # A pass without a backward pass, for example for a log.
    parallel(torch.full((3, 4), float(rank))).sum().backward()
    assert torch.allclose(parallel.module.weight.grad, torch.full((4, 4), 3.0 * sum(range(size)) / size))


def check_equal_or_error(parallel, run_pass):
    """All ranks have the same gradients, none of them zero, or all ranks raise."""
    parallel.zero_grad()
    try:
        run_pass()
    except RuntimeError as error:
        outcome = type(error).__name__
    else:
        assert all(parameter.grad.any() for parameter in parallel.parameters())
        outcome = [parameter.grad.tolist() for parameter in parallel.parameters()]
    outcomes = ic.all_gather_object(outcome)
    assert all(each == outcome for each in outcomes), outcomes


def check_batch_norm(rank, size):
    torch.manual_seed(3)
    lengths = [2 * each + 3 for each in range(size)]
    if size > 2:
        lengths[-1] = 0
    begin = sum(lengths[:rank])
    mine = slice(begin, begin + lengths[rank])
    x = torch.randn(sum(lengths), 6, 4, dtype=torch.float64) + 1e4  # With sums of squares, digits would cancel.
    weights = torch.randn_like(x)
    expected, got = torch.nn.BatchNorm1d(6).double(), ic.SyncBatchNorm(6).double()
    with torch.no_grad():
        for theirs, ours in zip(expected.parameters(), got.parameters()):
            theirs.copy_(torch.randn(6))
            ours.copy_(theirs)
    whole, part = x.clone().requires_grad_(), x[mine].clone().requires_grad_()
    y, z = expected(whole), got(part)
    (y * weights).sum().backward()
    (z * weights[mine]).sum().backward()
    assert torch.allclose(z, y[mine], atol=1e-7) and torch.allclose(part.grad, whole.grad[mine], atol=1e-7)
    assert torch.allclose(expected.running_mean, got.running_mean) and torch.allclose(expected.running_var, got.running_var)
    assert torch.allclose(ic.all_reduce(got.weight.grad), expected.weight.grad, atol=1e-6)
    mean, variance, count = ic.sync_moments(x[mine].numpy(), (0, 2))
    assert count == x.numel() // 6 and np.allclose(mean, x.numpy().mean((0, 2))) and np.allclose(variance, x.numpy().var((0, 2)))
    net = ic.SyncBatchNorm.convert(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Sequential(torch.nn.BatchNorm1d(4))))
    assert isinstance(net[1][0], ic.SyncBatchNorm)
    got.eval()
    expected.eval()
    assert torch.allclose(got(x), expected(x))


def check_batch_norm_of_halves(rank, size):
    """Moments are computed in float32, as by torch. The result has the input's type, and shared parameters remain shared."""
    torch.manual_seed(8)
    for kind in torch.bfloat16, torch.float16:
        for mean, deviation in (0, 1), (100, 1), (0, 400):
            x = (torch.randn(64 * size, 4) * deviation + mean).to(kind)
            exact, got = torch.nn.BatchNorm1d(4).double(), ic.SyncBatchNorm(4)
            mine = slice(64 * rank, 64 * rank + 64)
            y, z = exact(x.double()), got(x[mine])
            assert z.dtype == kind and (z.double() - y[mine]).abs().max() < 0.02, (kind, mean, deviation)
            assert torch.allclose(got.running_var.double(), exact.running_var, rtol=1e-4), got.running_var
            assert torch.allclose(got.running_mean.double(), exact.running_mean, rtol=1e-4, atol=1e-3)
    shared = torch.nn.BatchNorm1d(2).half()
    shared.weight.requires_grad_(False)
    twin = torch.nn.BatchNorm1d(2)
    twin.weight = shared.weight
    made = ic.SyncBatchNorm.convert(torch.nn.Sequential(shared, torch.nn.Linear(2, 2), shared, twin))
    assert made[0] is made[2] and made[3].weight is made[0].weight and made[0].weight is not shared.weight
    assert not made[0].weight.requires_grad and made[0].bias.requires_grad and made[0].weight.dtype == torch.float16
    try:
        ic.broadcast(np.ones(2, np.float32), out=torch.empty(2, device="meta"))
        raise AssertionError("memory of two places")
    except ValueError as error:
        assert "memory of meta" in str(error), error


def check_options_of_batch_norm(rank, size):
    """Compares each option with torch's layer on the rows of all ranks."""
    torch.manual_seed(4)
    for options in ({"affine": False}, {"momentum": None}, {"track_running_stats": False}, {"eps": 0.5}, {"momentum": 0.4}):
        expected, got = torch.nn.BatchNorm1d(5, **options).double(), ic.SyncBatchNorm(5, **options).double()
        assert [*expected.state_dict()] == [*got.state_dict()], options
        for _ in range(3):
            x = torch.randn(3 * size, 5, dtype=torch.float64) * 2 + 1
            y, z = expected(x), got(x[3 * rank:3 * rank + 3])
            assert torch.allclose(z, y[3 * rank:3 * rank + 3], atol=1e-7), options
        for mine, theirs in zip(expected.state_dict().values(), got.state_dict().values()):
            assert torch.allclose(mine, theirs), options
        expected.eval()
        got.eval()
        y, z = expected(x), got(x if got.track_running_stats else x[3 * rank:3 * rank + 3])
        assert torch.allclose(z, y if got.track_running_stats else y[3 * rank:3 * rank + 3]), options


class Counting(torch.nn.Module):
    """A module with keyword arguments and a buffer that each pass changes by the rank's data."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x, *, scale=1.0):
        if self.training:
            self.seen += x.sum().detach() + 1
        return self.layer(x["x"] if isinstance(x, dict) else x) * scale


def check_options_of_data_parallel(rank, size):
    torch.manual_seed(6)
    whole = Counting().double()
    x = torch.randn(sum(range(1, size + 1)), 3, dtype=torch.float64)
    begin = sum(range(1, rank + 1))
    mine = x[begin:begin + rank + 1]
    parallel = ic.DataParallel(copy.deepcopy(whole))
    # Every rank has the same weight: the mean of the ranks' means, independent of their batch sizes.
    parallel(x=mine, scale=2.0).square().mean().backward()
    parts = torch.split(x, list(range(1, size + 1)))
    (sum(whole(part, scale=2.0).square().mean() for part in parts) / size).backward()
    for ours, theirs in zip(parallel.module.parameters(), whole.parameters()):
        assert torch.allclose(ours.grad, theirs.grad, atol=1e-12)
    # The way to weight by samples that the message about `weighting` recommends.
    parallel.zero_grad()
    whole.zero_grad()
    (parallel(x=mine).square().mean() * len(mine) * size / len(x)).backward()
    whole(x).square().mean().backward()
    for ours, theirs in zip(parallel.module.parameters(), whole.parameters()):
        assert torch.allclose(ours.grad, theirs.grad, atol=1e-12)
    for broadcasts in (True, False):
        parallel = ic.DataParallel(Counting().double(), broadcast_buffers=broadcasts)
        parallel.module.seen.fill_(rank)
        before = parallel.module.seen.clone()
        parallel(mine)
        began = parallel.module.seen - mine.sum() - 1
        assert torch.allclose(began, torch.zeros(1, dtype=began.dtype) if broadcasts else before), began
    assert parallel.train() is parallel and parallel.module.training and parallel.eval() is parallel
    assert not parallel.module.training and parallel.to(torch.float32) is parallel
    assert parallel.module.layer.weight.dtype == torch.float32
    seen = parallel.module.seen.clone()
    assert parallel(mine.float()).shape == (rank + 1, 2) and torch.equal(seen, parallel.module.seen)


def check_trees_of_gradients(rank, size):
    tree = {"layers": [{"w": np.full((2, 3), float(rank)), "b": np.float32([rank])}, (torch.full((2,), float(rank)),)],
            "step": np.array(2.0 * rank), "none": None}
    mean = sum(range(size)) / size
    for samples, wanted in ((None, mean), (rank + 1, sum(r * (r + 1) for r in range(size)) / sum(range(1, size + 1)))):
        made = ic.average_gradients(tree, samples)
        first, second = made["layers"]
        assert isinstance(second, tuple) and isinstance(second[0], torch.Tensor) and made["none"] is None
        assert np.allclose(first["w"], np.full((2, 3), wanted)) and np.allclose(first["b"], wanted)
        assert np.allclose(second[0], wanted) and np.allclose(made["step"], 2 * wanted), (made, wanted)
    assert float(tree["step"]) == 2 * rank


def main():
    ic.init()
    rank, size = ic.rank(), ic.world_size()
    check_data_parallel(rank, size)
    check_that_broken_passes_are_not_silent(rank, size)
    check_batch_norm(rank, size)
    check_batch_norm_of_halves(rank, size)
    check_options_of_batch_norm(rank, size)
    check_options_of_data_parallel(rank, size)
    check_trees_of_gradients(rank, size)
    mean = ic.average_gradients({"w": np.full(3, float(rank))}, samples=rank + 1)["w"]
    assert np.allclose(mean, sum(each * (each + 1) for each in range(size)) / sum(range(1, size + 1)))
    ic.finalize()
    assert not torch.distributed.is_initialized()  # The group that DataParallel created.
    print("all equal")


if __name__ == "__main__":
    main()
