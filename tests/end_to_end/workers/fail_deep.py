"""Rank 2 fails with a traceback of several frames; the others wait forever."""

import os
import time


def compute(answer):
    raise ValueError(f"the answer is not {answer}")


def step():
    compute(41)


if os.environ["RANK"] == "2":
    step()
time.sleep(600)
