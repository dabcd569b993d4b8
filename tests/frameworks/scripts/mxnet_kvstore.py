"""A key-value store of MXNet between processes, as its own test of it: servers keep weights, which every worker changes."""

import mxnet as mx

kv = mx.kv.create("dist_async")
kv.set_optimizer(mx.optimizer.create("test", rescale_grad=2))
shape = (2, 3)
kv.init("weights", mx.nd.ones(shape))
out = mx.nd.empty(shape)
for _ in range(3):
    kv.push("weights", mx.nd.ones(shape) * (kv.rank + 1))
    kv.pull("weights", out=out)
    out.wait_to_read()
kv._barrier()
kv.pull("weights", out=out)
total = kv.num_workers * (kv.num_workers + 1) / 2
assert (out.asnumpy() == 1 + 3 * 2 * total).all(), out
print(f"worker {kv.rank} of {kv.num_workers}: weights {out.asnumpy()[0, 0]}", flush=True)
