# SPDX-License-Identifier: Apache-2.0
"""One GPU: kernels from source, memory, copies. Uses PyCUDA if installed, otherwise CUDA's driver directly.

    with CudaContext(0) as gpu:
        double = gpu.get_kernel("double", "__global__ void twice(float* x) { x[threadIdx.x] *= 2; }", "twice")
        x = tensor_to_gpu(numpy.ones(32, "float32"))
        double(x, block=(32, 1, 1))
        print(gpu_to_tensor(x))

The GPU's primary context is used, the one that torch, CuPy and NCCL use in this process, so that arrays of all of them
can be mixed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

_running: list[CudaContext] = []  # The contexts of this process that run; the last one is current.


class CudaContext:
    """A GPU's context; also a context manager. Use it in the thread that started it.

    device_id: its number among the visible GPUs. enable_profiling: CUDA's profiler records between start() and stop().
    Methods raise RuntimeError before start() and after stop(), and CudaError (a RuntimeError) if CUDA fails.
    """

    def __init__(self, device_id: int = 0, enable_profiling: bool = False) -> None:
        self._device_id, self._profiles = int(device_id), enable_profiling
        self._device: Any = None
        self._kernels: dict[str, Callable[..., Any]] = {}

    def start(self) -> CudaContext:
        """Makes the context current in this thread. Returns self; a second call does nothing. Raises FailedPrecondition if
        the GPU cannot be used."""
        from ..errors import FailedPrecondition
        if self._device is not None:
            return self
        library = _gpu_library()
        try:
            self._device = library.Device(self._device_id)
        except library.CudaError as error:
            raise FailedPrecondition(f"GPU {self._device_id} cannot be used: {error}") from None
        _running.append(self)
        if self._profiles:
            self._device.profile(True)
        return self

    def stop(self) -> None:
        """Leaves the context. Arrays made in it remain valid."""
        if self._device is None:
            return
        if self._profiles:
            self._device.profile(False)
        device, self._device = self._device, None
        self._kernels.clear()
        _running.remove(self)
        device.close()

    @property
    def is_running(self) -> bool:
        """Whether start() has been called, and stop() has not."""
        return self._device is not None

    def _open(self) -> Any:
        if self._device is None:
            raise RuntimeError("this CudaContext is not running: call start(), or use it in a with statement")
        return self._device

    def get_kernel(self, name: str, source: str, function_name: str) -> Callable[..., Any]:
        """Returns the function `function_name` of CUDA C++ `source`, compiled once for each name.

        Call it with arrays and NumPy numbers: kernel(x, numpy.int32(n), block=(256, 1, 1), grid=(blocks, 1)).
        """
        device = self._open()
        if name not in self._kernels:
            self._kernels[name] = device.kernel(source, function_name)
        return self._kernels[name]

    def allocate(self, shape: int | Sequence[int], dtype: Any) -> Any:
        """Returns an uninitialized array on the GPU. dtype: a type of NumPy or its name."""
        return self._open().empty(shape, dtype)

    def to_gpu(self, array: Any) -> Any:
        """Returns a copy on the GPU of a host array, or of a CuPy, torch or Numba array on the GPU."""
        return self._open().to_gpu(_on_host(array))

    def from_gpu(self, array: Any) -> Any:
        """Returns a copy in host memory of an array on the GPU, as a NumPy array."""
        self._open()
        return array.get()

    def synchronize(self) -> None:
        """Blocks until all work started in the context is done."""
        self._open().synchronize()

    def __enter__(self) -> CudaContext:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def _gpu_library() -> Any:
    """Returns the module whose Device uses PyCUDA if it is installed, else the one that calls CUDA's driver."""
    try:
        from . import pycuda_device
        return pycuda_device
    except ImportError:
        from . import cuda_driver
        return cuda_driver


def _on_host(tensor: Any) -> Any:
    import numpy
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().cpu().numpy()
    elif hasattr(tensor, "get") and hasattr(tensor, "__cuda_array_interface__"):
        tensor = tensor.get()
    return numpy.asarray(tensor, order="C")


def tensor_to_gpu(tensor: Any) -> Any:
    """Returns an array on the GPU of the running CudaContext, with the shape, type and values of a tensor or array. Raises
    RuntimeError if no CudaContext is running."""
    if not _running:
        raise RuntimeError("no CudaContext is running: use tensor_to_gpu inside `with CudaContext(device_id):`")
    return _running[-1].to_gpu(tensor)


def gpu_to_tensor(gpu_array: Any) -> Any:
    """Returns the values of an array on the GPU in host memory: a torch tensor if torch has been imported, otherwise
    a NumPy array."""
    import sys
    values = gpu_array.get()
    torch = sys.modules.get("torch")
    return torch.from_numpy(values) if torch is not None else values
