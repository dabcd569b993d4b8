# SPDX-License-Identifier: Apache-2.0
"""CudaContext and the conversion of tensors on one GPU. Needs NumPy and, for some tests, torch, but neither root nor a build.

    python3 -m pytest -q tests/frameworks/test_cuda_context.py
"""

import os
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "comm", "python"))
numpy = pytest.importorskip("numpy")

from ivycomm import errors  # noqa: E402
from ivycomm.compat.cuda_context import CudaContext, gpu_to_tensor, tensor_to_gpu  # noqa: E402

LEAKY = """
__global__ void leaky(const float* input, float* output, int n, float alpha)
{
    int i = threadIdx.x + blockIdx.x * blockDim.x;
    if (i < n) output[i] = input[i] > 0 ? input[i] : alpha * input[i];
}
"""


def has_gpu():
    try:
        CudaContext().start().stop()
    except errors.FailedPrecondition:
        return False
    return True


needs_gpu = pytest.mark.skipif(not has_gpu(), reason="no GPU can be used here")


@pytest.mark.skipif(has_gpu(), reason="there is a GPU")
def test_start_without_a_gpu_is_reported():
    with pytest.raises(errors.FailedPrecondition, match="GPU 0 cannot be used: .*driver|GPU"):
        CudaContext().start()


def test_calls_without_a_running_context_are_rejected():
    context = CudaContext()
    assert not context.is_running
    context.stop()
    for call in (context.synchronize, lambda: context.allocate(3, "float32"), lambda: context.to_gpu([1]),
                 lambda: context.from_gpu(None), lambda: context.get_kernel("leaky", LEAKY, "leaky")):
        with pytest.raises(RuntimeError, match="not running"):
            call()
    with pytest.raises(RuntimeError, match="no CudaContext is running"):
        tensor_to_gpu([1.0])


@needs_gpu
def test_a_kernel_from_source():
    x = numpy.random.default_rng(1).standard_normal(1_000_003, "float32")
    with CudaContext(device_id=0) as context:
        assert context.is_running
        kernel = context.get_kernel(name="leaky", source=LEAKY, function_name="leaky")
        assert context.get_kernel("leaky", LEAKY, "leaky") is kernel
        sent = tensor_to_gpu(x)
        result = context.allocate(sent.shape, sent.dtype)
        block = 256
        grid = (sent.size + block - 1) // block
        kernel(sent, result, numpy.int32(sent.size), numpy.float32(0.01), block=(block, 1, 1), grid=(grid, 1))
        context.synchronize()
        assert numpy.array_equal(context.from_gpu(result), numpy.where(x > 0, x, numpy.float32(0.01) * x))
    assert not context.is_running


@needs_gpu
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "int64", "uint8", "complex64", "bool"])
def test_arrays_are_copied_to_the_gpu_and_back(dtype):
    with CudaContext() as context:
        for shape in ((7,), (3, 4), (2, 3, 5), (0,), ()):
            x = numpy.ones(shape, dtype)
            there = context.to_gpu(x)
            assert there.shape == shape and there.dtype == x.dtype and there.size == x.size
            back = context.from_gpu(there)
            assert back.dtype == x.dtype and numpy.array_equal(back, x)
        turned = numpy.arange(12).reshape(3, 4).T.astype(dtype)  # This array is not in C order.
        assert numpy.array_equal(context.from_gpu(context.to_gpu(turned)), turned)


@needs_gpu
def test_arrays_outlive_repeated_starts_and_stops():
    context = CudaContext(0, enable_profiling=True)
    assert context.start() is context and context.start() is context
    x = context.to_gpu(numpy.arange(5.0))
    with CudaContext() as other:
        assert numpy.array_equal(other.from_gpu(x), numpy.arange(5.0))
    context.stop()
    context.stop()
    assert not context.is_running and numpy.array_equal(x.get(), numpy.arange(5.0))


@needs_gpu
def test_torch_shares_the_memory():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    with CudaContext() as context:
        x = torch.randn(1000, device="cuda")
        kernel = context.get_kernel("leaky", LEAKY, "leaky")
        result = context.allocate(1000, "float32")
        torch.cuda.synchronize()
        kernel(x, result, numpy.int32(1000), numpy.float32(0.5), block=(128, 1, 1), grid=(8, 1))
        context.synchronize()
        wanted = torch.nn.functional.leaky_relu(x, 0.5)
        assert torch.equal(torch.as_tensor(result, device="cuda"), wanted)
        assert torch.equal(gpu_to_tensor(result), wanted.cpu())
        sent = tensor_to_gpu(x.requires_grad_())
        assert torch.equal(gpu_to_tensor(sent), x.detach().cpu())
    assert float((x.detach() + 1).sum()) == pytest.approx(float(x.detach().sum()) + 1000, abs=1)  # torch's own CUDA context still works.


@needs_gpu
def test_bad_input_is_explained():
    with pytest.raises(errors.FailedPrecondition, match="GPU 99"):
        CudaContext(99).start()
    with CudaContext() as context:
        with pytest.raises(Exception, match="nonsense"):
            context.get_kernel("bad", "__global__ void f() { nonsense; }", "f")
        with pytest.raises(Exception, match="leek|not found"):
            context.get_kernel("other", LEAKY, "leek")
        x = context.to_gpu(numpy.ones(4, "float32"))
        kernel = context.get_kernel("leaky", LEAKY, "leaky")
        with pytest.raises(TypeError):
            kernel(x, x, 4, 0.5, block=(4, 1, 1))
        with pytest.raises(Exception, match="block|invalid"):
            kernel(x, x, numpy.int32(4), numpy.float32(0.5), block=(100_000, 1, 1))
        assert numpy.array_equal(x.get(), numpy.ones(4, "float32"))


# A stand-in for PyCUDA, whose import already needs a GPU: the names that pycuda_device.py uses, on NumPy's arrays. It prints
# its calls. A kernel is the Python function that its "source" defines.
STAND_IN = {
    "__init__.py": "",
    "driver.py": """
class Error(Exception):
    pass
class Context:
    def push(self): print("push")
    def pop(self): print("pop")
    def detach(self): print("detach")
    def synchronize(self): print("synchronize")
class Device:
    def __init__(self, number):
        if number > 0:
            raise Error("cuDeviceGet failed: invalid device ordinal")
    def retain_primary_context(self):
        return Context()
def init(): print("init")
def start_profiler(): print("start_profiler")
def stop_profiler(): print("stop_profiler")
""",
    "compiler.py": """
class SourceModule:
    def __init__(self, source):
        self.names = {}
        exec(source, self.names)
    def get_function(self, name):
        print("get_function", name)
        return self.names[name]
""",
    "gpuarray.py": """
import numpy
class GPUArray:
    def __init__(self, values): self.values, self.shape, self.dtype, self.size = values, values.shape, values.dtype, values.size
    def get(self): return self.values.copy()
def empty(shape, dtype): return GPUArray(numpy.empty(shape, dtype))
def to_gpu(array): return GPUArray(array.copy())
""",
}
BY_PYCUDA = """
import numpy
from ivycomm import CudaContext, errors, gpu_to_tensor, tensor_to_gpu
SOURCE = '''
def twice(x, y, block, grid):
    y.values[...] = 2 * x.values
    print("kernel", block, grid)
'''
try:
    CudaContext(7).start()
except errors.FailedPrecondition as error:
    print(error)
with CudaContext(0, enable_profiling=True) as context:
    kernel = context.get_kernel("double", SOURCE, "twice")
    assert context.get_kernel("double", SOURCE, "twice") is kernel
    x = tensor_to_gpu(numpy.arange(4.0).reshape(2, 2).T)
    result = context.allocate(x.shape, x.dtype)
    kernel(x, result, block=(4, 1, 1), grid=(1, 1))
    context.synchronize()
    print(gpu_to_tensor(result).tolist(), context.from_gpu(x).tolist())
print(context.is_running)
"""


def test_pycuda_is_used_if_it_is_installed(tmp_path):
    (tmp_path / "pycuda").mkdir()
    for name, text in STAND_IN.items():
        (tmp_path / "pycuda" / name).write_text(text)
    path = os.pathsep.join((str(tmp_path), os.path.join(HERE, "..", "..", "comm", "python")))
    done = subprocess.run([sys.executable, "-c", BY_PYCUDA], capture_output=True, text=True, timeout=60, check=False,
                          env={**os.environ, "PYTHONPATH": path})
    assert done.stdout.splitlines() == [
        "init", "GPU 7 cannot be used: cuDeviceGet failed: invalid device ordinal",
        "init", "push", "start_profiler", "get_function twice", "kernel (4, 1, 1) (1, 1)", "synchronize",
        "[[0.0, 4.0], [2.0, 6.0]] [[0.0, 2.0], [1.0, 3.0]]", "stop_profiler", "pop", "detach", "False"], done


def test_the_example():
    example = os.path.join(HERE, "..", "..", "scripts", "examples", "cuda_kernel.py")
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=120, check=False,
                          env={**os.environ, "PYTHONPATH": os.path.join(HERE, "..", "..", "comm", "python")})
    if has_gpu():
        assert done.returncode == 0 and "Output:" in done.stdout, done.stderr
    else:
        assert done.returncode == 1 and "cuda_kernel.py: GPU 0 cannot be used" in done.stderr, done.stderr
