"""One GPU through PyCUDA: kernels from source, memory, copies. Needs pycuda and a GPU.

The GPU's primary context is used, the one that torch, CuPy and NCCL use in this process, so that arrays of all of them
can be mixed. No machine with a GPU has run this module yet.
"""


class CudaContext:
    """A GPU's context; also a context manager. device_id: its number among the visible ones. enable_profiling: CUDA's
    profiler records between start() and stop(). Methods raise RuntimeError while it is not running."""

    def __init__(self, device_id=0, enable_profiling=False):
        self._device_id, self._profiles = int(device_id), enable_profiling
        self._driver = self._context = None
        self._kernels = {}

    def start(self):
        """Makes the context current in this thread. Returns self. FailedPrecondition where no GPU can be used."""
        from .errors import FailedPrecondition
        if self._context is not None:
            return self
        try:
            import pycuda.driver as driver
        except ImportError as error:
            raise ImportError(f"CudaContext needs PyCUDA (pip install pycuda) and CUDA's driver: {error}") from None
        try:
            driver.init()
            self._context = driver.Device(self._device_id).retain_primary_context()
        except driver.Error as error:
            raise FailedPrecondition(f"GPU {self._device_id} cannot be used: {error}") from None
        self._driver = driver
        self._context.push()
        if self._profiles:
            driver.start_profiler()
        return self

    def stop(self):
        """Leaves the context. Arrays made in it stay valid while the process uses the GPU otherwise."""
        if self._context is None:
            return
        if self._profiles:
            self._driver.stop_profiler()
        context, self._context = self._context, None
        self._kernels.clear()
        context.pop()
        context.detach()

    @property
    def is_running(self):
        return self._context is not None

    def _running(self):
        if self._context is None:
            raise RuntimeError("this CudaContext is not running: call start(), or use it in a with statement")

    def get_kernel(self, name, source, function_name):
        """The function `function_name` of CUDA C++ `source`, compiled once for each name."""
        self._running()
        if name not in self._kernels:
            from pycuda.compiler import SourceModule
            self._kernels[name] = SourceModule(source).get_function(function_name)
        return self._kernels[name]

    def allocate(self, shape, dtype):
        """An uninitialised GPUArray."""
        self._running()
        import pycuda.gpuarray
        return pycuda.gpuarray.empty(shape, dtype)

    def to_gpu(self, array):
        """A copy of a host array on the GPU."""
        self._running()
        return tensor_to_gpu(array)

    def from_gpu(self, array):
        """A copy of a GPUArray in host memory."""
        self._running()
        return array.get()

    def synchronize(self):
        """Returns when everything that was started in the context is done."""
        self._running()
        self._context.synchronize()

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.stop()


def tensor_to_gpu(tensor):
    """A GPUArray with the values of a tensor or array; a CuPy, torch or Numba array on the GPU is copied there."""
    import numpy
    import pycuda.gpuarray
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().cpu().numpy()
    return pycuda.gpuarray.to_gpu(numpy.ascontiguousarray(tensor))


def gpu_to_tensor(array):
    """The values of a GPUArray: a torch tensor where torch has been imported, else a NumPy array. Both in host memory."""
    import sys
    values = array.get()
    torch = sys.modules.get("torch")
    return torch.from_numpy(values) if torch is not None else values
