# SPDX-License-Identifier: Apache-2.0
"""Remote calls under the names of neurenix.distributed, implemented by ivycomm.rpc.

    with RpcContext() as context:
        context.register_function("square", lambda x: x * x)     # On every rank that is called.
        barrier()
        print(rpc_sync(1, "square", 7))
"""

from .. import groups, rpc


class RpcContext:
    """This process's service of remote calls; also a context manager, which initializes and shuts down.

    backend: "tensorpipe", "gloo", "nccl" or "mpi"; calls use ivycomm in any case. init_method, world_size, rank: as for
    ivycomm.init; detected if omitted or -1. timeout: default timeout of calls in seconds.
    """

    def __init__(self, backend="tensorpipe", init_method=None, world_size=-1, rank=-1, timeout=1800.0):
        self._options = rpc.options_of(backend, init_method, world_size, rank)
        self.backend, self.timeout = str(backend).lower(), timeout

    def initialize(self):
        """Joins the job and starts to serve calls; every rank calls it. Returns the context."""
        groups.init(**self._options)
        rpc.init_rpc(timeout=self.timeout)
        return self

    def shutdown(self):
        """Stops the service after every rank has called it, so that all calls are answered."""
        rpc.shutdown()

    @property
    def is_initialized(self):
        return rpc.is_initialized()

    def register_function(self, name, func):
        """Makes `func` callable on this rank by `name`. Call it before initialize(), or before a barrier that
        callers wait for."""
        rpc.register_function(name, func)

    def __enter__(self):
        return self.initialize()

    def __exit__(self, kind, value, trace):
        if kind is None:
            self.shutdown()


def init_rpc(backend="tensorpipe", init_method=None, world_size=-1, rank=-1, timeout=1800.0):
    """Joins the job and starts to serve calls. Returns the RpcContext."""
    return RpcContext(backend, init_method, world_size, rank, timeout).initialize()
