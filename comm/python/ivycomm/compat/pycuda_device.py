# SPDX-License-Identifier: Apache-2.0
"""One GPU by PyCUDA, for CudaContext; cuda_driver.py does the same without it."""

import pycuda.driver


class Device:
    """Its primary context is the one that torch, CuPy and NCCL use in this process."""

    def __init__(self, device_id):
        pycuda.driver.init()
        self._context = pycuda.driver.Device(device_id).retain_primary_context()
        self._context.push()

    def close(self):
        self._context.pop()
        self._context.detach()

    def profile(self, is_on):
        pycuda.driver.start_profiler() if is_on else pycuda.driver.stop_profiler()

    def kernel(self, source, function_name):
        from pycuda.compiler import SourceModule
        return SourceModule(source).get_function(function_name)

    def empty(self, shape, dtype):
        import pycuda.gpuarray
        return pycuda.gpuarray.empty(shape, dtype)

    def to_gpu(self, array):
        import pycuda.gpuarray
        return pycuda.gpuarray.to_gpu(array)

    def synchronize(self):
        self._context.synchronize()


CudaError = pycuda.driver.Error
