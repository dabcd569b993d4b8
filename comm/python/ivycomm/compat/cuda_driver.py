# SPDX-License-Identifier: Apache-2.0
"""Kernels from source, memory and copies on one GPU, with only CUDA's driver and its compiler, NVRTC. Calls both by ctypes.

CudaContext uses this module if PyCUDA is not installed. libcuda.so.1 comes with the driver; NVRTC comes with torch's
wheels, the package nvidia-cuda-nvrtc or a CUDA toolkit.
"""

from __future__ import annotations

import ctypes
import glob
import os
import re
from collections.abc import Sequence
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_void_p
from typing import Any

from ..device_driver import CudaError, load_driver

_SUCCESS, _NOT_FOUND = 0, 500
_MAJOR, _MINOR = 75, 76  # The attributes of a device that hold its compute capability.
_driver: Any = None
_nvrtc: Any = None


def driver() -> Any:
    """Returns the driver's library, initialized. Raises CudaError if there is no driver or no GPU."""
    global _driver
    if _driver is None:
        library, is_rocm = load_driver()
        if is_rocm:
            raise CudaError("the GPU's driver is ROCm, but this class needs CUDA")
        _check_cuda(library.cuInit(0), "initialize CUDA's driver", library)
        _driver = library
    return _driver


def _check_cuda(code: int, what: str, library: Any = None) -> None:
    """Raises CudaError if a function of the driver failed. library: the driver, before driver() has returned it."""
    if code == _SUCCESS:
        return
    text = c_char_p()
    (library or _driver).cuGetErrorString(code, byref(text))
    raise CudaError(f"could not {what}: {(text.value or b'unknown error').decode()} (CUDA error {code})")


def _check_nvrtc(code: int, what: str) -> None:
    if code != _SUCCESS:
        nvrtc().nvrtcGetErrorString.restype = c_char_p
        raise CudaError(f"could not {what}: {nvrtc().nvrtcGetErrorString(code).decode()}")


def _version(library: str) -> list[int]:
    """Returns the version at the end of a library's path: [11, 2] for libnvrtc.so.11.2."""
    return [int(number) for number in re.findall(r"\d+", os.path.basename(library).partition(".so")[2])]


def _candidates_of_nvrtc() -> list[str]:
    """Returns paths of NVRTC, the newest of each directory first, then names for the loader's search."""
    import importlib.util

    spec = importlib.util.find_spec("nvidia")
    folders = [os.path.join(folder, "*", "lib") for folder in (spec and spec.submodule_search_locations or ())]
    folders += [os.path.join(os.environ[name], "lib64") for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    folders.append("/usr/local/cuda/lib64")
    paths = [path for folder in folders
             for path in sorted(glob.glob(os.path.join(folder, "libnvrtc.so.*")), key=_version, reverse=True)]
    return [*paths, "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"]


def nvrtc() -> Any:
    """Returns CUDA's compiler for kernels. Raises CudaError if it is not installed."""
    global _nvrtc
    if _nvrtc is None:
        for candidate in _candidates_of_nvrtc():
            try:
                _nvrtc = ctypes.CDLL(candidate)
                break
            except OSError:
                continue
        else:
            raise CudaError("NVRTC, CUDA's compiler, is not on this host: pip install nvidia-cuda-nvrtc, or set CUDA_HOME")
    return _nvrtc


class Primary:
    """A GPU's primary context, retained by this object: `with primary:` makes it current in this thread."""

    def __init__(self, device_id: int) -> None:
        count, device, self.handle = c_int(), c_int(), c_void_p()
        _check_cuda(driver().cuDeviceGetCount(byref(count)), "count the GPUs")
        if not 0 <= device_id < count.value:
            raise CudaError(f"GPU {device_id} does not exist: this process sees {count.value}")
        _check_cuda(driver().cuDeviceGet(byref(device), device_id), f"find GPU {device_id}")
        self._device = device
        _check_cuda(driver().cuDevicePrimaryCtxRetain(byref(self.handle), device), f"use GPU {device_id}")

    def __enter__(self) -> Primary:
        _check_cuda(driver().cuCtxPushCurrent_v2(self.handle), "make the GPU's context current")
        return self

    def __exit__(self, *_: object) -> None:
        driver().cuCtxPopCurrent_v2(byref(c_void_p()))

    def __del__(self) -> None:
        if getattr(self, "handle", None) and _driver is not None:
            _driver.cuDevicePrimaryCtxRelease_v2(self._device)

    def architecture(self) -> str:
        numbers = []
        for attribute in (_MAJOR, _MINOR):
            number = c_int()
            _check_cuda(driver().cuDeviceGetAttribute(byref(number), attribute, self._device), "read the GPU's capability")
            numbers.append(number.value)
        return f"sm_{numbers[0]}{numbers[1]}"


class GpuArray:
    """Memory on the GPU with a shape and a NumPy type, in C order; torch, CuPy and Numba accept it as an array."""

    def __init__(self, primary: Primary, shape: int | Sequence[int], dtype: Any) -> None:
        import numpy

        self.shape = (shape,) if isinstance(shape, int) else tuple(int(length) for length in shape)
        self.dtype = numpy.dtype(dtype)
        if any(length < 0 for length in self.shape) or self.dtype.hasobject:
            raise ValueError(f"a GPU array cannot have the shape {self.shape} and the type {self.dtype}")
        self.size = int(numpy.prod(self.shape, dtype=numpy.int64))
        self.nbytes = self.size * self.dtype.itemsize
        self._primary, self.pointer = primary, c_void_p()
        with primary:
            _check_cuda(driver().cuMemAlloc_v2(byref(self.pointer), c_size_t(max(1, self.nbytes))),
                        f"allocate {self.nbytes} bytes on the GPU")

    def __del__(self) -> None:
        if getattr(self, "pointer", None) and _driver is not None:
            with self._primary:
                _driver.cuMemFree_v2(self.pointer)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (self.pointer.value, False), "version": 3,
                "strides": None}

    def set(self, array: Any) -> GpuArray:
        """Copies a host array of the same shape and type to the GPU."""
        import numpy

        host = numpy.asarray(array, self.dtype, order="C").reshape(self.shape)
        if self.nbytes == 0:
            return self
        with self._primary:
            _check_cuda(driver().cuMemcpyHtoD_v2(self.pointer, c_void_p(host.ctypes.data), c_size_t(self.nbytes)),
                        "copy to the GPU")
        return self

    def get(self) -> Any:
        """Returns a copy as a NumPy array."""
        import numpy

        host = numpy.empty(self.shape, self.dtype)
        if self.nbytes == 0:
            return host
        with self._primary:
            _check_cuda(driver().cuMemcpyDtoH_v2(c_void_p(host.ctypes.data), self.pointer, c_size_t(self.nbytes)),
                        "copy from the GPU")
        return host

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<GpuArray of {self.shape}, {self.dtype}>"


class Kernel:
    """A function of a module: kernel(array, numpy.int32(n), ..., block=(256, 1, 1), grid=(n, 1)) starts it."""

    def __init__(self, primary: Primary, function: c_void_p, name: str, module: c_void_p) -> None:
        self._primary, self._function, self._name, self._module = primary, function, name, module

    def __del__(self) -> None:
        if _driver is not None:
            with self._primary:
                _driver.cuModuleUnload(self._module)

    def __call__(self, *arguments: Any, block: Sequence[int], grid: Sequence[int] = (1, 1), shared: int = 0,
                 stream: int | None = None) -> None:
        values = [_argument(number, value) for number, value in enumerate(arguments)]
        addresses = [ctypes.cast(byref(value), c_void_p) for value in values]
        parameters = (c_void_p * max(1, len(addresses)))(*addresses)
        with self._primary:
            code = driver().cuLaunchKernel(self._function, *_three_sizes(grid), *_three_sizes(block), c_uint(shared),
                                           c_void_p(stream), parameters, None)
        _check_cuda(code, f'start the kernel "{self._name}" with block {tuple(block)} and grid {tuple(grid)}')


def _three_sizes(lengths: Sequence[int]) -> list[c_uint]:
    """Returns the sizes of a grid or block in x, y and z; missing ones are 1."""
    return [c_uint(int(length)) for length in (*lengths, 1, 1, 1)[:3]]


def _argument(number: int, value: Any) -> Any:
    """Returns memory that holds one argument of a kernel."""
    import numpy

    if isinstance(value, GpuArray):
        return c_void_p(value.pointer.value)
    if isinstance(value, numpy.generic):
        return (ctypes.c_char * value.nbytes).from_buffer_copy(value.tobytes())
    if isinstance(value, ctypes._SimpleCData):
        return value
    described = getattr(value, "__cuda_array_interface__", None)
    if described is not None:
        return c_void_p(described["data"][0])
    raise TypeError(f"argument {number} of a kernel is a {type(value).__name__}: it must be an array on the GPU, or a "
                    "number with a type, such as numpy.int32(3)")


class Device:
    """The device interface of CudaContext; pycuda_device.py implements the same with PyCUDA."""

    def __init__(self, device_id: int) -> None:
        self._primary = Primary(device_id)
        self._primary.__enter__()  # Until close(): other libraries use the current context as well.

    def close(self) -> None:
        self._primary.__exit__()

    def profile(self, is_on: bool) -> None:
        _check_cuda(driver().cuProfilerStart() if is_on else driver().cuProfilerStop(), "start or stop CUDA's profiler")

    def kernel(self, source: str, function_name: str) -> Kernel:
        image = _compile(source, self._primary.architecture())
        module, function = c_void_p(), c_void_p()
        with self._primary:
            _check_cuda(driver().cuModuleLoadData(byref(module), image), "load the kernel")
            code = driver().cuModuleGetFunction(byref(function), module, function_name.encode())
        if code == _NOT_FOUND:
            raise ValueError(f'the source has no kernel "{function_name}": it needs __global__ void {function_name}(...)')
        _check_cuda(code, f'find the kernel "{function_name}"')
        return Kernel(self._primary, function, function_name, module)

    def empty(self, shape: int | Sequence[int], dtype: Any) -> GpuArray:
        return GpuArray(self._primary, shape, dtype)

    def to_gpu(self, array: Any) -> GpuArray:
        return GpuArray(self._primary, array.shape, array.dtype).set(array)

    def synchronize(self) -> None:
        with self._primary:
            _check_cuda(driver().cuCtxSynchronize(), "wait for the GPU")


def _compile(source: str, architecture: str) -> Any:
    """Returns the machine code of CUDA C++ `source`, whose functions keep their names. Raises ValueError with the
    compiler's output."""
    library, program, size = nvrtc(), c_void_p(), c_size_t()
    text = f'extern "C" {{\n#line 1\n{source}\n}}\n'.encode()
    _check_nvrtc(library.nvrtcCreateProgram(byref(program), text, b"kernel.cu", 0, None, None), "read the kernel's source")
    try:
        options = (c_char_p * 1)(f"--gpu-architecture={architecture}".encode())
        if library.nvrtcCompileProgram(program, 1, options) != _SUCCESS:
            library.nvrtcGetProgramLogSize(program, byref(size))
            log = ctypes.create_string_buffer(max(1, size.value))
            library.nvrtcGetProgramLog(program, log)
            raise ValueError(f"the kernel cannot be compiled for {architecture}:\n{log.value.decode(errors='replace')}")
        _check_nvrtc(library.nvrtcGetCUBINSize(program, byref(size)), "read the compiled kernel")
        image = ctypes.create_string_buffer(size.value)
        _check_nvrtc(library.nvrtcGetCUBIN(program, image), "read the compiled kernel")
        return image
    finally:
        library.nvrtcDestroyProgram(byref(program))
