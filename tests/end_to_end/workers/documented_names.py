"""Prints a line for each of the originals' documented names that is missing or differs.

A row is a name and its documented signature: parameters in their order, with their names and defaults. ivycomm's function
may have more parameters after those, with defaults. A row without a signature is a property or a value that must exist.
"""

import importlib
import inspect
import sys

I_DIST = """
init_dist(backend=None)
is_initialized()
print0(*args, group=None)
ParallelContext()
ParallelContext.initilize()
ParallelContext.reset_context()
ParallelContext.get_global_rank()
ParallelContext.get_local_rank()
ParallelContext.get_world_size()
Group(group)
Group.to_native_group()
Group.from_native_group(native_group)
Group.__len__
Group.__getitem__
NativeGroup
IvyReduceOp.SUM
IvyReduceOp.MEAN
IvyReduceOp.MAX
IvyReduceOp.MIN
IvyReduceOp.PRODUCT
IvyReduceOp.BAND
IvyReduceOp.BOR
IvyReduceOp.BXOR
OpHandler(op)
OpHandler.name
OpHandler.torch_op
OpHandler.mpi_op
OpHandler.cupy_op()
Mesh(shape, group)
NamedMesh(shape, group, axis_names)
MpDpMesh(shape, group)
all_reduce(x, op, *, group=None, out=None)
all_gather(x, axis=0, *, group=None, tiled=False, out=None)
all_to_all(x, group=None, out=None)
broadcast(x, *, group=None, src=0)
gather(x, axis=0, *, group=None, tiled=False, dst=0, out=None)
reduce(x, op, *, group=None, dst=0, out=None)
scatter(out_buffer, x=None, *, group=None, src=0)
reduce_scatter(x, op, *, group=None, out=None)
send(x, dst, group=None, tag=0)
recv(x_buffer, src, group=None, tag=0)
barrier(group=None)
pmap(fn, *, in_axes=0, out_axes=0, group=None)
xmap
dp_pipeline(grad_fn, batch_axis=0)
"""

NEURENIX = """
DistributedContext(backend="nccl", init_method=None, world_size=-1, rank=-1, device_id=None, timeout=1800.0)
DistributedContext.initialize()
DistributedContext.shutdown()
DistributedContext.is_initialized
DistributedContext.is_main_process
DistributedContext.__enter__()
init_distributed(backend="nccl", init_method=None, world_size=-1, rank=-1, device_id=None)
get_rank()
get_world_size()
is_main_process()
barrier()
RpcContext(backend="tensorpipe", init_method=None, world_size=-1, rank=-1, timeout=1800.0)
RpcContext.initialize()
RpcContext.shutdown()
RpcContext.register_function(name, func)
rpc_sync(dst_rank, function_name, *args, **kwargs)
rpc_async(dst_rank, function_name, *args, **kwargs)
DaskCluster(n_workers=4, threads_per_worker=2, memory_limit="4GB", scheduler_address=None)
DaskCluster.start()
DaskCluster.stop()
DaskCluster.is_running
DaskCluster.map(func, *iterables, **kwargs)
DaskCluster.submit(func, *args, **kwargs)
DaskCluster.gather(futures)
DaskCluster.scatter(data, broadcast=False)
DaskCluster.replicate(future)
DaskCluster.get_worker_info()
DaskCluster.__enter__()
tensor_to_dask(tensor, chunks="auto")
dask_to_tensor(dask_array)
CudaContext(device_id=0, enable_profiling=False)
CudaContext.start()
CudaContext.stop()
CudaContext.is_running
CudaContext.get_kernel(name, source, function_name)
CudaContext.allocate(shape, dtype)
CudaContext.to_gpu(array)
CudaContext.from_gpu(array)
CudaContext.synchronize()
CudaContext.__enter__()
tensor_to_gpu(tensor)
gpu_to_tensor(gpu_array)
"""

NEURENIX_WITH_TORCH = """
DataParallel(module, device_ids=None)
DataParallel.forward(*args, **kwargs)
DataParallel.parameters()
DataParallel.to
DataParallel.train(mode=True)
DataParallel.eval()
SyncBatchNorm(num_features, eps=1e-5, momentum=0.1, affine=True, track_running_stats=True)
SyncBatchNorm.forward(x)
"""

TUTORIALS = """
scatter_to_sharding(array, sharding, src=0)
shard_indices(length, *, seed=0, epoch=0, drop_last=False)
spawn(function, size, args=())
init_rpc(name=None)
rpc.init_rpc(name=None, *, group=None)
rpc.register(function=None, *, name=None)
rpc.register_function(name, func)
rpc.shutdown()
register_function(name, func)
sync_moments(x, axes)
average_gradients(gradients, samples=None)
broadcast_object(obj=None, src=0)
scatter_object(objects=None, src=0)
gather_object(obj, dst=0)
all_gather_object(obj)
sim.World(size)
sim.World.run(function, *args, **kwargs)
"""

MODULES = {"ivycomm.i_dist": I_DIST, "ivy.distributed": I_DIST,
           "ivycomm": NEURENIX + TUTORIALS + "i_dist\nsim\nrpc\n",
           "neurenix.distributed": NEURENIX + 'init_rpc(backend="tensorpipe", init_method=None, world_size=-1, rank=-1)\n'}
WITH_TORCH = {"ivycomm": NEURENIX_WITH_TORCH, "neurenix.distributed": NEURENIX_WITH_TORCH}
ANY = object()


def rows_of(text):
    return text.replace("\n ", " ").split("\n")


def problem(module, row):
    """Returns the problem with a row, or None."""
    path, bracket, parameters = row.partition("(")
    found, is_method = importlib.import_module(module), False
    for name in path.split("."):
        is_method = inspect.isclass(found)
        if not hasattr(found, name):
            return f"there is no {name}"
        found = inspect.getattr_static(found, name) if is_method and not hasattr(found, "__members__") else getattr(found, name)
    if not bracket:
        return None
    if isinstance(found, staticmethod):
        found, is_method = found.__func__, False
    ours = inspect.signature(found)
    if is_method:
        ours = ours.replace(parameters=list(ours.parameters.values())[1:])
    documented = inspect.signature(eval(f"lambda {parameters[:-1]}: None", {"ANY": ANY}))  # noqa: S307
    return difference(documented, ours)


def difference(documented, ours):
    theirs, given = list(documented.parameters.values()), list(ours.parameters.values())
    takes_any_name = any(each.kind is each.VAR_KEYWORD for each in given)
    for place, wanted in enumerate(theirs):
        variable = wanted.kind in (wanted.VAR_POSITIONAL, wanted.VAR_KEYWORD)
        found = next((each for each in given if each.kind is wanted.kind), None) if variable else ours.parameters.get(wanted.name)
        if found is None:
            if wanted.kind is wanted.KEYWORD_ONLY and takes_any_name:
                continue
            return f"has no parameter {wanted.name}: {ours}"
        if wanted.kind is wanted.POSITIONAL_OR_KEYWORD and given.index(found) != place:
            return f"has {wanted.name} in another place: {ours}"
        if wanted.default not in (wanted.empty, ANY) and found.default != wanted.default:
            return f"{wanted.name} is {found.default!r} when left out, not {wanted.default!r}: {ours}"
    names = {each.name for each in theirs}
    for more in given:
        if more.name not in names and more.default is more.empty and more.kind not in (more.VAR_POSITIONAL, more.VAR_KEYWORD):
            return f"wants {more.name}: {ours}"
    return None


def main():
    tables = list(MODULES.items()) + (list(WITH_TORCH.items()) if "torch" in sys.argv else [])
    rows = [(module, row) for module, text in tables for row in rows_of(text) if row]
    for module, row in rows:
        wrong = problem(module, row)
        if wrong:
            print(f"{module}: {row}: {wrong}")
    print(f"{len(rows)} names")


if __name__ == "__main__":
    main()
