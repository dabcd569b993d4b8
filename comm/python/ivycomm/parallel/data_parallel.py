"""One model on many ranks: gradients that are averaged while the backward pass still runs.

    model = ivycomm.DataParallel(model)         # Rank 0's parameters and buffers, everywhere.
    loss = criterion(model(x), y)               # A mean over this rank's samples.
    loss.backward()                             # Gradients are those of the mean over all ranks' samples.

    with model.no_sync():                       # Accumulates without sending.
        criterion(model(x0), y0).backward()

For frameworks whose gradients are trees of arrays: ivycomm.average_gradients(tree, samples).
"""

import contextlib

import torch

from .. import collectives, groups

_FIRST_BUCKET_BYTES = 1 << 20  # Small, so that sending begins early.


class DataParallel(torch.nn.Module):
    """Wraps a torch module; every rank has one, with the same parameters, and feeds its own samples.

    device_ids: at most one GPU, to which the module is moved (a rank is one process with one device). bucket_cap_mb:
    gradients are sent in pieces of about this size, in the order in which they become ready. weighting: "samples"
    (default): ranks count by the length of the first tensor that forward is given, so that uneven batches give the
    gradient of one process that has them all; "ranks": every rank counts the same. group: the ranks that share the
    model; None: the world. broadcast_buffers: rank 0's buffers (running statistics) are copied before every forward
    pass that trains.

    A parameter that a pass does not use on any rank gets a gradient of zeros. Every rank makes the same number of
    backward passes. Errors: those of ivycomm's collectives, raised by backward(). Use from one thread.
    """

    def __init__(self, module, device_ids=None, *, bucket_cap_mb=25, weighting="samples", group=None,
                 broadcast_buffers=True):
        super().__init__()
        if weighting not in ("samples", "ranks"):
            raise ValueError(f'weighting "{weighting}" is not known: "samples" or "ranks"')
        device_ids = list(device_ids or [])
        if len(device_ids) > 1:
            raise ValueError(f"device_ids={device_ids}: a rank has one device; ivyrun --nproc_per_node "
                             f"{len(device_ids)} starts a rank for each")
        if group is None:
            groups.init()  # Not launched: a world of one.
        self._group = groups.resolve(group)
        self.module = module.to(f"cuda:{device_ids[0]}") if device_ids else module
        self._weighting, self._broadcasts_buffers = weighting, broadcast_buffers
        self._is_syncing, self._samples = True, 0
        self._copy_from_first([*module.parameters(), *module.buffers()])
        trained = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        self._buckets = _buckets(trained, bucket_cap_mb * 2**20)
        self._share = None  # What this rank counts in the pass under way; None: none is.
        self._hooks = [_when_accumulated(parameter, self._is_ready, bucket)
                       for bucket in self._buckets for parameter in bucket.parameters]

    def forward(self, *args, **kwargs):
        if self.training and torch.is_grad_enabled():
            if self._broadcasts_buffers and self._is_syncing:
                self._copy_from_first(self.module.buffers())
            self._samples += _length_of_batch((*args, *kwargs.values()))
        return self.module(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self):
        """Backward passes inside keep their gradients here; the first one after it sends what has come together."""
        former, self._is_syncing = self._is_syncing, False
        try:
            yield
        finally:
            self._is_syncing = former

    def _copy_from_first(self, tensors):
        if self._group.size == 1:
            return
        with torch.no_grad():
            for tensor in tensors:
                tensor.copy_(collectives.broadcast(tensor.detach(), 0, group=self._group))

    def _is_ready(self, bucket):
        if not self._is_syncing or self._group.size == 1:
            return
        if self._share is None:
            self._begin_pass()
        bucket.missing -= 1
        self._send_what_is_complete()

    def _begin_pass(self):
        mine, self._samples = self._samples, 0
        # Ranks that count the same are divided by their number, once: a share of 1/3 is rounded.
        self._share, self._op = 1.0, "avg"
        if self._weighting == "samples":
            total, squares = collectives.all_reduce(torch.tensor([mine, mine * mine]), group=self._group).tolist()
            if squares * self._group.size != total * total:
                self._share, self._op = mine / total, "sum"
        for bucket in self._buckets:
            bucket.missing = len(bucket.parameters)
        torch.autograd.Variable._execution_engine.queue_callback(self._end_pass)

    # Always in one order: the ranks' buckets must meet.
    def _send_what_is_complete(self, all_of_them=False):
        for bucket in self._buckets:
            if bucket.work is None:
                if bucket.missing > 0 and not all_of_them:
                    return
                bucket.send(self._share, self._op, self._group)

    def _end_pass(self):
        try:
            self._send_what_is_complete(all_of_them=True)
            for bucket in self._buckets:
                bucket.receive()
        finally:
            self._share = None
            for bucket in self._buckets:
                bucket.work = None


class _Bucket:
    """Parameters whose gradients travel together."""

    def __init__(self, parameters):
        self.parameters = parameters
        self.missing, self.work, self._flat = 0, None, None

    def send(self, share, op, group):
        with torch.no_grad():
            if self._flat is None:
                first = self.parameters[0]
                self._flat = torch.empty(sum(p.numel() for p in self.parameters), dtype=first.dtype, device=first.device)
            for parameter, part in self._parts():
                if parameter.grad is None:
                    part.zero_()
                elif parameter.grad.layout is not torch.strided:
                    raise TypeError("DataParallel sends dense gradients only: make the embedding with sparse=False")
                else:
                    torch.mul(parameter.grad, share, out=part)
            self.work = collectives.all_reduce_(self._flat, op, group=group, async_op=True)

    def receive(self):
        self.work.wait()
        with torch.no_grad():
            for parameter, part in self._parts():
                if parameter.grad is None:
                    parameter.grad = part.clone()
                else:
                    parameter.grad.copy_(part)

    def _parts(self):
        begin = 0
        for parameter in self.parameters:
            yield parameter, self._flat[begin:begin + parameter.numel()].view(parameter.shape)
            begin += parameter.numel()


def _buckets(parameters, cap):
    """Last parameters first, because backward passes make their gradients first."""
    buckets, open_ = [], {}
    for parameter in reversed(parameters):
        kind = (parameter.dtype, parameter.device)
        together, size = open_.get(kind, ([], 0))
        together.append(parameter)
        size += parameter.numel() * parameter.element_size()
        open_[kind] = (together, size)
        if size >= (cap if buckets else min(cap, _FIRST_BUCKET_BYTES)):
            buckets.append(_Bucket(together))
            del open_[kind]
    return buckets + [_Bucket(together) for together, _ in open_.values()]


def _when_accumulated(parameter, call, bucket):
    """call(bucket) after every pass's gradient has been added to parameter.grad."""
    if hasattr(parameter, "register_post_accumulate_grad_hook"):
        return parameter.register_post_accumulate_grad_hook(lambda _: call(bucket))
    # Before torch 2.1: the node that adds is kept by whoever holds it.
    node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
    return node, node.register_hook(lambda *_: call(bucket))


def _length_of_batch(values):
    for value in values:
        if isinstance(value, torch.Tensor) and value.dim():
            return len(value)
        if isinstance(value, dict):
            value = tuple(value.values())
        if isinstance(value, (list, tuple)):
            found = _length_of_batch(value)
            if found:
                return found
    return 0
