# SPDX-License-Identifier: Apache-2.0
"""Reads the output of workers/comm_aborts.py: how long after an abort each rank got the error."""

import statistics

import pytest

TURNS = 11
# The operation that ranks wait in at each turn. They wait for the rank that aborts, or for another one.
in_every_operation = pytest.mark.parametrize("operations", [
    ("all_reduce", "recv", "mixed barrier", "recv_any", "mixed all_reduce_large", "send", "broadcast", "mixed work",
     "all_to_all", "barrier", "all_reduce_large"),
    ("late broadcast", "late recv", "late scatter", "late recv_any", "late work")], ids=["aborting", "another"])


def aborts_told(said, done, turns=TURNS):
    """{rank: [milliseconds from the call of abort to the error, by turn]} of every rank that waited."""
    called_ns = {words["aborts"]: words["at_ns"] for words in said if "aborts" in words}
    assert sorted(called_ns) == list(range(turns)), done
    late_ms = {}
    for words in said:
        if "aborts" not in words:
            assert "told" in words and "enough" in words["text"], (words, done)
            late = (words["at_ns"] - called_ns[words["told"]]) / 1e6
            late_ms.setdefault(words["by"], {})[words["told"]] = late
    assert all(sorted(turns_of) == list(range(turns)) for turns_of in late_ms.values()), done
    return {rank: [late for _, late in sorted(turns_of.items())] for rank, turns_of in late_ms.items()}


def median_of_ranks(late_ms):
    return [statistics.median(turns) for turns in late_ms.values()]


def show(where, late_ms):
    for rank, turns in sorted(late_ms.items()):
        print(f"{where}: rank {rank} got the error after {statistics.median(turns):.2f} ms (median), "
              f"{max(turns):.2f} ms at most: {' '.join(f'{late:.2f}' for late in turns)}")
