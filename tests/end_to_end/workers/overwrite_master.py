"""Overwrites the address of rank 0, as in tutorials: overwrite_master.py all|first|dies.

all: every rank sets its own host. first: only rank 0 does, with another port.
dies: no rank does; rank 0 fails before it serves.
"""

import datetime
import os
import sys

import torch.distributed as dist

mode = sys.argv[1]
is_first = os.environ["RANK"] == "0"
if mode == "all" or (mode == "first" and is_first):
    os.environ["MASTER_ADDR"] = "localhost"
if mode == "first" and is_first:
    os.environ["MASTER_PORT"] = "12355"
if mode == "dies" and is_first:
    sys.exit("no data")
# Ranks that search in the job's store, which rank 0 does not use, time out after rank 0.
is_patient = mode == "first" and not is_first and os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "True"
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=14 if is_patient else 4))
