# SPDX-License-Identifier: Apache-2.0
"""Dask clusters with a defined lifetime, and tensors as Dask arrays. Needs dask and distributed.

    with DaskCluster(n_workers=4, threads_per_worker=2) as cluster:
        futures = cluster.map(work, items)
        results = cluster.gather(futures)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

_WORKERS_NAME = "Dask Worker process"  # As Dask's nannies name the processes that they start.
_clusters = 0


def _keep_main_file_out() -> None:
    """Keeps workers from running the program's main file, as multiprocessing would: a program without `if __name__
    == "__main__"` would start further clusters in each. Dask sends functions of that file by value, so workers do
    not need it. A nanny restarts a worker that has exited, so this applies as long as a cluster runs."""
    from multiprocessing import spawn
    prepared = spawn.get_preparation_data
    if getattr(prepared, "_keeps_main_file_out", False):
        return

    def get_preparation_data(name: str) -> dict[str, Any]:
        data = prepared(name)
        if _clusters and name.startswith(_WORKERS_NAME):
            data.pop("init_main_from_path", None)
            data.pop("init_main_from_name", None)
        return data

    setattr(get_preparation_data, "_keeps_main_file_out", True)  # noqa: B010 - a function's type has no such attribute.
    spawn.get_preparation_data = get_preparation_data


def _distributed() -> Any:
    try:
        import distributed
    except ImportError:
        raise ImportError("DaskCluster needs Dask: pip install dask distributed") from None
    return distributed


class DaskCluster:
    """A Dask scheduler and workers on this host, or a client of a running scheduler.

    n_workers, threads_per_worker, memory_limit: for the workers to start, as in Dask. scheduler_address: of a running
    scheduler, such as "tcp://host:8786"; no workers are started then, and stop() does not stop the scheduler's. Also a
    context manager. Methods raise RuntimeError before start() and after stop().
    """

    def __init__(self, n_workers: int = 4, threads_per_worker: int = 2, memory_limit: str = "4GB",
                 scheduler_address: str | None = None) -> None:
        if scheduler_address is None and (n_workers < 1 or threads_per_worker < 1):
            raise ValueError(f"a cluster cannot have {n_workers} workers with {threads_per_worker} threads each")
        self._workers = {"n_workers": n_workers, "threads_per_worker": threads_per_worker, "memory_limit": memory_limit}
        self._address = scheduler_address
        self._cluster: Any = None
        self._client: Any = None

    def start(self) -> DaskCluster:
        """Starts the workers, or connects to the scheduler; blocks until that is done. Returns the cluster; a second call
        does nothing. Raises ImportError if Dask is not installed, and Dask's errors."""
        global _clusters
        if self._client is None:
            distributed = _distributed()
            if self._address is None:
                # No dashboard: several jobs share a host, and no port should be opened that the user did not request.
                _keep_main_file_out()
                _clusters += 1
                try:
                    self._cluster = distributed.LocalCluster(**self._workers, dashboard_address=None)
                except BaseException:
                    _clusters -= 1
                    raise
            try:
                self._client = distributed.Client(self._cluster or self._address)
            except BaseException:
                self.stop()
                raise
        return self

    def stop(self) -> None:
        """Stops the workers that start() started, and disconnects from the scheduler. Does nothing if it is not
        running."""
        global _clusters
        client, cluster, self._client, self._cluster = self._client, self._cluster, None, None
        if client is not None:
            client.close()
        if cluster is not None:
            cluster.close()
            _clusters -= 1

    @property
    def is_running(self) -> bool:
        """Whether the cluster has been started and its client is connected."""
        return self._client is not None and self._client.status == "running"

    @property
    def client(self) -> Any:
        """The distributed.Client."""
        if self._client is None:
            raise RuntimeError("this DaskCluster is not running: call start(), or use it in a with statement")
        return self._client

    def map(self, func: Callable[..., Any], *iterables: Iterable[Any], **kwargs: Any) -> Any:
        """Returns the futures of func(*items) for each set of items."""
        return self.client.map(func, *iterables, **kwargs)

    def submit(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Returns the Future of func(*args, **kwargs) on some worker."""
        return self.client.submit(func, *args, **kwargs)

    def gather(self, futures: Any) -> Any:
        """Blocks until a future, or a list or dict of futures, is done; returns the results. Raises the exception of a
        failed function."""
        return self.client.gather(futures)

    def scatter(self, data: Any, broadcast: bool = False) -> Any:
        """Copies data to the workers' memory; returns a future, or a list of futures for a list. broadcast: to every
        worker."""
        return self.client.scatter(data, broadcast=broadcast)

    def replicate(self, future: Any) -> None:
        """Copies a future's result to every worker."""
        self.client.replicate(future)

    def get_worker_info(self) -> dict[str, Any]:
        """Returns {address: facts} of the workers, as the scheduler reports them."""
        info: dict[str, Any] = self.client.scheduler_info(n_workers=-1)["workers"]
        return info

    def __enter__(self) -> DaskCluster:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def tensor_to_dask(tensor: Any, chunks: Any = "auto") -> Any:
    """Returns a Dask array of a tensor's values. chunks: as for dask.array.from_array; -1 is a whole axis."""
    import dask.array
    import numpy
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().cpu().numpy()
    return dask.array.from_array(numpy.asarray(tensor), chunks=chunks)


def dask_to_tensor(dask_array: Any) -> Any:
    """Returns the computed values of a Dask array: a torch tensor if torch has been imported, otherwise a NumPy
    array."""
    import sys

    import numpy
    values = numpy.ascontiguousarray(dask_array.compute())
    torch = sys.modules.get("torch")
    return torch.from_numpy(values) if torch is not None else values
