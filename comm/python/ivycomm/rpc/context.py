# SPDX-License-Identifier: Apache-2.0
"""Remote calls under the names of neurenix.distributed, implemented by ivycomm.rpc.

    with RpcContext() as context:
        context.register_function("square", lambda x: x * x)     # On every rank that is called.
        barrier()
        print(rpc_sync(1, "square", 7))
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from .. import lifetime, rpc


class RpcContext:
    """This process's RPC service; also a context manager, which starts it and shuts it down.

    backend: "tensorpipe", "gloo", "nccl" or "mpi"; all of them use ivycomm. init_method, world_size, rank: as for
    ivycomm.init; detected if omitted or -1. timeout: default timeout of calls in seconds; None: no limit. Raises
    ValueError for an unknown backend.
    """

    def __init__(self, backend: str = "tensorpipe", init_method: str | None = None, world_size: int | None = -1,
                 rank: int | None = -1, timeout: float | None = 1800.0) -> None:
        self._options = rpc.options_of(backend, init_method, world_size, rank)
        self.backend, self.timeout = str(backend).lower(), timeout

    def initialize(self) -> RpcContext:
        """Joins the job and starts the service. Collective: every rank calls it; blocks until all have. Returns the
        context; a second call does nothing."""
        lifetime.init(**self._options)
        rpc.init_rpc(timeout=self.timeout)
        return self

    def shutdown(self) -> None:
        """Stops the service. Collective: blocks until every rank has called it and all calls are answered."""
        rpc.shutdown()

    @property
    def is_initialized(self) -> bool:
        """Whether the service is running."""
        return rpc.is_initialized()

    def register_function(self, name: str, func: Callable[..., Any]) -> None:
        """Makes `func` callable on this rank by `name`. Call it before initialize(), or before a barrier that
        callers wait for."""
        rpc.register_function(name, func)

    def __enter__(self) -> RpcContext:
        return self.initialize()

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.shutdown()


def init_rpc(backend: str = "tensorpipe", init_method: str | None = None, world_size: int | None = -1,
             rank: int | None = -1, timeout: float | None = 1800.0) -> RpcContext:
    """Joins the job and starts the service. Collective: every rank calls it; blocks until all have. timeout: default timeout
    of calls in seconds; None: no limit. Returns the RpcContext, whose class describes the arguments."""
    return RpcContext(backend, init_method, world_size, rank, timeout).initialize()
