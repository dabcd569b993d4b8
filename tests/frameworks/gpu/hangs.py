"""What ivyrun says of collectives of torch and of ivycomm that hang on a GPU. Wants a torch that sees one GPU; one is enough:

    python3 tests/frameworks/gpu/torch_hangs.py [CASE...]

    gloo        two ranks share the GPU, and one does not enter an all_reduce of CUDA tensors
    nccl        one rank, whose all_reduce waits behind a kernel that runs for long
    ivycomm     two ranks share the GPU, and one does not enter an all_reduce of ivycomm
    nccl-pair   two ranks on two GPUs, and one does not enter; skipped where there is one GPU

Each case prints what `ivyctl why` and torch's worker server say, and whether the expected sentence is among it. The
exit code is the number of cases that failed. It uses build/bin/ivyrun, or IVYRUN where that is set.
"""
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
         # Numbered among the operations on devices for which the ranks did not meet.
         "ivycomm": (2, r'rank 1 did not enter all_reduce #3 of "world \(devices\)" \(last entered all_reduce #2\); '
                        r"rank 0 waits in it \(1000 f32, sum\)"),
         "nccl-pair": (2, ABSENT)}
BACKENDS = ("gloo", "nccl", "nccl2", "nccl-lazy")
# At the clock of a fast GPU some 20 s; it is longer on others.
KERNEL_CYCLES = 40_000_000_000


def ask(path, question):
    """torch's worker server, as ivyrun's supervisor asks it."""
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
    """Which backends' records hold what: the name by which a backend is asked for is torch's affair."""
    folder = os.path.dirname(os.environ["IVY_TOKEN_FILE"])
    for path in glob.glob(f"{folder}/stack-*.{os.getpid()}.torch"):
        questions = [f"fr_trace_json?backend={backend}" for backend in BACKENDS]
        for question in questions + ["dump_nccl_trace_json?onlyactive=false"]:
            status, body = ask(path, question)
            names = sorted(set(re.findall(r'"profiling_name":"([^"]*)"', body)))
            last = re.findall(r'"last_enqueued_collective":"?(\d+)', body)
            print(f"server: {question}: {status}, {len(body)} bytes, entries {names}, last enqueued {last}", flush=True)


def hang_in_ivycomm():
    # Ranks that share a GPU are hosts of their own for NCCL, whatever its version.
    os.environ.update(NCCL_HOSTID="rank" + os.environ["IVY_RANK"], NCCL_IB_DISABLE="1", NCCL_MAX_CTAS="2")
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
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo" if case == "gloo" else "nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(0 if case == "gloo" else rank)
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
    job = subprocess.Popen([IVYRUN, "-n", str(ranks), sys.executable, __file__, "--worker", case],
                           stdout=subprocess.PIPE, text=True)
    try:
        ready = 0
        for line in job.stdout:
            print("  " + line, end="")
            ready += line.rstrip().endswith("ready")
            if ready == ranks:
                break
        time.sleep(2)
        why = subprocess.run([os.path.join(os.path.dirname(IVYRUN), "ivyctl"), "why"], capture_output=True, text=True,
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
        if case == "nccl-pair" and torch.cuda.device_count() < 2:
            print(f"{case}: skipped, there is one GPU")
            continue
        print(f"{case}: torch {torch.__version__}, {torch.cuda.get_device_name()}")
        is_well = run(case)
        failed += not is_well
        print(f"{case}: {'as expected' if is_well else 'NOT as expected'}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
