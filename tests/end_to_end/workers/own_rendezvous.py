"""Sets its own rendezvous address, like scripts for plain Python: own_rendezvous.py KIND PORT.

port: every rank sets MASTER_PORT. address: also MASTER_ADDR. tcp: the script passes an init_method.
given: nothing is set. spawn, fork: each worker starts two ranks as children.
launched: a launcher in a worker, whose own agent serves on another port.
"""

import datetime
import os
import sys

import torch
import torch.distributed as dist

KIND, PORT = sys.argv[1:]


def meet(method="env://", **ranks):
    dist.init_process_group("gloo", init_method=method, timeout=datetime.timedelta(seconds=30), **ranks)
    total = torch.tensor([dist.get_rank() + 1])
    dist.all_reduce(total)
    flag = os.environ.get("TORCHELASTIC_USE_AGENT_STORE")
    # A single write, because children share the stream.
    os.write(1, f"met {dist.get_rank()} {dist.get_world_size()} {int(total)} {flag}\n".encode())
    dist.barrier()
    dist.destroy_process_group()


def set_place():
    os.environ["MASTER_PORT"] = PORT
    if KIND != "port":
        os.environ["MASTER_ADDR"] = "localhost"


def child(rank):
    set_place()
    meet(rank=rank, world_size=2)


def serve_as_agent():
    """Acts like torchrun's agent in a worker: starts its own store and sets its own variables."""
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(store.port), RANK="0", WORLD_SIZE="1",
                      TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RUN_ID="inner")
    return store


def main():
    if KIND in ("spawn", "fork"):
        import torch.multiprocessing as multiprocessing
        multiprocessing.start_processes(child, nprocs=2, start_method=KIND)
    elif KIND == "launched":
        store = serve_as_agent()
        meet()
        del store
    elif KIND == "tcp":
        meet(f"tcp://127.0.0.1:{PORT}", rank=int(os.environ["RANK"]),
             world_size=int(os.environ["WORLD_SIZE"]))
    else:
        if KIND != "given":
            set_place()
        meet()


if __name__ == "__main__":
    main()
