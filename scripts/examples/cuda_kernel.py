"""A kernel of one's own on one GPU: CUDA C++ source, arrays there and back.

    python3 cuda_kernel.py      needs NumPy, a GPU, and PyCUDA or NVRTC (which comes with torch)
"""

import sys

import numpy as np
from ivycomm import CudaContext, errors, gpu_to_tensor, tensor_to_gpu

SOURCE = """
__global__ void custom_activation(const float* input, float* output, int n, float alpha)
{
    int i = threadIdx.x + blockIdx.x * blockDim.x;
    if (i < n) output[i] = input[i] > 0 ? input[i] : alpha * input[i];
}
"""


def main():
    values = np.random.default_rng(1).standard_normal(1_000_000, np.float32)
    try:
        context = CudaContext(device_id=0).start()
    except errors.FailedPrecondition as error:
        sys.exit(f"cuda_kernel.py: {error}")
    with context:
        kernel = context.get_kernel("custom_activation", SOURCE, "custom_activation")
        sent = tensor_to_gpu(values)
        result = context.allocate(sent.shape, sent.dtype)
        block = 256
        kernel(sent, result, np.int32(sent.size), np.float32(0.01), block=(block, 1, 1),
               grid=((sent.size + block - 1) // block, 1))
        context.synchronize()
        output = np.asarray(gpu_to_tensor(result))
    assert np.array_equal(output, np.where(values > 0, values, np.float32(0.01) * values))
    print(f"Input: {values[:5]}\nOutput: {output[:5]}")


if __name__ == "__main__":
    main()
