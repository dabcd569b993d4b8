# SPDX-License-Identifier: Apache-2.0
"""ivyrun's reports about collectives of torch and ivycomm that hang on a GPU. Needs a torch that can use a GPU:

    python3 tests/frameworks/gpu/hangs.py [CASE...]

    gloo        two ranks share the GPU, and one does not enter an all_reduce of CUDA tensors
    nccl        one rank, whose all_reduce waits for a kernel that runs for a long time
    ivycomm     two ranks share the GPU, and one does not enter an all_reduce of ivycomm
    nccl-pair   two ranks share the GPU as if on separate hosts, and one does not enter
    nccl-alone  the same with direct calls of NCCL, without torch and ivycomm: reports of ivyrun's profiler plug-in

Each case prints the output of `ivyctl why` and of torch's worker server, and whether it contains the expected sentence.
The exit code is the number of failed cases. It uses build/bin/ivyrun, or IVYRUN if that is set.
"""
import ctypes
import glob
import os
import re
import socket
import subprocess
import sys
import time

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
IVYRUN = os.environ.get("IVYRUN", os.path.join(REPOSITORY, "build/bin/ivyrun"))
ABSENT = (r'rank 1 did not enter all_reduce #4 of "default_pg" \(last entered .*#3.*\); rank 0 waits in it '
          r"\(\[\[1000\]\] Float")
CASES = {"gloo": (2, ABSENT), "nccl": (1, r'rank 0 is in all_reduce #4 of "default_pg" \(\[\[1000\]\] Float'),
         # The number counts only operations on devices.
         "ivycomm": (2, r'rank 1 did not enter all_reduce #3 of "world \(devices\)" \(last entered all_reduce #2\); '
                        r"rank 0 waits in it \(1000 f32, sum\)"),
         "nccl-pair": (2, ABSENT),
         "nccl-alone": (2, r"rank 1 did not enter all_reduce #\d+ of NCCL communicator .*\(last entered all_reduce #\d+ .*\); "
                           r"rank 0 waits in it \(1000 f32\)")}
BACKENDS = ("gloo", "nccl", "nccl2", "nccl-lazy")
# About 20 s on a fast GPU, longer on others.
KERNEL_CYCLES = 40_000_000_000


def ask(path, question):
    """Queries torch's worker server like ivyrun's supervisor does."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(path)
        connection.sendall(f"POST /handler/{question} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                           "Content-Length: 0\r\n\r\n".encode())
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0].decode(), body.decode()


def say_what_the_server_knows():
    """Prints the records of each backend's name. The names differ between versions of torch."""
    folder = os.path.dirname(os.environ["IVY_TOKEN_FILE"])
    for path in glob.glob(f"{folder}/stack-*.{os.getpid()}.torch"):
        questions = [f"fr_trace_json?backend={backend}" for backend in BACKENDS]
        for question in questions + ["dump_nccl_trace_json?onlyactive=false"]:
            status, body = ask(path, question)
            names = sorted(set(re.findall(r'"profiling_name":"([^"]*)"', body)))
            last = re.findall(r'"last_enqueued_collective":"?(\d+)', body)
            print(f"server: {question}: {status}, {len(body)} bytes, entries {names}, last enqueued {last}", flush=True)


def share_the_gpu():
    """Makes NCCL treat ranks that share a GPU as separate hosts, in all of its versions."""
    os.environ.update(NCCL_HOSTID="rank" + os.environ["IVY_RANK"], NCCL_IB_DISABLE="1", NCCL_MAX_CTAS="2")


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


def find_nccl():
    """Returns NCCL's library: IVY_NCCL_LIB (set by test_gpu), or else pip's."""
    import nvidia.nccl
    return os.environ.get("IVY_NCCL_LIB") or glob.glob(os.path.join(nvidia.nccl.__path__[0], "lib", "libnccl.so.*"))[0]


def agree_on_id(nccl, rank):
    """Passes NCCL's unique id through a file, because the ranks have no other connection."""
    own, path = UniqueId(), os.path.join(os.path.dirname(os.environ["IVY_TOKEN_FILE"]), "nccl-id")
    if rank == 0:
        assert nccl.ncclGetUniqueId(ctypes.byref(own)) == 0
        with open(path + ".new", "wb") as file:
            file.write(bytes(own))
        os.rename(path + ".new", path)
    while not os.path.exists(path):
        time.sleep(0.01)
    with open(path, "rb") as file:
        return UniqueId.from_buffer_copy(file.read())


def hang_in_nccl_alone():
    share_the_gpu()
    from ivycomm.compat.cuda_driver import Primary, driver
    rank, nccl = int(os.environ["IVY_RANK"]), ctypes.CDLL(find_nccl())
    communicator, memory = ctypes.c_void_p(), ctypes.c_uint64()
    with Primary(0):
        assert driver().cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(4096)) == 0
        assert nccl.ncclCommInitRank(ctypes.byref(communicator), 2, agree_on_id(nccl, rank), rank) == 0
        address, in_f32, by_sum = ctypes.c_void_p(memory.value), 7, 0

        def all_reduce(count):
            assert nccl.ncclAllReduce(address, address, ctypes.c_size_t(count), in_f32, by_sum, communicator, None) == 0
            assert driver().cuCtxSynchronize() == 0
        for _ in range(3):
            all_reduce(16)
        print("ready", flush=True)
        if rank == 0:
            all_reduce(1000)
        time.sleep(1000)


def hang_in_ivycomm():
    share_the_gpu()
    import ivycomm as ic
    import torch
    torch.cuda.set_device(0)
    ic.init(timeout=120)
    for _ in range(3):
        ic.all_reduce_(torch.ones(16, device="cuda"))
    torch.cuda.synchronize()
    print("ready", flush=True)
    if ic.rank() == 0:
        ic.all_reduce_(torch.ones(1000, device="cuda"))
        torch.cuda.synchronize()
    time.sleep(1000)


def hang(case):
    if case == "ivycomm":
        return hang_in_ivycomm()
    if case == "nccl-alone":
        return hang_in_nccl_alone()
    if case == "nccl-pair":
        share_the_gpu()
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo" if case == "gloo" else "nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(0)
    for _ in range(3):
        dist.all_reduce(torch.ones(16, device="cuda"))
    torch.cuda.synchronize()
    if rank == 1:
        print("ready", flush=True)
        time.sleep(1000)
    if case == "nccl":
        torch.cuda._sleep(KERNEL_CYCLES)
    work = dist.all_reduce(torch.ones(1000, device="cuda"), async_op=True)
    say_what_the_server_knows()
    print("ready", flush=True)
    work.wait()
    torch.cuda.synchronize()
    time.sleep(1000)


def run(case):
    ranks, expected = CASES[case]
    name = f"hang-{case}-{os.getpid()}"  # Other jobs may run at the same time.
    job = subprocess.Popen([IVYRUN, "--name", name, "-n", str(ranks), sys.executable, __file__, "--worker", case],
                           stdout=subprocess.PIPE, text=True)
    try:
        ready = 0
        for line in job.stdout:
            print("  " + line, end="")
            ready += line.rstrip().endswith("ready")
            if ready == ranks:
                break
        time.sleep(2)
        why = subprocess.run([os.path.join(os.path.dirname(IVYRUN), "ivyctl"), "why", name], capture_output=True, text=True,
                             check=False)
        print("  " + (why.stdout + why.stderr).replace("\n", "\n  "))
        return re.search(expected, why.stdout) is not None
    finally:
        job.terminate()
        job.wait()


def main():
    if sys.argv[1:2] == ["--worker"]:
        return hang(sys.argv[2])
    import torch
    if not torch.cuda.is_available():
        print(f"skipped: torch {torch.__version__} sees no GPU here")
        return 0
    failed = 0
    for case in sys.argv[1:] or CASES:
        print(f"{case}: torch {torch.__version__}, {torch.cuda.get_device_name()}")
        is_well = run(case)
        failed += not is_well
        print(f"{case}: {'as expected' if is_well else 'NOT as expected'}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
