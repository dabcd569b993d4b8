# SPDX-License-Identifier: Apache-2.0
"""One GPU by PyCUDA, for CudaContext; cuda_driver.py does the same without it."""

from __future__ import annotations

from typing import Any

import pycuda.driver


class Device:
    """Its primary context is the one that torch, CuPy and NCCL use in this process."""

    def __init__(self, device_id: int) -> None:
        pycuda.driver.init()
        self._context = pycuda.driver.Device(device_id).retain_primary_context()
        self._context.push()

    def close(self) -> None:
        self._context.pop()
        self._context.detach()

    def profile(self, is_on: bool) -> None:
        pycuda.driver.start_profiler() if is_on else pycuda.driver.stop_profiler()

    def kernel(self, source: str, function_name: str) -> Any:
        from pycuda.compiler import SourceModule
        return SourceModule(source).get_function(function_name)

    def empty(self, shape: Any, dtype: Any) -> Any:
        import pycuda.gpuarray
        return pycuda.gpuarray.empty(shape, dtype)

    def to_gpu(self, array: Any) -> Any:
        import pycuda.gpuarray
        return pycuda.gpuarray.to_gpu(array)

    def synchronize(self) -> None:
        self._context.synchronize()


CudaError = pycuda.driver.Error
