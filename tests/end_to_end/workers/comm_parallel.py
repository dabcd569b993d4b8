"""DataParallel, SyncBatchNorm and their parts beside one process that has all samples; says "all equal" at the end."""

import copy

import ivycomm as ic
import numpy as np
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = torch.nn.Linear(20, 300), torch.nn.Linear(300, 300), torch.nn.Linear(300, 3)
        self.unused = torch.nn.Linear(3, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.middle(torch.relu(self.first(x)))))


def check_gradients(expected, got):
    for mine, theirs in zip(expected.parameters(), got.parameters()):
        if mine.grad is None:
            assert theirs.grad is None or not theirs.grad.any()
        else:
            assert torch.allclose(mine.grad, theirs.grad, atol=1e-6, rtol=1e-6), (mine.grad - theirs.grad).abs().max()


def check_data_parallel(rank, size):
    torch.manual_seed(5)
    expected = Model()
    model = copy.deepcopy(expected)
    if rank:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1)  # Rank 0's count.
    parallel = ic.DataParallel(model, bucket_cap_mb=0.1)
    lengths = [3 + 5 * each for each in range(size)]
    x, y = torch.randn(sum(lengths), 20), torch.randn(sum(lengths), 3)
    begin = sum(lengths[:rank])
    mine = slice(begin, begin + lengths[rank])
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
    for wrong in ({"device_ids": [0, 1]}, {"weighting": "weight"}):
        try:
            ic.DataParallel(Model(), **wrong)
        except ValueError:
            continue
        raise AssertionError(wrong)


class Recorded(torch.nn.Module):
    """Its parameter's gradient is `gradient`, bit for bit, whatever it is given."""

    def __init__(self, gradient):
        super().__init__()
        self.gradient, self.weight = gradient, torch.nn.Parameter(torch.zeros_like(gradient))

    def forward(self, batch):
        return (self.weight * self.gradient).sum()


def check_equal_gradients():
    """Ranks that count the same are divided once: where the sum is exact, what is the same on every rank stays that.
    Sums of shares differ in the last bit."""
    torch.manual_seed(9)
    exact = torch.randint(-2**20, 2**20, (1000,)) / 1024
    rounded = torch.cat([torch.tensor([0.1, 1 / 3, 1e-30]), torch.randn(1000)])
    for gradient, mean in ((exact, exact), (rounded, ic.all_reduce(rounded, "avg"))):
        for weighting, length in (("ranks", 4), ("samples", 4), ("samples", 0)):
            model = Recorded(gradient)
            ic.DataParallel(model, weighting=weighting)(torch.zeros(length, 2)).backward()
            assert torch.equal(model.weight.grad, mean), (weighting, length)


def check_overlap(size):
    """When the backward pass reaches the first layer, the last one's gradients are on their way already."""
    model = torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.Linear(300, 300), torch.nn.Linear(300, 3))
    parallel, under_way = ic.DataParallel(model, bucket_cap_mb=0.1), []
    model[0].weight.register_hook(
        lambda _: under_way.append([bucket.work is not None for bucket in parallel._buckets]))
    parallel(torch.randn(4, 20)).sum().backward()
    assert under_way == [[size > 1, False]], under_way


def check_batch_norm(rank, size):
    torch.manual_seed(3)
    lengths = [2 * each + 3 for each in range(size)]
    if size > 2:
        lengths[-1] = 0
    begin = sum(lengths[:rank])
    mine = slice(begin, begin + lengths[rank])
    x = torch.randn(sum(lengths), 6, 4, dtype=torch.float64) + 1e4  # Sums of squares would cancel.
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


def check_options_of_batch_norm(rank, size):
    """Each beside torch's layer, which has all ranks' rows."""
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
    """Named arguments, and a buffer that each pass changes by what the rank has."""

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
    parallel = ic.DataParallel(copy.deepcopy(whole), weighting="ranks")
    # Every rank counts the same: the mean of the ranks' means, however long their batches are.
    parallel(x=mine, scale=2.0).square().mean().backward()
    parts = torch.split(x, list(range(1, size + 1)))
    (sum(whole(part, scale=2.0).square().mean() for part in parts) / size).backward()
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
    check_equal_gradients()
    check_overlap(size)
    check_batch_norm(rank, size)
    check_options_of_batch_norm(rank, size)
    check_options_of_data_parallel(rank, size)
    check_trees_of_gradients(rank, size)
    mean = ic.average_gradients({"w": np.full(3, float(rank))}, samples=rank + 1)["w"]
    assert np.allclose(mean, sum(each * (each + 1) for each in range(size)) / sum(range(1, size + 1)))
    print("all equal")


if __name__ == "__main__":
    main()
