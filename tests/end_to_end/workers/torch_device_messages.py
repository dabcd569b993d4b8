"""Messages of backend ivy between GPUs, as batch_isend_irecv starts them: every rank sends before it receives.

GPUs, NCCL and tensors are stand-ins. Prints "all equal".
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from comm_device import DeviceArray, check, cuda, use_device


class Tensor(DeviceArray):
    """The methods of a GPU tensor that backend ivy calls."""

    is_cuda, layout, dtype, device = True, torch.strided, torch.float32, torch.device("cuda", 0)

    def is_contiguous(self):
        return True

    def is_conj(self):
        return False

    is_neg = is_conj

    def data_ptr(self):
        return self.pointer.value

    def numel(self):
        return self.shape[0]

    def element_size(self):
        return 4


def main():
    torch._C._cuda_getCurrentRawStream = lambda _device: 0
    use_device(int(os.environ["IVY_RANK"]))
    dist.init_process_group("ivy", timeout=timedelta(seconds=60))
    rank, size, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    backends = [group._get_backend(torch.device(device)) for device in ("cpu", "cuda")]
    assert [backend.supports_coalescing for backend in backends] == [False, True]
    import ivycomm
    ivycomm.prepare_device(rank, group=group.ivycomm_group)
    sent, got = Tensor([rank + 1.0] * 4), Tensor([0.0] * 4)
    # If they were started one after the other, every rank's stream would wait in its send for a receive after another send.
    group._start_coalescing(Tensor.device)
    group.send([sent], (rank + 1) % size, 0)
    group.recv([got], (rank - 1) % size, 0)
    group._end_coalescing(Tensor.device).wait()
    check(cuda.cuStreamSynchronize(None))
    assert got.values() == [(rank - 1) % size + 1.0] * 4, got.values()
    print("all equal", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
